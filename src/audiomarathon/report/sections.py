"""Make the sections of the report page: recommendation, scores, curves, costs, durations, single tasks, machine."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np

from audiomarathon.judges.anchors import MARKS
from audiomarathon.report import charts, tables
from audiomarathon.report import styles as series
from audiomarathon.report.charts import Chart, Line
from audiomarathon.report.page_data import Advice, PageData, Setting, by_duration, scores_table
from audiomarathon.report.render import Kind, Table
from audiomarathon.results.beside import ACROSS
from audiomarathon.results.compare import LeftOut, lines_by_reason
from audiomarathon.results.pairs import AS_BASE
from audiomarathon.runs.read import Run
from audiomarathon.text import counted
from audiomarathon.wing import asked

_MOST_BARS = 100


@dataclass(frozen=True)
class Section:
    """A section of the report page.

    Attributes
    ----------
    anchor, heading
        Name of the section for links within the page, and its heading.
    tables
        Tables, each under its title.
    charts
        Charts as {scope: charts}; a scope is a task or a mean over tasks, which the page's reader selects. Charts under
        "" are always shown.
    notes
        Notes as {scope: notes}; notes under "" are always shown.
    toggle
        Label of a switch between the first and the second table; "" shows all tables.
    """

    anchor: str
    heading: str
    tables: Sequence[Table] = ()
    charts: Mapping[str, Sequence[Chart]] = field(default_factory=dict)
    notes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    toggle: str = ""


def sections(data: PageData) -> list[Section]:
    """Return the page's sections that are not empty: on models' replies, of further benchmarks, on the machine."""
    replies = data.only(_replies)
    parts = [
        *(_of_replies(replies) if replies.systems else []),
        *(part for wing_sections in asked(lambda wing: wing.sections(data)) for part in wing_sections),
    ]
    return [
        section
        for section in [*parts, _machine(replies if replies.systems else data)]
        if section.tables or section.charts
    ]


def _replies(run: Run) -> bool:
    """Tell whether a run holds replies of models.

    Other runs, such as those of probes, have sections by their benchmarks.
    """
    return not (run.task and run.task.own_command)


def _of_replies(data: PageData) -> list[Section]:
    """Return the sections of the page that are about models' replies."""
    scopes = sorted([*reversed(data.scopes), *data.tasks], key=lambda scope: scope != data.widest)
    return [
        _choice(data),
        _scores(data),
        _by_scope("curves", "Score against ratio and time", scopes, data, _curves),
        _by_scope("costs", "What it costs", scopes, data, _costs),
        _by_scope("durations", "Score against duration", scopes, data, _durations),
        _task_tables(data),
    ]


def facts(data: PageData, samples: int) -> list[str]:
    """Return the lines of text below the page's title: models, machine, dates, number of samples, and tasks."""
    runs = data.runs
    named = ((str(run.facts.get("model") or run.checkpoint), run.checkpoint) for run in runs)
    models = dict.fromkeys(name if name == checkpoint else f"{name} ({checkpoint})" for name, checkpoint in named)
    machines = dict.fromkeys(map(_machine_of, runs))
    days = sorted(
        {str(session.get("started", ""))[:10] for run in runs for session in run.facts.get("sessions") or ()} - {""}
    )
    tasks = list(dict.fromkeys(run.key for run in runs))
    when = f"measured {days[0]}" + (f" to {days[-1]}" if days[1:] else "") if days else "date unknown"
    count = counted(len(data.systems), "setting")
    return [
        f"{', '.join(models)} on {'; '.join(machines)}",
        f"{when} · {counted(samples, 'sample')} of {', '.join(tasks)} · {count}",
        *_redundancy(runs),
    ]


def _redundancy(runs: Sequence[Run]) -> list[str]:
    """Return a line on how similar neighbouring audio tokens are, for each task and checkpoint; [] if not measured."""
    several, told = len({run.checkpoint for run in runs}) > 1, []
    for run in runs:
        values = [record.redundancy for record in run.records.values() if record.redundancy is not None]
        if values and not run.control:
            told.append(f"{run.checkpoint + ' ' if several else ''}{run.key} {np.mean(values):.2f}")
    shown = ", ".join(dict.fromkeys(told))
    return [f"redundancy, the mean cosine of neighbouring audio tokens that enter the LLM: {shown}"] if told else []


