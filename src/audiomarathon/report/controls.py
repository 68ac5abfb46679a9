"""Collect the scores of control runs against the duration of their clips."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from audiomarathon.errors import RecordError
from audiomarathon.runs.read import Run, read_runs


@dataclass(frozen=True)
class ControlRun:
    """One finished run: its control, duration, and score with interval.

    Attributes
    ----------
    kind
        `audio` for real audio of any duration, else the control.
    seconds
        The controlled length, or the clips' median.
    chance
        Share of right replies by guessing; None if unknown.
    """

    panel: str
    kind: str
    seconds: float
    score: float
    low: float
    high: float
    n: int
    chance: float | None


def control_runs(folders: Sequence[Path]) -> list[ControlRun]:
    """Return the runs in or under folders, by panel (task, model, setting), kind and duration.

    Raises
    ------
    RecordError
        No run is finished.
    """
    found = [one for run in read_runs(folders) if (one := _of(run)) is not None]
    if not found:
        raise RecordError(f"{', '.join(map(str, folders))}: no finished run there")
    return sorted(found, key=lambda run: (run.panel, run.kind, run.seconds))


def _of(run: Run) -> ControlRun | None:
    summary = run.summary
    if summary is None or summary.get("score") is None or not run.records:
        return None
    control: Mapping[str, Any] = run.facts.get("control") or {}
    median = float(np.median([record.clip_seconds for record in run.records.values()]))
    low, high = (summary.get("intervals") or {}).get("score") or (summary["score"], summary["score"])
    return ControlRun(
        f"{run.key} · {run.facts.get('model', '')} · {run.method}",
        str(control.get("kind", "audio")),
        float(control.get("seconds") or median),
        summary["score"],
        low,
        high,
        summary["n"],
        summary.get("chance"),
    )
