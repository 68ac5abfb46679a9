"""A log in a builder's output folder of what is finished, so that the same command continues an interrupted build.

`build.json` holds the settings, `manifest.jsonl` a row for each built clip, `left_out.jsonl` a row for each unused
source clip. A row is appended as soon as its clip has its final name. At the end both files are sorted, so a build that
was killed and continued ends with the same bytes as an uninterrupted build.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

from audiomarathon.errors import DataError
from audiomarathon.files import append_line, json_object, write_json, write_lines
from audiomarathon.lock import holding

SETTINGS_FILE = "build.json"
MANIFEST_FILE = "manifest.jsonl"
LEFT_OUT_FILE = "left_out.jsonl"
_LOCK_FILE = ".lock"

Row = dict[str, Any]


class BuildLog:
    """The log of a build in its output folder: which clips are finished, and which source clips were left out and why.

    Parameters
    ----------
    folder
        The output folder; created if it is missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mutex = Lock()
        bad = (row for row in _rows(folder / LEFT_OUT_FILE, {"path", "reason", "bytes"}) if row.get("fixed"))
        self._known_bad: dict[str, Row] = {row["path"]: row for row in bad}
        write_lines(folder / LEFT_OUT_FILE, self._known_bad.values())
        self._logged: dict[str, Row] = {row["path"]: row for row in _rows(folder / MANIFEST_FILE, {"path"})}
        self._built: set[str] = set()
        self._left_out: list[Row] = []
        self._added = 0

    def bad(self, source: str, file: Path) -> str:
        """Return why an earlier build left out this source clip; "" if it did not, or if the file has changed."""
        row = self._known_bad.get(source)
        return str(row["reason"]) if row and row["bytes"] == _size(file) else ""

    def leave_out(self, source: str, reason: str, file: Path | None = None, *, fixed: bool = False) -> None:
        """Log a source clip that is not used, with the reason.

        With `fixed`, later builds do not try it again while its file has the same size.
        """
        row = {"path": source, "reason": reason, "bytes": file and _size(file), "fixed": fixed}
        with self._mutex:
            self._left_out.append(row)
            if fixed and self._known_bad.get(source) != row:
                self._known_bad[source] = row
                append_line(self.folder / LEFT_OUT_FILE, row)

    def finished(self, path: str, agrees: Callable[[Row], bool]) -> bool:
        """Return whether a clip is built: `agrees` accepts its logged row, and its file has the row's size and hash."""
        row, file = self._logged.get(path), self.folder / path
        if row is None or not agrees(row) or not file.is_file():
            return False
        if (file.stat().st_size, _sha256(file)) != (row["bytes"], row["sha256"]):
            return False
        self._built.add(path)
        return True

    def add(self, path: str, partial: Path, row: Row) -> None:
        """Move a written clip from `partial` to its final name `path`, and log its row."""
        row = {"path": path, **row, "bytes": partial.stat().st_size, "sha256": _sha256(partial)}
        partial.replace(self.folder / path)
        with self._mutex:
            self._built.add(path)
            self._logged[path] = row
            append_line(self.folder / MANIFEST_FILE, row)
            self._added += 1

    def partial(self, path: str) -> Path:
        """Return the temporary file under which to write a clip, next to its final name."""
        target = self.folder / path
        return target.with_name(f".{target.name}.partial")

    def rows(self) -> list[Row]:
        """Return the manifest's rows of the clips in this build, sorted by path."""
        return [self._logged[path] for path in sorted(self._built)]

    def finish(self, title: str, made_of: str) -> str:
        """Delete clips of earlier builds that are not in this build, and sort the logs; return a text that sums up.

        The text has the number and hours of the clips, and counts the source clips left out, by reason.

        Parameters
        ----------
        title, made_of
            For the summary: the task's name, and from what its clips were made, such as "12 source clips".

        Raises
        ------
        DataError
            No clip was built.
        """
        for path in self._logged.keys() - self._built:
            (self.folder / path).unlink(missing_ok=True)
        left_out = sorted(self._left_out, key=lambda row: (row["path"], row["reason"]))
        write_lines(self.folder / MANIFEST_FILE, rows := self.rows())
        write_lines(self.folder / LEFT_OUT_FILE, left_out)
        for partial in self.folder.rglob(".*.partial"):
            partial.unlink()
        first = {row["reason"]: row["path"] for row in reversed(left_out)}
        counts = Counter(row["reason"] for row in left_out).most_common(10)
        reasons = [f"left out: {number} x {reason} (such as {first[reason]})" for reason, number in counts]
        if not rows:
            raise DataError("; ".join([f"{title}: no clip could be made; {len(left_out)} sources left out", *reasons]))
        hours = sum(row["seconds"] for row in rows) / 3600
        summary = f"{title}: {len(rows)} clips, {hours:.2f} h, of {made_of} in {self.folder} ({self._added} new)"
        every = [f"all sources left out: {self.folder / LEFT_OUT_FILE}"] if reasons else []
        return "\n".join([summary, *reasons, *every])