def _machine_of(run: Run) -> str:
    """Return the name of the GPU or CPU that a run used, with precision and attention implementation."""
    device = run.identity.get("device")
    name = (run.facts.get("environment") or {}).get("cpu") if device in (None, "cpu") else device
    precision = [str(value) for value in map(run.identity.get, ("dtype", "attention")) if value]
    return ", ".join([str(name or device or "unknown machine"), *precision])


def advice(data: PageData) -> list[str]:
    """Return a text per checkpoint: which setting to use, the fastest that loses at most one point against base.

    A point is one hundredth of the score's range.
    """
    if not any(map(_replies, data.runs)):
        return []
    none = "No recommendation: it needs base and another setting of the same checkpoint."
    weak = "Some judges of these replies are weak or not certified (see the notes): do not rely on these scores alone."
    notes = [note for run in data.runs for note in (run.summary or {}).get("notes") or ()]
    data = data.only(_replies)
    advised = [_advised(recommendation, data.point) for recommendation in data.advice]
    is_weak = any(mark in note for note in notes for mark in MARKS)
    return [*advised, *[weak] * is_weak] if advised else [none]


def _advised(recommendation: Advice, point: float) -> str:
    """Write a recommendation as text; `point` is one hundredth of the score's range."""
    if recommendation.best is None:
        return f"{recommendation.checkpoint}: no recommendation, because {recommendation.why}."
    tasks = recommendation.tasks[0] if len(recommendation.tasks) == 1 else counted(len(recommendation.tasks), "task")
    on = f"on {counted(recommendation.samples, 'sample')} of {tasks}"
    if recommendation.row is None and recommendation.margins:
        return f"{recommendation.checkpoint}: no setting is faster than base ({on})."
    if recommendation.row is None:
        return f"{recommendation.checkpoint}: no setting keeps the score within 1 point of base's and is faster ({on})."
    verdict = recommendation.row.verdict
    unit = "1 point" if math.isclose(point, 0.01) else f"1 point ({point:g})"
    loss = "its replies are base's by construction"
    if recommendation.row.alike != AS_BASE and verdict.interval:
        low, high = (end / point for end in verdict.interval)
        loss = f"{(verdict.difference or 0.0) / point:+.1f} points, 95 % interval {low:+.1f} to {high:+.1f}"
    speed = (recommendation.row.speed_ups["first_token"] or {}).get("interval")
    span = f" [{speed[0]:.2f}, {speed[1]:.2f}]" if speed else ""
    claim = (
        f"is decided to lose no more than {recommendation.margins}"
        if recommendation.margins
        else f"keeps the score within {unit}"
    )
    text = (
        f"{recommendation.checkpoint}: {recommendation.best.name} {claim} at {recommendation.best.speed:.2f}×{span} "
        f"base's speed to the first token ({loss}; {on})."
    )
    if recommendation.best.is_random:
        method = (
            f"{recommendation.other.name} ({recommendation.other.speed:.2f}×)"
            if recommendation.other and recommendation.other.speed > 1
            else "none"
        )
        text += f" That is the control, which drops at random; the best other setting is {method}."
    return text


def described(data: PageData, scope: str) -> str:
    """Return a sentence about a scope: its tasks, if it is a mean over tasks, and the settings without a score."""
    missing = [data.settings[place].name for place in data.charted if (scope, place) not in data.figures]
    text = f"{scope}: the mean over {', '.join(data.members(scope))}" if scope in data.scopes else scope
    return f"{text}." + f" Not shown, because a score is missing: {', '.join(missing)}." * bool(missing)


Row = tuple[Setting, dict[str, Any]]
"""A setting, and its figures on one task or on one mean over tasks."""


def _rows(data: PageData, scope: str) -> list[Row]:
    """Return (setting, its columns as {name: value}) for each setting to draw on a scope (a task or a mean)."""
    places = [place for place in data.charted if (scope, place) in data.figures]
    return [(data.settings[place], data.figures[scope, place]) for place in places]


