"""Read a data set's files from a folder or from an untrusted archive, on disk or on the hub."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import shutil
import stat
import tarfile
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, Protocol, runtime_checkable

from audiomarathon import untrusted
from audiomarathon.benchmarks.locate import walk
from audiomarathon.data import archive_rules
from audiomarathon.data.archive_rules import Entry, Member, normal, vetted
from audiomarathon.errors import DataError, told
from audiomarathon.untrusted import DAMAGE, RefusedError, TarHeader, ZipStream, beyond

SPARE_BYTES = 200 * 2**20
_CHUNK = 1 << 20
_SUFFIXES = (".zip", ".tar", ".tar.gz", ".tar.bz2", ".tar.xz", ".7z")
_KINDS = ", ".join(_SUFFIXES)
_SEVEN_ZIP = b"7z\xbc\xaf\x27\x1c"
_COMPRESSED = ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ", lzma.open), (b"]\0\0\x80", lzma.open))

#: Function that opens an archive as a seekable stream.
Opener = Callable[[], AbstractContextManager[Any]]


def from_web(url: str, file: Path, say: Callable[[str], None]) -> Path:
    """Download an archive to the path `file`, unless the file exists; return the path.

    A failed download leaves no file.

    Raises
    ------
    DataError
        The download fails; the message says what to do instead.
    """
    import httpx2

    if file.is_file():
        return file
    partial = file.with_name(f".{file.name}.partial")
    say(f"downloading {url} to {file}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as out, httpx2.stream("GET", url, follow_redirects=True, timeout=60) as response:
            response.raise_for_status()
            for chunk in response.iter_bytes(_CHUNK):
                out.write(chunk)
        partial.replace(file)
    except (httpx2.HTTPError, OSError) as error:
        raise DataError(f"{url}: {told(error)}; download it by hand, then pass --from FOLDER (or the ZIP)") from error
    finally:
        partial.unlink(missing_ok=True)
    return file


class Source(Protocol):
    """A folder, archive or repository of data: it lists its files, and copies them one by one into a staging folder."""

    @property
    def name(self) -> str:
        """Name of the source, for messages."""

    def entries(self) -> list[Entry]:
        """Return all files of the source, each as an entry (relative path without `..`, size, hash if known)."""

    def fetch(self, wanted: Sequence[Entry], stage: Path) -> Iterator[tuple[Entry, Path]]:
        """Copy files into the folder `stage`: yield each wanted entry with the path of its copy, in any order.

        The caller moves the copy away.
        """


@runtime_checkable
class OpenSource(Source, Protocol):
    """A source whose files can be read where they are, without a copy."""

    def opened(self, path: str) -> AbstractContextManager[Any]:
        """Open a file of the source, given by its path, as a seekable stream."""


def open_source(path: Path) -> Source:
    """Make a source from the folder or archive at a path.

    Raises
    ------
    DataError
        There is no folder or file at the path, or the archive is damaged.
    """
    if path.is_dir():
        return FolderSource(path)
    if not path.is_file():
        raise DataError(f"--from {path}: no such folder or archive")
    return _open_archive(path, partial(io.FileIO, path))


def _open_archive(archive: Path, content: Opener) -> Source:
    with _reading(archive), content() as file:
        if file.read(len(_SEVEN_ZIP)) == _SEVEN_ZIP:
            return SevenZipSource(archive, content)
        return (ZipSource if zipfile.is_zipfile(file) else TarSource)(archive, content)


@contextmanager
def _reading(archive: Path) -> Iterator[None]:
    """Inside the block, turn errors of a damaged or hostile archive into a :class:`DataError` that names the archive.

    Other errors, such as a full disk, pass.
    """
    try:
        yield
    except RefusedError as error:
        raise DataError(f"{archive}: refused, nothing was unpacked: {error}") from None
    except DAMAGE as error:
        raise DataError(f"{archive}: damaged, or not an archive ({told(error)}); allowed: {_KINDS}") from error
    except OSError as error:
        if error.errno is not None and error.filename != str(archive):
            raise
        raise DataError(f"{archive}: damaged, or cannot be read ({told(error)})") from error


class FolderSource:
    """A folder as a source of files. Links are followed, because the hub's cache consists of them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, str(folder)

    def entries(self) -> list[Entry]:
        """Return the folder's files, without hidden ones. Each folder is read once, since links may lead back to it."""
        files = [folder.path / name for folder in walk(self.folder) for name in sorted(folder.files)]
        top = self.folder.absolute()
        return [Entry(file.relative_to(top).as_posix(), file.stat().st_size) for file in files if file.is_file()]

    def fetch(self, wanted: Sequence[Entry], stage: Path) -> Iterator[tuple[Entry, Path]]:
        """Copy the wanted files into the folder `stage`; yield each entry with the path of its copy."""
        for entry in wanted:
            with (self.folder / entry.path).open("rb") as stream:
                yield entry, copied(stream, entry, stage)

    def opened(self, path: str) -> io.FileIO:
        """Open a file of the folder, given by its relative path, as a seekable stream."""
        return io.FileIO(self.folder / path)


