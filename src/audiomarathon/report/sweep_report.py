"""Write the summary of a sweep to the terminal, and to files as text, CSV and JSON."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

from rich.console import Console

from audiomarathon.files import write_json, write_text
from audiomarathon.report.render import Table, csv, for_width
from audiomarathon.report.tables import sweep, sweep_rows
from audiomarathon.results.sweep_summary import Outcome
from audiomarathon.text import counted


def print_outcome(outcome: Outcome, console: Console) -> None:
    """Print a sweep's scores, times and savings per checkpoint; then its failures."""
    checkpoints = outcome.checkpoints
    for checkpoint, settings in checkpoints.items():
        for table in sweep(settings, f", {checkpoint}" if len(checkpoints) > 1 else ""):
            console.print(for_width(table, console.width))
    lines = [f"{task}: {reason.removeprefix(f'{task}: ')}" for task, reason in outcome.swept.failures.items()]
    results = [finished.result for settings in checkpoints.values() for finished in settings]
    lines += [
        f"{result.summary['task']} {result.method}: {counted(result.summary['errors'], 'sample')}"
        for result in results
        if result.summary["errors"]
    ]
    for line in lines:
        console.print(f"FAILED {line}", markup=False, highlight=False, soft_wrap=True)


def write_outcome(outcome: Outcome, folder: Path, model: str) -> list[Path]:
    """Write the summary of a sweep to a folder: `summary.txt`, `summary.csv` and `summary.json`; return their paths.

    Raises
    ------
    RecordError
        When they cannot be written.
    """
    stream = io.StringIO()
    print_outcome(outcome, Console(file=stream, width=200))
    files = [folder / f"summary.{kind}" for kind in ("txt", "csv", "json")]
    write_text(files[0], "".join(f"{line.rstrip()}\n" for line in stream.getvalue().splitlines()))
    write_text(files[1], csv(Table.of(sweep_rows(outcome))))
    write_json(files[2], _content(outcome, folder, model))
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
                "setting": finished.result.method,
                "folder": os.path.relpath(finished.result.folder, folder),
                "against_base": finished.against_base,
                "savings": finished.savings,
                "summary": finished.result.summary,
            }
            for (checkpoint, task), settings in outcome.groups.items()
            for finished in settings
        ],
    }