def _choice(data: PageData) -> Section:
    """Make the page's first section: a chart of score against the speed-up of time to first token, and a table of
    settings.

    Recommended settings come first in the table.
    """
    scope, advised = data.widest, {recommendation.place for recommendation in data.advice}
    rows = []
    for place, setting in enumerate(data.settings):
        row = dict.fromkeys(_CHOICE) | data.figures.get((scope, place), {})
        speed, loss = row["first_token_speedup"] or 0.0, row["difference"]
        what = "recommended" if place in advised else "control" if setting.method == "random" else ""
        shown = {"setting": setting.name, "setting_said": what}
        shown["first_token_speedup_why"] = row.get("untimed") or row.get("why") or ""
        if setting.system.is_base:
            speed, loss = 1.0, 0.0
            shown |= {"difference": "base", "first_token_speedup": "base"}
        elif row["first_token_speedup"] is None:
            row |= {"prefill_s": None}  # a time that must not be compared with those of this column
        kept = loss is not None and loss >= -data.point
        missing = (scope, place) not in data.figures
        order = (bool(setting.system.control), place not in advised, missing, not kept,
                 -speed if kept else 2.0 if loss is None else -loss)  # fmt: skip
        rows.append((order, row | shown))
    ordered = [row for _, row in sorted(rows, key=lambda ranked: ranked[0])]
    kinds = {"prefill_s": Kind("first token, ms", ".0f", 1e3), "setting": Kind(left=True)}
    kinds |= {"score": Kind(f"score, {scope} [95 %]", ".3f"), "n": Kind("samples", "d")}
    table = Table.of(ordered, _CHOICE, kinds=kinds).without_empty("setting", "score")
    about = (
        f"Score and times: {described(data, scope)} Differences and speed-ups use the samples that both answered; "
        "colour means significant after Holm's correction. Order: recommended settings, then settings within 1 point "
        "of base by speed, then the others by score. × is the median over samples of base ÷ setting; ms is base's "
        "median divided by it."
    )
    if "throughput_speedup" in table.columns:
        about += (
            " Samples a second: how many one GPU (or one process on a CPU) answers in batches, the setting's ÷ base's, "
            "each in batches of its own size."
        )
    if scope in data.tasks and len(data.tasks) > 1:
        about += (
            f" This is one of {len(data.tasks)} tasks, because they have no mean that most settings have; the others "
            'are under "Scores by task".'
        )
    notes = [about if scope else "No score yet.", *_by_reason(data, _remarks(data, scope))]
    lines = _lines(data, scope, _speed_up)
    notes += _hollow(lines)
    drawn = []
    if _has_points(lines):
        front = charts.pareto_front({"x": -p["x"], "y": p["y"]} for line in lines for p in line.points)
        bases = [row["score"] for setting, row in _rows(data, scope) if setting.system.is_base]
        rules = [("base − 1 point", bases[0] - data.point, "#888888")] if len(bases) == 1 else []
        drawn = [
            charts.line_chart(
                lines, "speed-up of time to first token (×)", "score", bands=False, rules=rules,
                front=[{"x": -p["x"], "y": p["y"]} for p in front],
                range_=charts.score_range(lines, *(value for _, value, _ in rules)), size=(620, 220),
            ).with_title(f"Score against speed: {scope}")
        ]  # fmt: skip
    return Section("choice", "What to choose", [table], {"": drawn} if drawn else {}, {"": notes})


_CHOICE = ("setting", "score", "difference", "first_token_speedup", "throughput_speedup", "prefill_s", "kv_bytes", "n")
_CONTROLS = (
    "control runs (audiomarathon data controls): their clips were cut, silenced or replaced, so they are "
    "compared only with base on the same clips, and not drawn"
)


def _by_reason(data: PageData, remarks: Iterable[tuple[str, str]], scope: str | None = None) -> list[str]:
    """Return one text line per reason, with the names of all settings for which it was given.

    `remarks` are pairs (setting's name, reason); `scope` is their task or mean.
    """
    every = {data.settings[place].name for place in data.charted if not data.systems[place].is_base}
    return [f"{line}." for line in lines_by_reason((LeftOut(name, scope, why) for name, why in remarks), every)]


def _undrawn(data: PageData, scope: str) -> list[str]:
    """Return the lines of a caption on times that were measured but are not drawn, such as those of another session."""
    left_out = [(setting.name, row) for setting, row in _rows(data, scope) if row["prefill_s"] is not None]
    whys = [
        (name, ACROSS if row.get("across") else row.get("untimed") or row.get("why") or "not compared with base")
        for name, row in left_out
        if not _comparable(row)
    ]
    return _by_reason(data, [(name, f"not in the pictures of times: {why}") for name, why in whys])


