"""Where a data set's files come from: a folder, or an archive that is not trusted, on disk or read from elsewhere."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, NoReturn, Protocol, runtime_checkable

from audiomarathon.benchmarks.finding import walk
from audiomarathon.data import members
from audiomarathon.data.members import Entry, RefusedError, beyond, normal, vetted
from audiomarathon.errors import DataError, told

_CHUNK = 1 << 20
_SUFFIXES = (".zip", ".tar", ".tar.gz", ".tar.bz2", ".tar.xz", ".7z")
_KINDS = ", ".join(_SUFFIXES)
_SEVEN_ZIP = b"7z\xbc\xaf\x27\x1c"
_DAMAGE = (
    zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, struct.error, ValueError,
    ArithmeticError, LookupError, AssertionError, RuntimeError, MemoryError,
)  # fmt: skip
_COMPRESSED = ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ", lzma.open), (b"]\0\0\x80", lzma.open))

#: Opens an archive's bytes, to be read and sought in.
Opener = Callable[[], AbstractContextManager[Any]]


def from_web(url: str, file: Path, say: Callable[[str], None]) -> Path:
    """Fetch an archive, whole or not at all, and return where it lies; one that is there is not fetched again.

    Raises
    ------
    DataError
        It cannot be had; the message says what to do instead.
    """
    import httpx2

    if file.is_file():
        return file
    partial = file.with_name(f".{file.name}.partial")
    say(f"fetching {url} into {file}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as out, httpx2.stream("GET", url, follow_redirects=True, timeout=60) as response:
            response.raise_for_status()
            for chunk in response.iter_bytes(_CHUNK):
                out.write(chunk)
        partial.replace(file)
    except (httpx2.HTTPError, OSError) as error:
        raise DataError(f"{url}: {told(error)}; fetch it elsewhere and name the copy: --from FOLDER or ZIP") from error
    finally:
        partial.unlink(missing_ok=True)
    return file


class Source(Protocol):
    """Lists files, and brings them one by one as whole files under a staging folder."""

    @property
    def name(self) -> str:
        """What messages call it."""

    def entries(self) -> list[Entry]:
        """Return every file there is; paths are relative, without `..`."""

    def fetch(self, wanted: Sequence[Entry], stage: Path) -> Iterator[tuple[Entry, Path]]:
        """Yield each wanted entry, in any order, with the file that now holds it, which the caller moves away."""


@runtime_checkable
class OpenSource(Source, Protocol):
    """A source whose files can be read where they lie."""

    def opened(self, path: str) -> AbstractContextManager[Any]:
        """Open a file, to be read and sought in."""


def open_source(path: Path) -> Source:
    """Return the folder or archive at a path.

    Raises
    ------
    DataError
        It is neither, or the archive is damaged.
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
        if zipfile.is_zipfile(file):
            return ZipSource(archive, content)
        with _tar(archive, content):
            return TarSource(archive, content)


@contextmanager
def _reading(archive: Path) -> Iterator[None]:
    """Turn what a damaged or hostile archive raises into one line; a full disk keeps its own error."""
    try:
        yield
    except RefusedError as error:
        raise DataError(f"{archive}: refused, nothing was unpacked: {error}") from None
    except _DAMAGE as error:
        raise DataError(f"{archive}: damaged, or not an archive ({told(error)}); allowed: {_KINDS}") from error
    except OSError as error:
        if error.errno is not None and error.filename != str(archive):
            raise
        raise DataError(f"{archive}: damaged, or cannot be read ({told(error)})") from error


@dataclass(frozen=True)
class FolderSource:
    """A folder as it lies; links are followed, since the hub's own cache is made of them."""

    folder: Path

    @property
    def name(self) -> str:
        """The folder's path."""
        return str(self.folder)

    def entries(self) -> list[Entry]:
        """Return the files in it, hidden ones left out, each folder once: links may lead back."""
        found = [folder.path / name for folder in walk(self.folder) for name in sorted(folder.files)]
        top = self.folder.absolute()
        return [Entry(file.relative_to(top).as_posix(), file.stat().st_size) for file in found if file.is_file()]

    def fetch(self, wanted: Sequence[Entry], stage: Path) -> Iterator[tuple[Entry, Path]]:
        """Copy each file."""
        for entry in wanted:
            with (self.folder / entry.path).open("rb") as stream:
                yield entry, copied(stream, entry, stage)

    def opened(self, path: str) -> io.FileIO:
        """Open a file."""
        return io.FileIO(self.folder / path)