@contextmanager
def build_log(folder: Path, settings: Mapping[str, Any], limit: int = 0) -> Iterator[BuildLog]:
    """Open the log of an output folder in a `with` block; the folder is created if it is missing.

    Parameters
    ----------
    settings
        Everything that determines the clips' bytes. A folder built with other settings is refused.
    limit
        Number of clips to build (0: all). A limit that would delete clips of an earlier build is refused.

    Raises
    ------
    DataError
        The folder holds other files, was built with other settings, or is in use by another process.
    """
    there = {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
    known = {_LOCK_FILE, f".{SETTINGS_FILE}.new"}  # left by a build that was killed before it wrote its settings
    if SETTINGS_FILE not in there and there - known:
        raise DataError(f"{folder} holds other files; name a new folder, or the folder of an earlier build")
    with holding(folder / _LOCK_FILE, "another process is building here"):
        _check_settings(folder, dict(settings), limit)
        yield BuildLog(folder)


def _check_settings(folder: Path, settings: Row, limit: int) -> None:
    file = folder / SETTINGS_FILE
    settings = json.loads(json.dumps(settings))  # tuples become lists, as in the file to compare with
    manifest = folder / MANIFEST_FILE
    if manifest.is_file() and manifest.stat().st_size:
        before = json_object(file.read_bytes())
        if before is None:
            raise DataError(f"{file}: does not hold the settings of a build; delete {folder}, or name another folder")
        old_limit = before.pop("limit", 0)
        if differing := sorted(key for key in before | settings if before.get(key) != settings.get(key)):
            changes = ", ".join(f"{key} was {before.get(key)!r}, now {settings.get(key)!r}" for key in differing)
            raise DataError(f"{folder} was built with other settings: {changes}; name another folder")
        if limit and (not old_limit or limit < old_limit):
            raise DataError(
                f"{folder} was built with limit {old_limit or 'none'}; limit {limit} would delete clips; "
                "name another folder"
            )
    else:  # nothing was built yet, perhaps because the settings were wrong
        (folder / LEFT_OUT_FILE).unlink(missing_ok=True)
    write_json(file, {**settings, "limit": limit})


def same_as(row: Row) -> Callable[[Row], bool]:
    """Return a function that tells whether a logged row has all fields of `row` with equal values.

    The returned function is made for the argument `agrees` of :meth:`BuildLog.finished`.
    """
    return lambda logged: {name: logged.get(name) for name in row} == row


def _rows(file: Path, fields: set[str]) -> Iterator[Row]:
    """Yield the rows ({field: value}) of a log file that have all the given fields.

    Damaged rows are skipped, so their clips are built again.
    """
    for line in file.read_bytes().splitlines() if file.is_file() else ():
        if (row := json_object(line)) and row.keys() >= fields:
            yield row


def _size(file: Path) -> int | None:
    return file.stat().st_size if file.is_file() else None


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
