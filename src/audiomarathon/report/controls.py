"""Is the answer read from the audio, and does length matter? Scores of control runs against their clips' duration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from audiomarathon.errors import RecordError
from audiomarathon.report.figures import new_figure, save_figure
from audiomarathon.runs.read import Run, read_runs

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {"audio": "#0072B2", "silence": "#222222", "noise": "#D55E00", "mismatched": "#009E73"}


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


def plot_controls(runs: Sequence[ControlRun], path: Path) -> Path:
    """Draw score against duration, a panel a task, model and setting, a line a control, with 95 % intervals.

    Raises
    ------
    SettingsError
        Without matplotlib (the extra `report`).
    RecordError
        When the picture cannot be written.
    """
    panels = list(dict.fromkeys(run.panel for run in runs))
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = new_figure(figsize=(1 + 4.5 * columns, 0.6 + 3.2 * rows), layout="constrained", dpi=130)
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes, panel in zip(grid.flat, panels, strict=False):
        _draw(axes, panel, [run for run in runs if run.panel == panel])
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    return save_figure(figure, path)


def _draw(axes: Axes, panel: str, runs: Sequence[ControlRun]) -> None:
    for kind in dict.fromkeys(run.kind for run in runs):
        line = [run for run in runs if run.kind == kind]
        heights = [run.score for run in line]
        spans = [[max(0.0, r.score - r.low) for r in line], [max(0.0, r.high - r.score) for r in line]]
        at = [run.seconds for run in line]
        axes.errorbar(at, heights, spans, label=kind, color=_COLOURS.get(kind), marker="o", capsize=2, linewidth=1.2)
    if runs[0].chance is not None:
        axes.axhline(runs[0].chance, color="#999999", linestyle=":", label="chance (accuracy)")
    axes.set(xlabel="clip duration, s", ylabel="score", ylim=(0, 1.05))
    axes.set_title(f"{panel} · n = {max(run.n for run in runs)}", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8)
