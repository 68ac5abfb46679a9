"""Download X-ARES' data from Zenodo, file by file: resumable, and checked by MD5."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

from audiomarathon.benchmarks.xares.task import EncoderTask
from audiomarathon.data.archive import Source, check_space, is_there, open_source
from audiomarathon.errors import DataError, MissingDataError, told
from audiomarathon.lock import holding

BASE = "AUDIOMARATHON_ZENODO"
READY = ".audio_tar_ready"  # X-ARES' flag
_AT_ONCE = 2
_TRIES = 5
_LONGEST_WAIT_S = 300.0


@dataclass(frozen=True)
class File:
    """A file of a record; `md5` is in hexadecimal."""

    name: str
    size: int
    md5: str
    url: str


@dataclass(frozen=True)
class Record:
    """A Zenodo record: its files and its licence."""

    files: tuple[File, ...]
    licence: str

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


def record(number: str) -> Record:
    """Return a record from Zenodo, or from the server in AUDIOMARATHON_ZENODO.

    Raises
    ------
    DataError
        The request fails, or the answer is not a record.
    """
    import httpx2

    url = f"{os.environ.get(BASE, 'https://zenodo.org').rstrip('/')}/api/records/{number}"
    try:
        with _answer(url, {}) as answer:
            answer.read()
            content = answer.json()
        files = tuple(
            File(str(one["key"]), int(one["size"]), one["checksum"].removeprefix("md5:"), str(one["links"]["self"]))
            for one in content["files"]
        )
        licence = (content.get("metadata") or {}).get("license") or {}
    except httpx2.TransportError as error:
        raise DataError(f"{url}: {told(error)}; download it by hand: --from FOLDER or ZIP") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(f"{url}: is not a Zenodo record ({told(error)})") from error
    for file in files:
        if file.name.startswith(".") or {"/", "\\", "\0"} & {*file.name}:
            raise DataError(f"{url}: {file.name!r} is not allowed as a file's name")
    return Record(files, str(licence.get("id", "not stated") if isinstance(licence, dict) else licence))


def plan(task: EncoderTask) -> Record:
    """Return the record of a task's data.

    Raises
    ------
    DataError
        The task has none.
    """
    if not task.zenodo:
        raise DataError(f"{task.name}: private: no data" if task.private else f"{task.name}: has no zenodo_id")
    return record(task.zenodo)


def fetch(task: EncoderTask, root: Path, say: Callable[[str], None] = lambda _line: None) -> None:
    """Download a task's files to `<root>/<name>`; existing files stay, partial files are resumed.

    Raises
    ------
    DataError
        A download fails, an MD5 is wrong, the disk is too small, or another download is running. Finished files stay,
        and the same call continues.
    """
    folder = root / task.name
    with _held(folder):
        if (folder / READY).is_file() and not task.missing(folder):
            say(f"{folder}: is complete; nothing to download")
            return
        (folder / READY).unlink(missing_ok=True)
        found = plan(task)
        left = [file for file in found.files if not is_there(folder / file.name, file.size)]
        needed = sum(file.size for file in left)
        say(f"{task.name}: {len(left)} of {len(found.files)} files to download, {needed / 1e9:.2f} GB, into {folder}")
        check_space(folder, needed)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for file, _ in zip(left, pool.map(partial(_bring, folder=folder), left), strict=True):
                say(f"{task.name}: {file.name} is complete")
        zips = [folder / file.name for file in found.files if file.name.endswith(".zip")]
        for archive in zips:
            _unpack(task, open_source(archive), folder)
        _finish(task, folder, f"record {task.zenodo}")
        for archive in zips:
            archive.unlink()


def from_folder(task: EncoderTask, source: Path, root: Path) -> None:
    """Copy a task's tars from a folder (such as X-ARES' env) or from an archive downloaded by hand.

    Raises
    ------
    DataError
        Tars are missing, or the archive is damaged.
    """
    folder = root / task.name
    own = source / task.name
    place = own if own.is_dir() else source
    with _held(folder):
        found = _unpack(task, open_source(place), folder)
        for archive in sorted(place.glob("*.zip")) if place.is_dir() and not found else ():
            _unpack(task, open_source(archive), folder)
        _finish(task, folder, str(place))


def _unpack(task: EncoderTask, source: Source, folder: Path) -> int:
    """Copy a task's tars from a source, each whole or not at all; return how many it has."""
    names = (*task.globs.values(), *task.mini.values())
    wanted = [one for one in source.entries() if any(fnmatch(Path(one.path).name, name) for name in names)]
    left = [one for one in wanted if not is_there(folder / Path(one.path).name, one.size)]
    check_space(folder, sum(one.size for one in left))
    shutil.rmtree(stage := folder / ".unpack", ignore_errors=True)
    stage.mkdir()
    for entry, file in source.fetch(left, stage):
        file.replace(folder / Path(entry.path).name)
    shutil.rmtree(stage)
    return len(wanted)


def _finish(task: EncoderTask, folder: Path, source: str) -> None:
    if missing := task.missing(folder):
        raise MissingDataError(f"{source}: has no {', '.join(missing)} of {task.name}")
    (folder / READY).touch()


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    with holding(folder / ".lock", "another download is running there"):
        try:
            yield
        except OSError as error:
            where = error.filename or folder
            raise DataError(f"{where}: {error.strerror or error}; run the same command again to continue") from error


def _bring(file: File, folder: Path) -> None:
    """Download a file under a temporary name, resume it after lost connections, check its MD5, and rename it."""
    import httpx2

    part = folder / f".{file.name}.partial"
    for tries_left in reversed(range(_TRIES)):
        have = part.stat().st_size if part.exists() else 0
        if have == file.size and part.exists():
            break
        have = 0 if have > file.size else have
        try:
            with _answer(file.url, {"Range": f"bytes={have}-"} if have else {}) as answer:
                # A server that ignores the range sends the whole file.
                resumed = answer.headers.get("Content-Range", "").startswith(f"bytes {have}-")
                with part.open("ab" if have and resumed else "wb") as out:
                    for chunk in answer.iter_raw():
                        out.write(chunk)
        except httpx2.TransportError as error:
            if not tries_left:
                raise DataError(f"{file.url}: {told(error)}; run the same command again to continue") from error
    with part.open("rb") as stream:
        found = hashlib.file_digest(stream, "md5").hexdigest()
    if found != file.md5:
        part.unlink()
        raise DataError(f"{file.url}: arrived damaged (MD5 {found}, must be {file.md5}); run the same command again")
    part.replace(folder / file.name)


@contextmanager
def _answer(url: str, headers: dict[str, str]) -> Iterator[Any]:
    """Open an answer for reading; after 429, wait as long as the server asks, a limited number of times."""
    import httpx2

    for tries_left in reversed(range(_TRIES)):
        try:
            with httpx2.stream(
                "GET", url, headers={"Accept-Encoding": "identity"} | headers, follow_redirects=True, timeout=60
            ) as answer:
                if answer.status_code != 429 or not tries_left:
                    answer.raise_for_status()
                    yield answer
                    return
                asked = answer.headers.get("Retry-After", "")
        except httpx2.TransportError:
            raise  # the caller may try again
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise DataError(f"{url}: {told(error)}; download it by hand: --from FOLDER or ZIP") from error
        time.sleep(min(_LONGEST_WAIT_S, float(asked) if asked.isdecimal() else 60.0))
