"""Our scores beside the published ones, as a table and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from audiomarathon.evaluation.reproduce import Reproduced

HEADINGS = ("task", "n", "mine × 100", "95 % interval", "published", "difference", "published within")


def reproduction_table(rows: Sequence[Reproduced], title: str) -> Table:
    """Return one row a task, then the means of groups, then the mean of all; scores × 100, as published."""
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for heading in HEADINGS:
        table.add_column(heading, no_wrap=True, justify="left" if heading == "task" else "right")
    for row in rows:
        table.add_row(*_cells(row))
    return table


def markdown(rows: Sequence[Reproduced], title: str) -> str:
    """Return the same table as Markdown."""
    lines = [HEADINGS, ["---"] * len(HEADINGS), *map(_cells, rows)]
    return f"# {title}\n\n" + "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _cells(row: Reproduced) -> list[str]:
    interval = "–" if row.interval is None else f"[{100 * row.interval[0]:.1f}, {100 * row.interval[1]:.1f}]"
    verdict = {True: "yes", False: "no", None: "–"}[row.agrees]
    return [
        row.scope,
        str(row.samples),
        _score(row.mine),
        interval,
        _score(row.published),
        "–" if row.difference is None else f"{100 * row.difference:+.1f}",
        verdict,
    ]


def _score(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"
