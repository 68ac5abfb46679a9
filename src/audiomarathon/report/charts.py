"""Make the charts of the report page, of the commands `plot` and `demo`, and of papers, as Vega-Lite specs.

A spec holds no data, only names of data sets, which are stored beside it. So charts of one kind share a spec, and the
page stores it once. Limits and label positions are computed here, where tests can check them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np
from scipy.optimize import isotonic_regression

from audiomarathon.errors import RecordError, SettingsError
from audiomarathon.files import read_plain, write_bytes, write_text
from audiomarathon.metrics.statistics import Estimate
from audiomarathon.report import styles as series
from audiomarathon.settings import cache_folder
from audiomarathon.text import plain

Row = dict[str, Any]
FORMATS = ("png", "pdf", "svg")
_SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
_GREY = "#777777"
_PALE = 0.35  # opacity of a bar
_LETTERS = 11.0  # font size of a label, in pixels
_LABEL = 22  # most letters of a label that joins names
_SUBTITLE_LETTER = 7.0  # average width in pixels in browsers, whose sans-serif is wider than Vega's estimate
STAGES = {
    "load": "#999933",
    "preprocess": "#44AA99",
    "encoder": "#CC79A7",
    "llm_prefill": "#0072B2",
    "decode": "#E69F00",
}
CONFIG = {
    "background": "transparent",
    "view": {"stroke": None},
    "font": "sans-serif",
    "axis": {
        "grid": True,
        "gridColor": "#E4E4E4",
        "domainColor": "#888888",
        "tickColor": "#888888",
        "labelLimit": 0,
        "labelSeparation": 6,
    },
    "title": {"anchor": "start", "fontSize": 13},
    "legend": {"orient": "top", "title": None, "labelLimit": 0},
}


@dataclass(frozen=True)
class Line:
    """One line of a chart.

    Attributes
    ----------
    name
        Text of the line's label.
    points
        Points by rising x. Each has `x`, `y`, and optionally `low` and `high`, `what` (the point's name), `method`, and
        `busy` (whether other programs used the machine during the measurement; such points are hollow).
    method
        Decides colour, dashes and marks. A point with another `method`, such as base at the start, gets no mark.
    nth
        Number of this line among the lines of the same method; each number has different dashes.
    colour
        Colour to use instead of the method's; "" uses the method's.
    """

    name: str
    method: str
    points: Sequence[Mapping[str, Any]]
    nth: int = 0
    colour: str = ""


def point(x: float, estimate: Estimate, **more: Any) -> Row:
    """Make a point of a :class:`Line` at `x`; `estimate` (a value with its interval) gives `y`, `low` and `high`.

    `more` are further fields of the point, such as `what`.
    """
    return {"x": x, "y": estimate.value, "low": estimate.low, "high": estimate.high, **more}


@dataclass(frozen=True, repr=False)
class Chart:
    """A chart: a Vega-Lite spec, and the data sets that it draws, as {name of the data set in the spec: its rows}."""

    spec: Mapping[str, Any]
    data: Mapping[str, Sequence[Row]]

    def vega_lite(self) -> dict[str, Any]:
        """Return the complete Vega-Lite spec as a dict, with the data sets and the style of all charts (`config`)."""
        return {**self.spec, "datasets": dict(self.data), "config": CONFIG}

    def with_title(self, title: str) -> Chart:
        """Return a copy of the chart with a title."""
        return Chart({**self.spec, "title": plain(title)}, self.data)

    def svg(self, **more: Any) -> str:
        """Return the chart as SVG, with extra space on the right: labels are wider in browsers than Vega estimates."""
        padding = {"left": 5, "top": 5, "bottom": 5, "right": 25}
        return str(library("vl_convert").vegalite_to_svg({**self.vega_lite(), "padding": padding, **more}))

    def _repr_svg_(self) -> str:  # for Jupyter, whose page may be dark
        return self.svg(background="white")


def save(chart: Chart, path: Path) -> Path:
    """Write a chart to a file, in the format of the file's suffix, creating its folder; return the path.

    Raises
    ------
    SettingsError
        vl-convert (the extra `report`) is missing, or the format is not in :data:`FORMATS`.
    RecordError
        The file cannot be written; an existing file is kept.
    """
    kind = path.suffix.lstrip(".")
    if kind not in FORMATS:
        raise SettingsError(f"{path}: unknown picture format; allowed: {', '.join(FORMATS)}")
    converter, spec = library("vl_convert"), chart.vega_lite()
    if kind == "svg":
        content = chart.svg().encode()
    elif kind == "pdf":
        content = converter.vegalite_to_pdf(spec)
    else:
        content = converter.vegalite_to_png({**spec, "background": "white"}, scale=2.0)
    write_bytes(path, content)
    return path


def library(name: str) -> Any:
    """Import a library of the extra `report`; if it is missing, raise SettingsError with the install command."""
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError:
        raise SettingsError(f"pictures need {name.replace('_', '-')}: pip install 'audiomarathon[report]'") from None


def literal(text: str) -> str:
    """Return a text with its dollar signs escaped: matplotlib would read the text between two of them as a formula."""
    return text.replace("$", r"\$")


def line_chart(
    lines: Sequence[Line],
    x: str,
    y: str,
    *,
    rules: Sequence[tuple[str, float, str]] = (),
    dotted: Sequence[Mapping[str, float]] = (),
    front: Sequence[Mapping[str, float]] = (),
    span: tuple[float, float] | None = None,
    range_: tuple[float, float] | None = None,
    bands: bool = True,
    size: tuple[int, int] = (430, 250),
    ticks: Sequence[str] = (),
) -> Chart:
    """Draw lines with intervals, each with a label at its end.

    Equal lines are drawn once, with a label that names them.

    Parameters
    ----------
    x, y
        Axis titles.
    rules
        Dashed horizontal lines, each as (name, y value, colour).
    dotted
        Points of a dotted line, such as the ideal speed-up.
    front
        Points of the Pareto front, drawn with rings.
    span, range_
        Limits of the x axis and of the y axis; None fits the data.
    bands
        Whether to draw intervals as bands (True) or as bars (False).
    ticks
        Labels for x = 0, 1, …, instead of numbers.
    """
    xs = [point["x"] for line in lines for point in line.points] + [point["x"] for point in dotted]
    x0, x1 = span or _reach(xs, 0.04)
    ys = [*reached(lines), *(value for _, value, _ in rules), *(point["y"] for point in dotted)]
    y0, y1 = range_ or _reach(ys, 0.05)
    y1 = y1 if y1 > y0 else y0 + 1.0  # if all values are 0
    points: list[Row] = []
    intervals: list[Row] = []
    ends: list[tuple[float, float, str, str]] = []
    named = set[str]()  # rules that are named in a line's label
    alike: dict[tuple[tuple[float, float], ...], list[Line]] = {}
    for line in lines:
        alike.setdefault(tuple((point["x"], round(float(point["y"]), 9)) for point in line.points), []).append(line)
    for line in lines:
        look: Row = {
            "line": plain(line.name),
            "colour": line.colour or series.colour(line.method),
            "dash": series.dash(line.method) if not line.nth else [2 + 2 * line.nth, 2],
        }
        shape = series.mark(line.method)
        wide = any(point.get("low") is not None and point["low"] < point["high"] for point in line.points)
        first, *others = next(group for group in alike.values() if line in group)
        for place, point in enumerate(line.points):
            row = {**look, **point, "what": plain(str(point.get("what", line.name))), "place": place}
            marked = point.get("method", line.method) == line.method
            if line is first:  # curves on top of each other would hide all but the last
                whats = [row["what"], *(plain(str(line.points[place].get("what", line.name))) for line in others)]
                look_of_all = {"what": " = ".join(dict.fromkeys(whats)), "solid": 0 if point.get("busy") else 1}
                points.append({**row, **look_of_all, "shape": shape, "marked": marked})
            if wide and point.get("low") is not None:
                intervals.append({name: row[name] for name in ("line", "colour", "x", "low", "high", "what")})
        if line.points and line is first:
            last, flat = line.points[-1], {round(float(point["y"]), 9) for point in line.points}
            as_rules = [name for name, value, _ in rules if flat == {round(value, 9)}]
            named.update(as_rules)
            name = _joined([line.name, *(line.name for line in others), *as_rules])
            ends.append((float(last["y"]), float(last["x"]), plain(name), look["colour"]))
    ends += [(value, x1, plain(name), ink) for name, value, ink in rules if name not in named]
    data = {
        "frame": [{"x": x0, "y": y0}, {"x": x1, "y": y1}],
        "points": points,
        "intervals": intervals,
        "rules": [{"y": value, "colour": ink} for _, value, ink in rules],
        "dotted": [dict(point) for point in dotted],
        "front": [dict(point) for point in front],
        "labels": _labels(ends, (y0, y1), size[1]),
    }
    layers = [
        layer_spec for layer_spec in _line_layers(plain(x), plain(y), bands, ticks) if data[layer_spec["data"]["name"]]
    ]
    return Chart(figure(layers, *size), {name: rows for name, rows in data.items() if rows})


def _joined(names: Sequence[str]) -> str:
    """Make one label for equal curves of several names, such as `dart = fast_v = base`.

    If that is long, the label has the first name and the number of the others.
    """
    names = list(dict.fromkeys(names))
    label = " = ".join(names)
    return label if len(label) <= _LABEL or len(names) < 2 else f"{names[0]} = {len(names) - 1} others"


def _reach(values: Iterable[float], more: float) -> tuple[float, float]:
    """Return (low, high), the limits of an axis that shows all given values, with free space below and above them.

    Each space is `more` times the distance between the smallest and the largest value.
    """
    known = list(values)
    low, high = min(known, default=0.0), max(known, default=1.0)
    margin = more * (high - low or abs(high) or 1.0)
    return low - margin, high + margin


def reached(lines: Sequence[Line]) -> list[float]:
    """Return the y values of all points of the lines, and of the ends of their intervals, to compute axis limits."""
    ends = (point.get(end) for line in lines for point in line.points for end in ("low", "high", "y"))
    return [value for value in ends if value is not None]


def score_range(lines: Sequence[Line], *more: float) -> tuple[float, float]:
    """Return (low, high), the limits of a score axis on which the lines and the values `more` fit.

    The axis is wide enough that nearly equal scores look flat.
    """
    values = [*reached(lines), *more]
    low, high = min(values, default=0.0), max(values, default=1.0)
    low, high = low - 0.04 if low < 0 else max(0.0, low - 0.04), high + 0.02
    return min(low, max(0.0, high - 0.2)) if low >= 0 else low, high


def _labels(ends: Sequence[tuple[float, float, str, str]], limits: tuple[float, float], height: int) -> list[Row]:
    """Place a label at the end of each line, and move labels apart that would overlap.

    Return a row per label, with its place and the end of its line, for the chart's data.

    Parameters
    ----------
    ends
        (y, x, text, colour) of each line's end.
    limits
        Limits of the y axis.
    height
        Height of the chart in pixels.
    """
    low, high = limits
    unit = height / (high - low)
    wanted = sorted(((value - low) * unit, x, value, name, ink) for value, x, name, ink in ends)
    places = spread([place for place, *_ in wanted], _LETTERS + 2, height)
    return [
        {"y": low + place / unit, "x_end": x, "y_end": value, "text": name, "colour": ink}
        for (_, x, value, name, ink), place in zip(wanted, places, strict=True)
    ]


def figure(content: list[dict[str, Any]] | dict[str, Any], width: int, height: Any) -> dict[str, Any]:
    """Make a Vega-Lite spec (a dict), without data and config, from a list of layers or from a single layer."""
    body = {"layer": content} if isinstance(content, list) else content
    return {"$schema": _SCHEMA, **body, "width": width, "height": height}


def layer(rows: str, mark: str, look: Mapping[str, Any], **channels: Any) -> dict[str, Any]:
    """Make a Vega-Lite layer that draws the data set called `rows` as a `mark`, such as "line".

    `look` has the mark's properties. A channel (`x`, `y`, `color`, …) is given as a name for :func:`field`, or as a
    complete channel.
    """
    encoding = {name: field(channel) if isinstance(channel, str) else channel for name, channel in channels.items()}
    return {"data": {"name": rows}, "mark": {"type": mark, **look}, "encoding": encoding}


def field(name: str, **more: Any) -> dict[str, Any]:
    """Make a Vega-Lite encoding channel that shows a field of the rows.

    `name:Q` is a field of numbers, `name:N` a field of names; `name` alone (for `x2` and `y2`) takes the type of `x` or
    `y`.
    """
    name, _, kind = name.partition(":")
    return {"field": name} | ({"type": {"Q": "quantitative", "N": "nominal"}[kind]} if kind else {}) | more


def as_is(name: str) -> dict[str, Any]:
    """Make a Vega-Lite encoding channel for a field whose values are themselves colours, shapes or opacities, without a
    scale.
    """
    return field(name, scale=None, legend=None)


def by_name(name: str, colours: Mapping[str, str], **more: Any) -> dict[str, Any]:
    """Make a Vega-Lite colour channel that gives each name in a field a colour, with a legend.

    The legend is requested explicitly, since a neighbouring chart without a legend would hide it otherwise.
    """
    scale = {"domain": list(colours), "range": list(colours.values())}
    return field(name, scale=scale, **{"legend": {}, **more})


def _line_layers(x: str, y: str, bands: bool, ticks: Sequence[str]) -> list[dict[str, Any]]:
    fit = {"zero": False, "nice": False}
    names = {"values": [*range(len(ticks))], "labelExpr": f"{json.dumps(ticks)}[datum.value]", "labelAngle": -40}
    across = field("x:Q", title=x, scale=fit) | ({"axis": {**names, "labelOverlap": True}} if ticks else {})
    at = {"x": across, "y": field("y:Q", title=y, scale=fit)}
    ink = {"color": as_is("colour:N")}
    between = {"x": across, "y": field("low:Q", title=y), "y2": "high", **ink}
    titles = {"y": y, "low": "from", "high": "to", "x": x}
    numbers = [field(f"{name}:Q", title=title, format=".4~g") for name, title in titles.items()]
    tip = [field("what:N", title="setting"), *numbers, field("said:N", title=" ")]
    line = {"detail": "line:N", "order": "place:Q", "strokeDash": as_is("dash:N"), **ink}
    disc = {"stroke": as_is("colour:N"), "fillOpacity": as_is("solid:Q"), "shape": as_is("shape:N"), **ink}
    marked = layer("points", "point", {"filled": True, "size": 36, "strokeWidth": 1.5, "opacity": 1},
                   **at, **disc, tooltip=tip)  # fmt: skip
    to_label = {"x": "x_end:Q", "y": "y_end:Q", "x2": {"value": {"expr": "width + 7"}}, "y2": "y", **ink}
    return [
        layer("frame", "point", {"opacity": 0, "tooltip": None}, **at),
        layer("intervals", "area", {"opacity": 0.1}, detail="line:N", **between)
        if bands
        else layer("intervals", "rule", {"opacity": 0.5}, **between),
        layer("rules", "rule", {"strokeDash": [5, 4]}, y="y:Q", **ink),
        layer("dotted", "line", {"strokeDash": [1, 3], "color": _GREY}, **at),
        layer("front", "line", {"strokeDash": [1, 4], "strokeWidth": 2, "color": _GREY}, **at),
        layer("front", "point", {"size": 170, "color": _GREY}, **at),
        layer("points", "line", {"strokeWidth": 1.7}, **at, **line),
        marked | {"transform": [{"filter": "datum.marked"}]},
        layer("labels", "rule", {"opacity": 0.35, "strokeWidth": 0.7, "clip": False}, **to_label),
        layer("labels", "text", {"align": "left", "fontSize": _LETTERS, "clip": False},
              x={"value": {"expr": "width + 9"}}, y="y:Q", text="text:N", **ink),
    ]  # fmt: skip


def spread(wanted: Sequence[float], gap: float, room: float) -> list[float]:
    """Return positions that are at least `gap` apart, in the given order and as close as possible to `wanted`.

    If there is space, all positions lie between 0 and `room`.
    """
    if not wanted:
        return []
    steps = gap * np.arange(len(wanted))
    places = isotonic_regression(np.subtract(wanted, steps)).x + steps
    positions: list[float] = np.maximum(np.minimum(places, room - steps[::-1]), steps).tolist()
    return positions


def pareto_front(points: Iterable[Mapping[str, Any]]) -> list[dict[str, float]]:
    """Return the points that no other point beats in both y (higher) and x (lower), by rising x."""
    front: list[dict[str, float]] = []
    for point in sorted(points, key=lambda point: (point["x"], -point["y"])):
        if not front or point["y"] > front[-1]["y"]:
            front.append({"x": point["x"], "y": point["y"]})
    return front


def bar_chart(rows: Sequence[Row], x: str, *, width: int = 380) -> Chart:
    """Draw horizontal bars, each a stack of parts.

    Parameters
    ----------
    rows
        Each row is one part of a bar: `name` (of the bar), `part`, `value`, `colour`, and `busy` (whether other
        programs used the machine during the measurement; such parts are pale). Bars keep the order of the rows.
    x
        Title of the x axis.
    """
    order = list(dict.fromkeys(row["name"] for row in rows))
    parts = {row["part"]: row["colour"] for row in rows}
    bar_rows = [row | {"bar": order.index(row["name"]), "nth": [*parts].index(row["part"])} for row in rows]
    several = len(parts) > 1
    bars = layer(
        "bars", "bar", {},
        x=field("value:Q", title=x, stack="zero" if several else None),
        y=field("name:N", title=None, sort={"field": "bar", "op": "min"}),
        color=by_name("part:N", parts) if several else as_is("colour:N"), order="nth:Q", opacity=as_is("solid:Q"),
        tooltip=[field("name:N", title="setting"), field("part:N", title=" "),
                 field("value:Q", title=x, format=",.4~g")],
    )  # fmt: skip
    return Chart(figure(bars, width, {"step": 18}), {"bars": _pale(bar_rows)})


def _pale(rows: Sequence[Row]) -> list[Row]:
    """Return the bars' rows with a field for opacity: bars of times that were taken on a busy machine are pale."""
    return [row | {"solid": _PALE if row.get("busy") else 1.0} for row in rows]


def side_by_side(charts: Sequence[Chart], columns: int = 2, title: str = "", notes: Sequence[str] = ()) -> Chart:
    """Combine several charts into one, `columns` in a row, with a title and lines of text (`notes`) above."""
    parts: list[dict[str, Any]] = []
    data: dict[str, Sequence[Row]] = {}
    for place, chart in enumerate(charts):
        text = json.dumps({name: value for name, value in chart.spec.items() if name != "$schema"})
        text = text.replace('"data": {"name": "', f'"data": {{"name": "{place}-')
        # In a combined chart, Vega's signal `width` is not the width of this part, so insert the number.
        for gap in (7, 9):
            text = text.replace(f'{{"expr": "width + {gap}"}}', str(chart.spec["width"] + gap))
        parts.append(json.loads(text))
        data |= {f"{place}-{name}": rows for name, rows in chart.data.items()}
    room = int(min(columns, len(charts)) * (charts[0].spec["width"] + 90) / _SUBTITLE_LETTER)
    lines = [line for note in notes for line in wrap(plain(note), room)]
    heading = {"text": plain(title), "subtitle": lines, "fontSize": 15, "subtitleColor": _GREY, "offset": 14}
    spec = {"$schema": _SCHEMA, "concat": parts, "columns": columns}
    return Chart(spec | ({"title": heading} if title or notes else {}), data)


def grouped_bars(rows: Sequence[Row], y: str, *, legend: bool, size: tuple[int, int]) -> Chart:
    """Draw a group of bars per task, one bar per setting, with intervals.

    Parameters
    ----------
    rows
        Each row has `task`, `setting`, `method`, `value`, and optionally `low` and `high`, and `busy` as in
        :func:`bar_chart`.
    y
        Title of the y axis.
    """
    looks = {row["setting"]: series.colour(row["method"]) for row in rows}
    across = {
        "x": field("task:N", title=None, sort=None, axis={"labelAngle": -20}),
        "xOffset": field("setting:N", sort=list(looks)),
    }
    bars = layer(
        "bars", "bar", {}, y=field("value:Q", title=y), opacity=as_is("solid:Q"), **across,
        color=by_name("setting:N", looks, **({} if legend else {"legend": None})),
        tooltip=[field("task:N"), field("setting:N"), field("value:Q", title=y, format=".3~g")],
    )  # fmt: skip
    known = [row for row in rows if row.get("low") is not None]
    ends = layer("ends", "rule", {"color": "#8a8a8a", "strokeWidth": 1.5}, y="low:Q", y2="high", **across)
    return Chart(
        figure([bars, ends] if known else [bars], *size), {"bars": _pale(rows)} | ({"ends": known} if known else {})
    )


def heat_map(rows: Sequence[Row], x: str, y: str, value: str) -> Chart:
    """Draw a coloured cell for each pair of x and y, with its value between 0 and 1. Both axes keep the rows' order.

    Parameters
    ----------
    rows
        One per cell. Each has `x`, `y` (texts), `value`, and `said` (further text for the tooltip).
    x, y, value
        Titles of both axes and of the colour.
    """
    bare = {"sort": None, "axis": {"labelAngle": 0, "grid": False}}
    across = {"x": field("x:N", title=x, **bare), "y": field("y:N", title=y, **bare)}
    colour = {"scale": {"domain": [0, 1], "scheme": "viridis"}, "legend": {"title": value, "orient": "right"}}
    tip = [field("x:N", title=x), field("y:N", title=y), field("value:Q", title=value), field("said:N", title=" ")]
    ink, number = {"condition": {"test": "datum.value > 0.5", "value": "black"}, "value": "white"}, field("value:Q")
    layers = [
        layer("cells", "rect", {}, color=number | colour, tooltip=tip, **across),
        layer("cells", "text", {"fontSize": _LETTERS}, text=number | {"format": ".2f"}, color=ink, **across),
    ]
    width, height = (step * len({row[axis] for row in rows}) for axis, step in (("x", 42), ("y", 28)))
    return Chart(figure(layers, width, height), {"cells": list(rows)})


def histogram(edges: Sequence[float], counts: Sequence[int], median: float, x: str, *, size: tuple[int, int]) -> Chart:
    """Draw a histogram of clip durations, with a line at the median; `x` is the title of the x axis."""
    bars = [{"from": low, "to": high, "count": n} for low, high, n in zip(edges, edges[1:], counts, strict=False)]
    across = field("from:Q", title=x, scale={"zero": False, "nice": False})
    layers = [
        layer("bars", "bar", {"color": "#0072B2"}, x=across, x2="to", y=field("count:Q", title="clips")),
        layer("median", "rule", {"color": "#D55E00"}, x="x:Q"),
    ]
    return Chart(figure(layers, *size), {"bars": bars, "median": [{"x": median}]})


def script() -> str:
    """Return the JavaScript of Vega, Vega-Lite and vega-embed as one text, for pages that work without a network.

    Raises
    ------
    SettingsError
        vl-convert (the extra `report`) is missing.
    """
    converter = library("vl_convert")
    kept = cache_folder() / f"vega-{converter.__version__}.js"  # bundling takes more than a second
    with suppress(OSError, ValueError):
        return read_plain(kept).decode()
    bundle: str = converter.javascript_bundle()
    with suppress(OSError, RecordError):
        write_text(kept, bundle)
    return bundle