class ArchiveSource(ABC):
    """An archive as a source of files; its members are read in the order in which it stores them."""

    def __init__(self, archive: Path, content: Opener) -> None:
        self.archive, self.content, self.name = archive, content, str(archive)

    @abstractmethod
    def members(self, raw: Any) -> Generator[Member]:
        """Yield the members of the archive in the stream `raw`; at the end, raise an error if it is damaged."""

    @contextmanager
    def read(self) -> Iterator[Iterator[Member]]:
        """Open the archive, and yield an iterator over its members."""
        with _reading(self.archive), self.content() as raw, closing(self.members(raw)) as members:
            yield members

    def entries(self) -> list[Entry]:
        """Return the archive's files; raise an error if a member may not be unpacked (:func:`vetted`)."""
        with self.read() as members:
            return vetted(members)

    def fetch(self, wanted: Sequence[Entry], stage: Path) -> Iterator[tuple[Entry, Path]]:
        """Unpack the wanted files into `stage` in one pass; yield each entry with the path of its copy."""
        left = {entry.path: entry for entry in wanted}
        with self.read() as members:
            for member in members if left else ():
                entry = left.pop(normal(member.name), None) if member.kind == stat.S_IFREG else None
                if entry is not None:
                    with member.open() as stream:
                        yield entry, copied(stream, entry, stage)
                if not left:
                    return


class ZipSource(ArchiveSource):
    """A zip archive; checksums are verified while reading."""

    def members(self, raw: Any) -> Generator[Member]:
        """Yield the archive's members, which may be opened in any order."""
        with ZipStream(raw) as bounded, zipfile.ZipFile(bounded) as opened:
            for info in opened.infolist():
                kind = stat.S_IFDIR if info.is_dir() else stat.S_IFMT(info.external_attr >> 16) or stat.S_IFREG
                headers = len(info.extra) + len(info.comment)
                yield Member(info.filename, kind, info.file_size, headers, partial(opened.open, info))
            if type(raw) is io.FileIO:  # other streams need a request or pass per file; `fetch` checks too
                for info in opened.infolist():  # opening compares names: the directory has no checksum
                    opened.open(info).close()

    @contextmanager
    def opened(self, path: str) -> Iterator[IO[bytes]]:
        """Open a member of the archive, given by its path, as a seekable stream.

        Seeking back in a compressed member decompresses it again from its start.
        """
        with self.read() as members, next(member for member in members if normal(member.name) == path).open() as stream:
            yield stream


class TarSource(ArchiveSource):
    """A tar archive, compressed or not, read from front to back without seeking."""

    def members(self, raw: Any) -> Generator[Member]:
        """Yield the archive's members; each must be opened before the next is requested.

        Compressed data is checked to its end.
        """
        with io.BufferedReader(raw) as file:
            start = file.peek(8)
            unpack = next((unpack for magic, unpack in _COMPRESSED if start.startswith(magic)), None)
            content: Any = unpack(file) if unpack else file
            with tarfile.open(fileobj=content, mode="r|", tarinfo=TarHeader, bufsize=_CHUNK) as opened:
                while (info := opened.next()) is not None:
                    opened.members.clear()  # type: ignore[attr-defined]  # otherwise all headers stay in memory
                    kind = stat.S_IFDIR if info.isdir() else stat.S_IFREG if info.isreg() else stat.S_IFLNK
                    headers = sum(len(name) + len(value) for name, value in info.pax_headers.items())
                    yield Member(info.name, kind, info.size, headers, partial(opened.extractfile, info))
                after = 0
                while chunk := content.read(_CHUNK):  # read to the end, where gzip's checksum is
                    after += len(chunk)
                    if after > untrusted.MAX_HEADERS:
                        raise RefusedError(beyond(untrusted.MAX_HEADERS, "bytes after the last member"))


