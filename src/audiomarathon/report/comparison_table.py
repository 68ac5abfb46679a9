"""A comparison as a table: on the terminal, as Markdown, as CSV rows and as JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from audiomarathon.results.compare import Compared, Comparison
from audiomarathon.text import flags_of, plain, spreadsheet

SCORES = ("setting", "n", "score", "difference [95 %]", "p", "Holm", "McNemar")
SPEED_UPS = ("setting", "LLM prefill ×", "first token ×", "decode ×")
_ALL = (*SCORES, *SPEED_UPS[1:])
_NONE = "–"


def comparison_table(
    compared: Compared, title: str, missing: Sequence[str] = (), headings: Sequence[str] = _ALL
) -> Table:
    """Return a section a task, group or mean with one row a side; speed-ups are reference ÷ side: above 1 is faster.

    Parameters
    ----------
    missing
        Controls that were not run; each gets a row that says so.
    headings
        Of the columns to show; one in which no row has a value goes.
    """
    rows = [(heading, dict(zip(_ALL, _cells(row), strict=True))) for heading, row in _in_sections(compared.rows)]
    shown = [name for name in headings if any(cells[name] != _NONE for _, cells in rows)]
    table = Table(
        title=escape(plain(title)), box=box.SIMPLE_HEAD, title_justify="left", padding=(0, 1, 0, 0), show_edge=False
    )
    for name in shown:
        left = name == "setting"
        wraps = name in ("setting", "n")
        table.add_column(name, no_wrap=not wraps, overflow="fold", justify="left" if left else "right")
    for index, (heading, cells) in enumerate(rows):
        if index == 0 or rows[index - 1][0] != heading:
            table.add_section()
            table.add_row(f"[bold]{escape(heading)}[/bold]")
        table.add_row(*(escape(plain(cells[name])) for name in shown))
    table.add_section()
    for name in missing:
        table.add_row(escape(plain(name)), *("not run" * (other == SCORES[3]) for other in shown[1:]))
    return table


def least_width(table: Table) -> int:
    """Return the width at which names wrap at spaces only, and figures not at all."""
    parts = [
        [part for cell in (column.header, *column.cells) for part in ([cell] if column.no_wrap else str(cell).split())]
        for column in table.columns
    ]
    return sum(2 + max(len(str(part)) for part in column) for column in parts)


def _in_sections(rows: Sequence[Comparison]) -> list[tuple[str, Comparison]]:
    """Return the rows by what they are about (tasks first, the mean of all last), each with its section's heading."""
    sections: dict[tuple[str, tuple[str, ...]], list[Comparison]] = {}
    for row in rows:
        sections.setdefault((row.scope, row.tasks), []).append(row)
    found = []
    for scope, tasks in sorted(sections, key=lambda section: len(section[1]) if len(section[1]) > 1 else 0):
        alike = sum(scope == other for other, _ in sections)
        told = f"{len(tasks)} tasks" if alike == 1 else ", ".join(tasks)
        found += [(scope if len(tasks) == 1 else f"{scope} ({told})", row) for row in sections[scope, tasks]]
    return found


def markdown(compared: Compared, missing: Sequence[str] = (), lines: Sequence[str] = ()) -> str:
    """Return the same table as Markdown, with lines below it."""
    found = [
        f"Against {_cell(compared.reference)}:\n",
        markdown_row(["tasks", *_ALL]),
        markdown_row(["---"] * (1 + len(_ALL))),
    ]
    found += [markdown_row([scope, *_cells(row)]) for scope, row in _in_sections(compared.rows)]
    found += [markdown_row([_NONE, name, "not run", *[_NONE] * (len(_ALL) - 2)]) for name in missing]
    return "\n".join([*found, "", *(f"- {_cell(line)}" for line in lines)]).rstrip() + "\n"


def markdown_row(cells: Sequence[str]) -> str:
    """Return a row of a table in Markdown, whatever the cells hold."""
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(text: str) -> str:
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", plain(text)).replace("|", "\\|")


def _cells(row: Comparison) -> list[str]:
    verdict = row.verdict
    between = f" [{verdict.interval[0]:+.3f}, {verdict.interval[1]:+.3f}]" if verdict.interval else ""
    return [
        row.side,
        _counted(row),
        _or_none(row.score, "{:.3f}".format),
        _or_none(verdict.difference, "{:+.3f}".format) + between,
        *(_or_none(p, p_text) for p in (verdict.p, row.p_adjusted, row.mcnemar)),
        *(_speed(row.speed_ups[stage]) for stage in ("llm_prefill", "first_token", "decode_per_token")),
    ]


def _counted(row: Comparison) -> str:
    told = {"unparsed": row.unparsed, "cut_by_token_limit": row.cut, "truncated": row.truncated, "busy": row.busy}
    flags = flags_of(told)
    return f"{row.samples} ({', '.join(flags)})" if flags else str(row.samples)


def _or_none(value: float | None, text: Callable[[float], str]) -> str:
    return _NONE if value is None else text(value)


def p_text(p: float) -> str:
    """Return a p value as a table shows it."""
    return f"{p:.3f}" if p >= 0.001 else "<0.001"


def _speed(speed: Mapping[str, Any] | None) -> str:
    if not speed:
        return _NONE
    between = f" [{speed['interval'][0]:.2f}, {speed['interval'][1]:.2f}]" if speed["interval"] else ""
    return f"{speed['measured']:.2f}{between}"


def as_json(compared: Compared) -> dict[str, Any]:
    """Return the rows with every digit, and what was left out."""
    return {
        "reference": compared.reference,
        "rows": [asdict(row) for row in compared.rows],
        "left_out": [asdict(one) for one in compared.left_out],
    }


def as_flat(compared: Compared) -> list[dict[str, Any]]:
    """Return the rows for a CSV: one column a figure."""
    rows = [{"reference": compared.reference, **_flat(row)} for row in compared.rows]
    return [{name: spreadsheet(value) for name, value in row.items()} for row in rows]


def _flat(row: Comparison) -> dict[str, Any]:
    low, high = row.verdict.interval or (None, None)
    return {
        "scope": row.scope,
        "tasks": " ".join(row.tasks),
        "setting": row.side,
        "samples": row.samples,
        "truncated": row.truncated,
        "unparsed": row.unparsed,
        "cut": row.cut,
        "timed": row.timed,
        "score": row.score,
        "reference_score": row.reference_score,
        "difference": row.verdict.difference,
        "low": low,
        "high": high,
        "p": row.verdict.p,
        "p_holm": row.p_adjusted,
        "mcnemar_p": row.mcnemar,
        **{
            f"{stage}_speed_up{end}": value
            for stage, speed in row.speed_ups.items()
            for end, value in zip(("", "_low", "_high"), _three(speed), strict=True)
        },
        "untimed": row.untimed or None,
        "across_sessions": row.across,
        "busy_machine": row.busy,
    }


def _three(speed: Mapping[str, Any] | None) -> tuple[Any, Any, Any]:
    if not speed:
        return None, None, None
    low, high = speed["interval"] or (None, None)
    return speed["measured"], low, high
