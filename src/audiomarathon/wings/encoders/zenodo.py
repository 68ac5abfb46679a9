"""Download X-ARES' data from Zenodo, file by file; downloads can be resumed, and are checked by MD5."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

from audiomarathon.benchmarks.shards import check_shards
from audiomarathon.data.archive import Source, check_space, is_there, open_source
from audiomarathon.data.archive_rules import Entry
from audiomarathon.data.download import bring
from audiomarathon.errors import DataError, MissingDataError, told
from audiomarathon.lock import holding
from audiomarathon.wings.encoders.xares.task import EncoderTask, tars_of

BASE = "AUDIOMARATHON_ZENODO"
READY = ".audio_tar_ready"  # X-ARES creates this file in a folder whose tars are complete
_AT_ONCE = 2
_BUSY = "another download is running there"
_TRIES = 5
_LONGEST_WAIT_S = 300.0


class Record:
    """A Zenodo record (a published set of files) as a source of downloads.

    The record is read from Zenodo, or from the server in AUDIOMARATHON_ZENODO.

    Raises
    ------
    DataError
        The request fails, or the answer is not a record.
    """

    def __init__(self, number: str) -> None:
        import httpx2

        self.name = f"{os.environ.get(BASE, 'https://zenodo.org').rstrip('/')}/api/records/{number}"
        try:
            with _answer(self.name, {}) as answer:
                answer.read()
                content = answer.json()
            self._urls = {str(file["key"]): str(file["links"]["self"]) for file in content["files"]}
            self._entries = [
                Entry(str(file["key"]), int(file["size"]), f"md5:{file['checksum'].removeprefix('md5:')}")
                for file in content["files"]
            ]
            licence = (content.get("metadata") or {}).get("license") or {}
        except httpx2.TransportError as error:
            advice = "download it by hand, then pass --from FOLDER (or the ZIP)"
            raise DataError(f"{self.name}: {told(error)}; {advice}") from error
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise DataError(f"{self.name}: is not a Zenodo record ({told(error)})") from error
        for entry in self._entries:
            if entry.path.startswith(".") or {"/", "\\", "\0"} & {*entry.path}:
                raise DataError(f"{self.name}: {entry.path!r} is not allowed as a file's name")
        self.licence = str(licence.get("id", "not stated") if isinstance(licence, dict) else licence)
        self.size = sum(entry.size for entry in self._entries)

    def entries(self) -> list[Entry]:
        """Return a list with an :class:`Entry` (path, size and MD5) for each file of the Zenodo record."""
        return self._entries

    def fetch(self, wanted: Sequence[Entry], stage: Path) -> Iterator[tuple[Entry, Path]]:
        """Download the wanted files into the folder `stage`, several at once; yield (entry, path of its copy)."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            yield from zip(wanted, pool.map(partial(self._one, stage=stage), wanted), strict=True)

    def _one(self, entry: Entry, stage: Path) -> Path:
        """Download one file of the record into the folder `stage`, and return the path of the copy.

        After a lost connection or an interrupted run, continue from the bytes already there.
        """
        import httpx2

        url, part = self._urls[entry.path], stage / f".{entry.path}.partial"
        for tries_left in reversed(range(_TRIES)):
            have = part.stat().st_size if part.exists() else 0
            if have == entry.size and part.exists():
                break
            have = 0 if have > entry.size else have
            try:
                with _answer(url, {"Range": f"bytes={have}-"} if have else {}) as answer:
                    # A server that ignores the range sends the whole file.
                    resumed = answer.headers.get("Content-Range", "").startswith(f"bytes {have}-")
                    written = have if have and resumed else 0
                    with part.open("ab" if written else "wb") as out:
                        for chunk in answer.iter_raw():
                            written += out.write(chunk)
                            if written > entry.size:
                                part.unlink()
                                raise DataError(f"{url}: sends more than the {entry.size:,} bytes that Zenodo states")
            except httpx2.TransportError as error:
                if not tries_left:
                    raise DataError(f"{url}: {told(error)}; run the same command again to continue") from error
        return part


