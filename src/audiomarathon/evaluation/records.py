"""What a run writes, and how it survives anything: the folder of a run, its lock, its identity and its records.

`samples.jsonl` is the state. It only grows, one line a sample, each flushed; a rerun reads it and goes on. A later line
for the same sample replaces an earlier one (errors are tried again on resume).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

from audiomarathon.errors import RecordError
from audiomarathon.evaluation.files import ESCAPED, replace_file, write_json, writing
from audiomarathon.lock import hold
from audiomarathon.terminal import counted

SCHEMA_VERSION = 1


def identity_hash(identity: Mapping[str, Any]) -> str:
    """Return a short hash of an identity, independent of the order of its fields."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True, ensure_ascii=True).encode()).hexdigest()[:12]


class RunFolder:
    """The folder of one run: one task, one checkpoint, one setting.

    Use as a context manager: the folder is locked inside the block.

    Parameters
    ----------
    path
        Created when missing.
    identity
        What makes two runs the same run (DESIGN.md, section 4.8).

    Raises
    ------
    RecordError
        On entering, when another process is at work in the folder, it holds another run, or cannot be written.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self.path = path
        self.identity = json.loads(json.dumps(identity))  # as it is read back: tuples are lists
        self.run: dict[str, Any] = {}
        self.records: dict[str, dict[str, Any]] = {}
        self.rejected_lines = 0
        self._lock: IO[str] | None = None
        self._stream: IO[str] | None = None

    @property
    def samples_file(self) -> Path:
        """The append-only records."""
        return self.path / "samples.jsonl"

    def __enter__(self) -> RunFolder:
        try:
            self._lock = hold(self.path / ".lock")
        except BlockingIOError:
            raise RecordError(f"{self.path}: another process is writing this run; wait for it, or stop it") from None
        except OSError as error:
            raise RecordError(f"{self.path}: cannot be used as results folder: {error.strerror or error}") from error
        try:
            self._check_identity()
            with writing(self.samples_file):
                self.records = self._read_and_repair()
                self._stream = self.samples_file.open("a", encoding="utf-8", errors=ESCAPED)
        except BaseException:
            self._lock.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        if self._stream is not None:
            with contextlib.suppress(OSError):  # a full disk was already reported by `append`
                self._stream.close()
        if self._lock is not None:
            self._lock.close()

    def done(self, clips: Mapping[str, str] | None = None) -> set[str]:
        """Return the ids of samples that need no further work: recorded, not as an error, and of the clips as they are.

        Parameters
        ----------
        clips
            Hash of each sample's clips now; a sample whose record names another is not done.
        """
        finished = {id_: record for id_, record in self.records.items() if record.get("error") is None}
        return {id_ for id_, record in finished.items() if clips is None or record.get("clips") == clips.get(id_)}

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one record and flush it.

        Raises
        ------
        RecordError
            When the disk is full or gone. Whatever part of the line was written is taken back; all earlier records
            stay.
        """
        assert self._stream is not None, "append outside the with block"
        with writing(self.samples_file):
            size = self.samples_file.stat().st_size
        try:
            self._stream.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
            self._stream.flush()
        except OSError as error:
            with contextlib.suppress(OSError):
                self._stream.close()
            with contextlib.suppress(OSError):
                os.truncate(self.samples_file, size)
            raise RecordError(
                f"{self.samples_file}: cannot be written: {error.strerror or error}; "
                f"what is there is safe ({counted(len(self.records), 'record')}): make room and run the same command "
                "again to go on"
            ) from error
        self.records[record["id"]] = dict(record)

    def write_run(self, content: Mapping[str, Any]) -> None:
        """Write `run.json`."""
        hashed = identity_hash(self.identity)
        own = {"schema_version": SCHEMA_VERSION, "identity_hash": hashed, "identity": self.identity}
        self.run = {**own, **content, **own}
        write_json(self.path / "run.json", self.run)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write `summary.json`."""
        write_json(self.path / "summary.json", summary)

    def peek(self) -> None:
        """Read what is there without entering: nothing is locked, repaired or created.

        Raises
        ------
        RecordError
            When the folder holds another run.
        """
        self._check_identity()
        if self.samples_file.exists():
            self.records = read_records(self.path)

    def _check_identity(self) -> None:
        if not self.samples_file.exists() or not self.samples_file.stat().st_size:
            return  # nothing is recorded yet, so there is nothing to mix
        if not (self.path / "run.json").exists():
            raise RecordError(
                f"{self.path}: holds samples.jsonl but no run.json, so whose records they are is unknown; "
                "name another RESULTS_DIR, or move that folder away"
            )
        self.run = read_run(self.path)
        held = self.run.get("identity", {})
        if held != self.identity:
            names = sorted(k for k in {*held, *self.identity} if held.get(k) != self.identity.get(k))
            shown = "; ".join(f"{n}: {held.get(n)!r} there, {self.identity.get(n)!r} now" for n in names[:4])
            raise RecordError(
                f"{self.path}: holds another run ({shown}); name another RESULTS_DIR, or move that folder away"
            )

    def _read_and_repair(self) -> dict[str, dict[str, Any]]:
        """Read the records; drop a half-written last line, set aside lines that are no records."""
        if not self.samples_file.exists():
            return {}
        content = self.samples_file.read_bytes()
        whole = _whole_lines(content)
        if len(whole) < len(content):
            os.truncate(self.samples_file, len(whole))
        records, rejected, good = {}, [], []
        for line in whole.splitlines(keepends=True):
            record = _parse(line)
            if record is None or not _is_whole(record):
                rejected.append(line)
            else:
                records[record["id"]] = record
                good.append(line)
        if rejected:
            self.rejected_lines = len(rejected)
            with (self.path / "samples.rejected").open("ab") as stream:
                stream.writelines(rejected)
            replace_file(self.samples_file, b"".join(good))
        return records


def checkpoint_of(facts: Mapping[str, Any]) -> str:
    """Return what people call the checkpoint of a run: a folder's name, or the hub's, whose folders end in a commit."""
    if named := facts.get("checkpoint_name"):
        return str(named)
    path = Path(str(facts.get("checkpoint", "")))
    if path.parts[-2:] == ("embedded", "checkpoint"):  # what ships with the package
        return "embedded"
    if path.parent.name == "snapshots":
        return path.parent.parent.name.removeprefix("models--").rpartition("--")[2]
    return path.name


def read_records(path: Path) -> dict[str, dict[str, Any]]:
    """Read a run folder's records by id, as a resume would, but touch nothing: another process may be writing.

    A half-written last line, and lines that are no records, are left out.

    Raises
    ------
    RecordError
        When there is no such file, or it cannot be read.
    """
    file = path / "samples.jsonl"
    try:
        content = file.read_bytes()
    except OSError as error:
        raise RecordError(f"{file}: cannot be read: {error.strerror or error}") from error
    return {record["id"]: record for line in _whole_lines(content).splitlines() if (record := _parse(line))}


def what_failed(path: Path, errors: int) -> str:
    """Return in half a line how many samples of a run failed, and what the first of them said."""
    said = (f"{id_}: {record['error']}" for id_, record in read_records(path).items() if record.get("error"))
    first = " ".join(next(said, "").split())[:300]
    return f"{counted(errors, 'sample')} failed (see 'error' in samples.jsonl; the first: {first})"


def _whole_lines(content: bytes) -> bytes:
    return content[: content.rfind(b"\n") + 1]


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and isinstance(record.get("id"), str) else None


def _is_whole(record: Mapping[str, Any]) -> bool:
    """Whether a record can be scored; one that cannot would end every run in its folder, again and again."""
    scorable = isinstance(record.get("reply"), str) and isinstance(record.get("reference"), dict)
    return scorable or isinstance(record.get("error"), str)


def read_run(path: Path) -> dict[str, Any]:
    """Read a run folder's `run.json`.

    Raises
    ------
    RecordError
        When the folder holds none, or it is not JSON.
    """
    file = path / "run.json"
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecordError(f"{path}: not a run folder, it holds no run.json") from None
    except (OSError, ValueError) as error:
        raise RecordError(f"{file}: cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise RecordError(f"{file}: not a JSON object")
    if odd := [name for name in ("task", "method") if not str(content.get(name, "")).isprintable()]:
        raise RecordError(f"{file}: {odd[0]} {content[odd[0]]!r} holds control characters")
    return content


def rewrite_records(folder: RunFolder, records: Iterable[Mapping[str, Any]]) -> None:
    """Replace all records at once, for scoring again; the folder must be entered.

    The new file takes the old one's place in one step, so that a crash leaves one of the two whole.
    """
    lines = [json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n" for record in records]
    replace_file(folder.samples_file, "".join(lines).encode(errors=ESCAPED))
