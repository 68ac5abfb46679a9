"""`audiomarathon reproduce`: the paper's table again, ours beside the published one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from audiomarathon.errors import SettingsError


def reproduce(
    tasks: Annotated[list[str] | None, typer.Argument(help="Tasks; default all ten.")] = None,
    model: Annotated[str, typer.Option(help="Model (audiomarathon list models).")] = "qwen2.5-omni",
    protocol: Annotated[
        str, typer.Option(help="paper (the public runs' subsets), or full (every sample of every task).")
    ] = "paper",
    limit: Annotated[str | None, typer.Option(help="Samples a task; 0 = all [env: SAMPLE_LIMIT].")] = None,
    results: Annotated[str | None, typer.Option(help="Where results go [env: RESULTS_DIR].")] = None,
    model_path: Annotated[str | None, typer.Option(help="Hub id or folder [env: MODEL_PATH].")] = None,
    data: Annotated[str | None, typer.Option(help="Root of the tasks' data [env: AUDIOMARATHON_DATA].")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N [env: DEVICE].")] = None,
    dtype: Annotated[str | None, typer.Option(help="auto, float32, float16, bfloat16 [env: DTYPE].")] = None,
    allow_bad_rows: Annotated[bool | None, typer.Option(help="Leave bad rows out [env: ALLOW_BAD_ROWS].")] = None,
) -> int:
    """Run all ten tasks at base, count as the paper did, and set the scores beside its table.

    Example: audiomarathon reproduce --model qwen2.5-omni-3b

    --protocol paper takes the public runs' subsets: HAD balanced with seed 42, VESUS without the happy clips of persons
    2 and 10.
    Scores are counted the release's way (unparsable replies dropped before F1, per-sample WER averaged); prompts and
    parsing are ours, so a difference of a few points is no surprise. Writes reproduce.json and reproduce.md.
    """
    import dataclasses
    import json

    from rich.console import Console

    from audiomarathon.cli import say, show
    from audiomarathon.evaluation.files import write_text
    from audiomarathon.evaluation.published import row_name
    from audiomarathon.evaluation.reproduce import PROTOCOLS, paper_settings, reproduced
    from audiomarathon.evaluation.run import run
    from audiomarathon.models.registry import get_model
    from audiomarathon.report.reproduction_table import markdown, reproduction_table
    from audiomarathon.settings import RunSettings
    from audiomarathon.tasks.registry import BENCHMARK

    if protocol not in PROTOCOLS:
        raise SettingsError(f"--protocol {protocol}: allowed: {', '.join(PROTOCOLS)}")
    flags: dict[str, Any] = {"limit": limit, "results": results, "model_path": model_path, "data": data}
    settings = RunSettings.read(**flags, device=device, dtype=dtype, allow_bad_rows=allow_bad_rows)
    if protocol == "paper":
        settings = paper_settings(settings)
    spec = get_model(model)
    # The subsets are other data than a plain run's, so their records may not lie in the same folders.
    settings = dataclasses.replace(settings, results=settings.results / f"reproduce-{protocol}")
    finished = list(run(tasks or [task.key for task in BENCHMARK], model, settings, say=say))
    rows = reproduced(finished, spec.key, seed=settings.seed)
    theirs = row_name(spec.key) or "no row in the published table"
    title = f"{spec.key}, protocol {protocol}, beside the published {theirs}"
    Console(width=max(Console().width, 110)).print(reproduction_table(rows, title))
    if settings.limit:
        say(f"{settings.limit} samples a task only: the published scores are of all of them")
    folder = Path(settings.results)
    content = [dataclasses.asdict(row) | {"difference": row.difference, "agrees": row.agrees} for row in rows]
    write_text(folder / "reproduce.json", json.dumps({"title": title, "rows": content}, indent=2) + "\n")
    write_text(folder / "reproduce.md", markdown(rows, title))
    say(f"written: {folder / 'reproduce.md'}, {folder / 'reproduce.json'}")
    return show(finished, "The same runs, counted our way", folders=False)
