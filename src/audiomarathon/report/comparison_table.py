"""A comparison as a table: on the terminal, as Markdown, as CSV rows and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from audiomarathon.evaluation.compare import Comparison

HEADINGS = (
    "tasks",
    "setting",
    "n",
    "score",
    "difference [95 %]",
    "p",
    "p (Holm)",
    "McNemar",
    "LLM prefill",
    "first token",
    "decode",
)


def comparison_table(rows: Sequence[Comparison], title: str, missing: Sequence[str] = ()) -> Table:
    """Return one row a side and scope; speed-ups are reference ÷ side, so that above 1 is faster.

    Parameters
    ----------
    missing
        Controls that were not run; each gets a row that says so.
    """
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for heading in HEADINGS:
        table.add_column(heading, no_wrap=True, justify="left" if heading in ("tasks", "setting") else "right")
    for index, row in enumerate(rows):
        last = index + 1 == len(rows) or rows[index + 1].side != row.side
        table.add_row(*map(escape, _cells(row)), end_section=last)
    for label in missing:
        table.add_row("–", escape(label), "not run", *("–" for _ in HEADINGS[3:]))
    return table


def markdown(rows: Sequence[Comparison], missing: Sequence[str] = ()) -> str:
    """Return the same table as Markdown."""
    lines = [_line(HEADINGS), _line(["---"] * len(HEADINGS)), *(_line(_cells(row)) for row in rows)]
    lines += [_line(["–", label, "not run", *("–" for _ in HEADINGS[3:])]) for label in missing]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _cells(row: Comparison) -> list[str]:
    verdict = row.verdict
    between = f" [{verdict.interval[0]:+.3f}, {verdict.interval[1]:+.3f}]" if verdict.interval else ""
    return [
        row.scope,
        row.side,
        f"{row.samples} ({row.truncated} truncated)" if row.truncated else str(row.samples),
        f"{row.score:.3f}",
        f"{verdict.difference:+.3f}{between}",
        _p(verdict.p),
        _p(row.p_adjusted),
        "–" if row.mcnemar is None else _p(row.mcnemar),
        *(_speed(row.speed_ups[stage]) for stage in ("llm_prefill", "first_token", "decode_per_token")),
    ]


def _p(value: float) -> str:
    return f"{value:.3f}" if value >= 0.001 else "< 0.001"


def _speed(speed: Mapping[str, Any] | None) -> str:
    if not speed or speed["measured"] is None:
        return "–"
    between = f" [{speed['interval'][0]:.2f}, {speed['interval'][1]:.2f}]" if speed["interval"] else ""
    return f"{speed['measured']:.2f}×{between}"


def as_json(rows: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Return the rows with every digit."""
    return [asdict(row) for row in rows]


def as_flat(rows: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Return the rows for a CSV: one column a figure."""
    flat = []
    for row in rows:
        interval = row.verdict.interval or (None, None)
        speeds = {
            f"{stage}_speed_up{end}": value
            for stage, speed in row.speed_ups.items()
            for end, value in zip(("", "_low", "_high"), _three(speed), strict=True)
        }
        flat.append(
            {
                "tasks": row.scope,
                "setting": row.side,
                "samples": row.samples,
                "truncated": row.truncated,
                "score": row.score,
                "reference_score": row.reference_score,
                "difference": row.verdict.difference,
                "low": interval[0],
                "high": interval[1],
                "p": row.verdict.p,
                "p_holm": row.p_adjusted,
                "mcnemar_p": row.mcnemar,
                **speeds,
            }
        )
    return flat


def _three(speed: Mapping[str, Any] | None) -> tuple[Any, Any, Any]:
    if not speed:
        return None, None, None
    low, high = speed["interval"] or (None, None)
    return speed["measured"], low, high
