"""An output folder that is built clip by clip: what it was built with, what is in it, what was left out.

`build.json` holds the settings, `manifest.jsonl` a row a clip, `left_out.jsonl` a row a source that is in no clip. The
manifest is also the log: a row is appended once its clip has its name, so that a killed build continues from it. At the
end both are put in order, so that a build that was killed ends with the same bytes as one that was not.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import IO, Any

from audiomarathon.errors import DataError
from audiomarathon.files import append_line, json_line, json_object, write_json, write_lines
from audiomarathon.lock import hold

SETTINGS_FILE = "build.json"
MANIFEST_FILE = "manifest.jsonl"
LEFT_OUT_FILE = "left_out.jsonl"
_LOCK_FILE = ".lock"

Row = dict[str, Any]


class Ledger:
    """The books of one output folder. Only where rows lie in the manifest is held in memory, not the rows.

    Parameters
    ----------
    folder
        The output folder; made if need be.
    settings
        What decides the clips' bytes; a folder built with other settings is refused.
    limit
        How many clips are asked for (0: all); a folder may grow, not shrink.

    Raises
    ------
    DataError
        The folder holds something else, was built with other settings, or is being built by another process.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], limit: int = 0) -> None:
        self.folder = folder
        self._mutex = Lock()
        self._open_folder()
        try:
            self._check_settings(dict(settings), limit)
        except DataError:
            self._lock.close()
            raise
        self._rows: dict[str, int] = {}  # where in the manifest a clip's row begins
        self._mentioned: set[str] = set()
        self._known_bad: dict[str, Row] = {row["path"]: row for row in _fixed_rows(folder / LEFT_OUT_FILE)}
        write_lines(folder / LEFT_OUT_FILE, self._known_bad.values())
        self._left_out: list[Row] = []
        self._log = self._open_log()
        #: Clips that were written since the folder was opened.
        self.added = 0

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self._log.close()
        self._lock.close()

    def bad(self, source: str, size: int) -> str:
        """Return why an earlier run left out this source, or "" where it did not or the file has changed."""
        row = self._known_bad.get(source)
        return str(row["reason"]) if row and row["bytes"] == size else ""

    def leave_out(self, source: str, reason: str, *, fixed: bool = False, size: int | None = None) -> None:
        """Note a source that is in no clip; a `fixed` one is not tried again while its size stays the same."""
        row = {"path": source, "reason": reason, "bytes": size, "fixed": fixed}
        with self._mutex:
            self._left_out.append(row)
            if fixed and self._known_bad.get(source) != row:
                self._known_bad[source] = row
                append_line(self.folder / LEFT_OUT_FILE, row)

    def finished(self, path: str, agrees: Callable[[Row], bool]) -> bool:
        """Whether a clip is there as planned: its row agrees, its size and hash are the row's."""
        with self._mutex:
            row = self._row(path)
        if row is None or not agrees(row) or not _is_as_said(self.folder / path, row):
            return False
        with self._mutex:
            self._mentioned.add(path)
        return True

    def add(self, path: str, partial: Path, row: Row) -> None:
        """Give a written clip its name and note its row."""
        row = {"path": path, **row, "bytes": partial.stat().st_size, "sha256": _sha256(partial)}
        partial.replace(self.folder / path)
        with self._mutex:
            self._mentioned.add(path)
            self._rows[path] = self._log.seek(0, os.SEEK_END)
            self._log.write(json_line(row))
            self._log.flush()
            self.added += 1

    def partial(self, path: str) -> Path:
        """Return where to write a clip before it has its name; its folder is made."""
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        return _partial(target)

    def rows(self) -> Iterator[Row]:
        """Yield the rows of this build's clips in the order of their paths."""
        for path in sorted(self._mentioned):
            row = self._row(path)
            if row is not None:
                yield row

    @property
    def left_out(self) -> Sequence[Row]:
        """The sources left out by this build so far."""
        return tuple(self._left_out)

    def finish(self) -> None:
        """Remove clips that are no longer built, put manifest and left-out list in order, and call the build whole."""
        for path in self._rows.keys() - self._mentioned:
            (self.folder / path).unlink(missing_ok=True)
        write_lines(self.folder / MANIFEST_FILE, self.rows())
        write_lines(self.folder / LEFT_OUT_FILE, sorted(self._left_out, key=lambda row: (row["path"], row["reason"])))
        for left in self.folder.rglob(".*.partial"):
            left.unlink()

    def _row(self, path: str) -> Row | None:
        if path not in self._rows:
            return None
        self._log.seek(self._rows[path])
        return dict(json.loads(self._log.readline()))

    def _open_folder(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            ours = (self.folder / SETTINGS_FILE).is_file()
            known = (_LOCK_FILE, f".{SETTINGS_FILE}.new")  # killed before its first settings
            if not ours and any(entry.name not in known for entry in self.folder.iterdir()):
                raise DataError(f"{self.folder} holds other files; name a new folder, or one that was built before")
            self._lock = hold(self.folder / _LOCK_FILE)
        except BlockingIOError:
            raise DataError(f"{self.folder}: another process is building here; wait for it, or stop it") from None
        except OSError as error:
            raise DataError(f"{self.folder}: cannot be built in ({error.strerror or error})") from error

    def _check_settings(self, settings: Row, limit: int) -> None:
        file = self.folder / SETTINGS_FILE
        settings = json.loads(json.dumps(settings))  # as the file gives them back
        if file.is_file():
            before = json_object(file.read_bytes())
            if before is None:
                raise DataError(f"{file}: not the settings of a build; delete {self.folder}, or name another folder")
            old_limit = before.pop("limit", 0)
            if not (self.folder / MANIFEST_FILE).is_file() or not (self.folder / MANIFEST_FILE).stat().st_size:
                before, old_limit = settings, limit  # no clip was made yet: the settings may have been the mistake
                (self.folder / LEFT_OUT_FILE).unlink(missing_ok=True)
            if differing := sorted(key for key in before | settings if before.get(key) != settings.get(key)):
                told = ", ".join(f"{key} was {before.get(key)!r}, now {settings.get(key)!r}" for key in differing)
                raise DataError(f"{self.folder} was built with other settings: {told}; name another folder")
            if limit and (not old_limit or limit < old_limit):
                raise DataError(f"{self.folder} was built with limit {old_limit or 'none'}; {limit} would remove clips")
        write_json(file, {**settings, "limit": limit})

    def _open_log(self) -> IO[bytes]:
        file = self.folder / MANIFEST_FILE
        file.touch()
        log = file.open("r+b")
        position = 0
        for line in log:
            row = json_object(line) if line.endswith(b"\n") else None
            if row is None or "path" not in row:
                log.truncate(position)  # killed while it was written, or damaged; what is lost is built again
                break
            self._rows[row["path"]] = position
            position += len(line)
        return log


def same_as(row: Row) -> Callable[[Row], bool]:
    """Return whether a noted row says all that this one does, as a function for :meth:`Ledger.finished`."""
    return lambda noted: {name: noted.get(name) for name in row} == row


def _partial(file: Path) -> Path:
    return file.with_name(f".{file.name}.partial")


def _fixed_rows(file: Path) -> Iterator[Row]:
    if file.is_file():
        for line in file.read_bytes().splitlines():
            row = json_object(line) or {}
            if row.get("fixed") and row.keys() >= {"path", "reason", "bytes"}:
                yield row


def _is_as_said(file: Path, row: Row) -> bool:
    return file.is_file() and file.stat().st_size == row["bytes"] and _sha256(file) == row["sha256"]


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def reasons(left_out: Sequence[tuple[str, str]], folder: Path) -> list[str]:
    """Return in lines what was left out, by reason, and where all of it is listed."""
    if not left_out:
        return []
    counts = Counter(reason for _, reason in left_out)
    first = {reason: name for name, reason in reversed(left_out)}
    lines = [f"left out: {number} x {reason} (such as {first[reason]})" for reason, number in counts.most_common(10)]
    return [*lines, f"all that was left out: {folder / LEFT_OUT_FILE}"]
