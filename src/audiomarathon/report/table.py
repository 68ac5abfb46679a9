"""Results as a table on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from audiomarathon.evaluation.run import Result
from audiomarathon.report.terminal import counted

#: Columns that a narrow terminal can do without, the least important first.
LEAST = ("KV MB", "encoder ms", "audio tokens", "accuracy", "decode ms")


def results_table(
    results: Sequence[Result],
    title: str = "",
    *,
    accuracy: bool = False,
    against_base: Mapping[Path, str] | None = None,
) -> Table:
    """Return one row a task and setting: score with its 95 % interval, times, audio tokens kept and KV cache.

    Times are medians over samples, in milliseconds; a dash stands for what was not measured.

    Parameters
    ----------
    accuracy
        Adds that column (a dash for transcription), beside the score, which is macro-F1.
    against_base
        By folder how the score differs from base's; adds that column.
    """
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("task")
    table.add_column("setting")
    more = ("score − base [95 %]",) * (against_base is not None) + ("accuracy",) * accuracy
    for heading in (
        "n",
        "score [95 % interval]",
        *more,
        "encoder ms",
        "LLM prefill ms",
        "decode ms",
        "audio tokens",
        "KV MB",
    ):
        table.add_column(heading, justify="right")
    for index, result in enumerate(results):
        last_of_task = index + 1 == len(results) or results[index + 1].summary["task"] != result.summary["task"]
        extra = [] if against_base is None else [against_base.get(result.folder, "")]
        if accuracy:
            own = result.summary.get("accuracy")
            extra.append("–" if own is None else f"{own:.3f}")
        table.add_row(*_cells(result, extra), end_section=last_of_task)
    return table


def _cells(result: Result, extra: Sequence[str]) -> list[str]:
    summary, timing = result.summary, result.summary["timing"]
    flags = [counted(summary["errors"], "error")] * bool(summary.get("errors"))
    flags += [f"{summary[name]:,} {name}" for name in ("unparsed", "truncated") if summary.get(name)]
    return [
        summary["task"],
        escape(result.method),
        str(summary["n"]) + (f" ({', '.join(flags)})" if flags else ""),
        score_text(summary),
        *extra,
        *(_milliseconds(timing.get(f"{stage}_s")) for stage in ("encoder", "llm_prefill", "decode")),
        _tokens(summary),
        "–" if summary["kv_bytes"] is None else f"{summary['kv_bytes'] / 1e6:.2f}",
    ]


def score_text(summary: dict[str, Any]) -> str:
    """Return the headline score as text, such as `0.833 [0.500, 1.000]`."""
    if summary["score"] is None:
        return "–"
    interval = (summary.get("intervals") or {}).get("score")
    span = f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else " [–]"
    return f"{summary['score']:.3f}{span}"


def _milliseconds(spread: dict[str, float] | None) -> str:
    return "–" if not spread else f"{1000 * spread['p50']:.0f}"


def _tokens(summary: dict[str, Any]) -> str:
    total, kept = summary["audio_tokens"], summary["kept_audio_tokens"]
    return "–" if not total else f"{'–' if kept is None else f'{kept:.0f}'} of {total:.0f}"
