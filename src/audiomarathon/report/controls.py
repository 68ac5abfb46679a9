"""Is the answer read from the audio, and does length matter? Scores of control runs against their clips' duration."""

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
    """One finished run: what was to be heard, for how long, and its score with its interval.

    Attributes
    ----------
    kind
        `audio` for clips with their own audio, whether of controlled duration or as they are, else the control.
    seconds
        The controlled length, or the median of the clips'.
    chance
        What guessing gives, as a share of right replies; None where that is not known.
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
        There are none that are finished.
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
