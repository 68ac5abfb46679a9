"""Our scores beside the published ones, as a table and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from audiomarathon.results.reproduce import Reproduced
from audiomarathon.text import plain

HEADINGS = (
    "task", "n", "unparsed", "mine × 100", "95 % interval", "weighted F1", "published", "difference", "published within"
)  # fmt: skip
LEAST = ("weighted F1", "published within")  # go first where the table is too wide


def reproduction_table(rows: Sequence[Reproduced], title: str) -> Table:
    """Return one row a task, then the means of groups, then the mean of all; scores × 100, as published."""
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for heading in HEADINGS:
        table.add_column(heading, no_wrap=True, justify="left" if heading == "task" else "right")
    for row in rows:
        table.add_row(*_cells(row))
    return table


def markdown(rows: Sequence[Reproduced], title: str, notes: Sequence[str] = ()) -> str:
    """Return the same table as Markdown, with lines below it."""
    lines = [HEADINGS, ["---"] * len(HEADINGS), *map(_cells, rows)]
    table = "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
    return f"# {title}\n\n{table}" + "".join(f"\n- {plain(note)}" for note in notes) + "\n" * bool(notes)


def _cells(row: Reproduced) -> list[str]:
    interval = "–" if row.interval is None else f"[{100 * row.interval[0]:.1f}, {100 * row.interval[1]:.1f}]"
    verdict = {True: "yes", False: "no", None: "–"}[row.agrees]
    return [
        row.scope,
        str(row.samples),
        str(row.unparsed),
        _score(row.mine),
        interval,
        _score(row.weighted),
        _score(row.published),
        "–" if row.difference is None else f"{100 * row.difference:+.1f}",
        verdict,
    ]


def _score(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"
