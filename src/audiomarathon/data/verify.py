"""Check the data of tasks in a data root: rows, clips, durations and counts. Hashes are checked by `download.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from audiomarathon.audio.decode import ClipInfo
from audiomarathon.benchmarks import Task, task_folder
from audiomarathon.benchmarks.manifest import Expected, Manifest, read_manifest
from audiomarathon.data.durations import probe_clips
from audiomarathon.errors import DataError, MissingDataError
from audiomarathon.text import counted

TOLERANCE_S = 1.0
"""Seconds by which a clip may be outside the expected range: published ranges are rounded to quarters of a minute."""

Kind = Literal["task", "row", "clip", "duration", "count"]


@dataclass(frozen=True)
class Problem:
    """One problem of a task's data.

    Attributes
    ----------
    kind
        `task` (the data cannot be read), `row` (a metadata row gives no sample: a missing clip, an answer that is not
        an option, a duplicate id, …), `clip` (unreadable audio), `duration` (out of range) or `count` (of samples).
    text
        What was found, and where.
    """

    kind: Kind
    text: str


@dataclass(frozen=True)
class TaskReport:
    """Result of checking one task's data.

    Attributes
    ----------
    state
        `ok`, `wrong` or `missing`.
    expected
        Facts that the data should have, such as the number of samples; None if unknown.
    seconds
        Shortest and longest duration of a clip.
    notes
        Numbers of samples with defects that the published data is known to have; they are not counted as problems.
    """

    task: str
    state: Literal["ok", "wrong", "missing"]
    expected: Expected | None
    folder: Path | None = None
    licence: str = ""
    samples: int = 0
    clips: int = 0
    hours: float = 0.0
    seconds: tuple[float, float] | None = None
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return all fields as values that JSON can hold."""
        return asdict(self) | {"folder": str(self.folder) if self.folder else None}


def verify(
    task: Task,
    data_root: Path | None,
    env: Mapping[str, str],
    *,
    deep: bool = False,
    jobs: int = 0,
    tolerance: float = TOLERANCE_S,
) -> TaskReport:
    """Check one task's data in a data root, and return a report.

    Parameters
    ----------
    data_root, env
        Data root and env vars, as in :func:`~audiomarathon.benchmarks.locate.task_folder`.
    deep
        Decode every clip instead of reading its header.
    jobs
        Number of threads; 0 starts one per core.
    tolerance
        Seconds by which a clip may be shorter or longer than the task's expected durations.

    Returns
    -------
    TaskReport
        Problems of the data are listed in the report, never raised as exceptions.
    """
    folder = None
    try:
        folder = task_folder(task, data_root, env)
        manifest, loaded = read_manifest(folder), task.load(folder)
    except DataError as error:
        missing = folder is None and isinstance(error, MissingDataError)
        problem, expected = Problem("task", str(error)), Manifest().expected(task)
        return TaskReport(task.key, "missing" if missing else "wrong", expected, folder, problems=(problem,))
    expected = manifest.expected(task)
    probed = probe_clips(loaded, task.key, deep=deep, jobs=jobs)
    seconds = [info.seconds for info in probed.values() if isinstance(info, ClipInfo)]
    problems = [Problem("row", str(row)) for row in loaded.bad_rows]
    problems += [Problem("count", few)] if (few := task.too_few(loaded)) else []
    for clip, info in probed.items():
        if isinstance(info, str):
            problems.append(Problem("clip", f"{clip}: {info}"))
        elif expected and not expected.seconds[0] - tolerance <= info.seconds <= expected.seconds[1] + tolerance:
            low, high = expected.seconds
            problems.append(Problem("duration", f"{clip}: {info.seconds:.2f} s, expected {low:g} to {high:g} s"))
    if expected and len(loaded.samples) + sum(loaded.left_out.values()) != expected.count:
        problems.append(
            Problem("count", f"{counted(len(loaded.samples), 'sample')} in {folder}, expected {expected.count:,}")
        )
    return TaskReport(
        task.key,
        "wrong" if problems else "ok",
        expected,
        folder,
        manifest.licence_of(task),
        len(loaded.samples),
        len(probed),
        round(sum(seconds) / 3600, 4),
        (min(seconds), max(seconds)) if seconds else None,
        tuple(problems),
        (
            *(f"{counted(count, 'sample')} left out: {reason}" for reason, count in loaded.left_out.items()),
            *((f"missing clips that are known gaps: {', '.join(dict.fromkeys(loaded.gaps))}",) if loaded.gaps else ()),
            *(f"{counted(count, 'sample')}: {name}" for name, count in loaded.defects.items()),
        ),
    )
