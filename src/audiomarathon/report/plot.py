"""Pictures of results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from audiomarathon.engine.run import Result
from audiomarathon.report.figures import new_figure, save_figure


def plot_settings(results: Sequence[Result], path: Path, title: str = "") -> Path:
    """Draw scores with their intervals, and LLM prefill, by task and setting.

    Raises
    ------
    SettingsError
        Without matplotlib (the extra `report`).
    RecordError
        When the picture cannot be written.
    """
    tasks = list(dict.fromkeys(result.summary["task"] for result in results))
    settings = list(dict.fromkeys(result.method for result in results))
    figure = new_figure(figsize=(10, 6), layout="constrained", dpi=130)
    figure.suptitle(title, fontsize=10)
    scores, prefill = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    width = 0.8 / len(settings)
    for place, setting in enumerate(settings):
        own = {result.summary["task"]: result.summary for result in results if result.method == setting}
        shown = [(index, own[task]) for index, task in enumerate(tasks) if task in own and own[task]["n"]]
        at = [index + (place - (len(settings) - 1) / 2) * width for index, _ in shown]
        heights = [summary["score"] for _, summary in shown]
        spans = [(s.get("intervals") or {}).get("score") or (s["score"], s["score"]) for _, s in shown]
        below = [max(0.0, height - low) for height, (low, _) in zip(heights, spans, strict=True)]
        above = [max(0.0, high - height) for height, (_, high) in zip(heights, spans, strict=True)]
        scores.bar(at, heights, width, label=setting, yerr=[below, above], capsize=2, error_kw={"elinewidth": 0.8})
        times = [1000 * summary["timing"]["llm_prefill_s"]["p50"] for _, summary in shown]
        prefill.bar(at, times, width)
    scores.set_ylabel("score (95 % interval)")
    scores.set_ylim(0, 1.05)
    scores.legend(ncols=len(settings), loc="upper center", bbox_to_anchor=(0.5, 1.17), frameon=False)
    prefill.set_ylabel("LLM prefill, ms (median)")
    prefill.set_xticks(range(len(tasks)), tasks, rotation=20)
    for axes in (scores, prefill):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.3)
        axes.set_axisbelow(True)
    return save_figure(figure, path)
