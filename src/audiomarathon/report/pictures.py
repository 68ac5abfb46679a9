"""Draw the charts that commands write to files: curves, bars and histograms.

Curves show scores, LLM prefill times and KV-cache sizes against the share of audio tokens removed. Bars compare the
scores and times of a few settings. Histograms show clip durations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from audiomarathon.errors import SettingsError
from audiomarathon.files import file_name
from audiomarathon.report import charts
from audiomarathon.report import styles as series
from audiomarathon.report.charts import Chart, Line
from audiomarathon.report.curves import MEAN, Panel, Setting, panels_of, read_panels
from audiomarathon.report.page_data import PageData
from audiomarathon.results.compare import lines_by_reason
from audiomarathon.results.systems import read_systems
from audiomarathon.runs.read import Run
from audiomarathon.text import plain
from audiomarathon.wing import asked

if TYPE_CHECKING:
    from audiomarathon.data.durations import Durations

_QUANTITIES = {
    "score": "score",
    "prefill_ms": "LLM prefill, ms (median)",
    "speed_up": "speed-up of LLM prefill (×)",
    "kv_mb": "KV cache after prefill, MB",
}
_MOST_NOTES = 3  # only some notes: the tables have all of them


def plot_runs(paths: Sequence[Path], folder: Path, kind: str = "png") -> list[Path]:
    """Draw a picture per task, one of the mean over several tasks, and those of further benchmarks; return their paths.

    Raises
    ------
    RecordError
        When there is no finished run, or the folder cannot be written.
    SettingsError
        vl-convert (the extra `report`) is missing, or the format is unknown.
    """
    if kind not in charts.FORMATS:
        raise SettingsError(f"--format {kind}: allowed: {', '.join(charts.FORMATS)}")
    drawn = {panel.name: of_panel(panel) for panel in read_panels(paths)} | _of_wings(PageData(read_systems(paths)))
    return [
        charts.save(chart, folder / f"{file_name(name)}.{kind}") for name, chart in drawn.items() if chart is not None
    ]


def _of_wings(data: PageData) -> dict[str, Chart]:
    """Return the charts that wings (further benchmarks) add to the page, as {"section-scope": chart}."""
    return {
        "-".join(filter(None, (section.anchor, scope))): charts.side_by_side(scope_charts, title=section.heading)
        for part in asked(lambda wing: wing.sections(data))
        for section in part
        for scope, scope_charts in section.charts.items()
    }


def of_panel(panel: Panel, size: tuple[int, int] = (430, 250)) -> Chart | None:
    """Draw a chart for each measured quantity against the ratio, side by side; None if nothing was measured.

    A panel has the settings of one checkpoint on a task, or their means over tasks. Each chart has `size` pixels.
    """
    drawn = [chart for quantity in _QUANTITIES if (chart := _against_ratio(panel, quantity, size)) is not None]
    notes = ["Bands: 95 % intervals over clusters."]
    if panel.headline == MEAN:
        notes = ["Only settings run on all tasks. Bands: 95 % intervals of the mean over independent tasks."]
    notes[0] += " Dashed: base, nothing dropped; ratio 0 of every method." * bool(panel.bases)
    notes[0] += " Dotted: speed-up computed from FLOPs." * any(setting.ideal for setting in panel.settings)
    busy = any(setting.busy and "prefill_ms" in setting.figures for setting in panel.settings)
    notes += [series.PAIRED] * _is_paired(panel) + [series.HOLLOW] * busy
    notes += [*_undrawn(panel), *panel.notes[:_MOST_NOTES]]
    return charts.side_by_side(drawn, title=panel.title, notes=notes) if drawn else None


def _undrawn(*panels: Panel) -> list[str]:
    """Return lines of text for a caption: which settings' measured times are not drawn, and why."""
    every = {setting.label for panel in panels for setting in panel.settings if setting.method != "base"}
    return lines_by_reason((reason for panel in panels for reason in panel.undrawn), every)


def _is_paired(panel: Panel) -> bool:
    """Tell whether a picture's LLM prefill times are computed as base's median ÷ a setting's speed-up.

    Otherwise the times are the medians of each setting.
    """
    return any(setting.method != "base" and "speed_up" in setting.figures for setting in panel.settings)


def _against_ratio(panel: Panel, quantity: str, size: tuple[int, int]) -> Chart | None:
    """Return a chart of a quantity of :data:`_QUANTITIES` against the ratio (fraction of audio tokens removed).

    None if no run has the quantity, or if it is not the score and only base has it.
    """
    measured = {
        name: [setting for setting in line_settings if quantity in setting.figures]
        for name, line_settings in panel.lines().items()
    }
    lines = [
        Line(name, line_settings[-1].method, [_point(setting, quantity, panel) for setting in line_settings])
        for name, line_settings in measured.items()
        if any(setting.method != "base" for setting in line_settings)
    ]
    bases = [
        (base.line, base.figures[quantity].value, series.BASE)
        for base in panel.bases.values()
        if quantity in base.figures
    ]
    if not lines and not (quantity == "score" and bases):
        return None
    most = max([setting.ratio for setting in panel.settings] + [0.1])
    dotted = _ideal(panel) if quantity == "speed_up" else []
    level = [value for _, value, _ in bases]
    top = 1.05 * max([*charts.reached(lines), *level, *(point["y"] for point in dotted)])
    name, limits = _QUANTITIES[quantity], (0.0, top)
    if quantity == "score":
        name, limits = panel.headline, charts.score_range(lines, *level)
    span = (0.0, 1.01 * most)
    chart = charts.line_chart(
        lines, "fraction of audio removed", "", rules=bases, dotted=dotted, span=span, range_=limits, size=size
    )
    return chart.with_title(name)


