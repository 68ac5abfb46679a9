"""Where a data set's files come from on disk: a folder, or an archive that is not trusted."""

from __future__ import annotations

import itertools
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Protocol

from audiomarathon.errors import DataError

MAX_BYTES = 200 * 10**9
"""What an archive may unpack to: three times the benchmark."""

MAX_FILES = 1_000_000
_CHUNK = 1 << 20
_DAMAGE = (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, NotImplementedError, RuntimeError, ValueError)


@dataclass(frozen=True)
class Entry:
    """A file of a source: its path there, its bytes, and its hash where the source knows one.

    `digest` is `sha256:…`, or `git:…` for the SHA-1 of a git blob.
    """

    path: str
    size: int
    digest: str = ""


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
    with reading(path):
        if zipfile.is_zipfile(path):
            return ZipSource(path)
        if tarfile.is_tarfile(path):
            return TarSource(path)
    raise DataError(f"--from {path}: neither a folder nor an archive; allowed: .zip, .tar, .tar.gz, .tar.bz2, .tar.xz")


@contextmanager
def reading(archive: Path) -> Iterator[None]:
    """Turn what a damaged archive raises into one line; a full disk keeps its own error."""
    try:
        yield
    except DataError:
        raise
    except _DAMAGE as error:
        raise DataError(f"{archive}: damaged, or not an archive that can be read ({error})") from error


@dataclass(frozen=True)
class FolderSource:
    """A folder as it lies; links are followed, since the hub's own cache is made of them."""

    folder: Path

    @property
    def name(self) -> str:
        """The folder's path."""
        return str(self.folder)

    def entries(self) -> list[Entry]:
        """Return the files in it, hidden ones left out."""
        found = []
        for place, folders, files in os.walk(self.folder, followlinks=True):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in sorted(name for name in files if not name.startswith(".")):
                path = Path(place) / name
                if path.is_file():
                    found.append(Entry(path.relative_to(self.folder).as_posix(), path.stat().st_size))
        return found

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
        with reading(self.archive), zipfile.ZipFile(self.archive) as opened:
            found = []
            for member in opened.infolist():
                kind = stat.S_IFMT(member.external_attr >> 16)
                if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                    raise _refused(self.archive, member.filename, "is a link or a device")
                _check_name(self.archive, member.filename)
                if not member.is_dir():
                    found.append(Entry(_normal(member.filename), member.file_size))
            return _bounded(self.archive, found)

    def fetch(self, wanted: Sequence[Entry], stage: Path) -> Iterator[tuple[Entry, Path]]:
        """Unpack each file."""
        with reading(self.archive), zipfile.ZipFile(self.archive) as opened:
            members = {_normal(member.filename): member for member in opened.infolist() if not member.is_dir()}
            for entry in wanted:
                with opened.open(members[entry.path]) as stream:
                    yield entry, copied(stream, entry, stage)


@dataclass(frozen=True)
class TarSource:
    """A tar archive, compressed or not; read from front to back, never by seeking."""

    archive: Path

    @property
    def name(self) -> str:
        """The archive's path."""
        return str(self.archive)

    def entries(self) -> list[Entry]:
        """Return its files, or refuse it for what one of them is; a bomb is noticed at its first header too many."""
        with reading(self.archive), tarfile.open(self.archive, "r|*") as opened:
            found: list[Entry] = []
            total = 0
            for member in opened:
                if not (member.isreg() or member.isdir()):
                    raise _refused(self.archive, member.name, "is a link or a device")
                _check_name(self.archive, member.name)
                total += member.size
                if total > MAX_BYTES or len(found) > MAX_FILES:
                    _bounded(self.archive, [Entry(member.name, total)] * (1 + len(found) // MAX_FILES))
                if member.isreg():
                    found.append(Entry(_normal(member.name), member.size))
            return _bounded(self.archive, found)

    def fetch(self, wanted: Sequence[Entry], stage: Path) -> Iterator[tuple[Entry, Path]]:
        """Unpack the wanted files in the archive's order, in one pass."""
        left = {entry.path: entry for entry in wanted}
        with reading(self.archive), tarfile.open(self.archive, "r|*") as opened:
            for member in opened:
                entry = left.pop(_normal(member.name), None) if member.isreg() else None
                if entry is not None and (stream := opened.extractfile(member)) is not None:
                    yield entry, copied(stream, entry, stage)
                if not left:
                    return


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


def _normal(name: str) -> str:
    return PurePosixPath(name).as_posix()  # drops "./" and doubled slashes; ".." was refused


def _check_name(archive: Path, name: str) -> None:
    parts = name.split("/")
    if name.startswith("/") or ".." in parts or "\\" in name or "\0" in name or parts[0].endswith(":"):
        raise _refused(archive, name, "would leave the folder it is unpacked into")


def _refused(archive: Path, name: str, why: str) -> DataError:
    return DataError(f"{archive}: refused, nothing was unpacked: {name!r} {why} (links: pack with tar --dereference)")


def _bounded(archive: Path, entries: list[Entry]) -> list[Entry]:
    total = sum(entry.size for entry in entries)
    if total > MAX_BYTES or len(entries) > MAX_FILES:
        raise DataError(
            f"{archive}: refused, nothing was unpacked: {len(entries):,} files of {total / 1e9:.0f} GB or more; "
            f"allowed: {MAX_FILES:,} files, {MAX_BYTES / 1e9:.0f} GB"
        )
    if len({entry.path for entry in entries}) < len(entries):
        twice = sorted(entry.path for entry in entries)
        name = next(one for one, other in itertools.pairwise(twice) if one == other)
        raise DataError(f"{archive}: refused, nothing was unpacked: {name!r} is in it twice")
    return entries


def free_bytes(place: Path) -> int:
    """Return the free space where a folder lies, or will lie."""
    place = place.absolute()
    return shutil.disk_usage(next(folder for folder in (place, *place.parents) if folder.exists())).free
