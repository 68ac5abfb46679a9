"""Pictures of how long clips are: one a task, and one of all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from audiomarathon.data.durations import HISTOGRAM_BINS, Durations
from audiomarathon.report.figures import new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BARS, _MEDIAN = "#0072B2", "#D55E00"
_DPI = 130


def plot_durations(found: Sequence[Durations], folder: Path) -> list[Path]:
    """Draw a histogram a task (`<task>.png`) and, of several tasks, one page of all (`all.png`).

    Tasks without a readable clip have no picture. Axes are a task's own on its page and shared in time on the page of
    all.

    Raises
    ------
    SettingsError
        Without matplotlib (the extra `report`).
    RecordError
        When a picture cannot be written.
    """
    drawn = [one for one in found if one.seconds]
    paths = [save_figure(_own_page(one), folder / f"{one.task.key}.png") for one in drawn]
    return paths if len(drawn) < 2 else [*paths, save_figure(_page_of_all(drawn), folder / "all.png")]


def _own_page(one: Durations) -> Figure:
    figure = new_figure(figsize=(6, 3.6), layout="constrained", dpi=_DPI)
    axes = figure.subplots()
    _histogram(axes, one, (min(one.seconds), max(one.seconds)))
    axes.set_xlabel("duration, s")
    axes.set_ylabel("clips")
    return figure


def _page_of_all(drawn: Sequence[Durations]) -> Figure:
    rows = -(-len(drawn) // 2)
    figure = new_figure(figsize=(10, 1.0 + 1.7 * rows), layout="constrained", dpi=_DPI)
    span = (min(min(one.seconds) for one in drawn), max(max(one.seconds) for one in drawn))
    grid = figure.subplots(rows, 2, sharex=True, squeeze=False)
    for axes, one in zip(grid.flat, drawn, strict=False):
        _histogram(axes, one, span)
    for axes in grid.flat[len(drawn) :]:
        axes.set_visible(False)
    figure.supxlabel("duration, s")
    figure.supylabel("clips")
    return figure


def _histogram(axes: Axes, one: Durations, span: tuple[float, float]) -> None:
    low, high = span if span[1] - span[0] >= 1 else (span[0] - 0.5, span[1] + 0.5)  # clips of one length: a bar
    axes.hist(one.seconds, np.linspace(low, high, HISTOGRAM_BINS + 1).tolist(), color=_BARS)
    median = float(np.median(one.seconds))
    axes.axvline(median, color=_MEDIAN, linewidth=1.2)
    hours = sum(one.seconds) / 3600
    axes.set_title(f"{one.task.key}: {len(one.seconds):,} clips, {hours:.1f} h, median {median:.0f} s", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