def _point(setting: Setting, quantity: str, panel: Panel) -> charts.Row:
    figure = setting.figures[quantity]
    if quantity == "prefill_ms" and setting.method == "base" and _is_paired(panel):
        # Bands are intervals of the ratio to base, which for base itself is exactly 1.
        figure = replace(figure, interval=(figure.value, figure.value))
    busy = setting.busy and quantity in ("prefill_ms", "speed_up")
    return charts.point(setting.ratio, figure, what=setting.label, method=setting.method, busy=busy)


def _ideal(panel: Panel) -> list[dict[str, float]]:
    """Return the ideal speed-ups (computed from FLOPs) of the first line that has any, as points {"x": ratio, "y":
    speed-up}.

    One line is enough, because methods that drop tokens at the same layer have the same ideal speed-up.
    """
    for line_settings in panel.lines().values():
        points = [
            {"x": setting.ratio, "y": setting.ideal}
            for setting in line_settings
            if setting.ideal is not None and "speed_up" in setting.figures
        ]
        if any(point["y"] > 1.001 for point in points):
            return points
    return []


def plot_settings(folders: Sequence[Path], path: Path, title: str = "") -> Path:
    """Draw bars of scores, with intervals, and of LLM prefill times, a bar per setting in each task; return the path.

    Raises
    ------
    SettingsError
        vl-convert (the extra `report`) is missing.
    RecordError
        When a folder holds no run, or the picture cannot be written.
    """
    scores, times = [], []
    panels = [panel for panel in panels_of([Run.read(folder) for folder in folders]) if panel.headline != MEAN]
    for panel in panels:
        for setting in panel.settings:
            row = {"task": panel.name, "setting": plain(setting.label), "method": setting.method}
            if score := setting.figures.get("score"):
                low, high = score.interval or (None, None)
                scores.append(row | {"value": score.value, "low": low, "high": high})
            if time := setting.figures.get("prefill_ms"):
                times.append(row | {"value": time.value, "busy": setting.busy})
    drawn = [charts.grouped_bars(scores, "score", legend=True, size=(760, 250))]
    drawn += [charts.grouped_bars(times, "LLM prefill, ms (median)", legend=False, size=(760, 150))] if times else []
    notes = ["Lines on the bars: 95 % intervals of the scores, which are wide with few samples."]
    notes += [series.PAIRED] * any(map(_is_paired, panels)) + [series.PALE] * any(row["busy"] for row in times)
    notes += _undrawn(*panels)
    return charts.save(charts.side_by_side(drawn, 1, title, notes), path)


def plot_durations(all_durations: Sequence[Durations], folder: Path) -> list[Path]:
    """Draw a histogram of each task's clip durations (`<task>.png`) and, for several tasks, of all (`all.png`).

    Tasks without readable clips have no picture. In `all.png`, tasks share the time axis.

    Raises
    ------
    SettingsError
        vl-convert (the extra `report`) is missing.
    RecordError
        When a picture cannot be written.
    """
    drawn = [task_durations for task_durations in all_durations if task_durations.seconds]
    histograms = [
        _histogram(task_durations, (min(task_durations.seconds), max(task_durations.seconds)), (480, 240))
        for task_durations in drawn
    ]
    paths = [
        charts.save(chart, folder / f"{file_name(task_durations.task.key.replace('/', '-'))}.png")
        for task_durations, chart in zip(drawn, histograms, strict=True)
    ]
    if len(drawn) < 2:
        return paths
    span = (
        min(min(task_durations.seconds) for task_durations in drawn),
        max(max(task_durations.seconds) for task_durations in drawn),
    )
    page = charts.side_by_side([_histogram(task_durations, span, (360, 130)) for task_durations in drawn])
    return [*paths, charts.save(page, folder / "all.png")]


def _histogram(task_durations: Durations, span: tuple[float, float], size: tuple[int, int]) -> Chart:
    from audiomarathon.data.durations import HISTOGRAM_BINS

    low, high = span if span[1] - span[0] >= 1 else (span[0] - 0.5, span[1] + 0.5)  # clips of one length: draw one bar
    counts, edges = np.histogram(task_durations.seconds, np.linspace(low, high, HISTOGRAM_BINS + 1))
    median, hours = float(np.median(task_durations.seconds)), sum(task_durations.seconds) / 3600
    chart = charts.histogram(edges.tolist(), counts.tolist(), median, "duration, s", size=size)
    return chart.with_title(
        f"{task_durations.task.key}: {len(task_durations.seconds):,} clips, {hours:.1f} h, median {median:.0f} s"
    )
