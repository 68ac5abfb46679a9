"""Pictures of finished runs: score, LLM prefill, its speed-up and the KV cache against the ratio, a line a method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

from audiomarathon.files import file_name
from audiomarathon.metrics.statistics import Estimate
from audiomarathon.report import palette
from audiomarathon.report.curves import MEAN, Panel, Setting, read_panels
from audiomarathon.report.figures import new_figure, save_figure
from audiomarathon.text import plain

_QUANTITIES = {
    "score": "score",
    "prefill_ms": "LLM prefill, ms (median)",
    "speed_up": "LLM prefill, times as fast as base",
    "kv_mb": "KV cache after prefill, MB",
}


@dataclass(frozen=True)
class Sheet:
    """How large a picture is in inches, and its smallest letters in points."""

    width: float
    height: float
    points: float


_MOST_NOTES = 3  # a line each; the tables have all
SCREEN = Sheet(12.5, 9.0, 8.5)
PAPER = Sheet(7.0, 5.6, 6.5)  # across both columns, as it is


def plot_runs(paths: Sequence[Path], folder: Path) -> list[Path]:
    """Draw one PNG a task, and one of the mean over tasks where there are several.

    Raises
    ------
    RecordError
        When there is no finished run, or the folder cannot be written.
    SettingsError
        Without matplotlib (the extra `report`).
    """
    return [plot_panel(panel, folder / f"{file_name(panel.name)}.png") for panel in read_panels(paths)]


def plot_panel(panel: Panel, path: Path, sheet: Sheet = SCREEN) -> Path:
    """Draw one panel's four quantities."""
    points = sheet.points
    figure = new_figure(figsize=(sheet.width, sheet.height), dpi=150)
    # What a letter takes of the width and the height: around the axes stand ticks, names of lines, headings, the note.
    across, down = points / 72 / sheet.width, points / 72 / sheet.height
    left, right, top, bottom = 6.9 * across, 1 - 12.7 * across, 1 - 6.4 * down, 8.4 * down
    spaces = {"left": left, "right": right, "top": top, "bottom": bottom, "wspace": 53 * across, "hspace": 22 * down}
    grid = figure.subplots(2, 2, gridspec_kw=spaces)
    figure.text(left, 1 - 2.7 * down, plain(panel.title), fontsize=points + 4.5, weight="bold", parse_math=False)
    for axes, (quantity, heading) in zip(grid.flat, _QUANTITIES.items(), strict=True):
        name = f"{panel.headline}" if quantity == "score" else heading
        axes.set_title(name, loc="left", fontsize=points + 2)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#E4E4E4", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.set_xlim(0, max([one.ratio for one in panel.settings] + [0.1]) * 1.01)
        axes.set_xlabel("fraction of audio removed", fontsize=points + 0.5)
        axes.tick_params(labelsize=points + 0.5)
        _draw(axes, panel, quantity, points)
    note = fill(_note(panel), int(120 * sheet.width / points))
    figure.text(left, 0.018, note, fontsize=points, color="#555555")
    return save_figure(figure, path)


def _note(panel: Panel) -> str:
    parts = ["Bands: 95 % intervals over clusters."]
    if panel.headline == MEAN:
        parts = ["Settings that every task has. Bands: 95 % intervals of the mean, tasks being independent."]
    if panel.bases:
        parts.append("Dashed: base, nothing dropped; ratio 0 of every method.")
    if any(one.ideal for one in panel.settings):
        parts.append("Dotted: what counted FLOPs promise.")
    parts += [f"{plain(note)}." for note in panel.notes[:_MOST_NOTES]]
    return " ".join(parts)