class SevenZipSource(ArchiveSource):
    """A 7z archive, which compresses many files together; so all wanted files are unpacked in one pass."""

    def members(self, raw: Any) -> Generator[Member]:
        """Yield the archive's members. They cannot be opened; only :meth:`fetch` can unpack them."""
        with self._unpacker(raw) as opened:
            for info in opened.list():
                kind = stat.S_IFDIR if info.is_directory else stat.S_IFREG if info.is_file else stat.S_IFLNK
                yield Member(info.filename, kind, info.uncompressed)

    def fetch(self, wanted: Sequence[Entry], stage: Path) -> Iterator[tuple[Entry, Path]]:
        """Unpack all wanted files into `stage`, then yield each entry with the path of its copy.

        An interrupted pass starts over.
        """
        folder = stage / "7z"
        with _reading(self.archive), self.content() as raw, self._unpacker(raw) as opened:
            names = {normal(name): name for name in opened.getnames()}
            opened.extract(folder, [names[entry.path] for entry in wanted])
        for entry in wanted:
            (file := folder / entry.path).chmod(0o644)
            yield entry, file

    @contextmanager
    def _unpacker(self, raw: Any) -> Iterator[Any]:
        try:
            from py7zr import SevenZipFile, exceptions
        except ImportError:
            raise DataError(f"{self.archive}: reading .7z needs py7zr: pip install 'audiomarathon[lalm]'") from None
        try:
            with io.BufferedReader(raw) as file, SevenZipFile(file, max_extract_size=archive_rules.MAX_BYTES) as opened:
                yield opened
        except (exceptions.ArchiveError, exceptions.PasswordRequired, exceptions.AbsolutePathError) as error:
            raise ValueError(told(error)) from error


class UnpackedSource:
    """A source that also lists the files inside its archives, and inside archives in these.

    Parameters
    ----------
    outer
        The source with the archives. If a file of the source and one inside an archive have the same path, the source's
        file is used.
    depth
        Levels of nested archives to open.
    """

    def __init__(self, outer: OpenSource, depth: int = 2) -> None:
        self.outer, self.depth = outer, depth
        self._held: dict[str, tuple[Source, Entry]] = {}

    @property
    def name(self) -> str:
        """Name of the outer source, for messages."""
        return self.outer.name

    def entries(self) -> list[Entry]:
        """Return the outer source's files, and the files inside its archives."""
        entries = {entry.path: entry for entry in self.outer.entries()}
        for path in [path for path in entries if path.lower().endswith(_SUFFIXES)]:
            archive = _open_archive(Path(self.name, path), partial(self.outer.opened, path))
            if self.depth > 1 and isinstance(archive, OpenSource):
                archive = UnpackedSource(archive, self.depth - 1)
            for inner in archive.entries():
                beside = Entry((Path(path).parent / inner.path).as_posix(), inner.size)
                if entries.setdefault(beside.path, beside) is beside:
                    self._held[beside.path] = (archive, inner)
        return list(entries.values())

    def fetch(self, wanted: Sequence[Entry], stage: Path) -> Iterator[tuple[Entry, Path]]:
        """Copy wanted files into `stage`, those outside archives first; yield each entry with the path of its copy."""
        yield from self.outer.fetch([entry for entry in wanted if entry.path not in self._held], stage)
        held = {entry: self._held[entry.path] for entry in wanted if entry.path in self._held}
        for archive in dict.fromkeys(archive for archive, _ in held.values()):
            entries = {inner: entry for entry, (place, inner) in held.items() if place is archive}
            for inner, file in archive.fetch(list(entries), stage):
                yield entries[inner], file


def copied(stream: IO[bytes], entry: Entry, stage: Path) -> Path:
    """Copy a stream to a file in the staging folder (for unfinished files); return the file.

    Raise DataError if the copy's size is not the entry's.
    """
    target = stage / "partial"
    written = 0
    with target.open("wb") as file:
        while chunk := stream.read(_CHUNK):
            written += len(chunk)
            if written > entry.size:
                break
            file.write(chunk)
    if written != entry.size:
        size = "more" if written > entry.size else written
        raise DataError(f"{entry.path}: expected {entry.size} bytes, found {size}; damaged or changed, get it again")
    return target


def check_space(folder: Path, needed: int) -> int:
    """Check that a folder's disk has room for `needed` bytes and a reserve; return its number of free bytes.

    The folder need not exist yet.

    Raises
    ------
    DataError
        The disk has too little room.
    """
    place = folder.absolute()
    free = shutil.disk_usage(next(above for above in (place, *place.parents) if above.exists())).free
    if needed + SPARE_BYTES > free:
        raise DataError(
            f"{folder}: {needed / 1e9:.2f} GB needed, {free / 1e9:.2f} GB free; free some space, or choose another "
            "folder or fewer samples"
        )
    return free


def is_there(file: Path, size: int) -> bool:
    """Tell whether a file exists and has this size.

    Such a file is complete, because files are written under another name, and renamed only after a check.
    """
    return file.is_file() and file.stat().st_size == size