def plan(task: EncoderTask) -> Record:
    """Return the Zenodo record that holds a task's data.

    Raises
    ------
    DataError
        The task has no Zenodo record.
    """
    if not task.zenodo:
        why = "its data is private" if task.private else "it has no zenodo_id"
        advice = "if you have its tars, name only this task and add --from FOLDER"
        raise DataError(f"{task.name} cannot be downloaded: {why}; {advice}")
    return Record(task.zenodo)


def fetch(task: EncoderTask, root: Path, say: Callable[[str], None] = lambda _line: None) -> None:
    """Download a task's files to `<root>/<name>`; existing files stay, partial files are resumed.

    Raises
    ------
    DataError
        A download fails, an MD5 is wrong, the disk is too small, or another download is running. Finished files stay,
        and the same call continues.
    """
    folder = root / task.name
    with holding(folder / ".lock", _BUSY):
        if (folder / READY).is_file() and not task.missing(folder):
            say(f"{folder} is complete; nothing to download")
            return
        (folder / READY).unlink(missing_ok=True)
        source = plan(task)
        say(
            f"{task.name}: {len(source.entries())} files, {source.size / 1e9:.2f} GB, into {folder}; "
            "finished files stay"
        )
        _copy(source, source.entries(), folder, folder)
        zips = [folder / entry.path for entry in source.entries() if entry.path.endswith(".zip")]
        for archive in zips:
            _unpack(task, open_source(archive), folder)
        _finish(task, folder, source.name)
        for archive in zips:
            archive.unlink()


def from_folder(task: EncoderTask, source: Path, root: Path) -> None:
    """Copy a task's tars to `<root>/<name>`, from a folder or from an archive downloaded by hand.

    The folder can be X-ARES' `env`.

    Raises
    ------
    DataError
        Tars are missing, or the archive is damaged.
    """
    folder = root / task.name
    task_folder = source / task.name
    place = task_folder if task_folder.is_dir() else source
    with holding(folder / ".lock", _BUSY):
        unpacked = _unpack(task, open_source(place), folder)
        for archive in sorted(place.glob("*.zip")) if place.is_dir() and not unpacked else ():
            _unpack(task, open_source(archive), folder)
        _finish(task, folder, str(place))


def _unpack(task: EncoderTask, source: Source, folder: Path) -> int:
    """Copy a task's tars from a source (a folder or an archive) into a folder; return how many tars the source has."""
    names = (*task.globs.values(), *task.mini.values())
    wanted = [entry for entry in source.entries() if any(fnmatch(Path(entry.path).name, name) for name in names)]
    (stage := folder / ".unpack").mkdir(exist_ok=True)
    _copy(source, wanted, folder, stage)
    shutil.rmtree(stage)
    return len(wanted)


def _copy(source: Source, wanted: Sequence[Entry], folder: Path, stage: Path) -> None:
    """Copy the wanted files of a source into a folder, each wholly or not at all; existing files stay.

    `stage` is a folder for unfinished files.
    """
    left = [entry for entry in wanted if not is_there(folder / Path(entry.path).name, entry.size)]
    check_space(folder, sum(entry.size for entry in left))
    bring(source, left, stage, lambda entry: folder / Path(entry.path).name)


def _finish(task: EncoderTask, folder: Path, source: str) -> None:
    if missing := task.missing(folder):
        raise MissingDataError(f"{source}: has no {', '.join(missing)} of {task.name}")
    check_shards(tar for glob in {*task.globs.values()} for tar in tars_of(folder, glob))
    (folder / READY).touch()


@contextmanager
def _answer(url: str, headers: dict[str, str]) -> Iterator[Any]:
    """Request a URL and yield the HTTP response; on status 429, wait as the server asks and try again."""
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
            advice = "download it by hand, then pass --from FOLDER (or the ZIP)"
            raise DataError(f"{url}: {told(error)}; {advice}") from error
        time.sleep(min(_LONGEST_WAIT_S, float(asked) if asked.isdecimal() else 60.0))
