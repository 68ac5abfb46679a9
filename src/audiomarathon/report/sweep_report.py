"""The summary of a sweep: on the terminal, as text, as CSV and as JSON."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from audiomarathon.compression.method import Base
from audiomarathon.errors import RecordError
from audiomarathon.files import write_json
from audiomarathon.report.savings_table import savings_table
from audiomarathon.report.table import LEAST, results_table
from audiomarathon.results.sweep_summary import Finished, Outcome
from audiomarathon.terminal import fitted
from audiomarathon.text import counted

_STAGES = ("load", "preprocess", "encoder", "llm_prefill", "prefill", "decode", "decode_per_token")
_MORE_STAGES = ("forced_decode_per_token", "scoring", "total")
_COUNTS = ("n", "errors", "unparsed", "cut_by_token_limit", "truncated")
_RATIOS = ("llm_prefill", "first_token", "decode_per_token")


def print_outcome(outcome: Outcome, console: Console) -> None:
    """Print scores and times, then what was saved, for each checkpoint in the folder; then what failed."""
    checkpoints = outcome.checkpoints
    for checkpoint, settings in checkpoints.items():
        of = f", {checkpoint}" if len(checkpoints) > 1 else ""
        against = {one.result.folder: _against_base(one) for one in settings}
        results = [one.result for one in settings]
        scores = results_table(results, f"Scores and times (medians){of}", accuracy=True, against_base=against)
        console.print(fitted(scores, console.width, LEAST))
        console.print(savings_table(settings, f"Savings against base of the same samples{of}"))
    for task, reason in outcome.swept.failures.items():
        _print_line(console, f"FAILED {task}: {reason.removeprefix(f'{task}: ')}")
    for result in (one.result for settings in checkpoints.values() for one in settings):
        if result.summary["errors"]:
            _print_line(
                console,
                f"FAILED {result.summary['task']} {result.method}: {counted(result.summary['errors'], 'sample')}",
            )


def _print_line(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def _against_base(one: Finished) -> str:
    """Return a score's difference from base as text; over how many samples, where it is not all that were answered."""
    if one.against_base is None:
        return "no base"
    if one.result.method == Base().label:
        return "–"
    score, samples = one.against_base["score"], one.against_base["samples"]
    some = f" (n {samples})" if samples != one.result.summary["n"] else ""
    return _difference(score["difference"], score["interval"]) + some


def _difference(value: float | None, interval: Sequence[float] | None) -> str:
    if value is None:
        return "–"
    return f"{value:+.3f} [{interval[0]:+.3f}, {interval[1]:+.3f}]" if interval else f"{value:+.3f} [–]"


def write_outcome(outcome: Outcome, folder: Path, model: str) -> list[Path]:
    """Write `summary.txt`, `summary.csv` and `summary.json` into a folder and return them.

    Raises
    ------
    RecordError
        When they cannot be written.
    """
    text = Console(file=io.StringIO(), width=200)
    print_outcome(outcome, text)
    rows = [_row(one) for settings in outcome.groups.values() for one in settings]
    rows += [{"task": task, "error": reason} for task, reason in outcome.swept.failures.items()]
    table = io.StringIO()
    columns = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(table, ["task", *(name for name in columns if name != "task")], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    files = [folder / f"summary.{kind}" for kind in ("txt", "csv", "json")]
    assert isinstance(text.file, io.StringIO)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shown = "".join(f"{line.rstrip()}\n" for line in text.file.getvalue().splitlines())
        files[0].write_text(shown, encoding="utf-8")
        files[1].write_text(table.getvalue(), encoding="utf-8")
        write_json(files[2], _content(outcome, folder, model))
    except OSError as error:
        raise RecordError(f"{folder}: cannot be written: {error.strerror or error}") from error
    return files


def _content(outcome: Outcome, folder: Path, model: str) -> dict[str, Any]:
    return {
        "model": model,
        "complete": outcome.swept.complete,
        "failures": outcome.swept.failures,
        "results": [
            {
                "task": task,
                "checkpoint": checkpoint,
                "setting": one.result.method,
                "folder": os.path.relpath(one.result.folder, folder),
                "against_base": one.against_base,
                "savings": one.savings,
                "summary": one.result.summary,
            }
            for (checkpoint, task), settings in outcome.groups.items()
            for one in settings
        ],
    }


def _row(one: Finished) -> dict[str, Any]:
    """Return one flat row; times are medians in seconds, ratios are base ÷ setting, differences setting − base."""
    result, saved = one.result, one.savings
    summary, timing = result.summary, result.summary["timing"]
    low, high = (summary.get("intervals") or {}).get("score") or (None, None)
    row: dict[str, Any] = {
        "task": summary["task"],
        "checkpoint": result.folder.parent.name,
        "setting": result.method,
        **{name: summary.get(name) for name in _COUNTS},
        **{name: summary.get(name) for name in ("headline", "score")},
        "score_low": low,
        "score_high": high,
        **{name: summary.get(name) for name in ("accuracy", "strict_accuracy", "macro_f1", "wer", "mean_wer")},
        **_difference_columns(one.against_base or {}),
    }
    for stage in (*_STAGES, *_MORE_STAGES):
        row[f"{stage}_s"] = (timing.get(f"{stage}_s") or {}).get("p50")
    row |= {name: summary.get(name) for name in ("audio_tokens", "kept_audio_tokens")}
    row["kept_ratio"] = saved.get("kept_ratio")
    row["kv_lengths"] = " ".join(f"{length:g}" for length in saved.get("kv_lengths") or ())
    row |= {name: summary.get(name) for name in ("kv_bytes", "peak_memory_bytes")}
    for name in _RATIOS:
        speed_up = saved.get(name) or {}
        row[f"{name}_speedup"] = speed_up.get("measured")
        row[f"{name}_speedup_low"], row[f"{name}_speedup_high"] = speed_up.get("interval") or (None, None)
        if name != "decode_per_token":
            row[f"{name}_speedup_ideal"] = speed_up.get("ideal")
    row["kv_bytes_ratio"] = saved.get("kv_bytes_ratio")
    row["compared_samples"] = saved.get("compared_samples")
    row["across_sessions"], row["busy_machine"] = saved.get("across_sessions"), bool(summary.get("busy"))
    row["notes"] = "; ".join(summary.get("notes") or ()) or None
    row["error"] = None if summary["complete"] else f"{counted(summary['errors'], 'sample')} failed"
    return row


def _difference_columns(against_base: Mapping[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {"against_base_samples": against_base.get("samples")}
    for name in ("score", "accuracy"):
        figure = against_base.get(name) or {}
        row[f"{name}_difference"] = figure.get("difference")
        row[f"{name}_difference_low"], row[f"{name}_difference_high"] = figure.get("interval") or (None, None)
    return row
