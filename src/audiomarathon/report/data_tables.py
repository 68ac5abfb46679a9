"""What is known of a data root, as tables on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from audiomarathon.data.durations import PERCENTILES, Durations
from audiomarathon.data.verify import TaskReport
from audiomarathon.report.controls import ControlRun
from audiomarathon.terminal import console, fitted

#: Columns that a narrow terminal can do without, the least important first.
_LEAST = ("hours", "clips", *(f"p{percent}" for percent in PERCENTILES if percent != 50), "std")
_MARKS = {"ok": "[green]ok[/]", "wrong": "[red]wrong[/]", "missing": "[yellow]missing[/]"}


def show(*tables: Table) -> None:
    """Print tables one below the other."""
    out = console()
    for table in tables:
        out.print(fitted(table, out.width, _LEAST))


def verify_table(reports: Sequence[TaskReport]) -> Table:
    """Return one row a task: what there is, what is expected, and how many problems."""
    table = _table("task", "", "samples", "clips", "hours", "seconds (expected)", "problems")
    for one in reports:
        found = [f"{one.samples:,}", f"{one.clips:,}", f"{one.hours:.2f}"] if one.folder else ["–"] * 3
        found[0] += f" of {one.expected.count:,}" if one.expected else ""
        wanted = " ({:g}–{:g})".format(*one.expected.seconds) if one.expected else ""
        span = f"{one.seconds[0]:.1f}–{one.seconds[1]:.1f}" if one.seconds else "–"
        problems = str(len(one.problems)) if one.state == "wrong" else ""
        table.add_row(one.task, _MARKS[one.state], *found, span + wanted, problems)
    return table


def durations_table(found: Sequence[Durations]) -> Table:
    """Return one row a task: how long its clips are, in seconds but for the total."""
    table = _table("task", "clips", "hours", "mean", "std", "min", *(f"p{p}" for p in PERCENTILES), "max", "broken")
    for one in found:
        figures = one.statistics()
        names = ("mean", "std", "min", *(f"p{percent}" for percent in PERCENTILES), "max")
        cells = ["–" if figures[name] is None else f"{figures[name]:.1f}" for name in names]
        hours = f"{figures['total_hours']:.2f}"
        table.add_row(one.task.key, f"{figures['clips']:,}", hours, *cells, str(len(one.broken) or ""))
    return table


def tokens_table(found: Sequence[Durations]) -> Table:
    """Return how many audio tokens a clip costs, one row a task, for each rate the median and the longest."""
    rates = list(found[0].tokens().items()) if found else []
    table = _table("audio tokens", *(f"{rate}/s {what}" for rate, _ in rates for what in ("median", "max")))
    for one in found:
        own = one.tokens()
        table.add_row(one.task.key, *(f"{own[rate][what]:,}" for rate, _ in rates for what in ("median", "max")))
    for rate, figures in rates:
        models = figures["models"]
        assert isinstance(models, list)
        table.caption = "\n".join(filter(None, [str(table.caption or ""), f"{rate}/s: {', '.join(models)}"]))
    table.caption_justify = "left"
    return table


def controls_table(runs: Sequence[ControlRun]) -> Table:
    """Return one row a run: what was to be heard, for how long, and the score."""
    table = _table("task", "heard", "seconds", "n", "score [95 % interval]", "chance")
    for run in runs:
        chance = "–" if run.chance is None else f"{run.chance:.2f}"
        score = f"{run.score:.3f} [{run.low:.3f}, {run.high:.3f}]"
        table.add_row(run.panel, run.kind, f"{run.seconds:.1f}", str(run.n), score, chance)
    return table


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, justify="left" if column in ("task", "", "audio tokens", "heard") else "right")
    return table