def _remarks(data: PageData, scope: str) -> Iterator[tuple[str, str]]:
    """Yield (name of a setting or checkpoint, note for the reader) for a task or a mean over tasks.

    A note says, for example, that a run is not finished or that the machine was busy.
    """
    for name, task, answered, expected in data.unfinished:
        count = f"{answered} of {expected} samples"
        yield name, f"no figures for {task}: not finished ({count}; audiomarathon score summarises these samples)"
    for place, setting in enumerate(data.settings):
        row = data.figures.get((scope, place))
        if row and not _comparable(row) and (why := row.get("why") or row.get("untimed")):
            yield setting.name, f"no speed-up: {why}"
        if row and (why := row.get("unbatched")):
            yield setting.name, f"no samples a second: {why}"
        if row and row.get("across"):
            yield setting.name, f"not in the pictures of times: {ACROSS}"
        for figures in (data.figures[task, place] for task in data.tasks if (task, place) in data.figures):
            n, expected = figures["n"], figures["expected"]
            if expected and n + (figures["errors"] or 0) < expected:
                yield setting.name, f"figures of {figures['scope']} use {n} of {expected} samples: not finished"
            yield from ((setting.name, note) for note in figures["notes"])
            if figures["busy"]:
                yield setting.name, "the machine was busy while times were taken"
    for advice in data.advice:
        yield from ((advice.checkpoint, f"not ranked: {line}") for line in advice.left_out)
    yield from ((setting.name, _CONTROLS) for setting in data.settings if setting.system.control)


def _scores(data: PageData) -> Section:
    notes = ["Below each score: its 95 % interval over clusters. The best score of each column is bold.",
             "Differences are paired on the samples that both answered, with 95 % intervals; colour means significant "
             "after Holm's correction over the rows of the same kind."]  # fmt: skip
    for scope in data.tasks:
        rows = {place: row for (task, place), row in data.figures.items() if task == scope and row.get("why")}
        without = ((data.settings[place].name, row["why"]) for place, row in rows.items())
        notes += [f"No difference for {line}" for line in _by_reason(data, without, scope)]
    both = [scores_table(data, narrow=True), scores_table(data, "difference", narrow=True)]
    return Section(
        "scores", "Scores by task", both if data.figures else (), notes={"": notes}, toggle="difference from base"
    )


Draw = Callable[[PageData, str], tuple[list[Chart], list[str]]]


def _by_scope(anchor: str, heading: str, scopes: Sequence[str], data: PageData, draw: Draw) -> Section:
    """Make a section of the page: for each scope (a task or a mean), charts and notes; scopes without charts are left
    out.

    `draw` is a function that returns (charts, notes) of a scope.
    """
    drawn = {scope: draw(data, scope) for scope in scopes}
    by_scope = {scope: charts for scope, (charts, _) in drawn.items() if charts}
    return Section(anchor, heading, (), by_scope, {scope: drawn[scope][1] for scope in by_scope})


X = Callable[[Mapping[str, Any]], float | None]


def _lines(data: PageData, scope: str, x: X, *, timed: bool = True) -> list[Line]:
    """Make the lines of a picture of scores: one per method, layer and checkpoint, with points by rising ratio.

    A line starts at base if it can be compared with base.

    Parameters
    ----------
    x
        Function that returns a setting's x value, given its columns as {name: value}, or None to leave the point out.
    timed
        Whether the picture shows times; then points measured on a busy machine are hollow.
    """

    def point(setting: Setting, row: Mapping[str, Any]) -> dict[str, Any] | None:
        if (at := x({**row, "ratio": setting.ratio})) is None:
            return None
        return {"x": at, "y": row["score"], "low": row["score_low"], "high": row["score_high"], "what": setting.name,
                "method": setting.method, "busy": timed and row["busy"]}  # fmt: skip

    lines, lines_of_method = [], Counter[str]()
    for name, rows in _by_line(_rows(data, scope)).items():
        first, figures = rows[0]
        points = [point(*row) for row in sorted(rows, key=lambda row: row[0].ratio)]
        if not any(points):
            continue
        if first.base is not None and not first.system.is_base and not figures.get("why"):
            base = data.figures.get((scope, first.base))
            points.insert(0, point(data.settings[first.base], base) if base else None)
        lines.append(Line(name, first.method, [point for point in points if point], lines_of_method[first.method]))
        lines_of_method[first.method] += 1
    return sorted(lines, key=lambda line: line.method == "base")


