"""Read the progress of runs from their folders, while another process may be writing them."""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from audiomarathon.engine.progress_view import Progress, progress_of
from audiomarathon.errors import AudioMarathonError, RecordError
from audiomarathon.files import read_plain
from audiomarathon.lock import is_held
from audiomarathon.records import Record
from audiomarathon.runs.read import Run, run_folders

STARTING_S = 900  # a log at most this old may belong to a run without records yet: a large model loads for minutes


@dataclass(frozen=True)
class RunStatus:
    """The progress of one run.

    Attributes
    ----------
    folder, task, checkpoint, setting
        Where and what the run is; `setting` names method and audio control.
    progress
        Numbers of samples that are answered, failed and expected, and the score so far.
    alive
        Whether a process holds the folder's lock; None if unknown.
    quiet_s
        Seconds since the last record was written; None without records.
    samples_per_minute, audio_s_per_s
        Speed of the current or last session up to its last record, including failed samples; None without records.
    left_s
        Estimated seconds left; None if no process is active.
    problem
        Why the folder cannot be read; the other fields are then empty. None if it can be read.
    """

    folder: Path
    task: str = ""
    checkpoint: str = ""
    setting: str = ""
    progress: Progress = Progress(0)
    alive: bool | None = None
    quiet_s: float | None = None
    samples_per_minute: float | None = None
    audio_s_per_s: float | None = None
    left_s: float | None = None
    problem: str | None = None

    @property
    def complete(self) -> bool:
        """Whether every sample is answered."""
        return self.problem is None and bool(self.task) and self.progress.complete

    @property
    def state(self) -> str:
        """The state in a word: running, starting, complete, stopped, not complete or unreadable.

        The state is "done, but for errors" if every sample was tried and some failed.
        """
        if self.problem is not None:
            return "unreadable"
        if self.alive:
            return "running" if self.task else "starting"
        if self.complete:
            return "complete"
        if self.progress.answered + self.progress.errors == self.progress.expected:
            return "done, but for errors"
        return "stopped" if self.alive is False else "not complete"

    def as_json(self) -> dict[str, Any]:
        """Return {name: value} that JSON can hold: all fields, the state, and whether the run is complete."""
        return asdict(self) | {"folder": str(self.folder), "state": self.state, "complete": self.complete}


def read_status(paths: Sequence[Path]) -> list[RunStatus]:
    """Return the progress of each run in `paths`, which are run folders or contain them.

    A folder whose command has started but has no run yet is `starting`.

    Raises
    ------
    RecordError
        When there is no run and none is starting.
    """
    try:
        return [_status(folder) for folder in run_folders(paths)]
    except RecordError:
        if starting := [RunStatus(path, alive=True) for path in paths if _is_starting(path)]:
            return starting
        raise


def _is_starting(results: Path) -> bool:
    """Tell whether a command is starting runs in a folder: a lock is held there, or a recent log ends without error."""
    logs = [file for file in results.glob("logs/*.log") if time.time() - file.stat().st_mtime < STARTING_S]
    latest = max(logs, key=lambda file: file.stat().st_mtime, default=None)
    try:
        last = read_plain(latest).decode(errors="replace").splitlines()[-1:] if latest else ["error"]
    except OSError:
        last = ["error"]
    return not any(line.startswith("error") for line in last) or any(map(is_held, results.rglob(".lock")))


def _status(folder: Path) -> RunStatus:
    try:
        run = Run.read(folder)
        wanted = [str(id_) for id_ in run.facts["samples"]]
        records = [*run.records.values(), *run.failed.values()]
        session = (run.facts.get("sessions") or [{}])[-1]
        tried = _tried(session, records)
        setting = run.method + (f" [{run.control}]" if run.control else "")
        scorer = run.task.scorer if run.task and run.task.scorer.instant else None
        verdicts = run.verdicts if scorer and run.summary is None else {}
        progress = progress_of(scorer, records, verdicts, len(wanted), seed=run.seed, summary=run.summary)
        last = (folder / "samples.jsonl").stat().st_mtime if records else None
        quiet_s = None if last is None else max(0.0, time.time() - last)  # 0 if the clock was set back
        per_minute, audio_rate = _rates(session, records, tried, quiet_s)
    except RecordError as error:
        return RunStatus(folder, problem=str(error))
    except (AudioMarathonError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        reason = f"{folder}: run.json or a record is not as this version writes them ({type(error).__name__}: {error})"
        return RunStatus(folder, problem=reason)
    alive = is_held(folder / ".lock")
    left = progress.expected - progress.answered - tried  # samples that failed in an earlier session run again
    left_s = 60 * left / per_minute if alive and per_minute else None
    speed = (quiet_s, per_minute, audio_rate, left_s)
    return RunStatus(folder, run.key, run.checkpoint, setting, progress, alive, *speed)


def _tried(session: Mapping[str, Any], records: Sequence[Record]) -> int:
    """Return the number of records in `records` of samples that failed in the given session (one call of a command)."""
    started = session.get("started")  # a record's session also names the process
    failed = [str(record.session).split() for record in records if not record.answered]
    return sum(session_parts[:1] == [started] for session_parts in failed)


def _rates(
    session: Mapping[str, Any], records: Sequence[Record], tried: int, quiet_s: float | None
) -> tuple[float, float] | tuple[None, None]:
    """Return (samples per minute, seconds of audio per second) of a session; (None, None) if unknown.

    Parameters
    ----------
    tried
        Number of samples that failed in the session, which count as processed.
    quiet_s
        Seconds since the last record.
    """
    answered = [record for record in records if record.answered]
    fresh = len(answered) - int(session.get("answered_before", 0))
    if quiet_s is None or fresh + tried <= 0 or "started" not in session:
        return None, None
    started = datetime.datetime.fromisoformat(str(session["started"])).timestamp()
    seconds = float(session.get("wall_s") or time.time() - quiet_s - started)
    if seconds <= 0:  # the clock was set back
        return None, None
    heard = sum(record.clip_seconds for record in answered) / max(1, len(answered)) * fresh
    return 60 * (fresh + tried) / seconds, heard / seconds