@dataclass(frozen=True)
class ZipSource:
    """A zip archive; its checksums are checked as it is read."""

    archive: Path
    content: Opener

    @property
    def name(self) -> str:
        """The archive's path."""
        return str(self.archive)

    def entries(self) -> list[Entry]:
        """Return its files, or refuse it for what one of them is."""
        with _zip(self.archive, self.content) as (opened, file):
            held = opened.infolist()
            found = vetted(
                (
                    member.filename,
                    stat.S_IFDIR if member.is_dir() else stat.S_IFMT(member.external_attr >> 16) or stat.S_IFREG,
                    member.file_size,
                    len(member.extra) + len(member.comment),
                )
                for member in held
            )
            if isinstance(file, io.FileIO):  # from elsewhere it would cost a request a file; `fetch` looks as well
                for member in held:  # no checksum covers the names in the directory; each stands before its file too
                    opened.open(member).close()
            return found

    def fetch(self, wanted: Sequence[Entry], stage: Path) -> Iterator[tuple[Entry, Path]]:
        """Unpack each file."""
        with _zip(self.archive, self.content) as (opened, _file):
            files = {normal(member.filename): member for member in opened.infolist() if not member.is_dir()}
            for entry in wanted:
                with opened.open(files[entry.path]) as stream:
                    yield entry, copied(stream, entry, stage)

    @contextmanager
    def opened(self, path: str) -> Iterator[IO[bytes]]:
        """Open a file; seeking back in a compressed one starts over."""
        with _zip(self.archive, self.content) as (opened, _file):
            names = {normal(member.filename): member for member in opened.infolist()}
            with opened.open(names[path]) as stream:
                yield stream


class _ZipFile(io.BufferedReader):
    """A zip archive whose directory, which is read in one piece, is bounded."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > members.MAX_HEADERS:
            raise RefusedError(beyond(members.MAX_HEADERS, "bytes of headers"))
        return super().read(size)


@contextmanager
def _zip(archive: Path, content: Opener) -> Iterator[tuple[zipfile.ZipFile, Any]]:
    with _reading(archive), content() as file, _ZipFile(file) as bounded, zipfile.ZipFile(bounded) as opened:
        yield opened, file


@dataclass(frozen=True)
class TarSource:
    """A tar archive, compressed or not; read from front to back, never by seeking."""

    archive: Path
    content: Opener

    @property
    def name(self) -> str:
        """The archive's path."""
        return str(self.archive)

    def entries(self) -> list[Entry]:
        """Return its files, or refuse it for what one of them is; its compressed content is checked to the end."""
        with _tar(self.archive, self.content) as (opened, content):
            found = vetted(
                (
                    member.name,
                    stat.S_IFDIR if member.isdir() else stat.S_IFREG if member.isreg() else stat.S_IFLNK,
                    member.size,
                    sum(len(name) + len(value) for name, value in member.pax_headers.items()),
                )
                for member in _members(opened)
            )
            after = 0
            while chunk := content.read(_CHUNK):  # gzip's checksum stands at the very end
                after += len(chunk)
                if after > members.MAX_HEADERS:
                    raise RefusedError(beyond(members.MAX_HEADERS, "bytes after its last member"))
            return found

    def fetch(self, wanted: Sequence[Entry], stage: Path) -> Iterator[tuple[Entry, Path]]:
        """Unpack the wanted files in the archive's order, in one pass."""
        left = {entry.path: entry for entry in wanted}
        with _tar(self.archive, self.content) as (opened, _content):
            for member in _members(opened):
                entry = left.pop(normal(member.name), None) if member.isreg() else None
                if entry is not None and (stream := opened.extractfile(member)) is not None:
                    yield entry, copied(stream, entry, stage)
                if not left:
                    return


class _Header(tarfile.TarInfo):
    """A header of a tar archive; an extended one is bounded before it is read, and sparse files are refused."""

    def _proc_member(self, tar: tarfile.TarFile) -> Any:
        if self.size < 0:
            raise tarfile.ReadError("a negative size")
        if not (self.isreg() or self.isdir()) and self.size > members.MAX_HEADER:
            raise RefusedError(beyond(members.MAX_HEADER, "bytes in one header"))
        return super()._proc_member(tar)  # type: ignore[misc]  # tarfile's own hook for subclasses

    def _refuse_sparse(self, *_: object) -> NoReturn:
        raise RefusedError("holds a sparse file (pack without --sparse)")

    _proc_sparse = _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _refuse_sparse


@contextmanager
def _tar(archive: Path, opener: Opener) -> Iterator[tuple[tarfile.TarFile, IO[bytes]]]:
    """Open a tar archive to be read from front to back, never by seeking, and its unpacked content below it."""
    with _reading(archive), opener() as raw, io.BufferedReader(raw) as file:
        start = file.peek(8)
        unpack = next((unpack for magic, unpack in _COMPRESSED if start.startswith(magic)), None)
        content: Any = unpack(file) if unpack else file
        with tarfile.open(fileobj=content, mode="r|", tarinfo=_Header, bufsize=_CHUNK) as opened:
            yield opened, content