def _by_line(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Group pairs (setting, its columns) by the line that shows the setting in pictures; return {line: pairs}."""
    by_line: dict[str, list[Row]] = {}
    for row in rows:
        by_line.setdefault(row[0].line, []).append(row)
    return by_line


def _speed_up(row: Mapping[str, Any]) -> float | None:
    return 1.0 if row.get("is_base") else row.get("first_token_speedup") if _comparable(row) else None


def _hollow(lines: Sequence[Line]) -> list[str]:
    """Return [the note on hollow points (times on a busy machine)]; [] if no line of the chart has such points."""
    return [series.HOLLOW] * any(point.get("busy") for line in lines for point in line.points)


def _has_points(lines: Sequence[Line]) -> bool:
    """Tell whether the lines have points at two or more x values, so that a chart of them is worth drawing."""
    return len({point["x"] for line in lines for point in line.points}) > 1


def _curves(data: PageData, scope: str) -> tuple[list[Chart], list[str]]:
    lines = _lines(data, scope, itemgetter("ratio"), timed=False)
    by_ratio = [line for line in lines if line.method != "base"]
    bases = [(line.name, float(line.points[0]["y"]), series.BASE) for line in lines if line.method == "base"]
    curves, notes = [], list[str]()
    if _has_points(by_ratio):
        most = max([point["x"] for line in by_ratio for point in line.points] + [0.1])
        curves.append(
            charts.line_chart(by_ratio, "fraction of audio removed", "score", rules=bases, span=(0.0, most * 1.01),
                              range_=charts.score_range(by_ratio, *(value for _, value, _ in bases)))
            .with_title("Score against ratio")
        )  # fmt: skip
        notes.append("Bands are 95 % intervals over clusters. Dashed: base, which is ratio 0 of every method.")
    timed = [setting for setting, row in _rows(data, scope) if _comparable(row)]
    devices = {setting.system.identity.get("device") for setting in timed}
    for name, title in (("llm_prefill_s", "LLM prefill"), ("prefill_s", "time to first token")):
        lines = _lines(data, scope, partial(_milliseconds, name=name))
        if _has_points(lines):
            front = charts.pareto_front(point for line in lines for point in line.points) if len(devices) < 2 else []
            curves.append(
                charts.line_chart(lines, f"{title}, ms (median)", "score", bands=False, front=front,
                                  range_=charts.score_range(lines)).with_title(f"Score against {title}")
            )  # fmt: skip
            notes += [line for line in _hollow(lines) if line not in notes]
    if len(devices) > 1:
        names = ", ".join(map(str, sorted(devices, key=str)))
        notes.append(f"Times come from different devices ({names}), so they have no Pareto front.")
    elif timed:
        notes.append("Rings mark the Pareto front: no other setting is both better and faster.")
    return curves, [described(data, scope), *notes, *_paired(data, scope), *_undrawn(data, scope)]


def _paired(data: PageData, scope: str) -> list[str]:
    """Return the note on how times are drawn (:data:`series.PAIRED`) as a list; [] if none is compared with base."""
    return [series.PAIRED] * any(row.get("first_token_speedup") for _, row in _rows(data, scope))


def _comparable(row: Mapping[str, Any]) -> bool:
    """Tell whether a setting's times may be drawn: it is base, or its times come from the same session as base's."""
    beside = row.get("first_token_speedup") is not None and not row.get("across")
    return bool(row.get("is_base") or beside) and row["prefill_s"] is not None


def _milliseconds(row: Mapping[str, Any], *, name: str) -> float | None:
    return 1e3 * row[name] if _comparable(row) and row[name] is not None else None


def _costs(data: PageData, scope: str) -> tuple[list[Chart], list[str]]:
    all_rows = _rows(data, scope)
    rows = all_rows[:_MOST_BARS]
    bars_drawn, notes = [], list[str]()
    stages = [
        {"name": setting.name, "part": stage.replace("llm_prefill", "LLM prefill"), "value": 1e3 * row[f"{stage}_s"],
         "colour": charts.STAGES[stage], "busy": row["busy"]}
        for setting, row in rows for stage in charts.STAGES if row[f"{stage}_s"] is not None and _comparable(row)
    ]  # fmt: skip
    if len({row["name"] for row in stages}) > 1:
        bars_drawn.append(charts.bar_chart(stages, "ms, medians").with_title("Time by stage"))
        notes += _paired(data, scope) + [series.PALE] * any(row["busy"] for row in stages)
    for name, unit, scale, title in (
        ("kv_bytes", "MB", 1e-6, "KV cache after prefill"),
        ("peak_memory_bytes", "GB", 1e-9, "Peak memory of the GPU"),
    ):
        bars = [
            {"name": setting.name, "part": "", "value": scale * row[name], "colour": series.colour(setting.method)}
            for setting, row in rows if row[name] is not None
        ]  # fmt: skip
        if len(bars) > 1:
            bars_drawn.append(charts.bar_chart(bars, unit).with_title(title))
    notes += _undrawn(data, scope)
    if more := len(all_rows) - len(rows):
        notes.append(f"Bars show the first {_MOST_BARS} settings; {more} more are left out.")
    return bars_drawn, [described(data, scope), *notes]


def _durations(data: PageData, scope: str) -> tuple[list[Chart], list[str]]:
    """Return (charts, notes) on score against clip duration: one chart per method and layer, each with base's line.

    All charts have equal axes.
    """
    rows, curves = _rows(data, scope), dict[int, Line]()
    for setting, row in rows:
        points = [
            {"x": start + 15, "y": score, "what": setting.name, "said": f"{start:.0f}–{start + 30:.0f} s, n = {n}"}
            for start, n, score in by_duration(row["own_scores"])
        ]
        name = "base" if setting.system.is_base else f"{setting.ratio:g}"
        curves[setting.place] = Line(name, setting.method, points)
    xs = [point["x"] for line in curves.values() for point in line.points]
    if len(set(xs)) < 2:
        return [], []
    look: dict[str, Any] = {"span": (min(xs) - 15, max(xs) + 15), "range_": charts.score_range([*curves.values()])}
    lines = _by_line(row for row in rows if not row[0].system.is_base)
    histograms = []
    for name, of_line in lines.items() or {"base": []}.items():
        bases = {setting.base for setting, _ in of_line} or set(curves)
        drawn = [replace(curves[setting.place], nth=nth) for nth, (setting, _) in enumerate(of_line)]
        drawn += [curves[base] for base in bases if base in curves]
        chart = charts.line_chart(drawn, "duration of the clip, s", "mean sample score", size=(300, 190), **look)
        histograms.append(chart.with_title(name))
    members = data.members(scope)
    pooled = f"All samples of {', '.join(members)} together." if len(members) > 1 else described(data, scope)
    return histograms, [
        pooled,
        "Mean score of single samples (right or wrong; 1 − WER) in bins of half a minute. Point at a dot to see its "
        "number of samples.",
    ]


def _task_tables(data: PageData) -> Section:
    """Make the section of the tables that tasks and scorers provide for themselves."""
    task_tables = []
    for key in data.tasks:
        runs = {setting.name: setting.system.runs[key] for setting in data.settings if key in setting.system.runs}
        task = next((run.task for run in runs.values()), None)
        verdicts = {name: list(run.verdicts.values()) for name, run in runs.items() if task and run.verdicts}
        if task and verdicts:
            task_tables += tables.of_task(task, verdicts)
    return Section("tasks", "Task by task", task_tables)


def _machine(data: PageData) -> Section:
    groups: dict[tuple[str, ...], list[str]] = {}
    for setting in data.settings:
        run = next(iter(setting.system.runs.values()))
        environment = run.facts.get("environment") or {}
        versions = {**environment, **(environment.get("packages") or {})}.items()
        software = ", ".join(f"{name} {value}" for name, value in versions if isinstance(value, (str, int, float)))
        identity = setting.system.identity
        facts = [run.facts.get("model"), setting.system.checkpoint, identity.get("device") or "untimed"]
        facts += [identity.get("dtype"), identity.get("attention")]
        facts += ["yes" if run.facts.get("certificate") else "no", software]
        groups.setdefault(tuple(str(value or "–") for value in facts), []).append(setting.name)
    names = ("model", "checkpoint", "device", "dtype", "attention", "certified", "environment")
    columns = ["all" if len(names) == len(data.settings) else ", ".join(names) for names in groups.values()]
    rows = [
        {"settings": name, **dict(zip(columns, values, strict=True))}
        for name, *values in zip(names, *groups, strict=True)
    ]
    return Section("machine", "Machine and versions", [Table.of(rows, foreign=True)])
