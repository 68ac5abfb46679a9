"""The summary of a sweep: on the terminal, as text, as CSV and as JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from audiomarathon.errors import RecordError
from audiomarathon.evaluation.records import write_json
from audiomarathon.evaluation.run import Result
from audiomarathon.evaluation.sweep import Outcome
from audiomarathon.report.savings_table import savings_table
from audiomarathon.report.table import results_table

_STAGES = ("load", "preprocess", "encoder", "llm_prefill", "prefill", "decode", "decode_per_token")
_MORE_STAGES = ("forced_decode_per_token", "scoring", "total")
_RATIOS = ("llm_prefill", "first_token", "decode_per_token")


def print_outcome(outcome: Outcome, console: Console) -> None:
    """Print scores and times, then what was saved, then what failed."""
    if outcome.results:
        console.print(results_table(outcome.results, "Scores and times (medians)", accuracy=True))
        console.print(savings_table(outcome.results, outcome.savings, "Savings against base of the same samples"))
    for task, reason in outcome.failures.items():
        console.print(
            f"FAILED {task}: {reason.removeprefix(f'{task}: ')}", markup=False, highlight=False, soft_wrap=True
        )
    for result in outcome.results:
        if result.summary["errors"]:
            line = f"FAILED {result.summary['task']} {result.method}: {result.summary['errors']} samples"
            console.print(line, markup=False, highlight=False, soft_wrap=True)


def write_outcome(outcome: Outcome, folder: Path, model: str) -> list[Path]:
    """Write `summary.txt`, `summary.csv` and `summary.json` into a folder and return them.

    Raises
    ------
    RecordError
        When they cannot be written.
    """
    text = Console(file=io.StringIO(), width=180)
    print_outcome(outcome, text)
    rows = [_row(result, outcome.savings.get(result.folder, {})) for result in outcome.results]
    rows += [{"task": task, "error": reason} for task, reason in outcome.failures.items()]
    table = io.StringIO()
    columns = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(table, ["task", *(name for name in columns if name != "task")], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    files = [folder / f"summary.{kind}" for kind in ("txt", "csv", "json")]
    assert isinstance(text.file, io.StringIO)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files[0].write_text(text.file.getvalue(), encoding="utf-8")
        files[1].write_text(table.getvalue(), encoding="utf-8")
        write_json(files[2], _content(outcome, folder, model))
    except OSError as error:
        raise RecordError(f"{folder}: cannot be written: {error.strerror or error}") from error
    return files


def _content(outcome: Outcome, folder: Path, model: str) -> dict[str, Any]:
    return {
        "model": model,
        "complete": outcome.complete,
        "failures": outcome.failures,
        "results": [
            {
                "task": result.summary["task"],
                "setting": result.method,
                "folder": str(result.folder.relative_to(folder)),
                "savings": outcome.savings.get(result.folder),
                "summary": result.summary,
            }
            for result in outcome.results
        ],
    }


def _row(result: Result, saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return one flat row; times are medians in seconds, ratios are base ÷ setting."""
    summary, timing = result.summary, result.summary["timing"]
    low, high = (summary.get("intervals") or {}).get("score") or (None, None)
    row: dict[str, Any] = {
        "task": summary["task"],
        "setting": result.method,
        **{name: summary.get(name) for name in ("n", "errors", "unparsed", "headline", "score")},
        "score_low": low,
        "score_high": high,
        **{name: summary.get(name) for name in ("accuracy", "strict_accuracy", "macro_f1", "wer", "mean_wer")},
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
    row["error"] = None if summary["complete"] else f"{summary['errors']} samples failed"
    return row
