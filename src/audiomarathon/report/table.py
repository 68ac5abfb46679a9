"""Results as a table on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from audiomarathon.engine.run import Result
from audiomarathon.text import flags_of, plain, score_text

#: Columns that a narrow terminal can do without, the least important first.
LEAST = ("KV MB", "encoder ms", "audio tokens", "accuracy", "decode ms")

_STAGES = {"encoder": "encoder ms", "llm_prefill": "LLM prefill ms", "decode": "decode ms"}
_LATENCIES = {"first_token_latency": "first token ms", "total_latency": "whole reply ms"}  # of endpoints


def results_table(
    results: Sequence[Result],
    title: str = "",
    *,
    accuracy: bool = False,
    against_base: Mapping[Path, str] | None = None,
) -> Table:
    """Return one row a task and setting: score with its 95 % interval, times, audio tokens kept and KV cache.

    Times are medians over samples, in milliseconds; a dash stands for what was not measured. Models behind an endpoint
    have latencies as a client sees them, and costs where prices are known.

    Parameters
    ----------
    accuracy
        Adds that column, beside the score; a dash where a task has none.
    against_base
        By folder how the score differs from base's; adds that column.
    """
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", caption_justify="left")
    table.add_column("task")
    table.add_column("setting")
    more = ("score − base [95 %]",) * (against_base is not None) + ("accuracy",) * accuracy
    all_times = _STAGES | _LATENCIES
    times = [name for name in all_times if any(r.summary["timing"].get(f"{name}_s") for r in results)] or list(_STAGES)
    costs = any(result.summary.get("cost") is not None for result in results)
    headings = ("n", "score [95 % interval]", *more, *(all_times[name] for name in times), "audio tokens", "KV MB")
    for heading in (*headings, *(("cost",) * costs)):
        table.add_column(heading, justify="right")
    for index, result in enumerate(results):
        last_of_task = index + 1 == len(results) or results[index + 1].summary["task"] != result.summary["task"]
        extra = [] if against_base is None else [against_base.get(result.folder, "")]
        if accuracy:
            own = result.summary.get("accuracy")
            extra.append("–" if own is None else f"{own:.3f}")
        cost = result.summary.get("cost")
        paid = ["–" if cost is None else f"{cost:.4g}"] * costs
        table.add_row(*_cells(result, extra, times), *paid, end_section=last_of_task)
    notes: dict[str, list[str]] = {}
    for result in results:
        for note in result.summary.get("notes") or ():
            notes.setdefault(note, []).append(result.method.partition("-")[0])
    lines = [f"{', '.join(dict.fromkeys(methods))}: {note}" for note, methods in notes.items()]
    table.caption = escape(plain("\n".join(lines))) or None
    return table


def _cells(result: Result, extra: Sequence[str], times: Sequence[str]) -> list[str]:
    summary, timing = result.summary, result.summary["timing"]
    flags = flags_of(summary)
    return [
        summary["task"],
        escape(result.method),
        str(summary["n"]) + (f" ({', '.join(flags)})" if flags else ""),
        score_text(summary["score"], (summary.get("intervals") or {}).get("score")),
        *extra,
        *(_milliseconds(timing.get(f"{name}_s")) for name in times),
        _tokens(summary),
        "–" if summary["kv_bytes"] is None else f"{summary['kv_bytes'] / 1e6:.2f}",
    ]


def _milliseconds(spread: dict[str, float] | None) -> str:
    return "–" if not spread else f"{1000 * spread['p50']:.0f}"


def _tokens(summary: dict[str, Any]) -> str:
    total, kept = summary["audio_tokens"], summary["kept_audio_tokens"]
    return "–" if not total else f"{'–' if kept is None else f'{kept:.0f}'} of {total:.0f}"
