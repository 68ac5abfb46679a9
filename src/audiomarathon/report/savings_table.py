"""What settings save, as a table on the terminal: measured beside what counted FLOPs promise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from audiomarathon.engine.run import Result
from audiomarathon.results.pairs import ACROSS
from audiomarathon.results.sweep_summary import Finished


def savings_table(settings: Sequence[Finished], title: str = "") -> Table:
    """Return one row a task and setting: what was kept, and speed-ups against base of the same samples.

    A speed-up is base ÷ setting, the median over samples; `[…]` is its 95 % interval, `ideal` what counted FLOPs
    promise. A dash stands for what was not measured; decode is measured in forced runs (`DECODE_TOKENS`) only.
    """
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", caption_justify="left")
    table.add_column("task")
    table.add_column("setting")
    for heading in ("kept", "KV length a layer", "KV MB", "scoring ms", "LLM prefill × (ideal)"):
        table.add_column(heading, justify="right")
    table.add_column("first token × (ideal)", justify="right")
    table.add_column("decode ×", justify="right")
    tasks = [one.result.summary["task"] for one in settings]
    for one, task, following in zip(settings, tasks, [*tasks[1:], None], strict=True):
        table.add_row(*_cells(one.result, one.savings), end_section=following != task)
    if any(one.savings.get("across_sessions") for one in settings):
        table.caption = f"* {ACROSS}"
    return table


def _cells(result: Result, saved: Mapping[str, Any]) -> list[str]:
    return [
        result.summary["task"],
        escape(result.method),
        _number(saved.get("kept_ratio"), "{:.3f}"),
        lengths_text(saved.get("kv_lengths")),
        _number(saved.get("kv_bytes"), "{:.2f}", 1e-6),
        _number(saved.get("scoring_s"), "{:.2f}", 1e3),
        _speed_up(saved.get("llm_prefill")) + _some(result, saved),
        _speed_up(saved.get("first_token")),
        _speed_up(saved.get("decode_per_token")),
    ]


def _some(result: Result, saved: Mapping[str, Any]) -> str:
    """Say over how many samples times are compared, where it is not all, and whether they are of other sessions."""
    compared = saved.get("compared_samples")
    some = f" n {compared}" if compared and compared != result.summary["n"] else ""
    return some + " *" * bool(compared and saved.get("across_sessions"))


def lengths_text(lengths: Sequence[float] | None) -> str:
    """Return mean cache lengths with equal neighbours joined: `2×2600 26×1350`."""
    if not lengths:
        return "–"
    runs: list[list[float]] = []
    for length in lengths:
        if runs and runs[-1][1] == length:
            runs[-1][0] += 1
        else:
            runs.append([1, length])
    if len(runs) > 4:  # a budget of its own for every layer
        return f"{min(lengths):.0f}–{max(lengths):.0f}"
    return " ".join(f"{count:.0f}×{length:.0f}" for count, length in runs)


def _number(value: float | None, form: str, scale: float = 1.0) -> str:
    return "–" if value is None else form.format(value * scale)


def _speed_up(speed_up: Mapping[str, Any] | None) -> str:
    if not speed_up:
        return "–"
    measured, interval = speed_up["measured"], speed_up["interval"]
    text = _number(measured, "{:.2f}") + (f" [{interval[0]:.2f}, {interval[1]:.2f}]" if interval else "")
    return f"{text} ({_number(speed_up['ideal'], '{:.2f}')})" if "ideal" in speed_up else text
