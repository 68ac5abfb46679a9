"""Where a data set's files come from on disk: a folder, or an archive that is not trusted."""

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
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn, Protocol

from audiomarathon.benchmarks.finding import walk
from audiomarathon.data import members
from audiomarathon.data.members import Entry, RefusedError, beyond, normal, vetted
from audiomarathon.errors import DataError, told

_CHUNK = 1 << 20
_KINDS = ".zip, .tar, .tar.gz, .tar.bz2, .tar.xz"
_DAMAGE = (
    zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, struct.error, ValueError,
    ArithmeticError, LookupError, AssertionError, RuntimeError, MemoryError,
)  # fmt: skip
_COMPRESSED = ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ", lzma.open), (b"]\0\0\x80", lzma.open))


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
    with _reading(path):
        if zipfile.is_zipfile(path):
            return ZipSource(path)
        with _tar(path):
            return TarSource(path)


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


@dataclass(frozen=True)
class ZipSource:
    """A zip archive; its checksums are checked as it is read."""

    archive: Path

    @property
    def name(self) -> str:
        """The archive's path."""
        return str(self.archive)

    def entries(self) -> list[Entry]:
        """Return its files, or refuse it for what one of them is."""
        with _zip(self.archive) as opened:
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
            for member in held:  # no checksum covers the names in the directory; each stands before its file too
                opened.open(member).close()
            return found

    def fetch(self, wanted: Sequence[Entry], stage: Path) -> Iterator[tuple[Entry, Path]]:
        """Unpack each file."""
        with _zip(self.archive) as opened:
            files = {normal(member.filename): member for member in opened.infolist() if not member.is_dir()}
            for entry in wanted:
                with opened.open(files[entry.path]) as stream:
                    yield entry, copied(stream, entry, stage)


class _ZipFile(io.BufferedReader):
    """A zip archive whose directory, which is read in one piece, is bounded."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > members.MAX_HEADERS:
            raise RefusedError(beyond(members.MAX_HEADERS, "bytes of headers"))
        return super().read(size)


@contextmanager
def _zip(archive: Path) -> Iterator[zipfile.ZipFile]:
    with _reading(archive), _ZipFile(io.FileIO(archive)) as file, zipfile.ZipFile(file) as opened:
        yield opened


@dataclass(frozen=True)
class TarSource:
    """A tar archive, compressed or not; read from front to back, never by seeking."""

    archive: Path

    @property
    def name(self) -> str:
        """The archive's path."""
        return str(self.archive)

    def entries(self) -> list[Entry]:
        """Return its files, or refuse it for what one of them is; its compressed content is checked to the end."""
        with _tar(self.archive) as (opened, content):
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
        with _tar(self.archive) as (opened, _content):
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
def _tar(archive: Path) -> Iterator[tuple[tarfile.TarFile, IO[bytes]]]:
    """Open a tar archive to be read from front to back, never by seeking, and its unpacked content below it."""
    with _reading(archive), archive.open("rb") as file:
        start = file.peek(8)
        unpack = next((unpack for magic, unpack in _COMPRESSED if start.startswith(magic)), None)
        content: Any = unpack(file) if unpack else file
        with tarfile.open(fileobj=content, mode="r|", tarinfo=_Header, bufsize=_CHUNK) as opened:
            yield opened, content


def _members(opened: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    while (member := opened.next()) is not None:
        opened.members.clear()  # type: ignore[attr-defined]  # else every header stays in memory
        yield member


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