def _members(opened: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    while (member := opened.next()) is not None:
        opened.members.clear()  # type: ignore[attr-defined]  # else every header stays in memory
        yield member


@dataclass(frozen=True)
class SevenZipSource:
    """A 7z archive. Its files are packed in one piece, so those that are wanted are unpacked in one pass."""

    archive: Path
    content: Opener

    @property
    def name(self) -> str:
        """The archive's path."""
        return str(self.archive)

    def entries(self) -> list[Entry]:
        """Return its files, or refuse it for what one of them is."""
        with _seven_zip(self.archive, self.content) as opened:
            kinds = ((one, stat.S_IFDIR if one.is_directory else stat.S_IFREG) for one in opened.list())
            return vetted(
                (one.filename, kind if one.is_directory or one.is_file else stat.S_IFLNK, one.uncompressed, 0)
                for one, kind in kinds
            )

    def fetch(self, wanted: Sequence[Entry], stage: Path) -> Iterator[tuple[Entry, Path]]:
        """Unpack the wanted files, all before the first is yielded; a pass that is cut off starts over."""
        folder = stage / "7z"
        with _seven_zip(self.archive, self.content) as opened:
            names = {normal(name): name for name in opened.getnames()}
            opened.extract(folder, [names[entry.path] for entry in wanted])
        for entry in wanted:
            (file := folder / entry.path).chmod(0o644)
            yield entry, file


@contextmanager
def _seven_zip(archive: Path, content: Opener) -> Iterator[Any]:
    try:
        from py7zr import SevenZipFile, exceptions
    except ImportError:
        raise DataError(f"{archive}: reading .7z needs py7zr: pip install 'audiomarathon[lalm]'") from None
    with _reading(archive), content() as raw, io.BufferedReader(raw) as file:
        try:
            with SevenZipFile(file, max_extract_size=members.MAX_BYTES) as opened:
                yield opened
        except (exceptions.ArchiveError, exceptions.PasswordRequired, exceptions.AbsolutePathError) as error:
            raise ValueError(told(error)) from error


class UnpackedSource:
    """A source in which an archive counts as the files it holds, lying beside it; archives in archives too.

    Parameters
    ----------
    outer
        The source; where its own file and an archive's have one path, its own counts.
    depth
        How many archives deep to look.
    """

    def __init__(self, outer: OpenSource, depth: int = 2) -> None:
        self.outer, self.depth = outer, depth
        self._held: dict[str, tuple[Source, Entry]] = {}

    @property
    def name(self) -> str:
        """The source's name."""
        return self.outer.name

    def entries(self) -> list[Entry]:
        """Return the source's files and those in its archives."""
        found = {entry.path: entry for entry in self.outer.entries()}
        for path in [path for path in found if path.lower().endswith(_SUFFIXES)]:
            archive = _open_archive(Path(self.name, path), partial(self.outer.opened, path))
            if self.depth > 1 and isinstance(archive, OpenSource):
                archive = UnpackedSource(archive, self.depth - 1)
            for inner in archive.entries():
                beside = Entry((Path(path).parent / inner.path).as_posix(), inner.size)
                if found.setdefault(beside.path, beside) is beside:
                    self._held[beside.path] = (archive, inner)
        return list(found.values())

    def fetch(self, wanted: Sequence[Entry], stage: Path) -> Iterator[tuple[Entry, Path]]:
        """Bring the source's own files, then those of each archive."""
        yield from self.outer.fetch([entry for entry in wanted if entry.path not in self._held], stage)
        archives: dict[Source, dict[Entry, Entry]] = {}
        for entry in wanted:
            if entry.path in self._held:
                archive, inner = self._held[entry.path]
                archives.setdefault(archive, {})[inner] = entry
        for archive, entries in archives.items():
            for inner, file in archive.fetch(list(entries), stage):
                yield entries[inner], file


def copied(stream: IO[bytes], entry: Entry, stage: Path) -> Path:
    """Copy a stream into the staging folder; one that is longer or shorter than announced is refused."""
    target = stage / "partial"
    written = 0
    with target.open("wb") as file:
        while chunk := stream.read(_CHUNK):
            written += len(chunk)
            if written > entry.size:
                break
            file.write(chunk)
    if written != entry.size:
        found = "more" if written > entry.size else written
        raise DataError(f"{entry.path}: announced with {entry.size} bytes, it has {found}")
    return target


def free_bytes(place: Path) -> int:
    """Return the free space where a folder lies, or will lie."""
    place = place.absolute()
    return shutil.disk_usage(next(folder for folder in (place, *place.parents) if folder.exists())).free