def _draw(axes: Any, panel: Panel, quantity: str, points: float) -> None:
    lines = {name: [one for one in line if quantity in one.figures] for name, line in panel.lines().items()}
    lines = {name: line for name, line in lines.items() if any(one.method != "base" for one in line)}
    bases = [one for one in panel.bases.values() if quantity in one.figures]
    if not bases and not lines:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color="#777777")
        axes.set_yticks([])
        return
    labels: list[tuple[float, float, str, str]] = []
    for name, line in lines.items():
        key, ink = line[-1].method, palette.colour(line[-1].method)
        ratios = [one.ratio for one in line]
        values = [one.figures[quantity] for one in line]
        if any(value.low < value.high for value in values):
            axes.fill_between(
                ratios, [v.low for v in values], [v.high for v in values], color=ink, alpha=0.09, linewidth=0
            )
        axes.plot(ratios, [v.value for v in values], color=ink, linestyle=palette.line_style(key), linewidth=1.6)
        own = [(one.ratio, one.figures[quantity].value) for one in line if one.method != "base"]
        axes.plot(*zip(*own, strict=True), color=ink, linestyle="none", marker=palette.marker(key), markersize=4.5)
        labels.append((ratios[-1], values[-1].value, name, ink))
    for one in bases:
        value = one.figures[quantity].value
        axes.axhline(value, color=palette.BASE, linestyle=(0, (4, 3)), linewidth=1.1, zorder=1.5)
        labels.append((axes.get_xlim()[1], value, one.line, palette.BASE))
    if quantity == "speed_up":
        _ideal(axes, lines)
    _limits(axes, quantity, [one.figures[quantity] for line in (*lines.values(), bases) for one in line])
    _label(axes, labels, points)


def _ideal(axes: Any, lines: dict[str, list[Setting]]) -> None:
    """Draw the ideal once: methods that drop at the same layer share it."""
    for line in lines.values():
        points = [(one.ratio, one.ideal) for one in line if one.ideal is not None]
        if any(ideal > 1.001 for _, ideal in points):
            axes.plot(*zip(*points, strict=True), color="#777777", linestyle=":", linewidth=1.3, zorder=1.4)
            return


def _limits(axes: Any, quantity: str, values: Sequence[Estimate]) -> None:
    low, high = min(value.low for value in values), max(value.high for value in values)
    if quantity == "score":
        low, high = max(0.0, low - 0.04), min(1.0, high) + 0.02
        axes.set_ylim(max(0.0, min(low, high - 0.2)), high)  # a flat score is to look flat
    else:
        axes.set_ylim(0, max(high, axes.get_ylim()[1] if quantity == "speed_up" else 0.0) * 1.05)


def _label(axes: Any, labels: Sequence[tuple[float, float, str, str]], points: float) -> None:
    """Write each line's name beside its end, moved apart where they would overlap, with a thin leader."""
    low, high = axes.get_ylim()
    height = axes.get_position().height * axes.figure.get_figheight() * 72
    wanted = sorted((((value - low) / (high - low)) * height, x, name, ink) for x, value, name, ink in labels)
    places = spread([place for place, *_ in wanted], points + 1, height)
    right = axes.get_xlim()[1]
    for (at, x, name, ink), place in zip(wanted, places, strict=True):
        axes.annotate(
            name,
            (x, low + at / height * (high - low)),
            xytext=(1.055, place / height),
            textcoords="axes fraction",
            fontsize=points,
            va="center",
            color=ink,
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": ink,
                "linewidth": 0.6,
                "alpha": 0.7 if x >= right * 0.97 else 0.35,
                "shrinkA": 1,
                "shrinkB": 2,
            },
        )


def spread(wanted: Sequence[float], gap: float, room: float) -> list[float]:
    """Move ascending places apart to at least `gap`, as little as need be, within 0…`room` where that is possible."""
    blocks: list[list[float]] = []  # what the members want of their first one's place, summed, and how many they are
    for place in wanted:
        blocks.append([place, 1])
        while len(blocks) > 1 and _start(blocks[-2]) + blocks[-2][1] * gap > _start(blocks[-1]):
            total, count = blocks.pop()
            blocks[-1] = [blocks[-1][0] + total - count * blocks[-1][1] * gap, blocks[-1][1] + count]
    places = [_start(block) + step * gap for block in blocks for step in range(int(block[1]))]
    for index in range(len(places) - 1, -1, -1):
        places[index] = min(places[index], room - (len(places) - 1 - index) * gap)
    return [max(place, index * gap) for index, place in enumerate(places)]


def _start(block: list[float]) -> float:
    return block[0] / block[1]
