"""`audiomarathon reproduce`: measure the paper's table again, beside the published scores."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from audiomarathon.cli.command import with_settings
from audiomarathon.cli.options import Model, argument, complete_tasks, option
from audiomarathon.cli.output import say, show
from audiomarathon.errors import SettingsError
from audiomarathon.files import write_json, write_text
from audiomarathon.models.registry import get_model
from audiomarathon.settings import RunSettings
from audiomarathon.wing import asked


@with_settings("limit", "results", "model_path", "data", "device", "dtype", "allow_bad_rows")
def reproduce(
    settings: RunSettings,
    tasks: Annotated[list[str] | None, argument("Tasks (default: all ten), or jasco.", complete=complete_tasks)] = None,
    model: Model = "qwen2.5-omni",
    protocol: Annotated[str, option("paper (the subsets of the public runs) or full (every sample).")] = "paper",
) -> int:
    """Run all ten tasks, or jasco, at base; score as the paper did, and show the paper's scores beside ours.

    Example: audiomarathon reproduce --model qwen2.5-omni-3b

    --protocol paper uses the subsets of the public runs: HAD balanced with seed 42, VESUS without the happy clips of
    persons 2 and 10.
    Scores follow the paper's release: unparsable replies are dropped before F1, and WER is averaged over samples.
    Prompts and parsing are ours, so expect differences of a few points. F1 is macro-F1; weighted F1, which some of the
    release's scripts use, is shown too. A task that fails does not stop the others. It writes a .md and a .json file.
    """
    from audiomarathon.benchmarks.audiomarathon.benchmark import AUDIOMARATHON
    from audiomarathon.benchmarks.registry import get_task
    from audiomarathon.compression.registry import get_method
    from audiomarathon.engine.sweep import sweep
    from audiomarathon.report import render, tables
    from audiomarathon.results.reproduce import caveats, protocol_folder, protocol_settings, reproduced
    from audiomarathon.runs.read import Run

    chosen = dict.fromkeys(map(get_task, tasks)) if tasks else AUDIOMARATHON.tasks
    every = [
        (wing.tables, benchmark)
        for wing, benchmarks in asked(lambda wing: (wing, wing.benchmarks()))
        for benchmark in benchmarks
    ]
    tables_of = {task.key: of_wing for of_wing, benchmark in every if benchmark.published for task in benchmark.tasks}
    if len(chosen) == 1 and (its_tables := tables_of.get(next(iter(chosen)).key)):
        swept = sweep([*chosen], model, settings, [get_method("base")], say=say)
        render.show(*its_tables([Run.read(result.folder) for result in swept.results]))
        return int(not swept.complete)
    if foreign := [task.key for task in chosen if task not in AUDIOMARATHON.tasks]:
        alone = "".join(f", or {key} alone" for key in tables_of)
        raise SettingsError(f"{', '.join(foreign)}: not a task of the paper; allowed: its ten tasks{alone}")
    settings, spec = protocol_settings(settings, protocol), get_model(model)
    settings = replace(settings, results=protocol_folder(settings.results, protocol))
    swept = sweep(list(chosen), model, settings, [get_method("base")], say=say)
    if not swept.results:
        return 1
    rows = reproduced(swept.results, spec.key, seed=settings.seed)
    notes = caveats(swept.results, swept.failures, settings, spec)
    theirs = AUDIOMARATHON.models.get(spec.key, "")
    checkpoint = swept.results[0].folder.parent.name
    beside = f"beside the published {theirs}" if theirs else "not in the published table"
    title = f"{checkpoint}, protocol {protocol}, {beside}"
    render.show(tables.reproduction(rows, title))
    for note in notes:
        say(note)
    write_json(settings.results / f"{checkpoint}.json", {"title": title, "rows": rows, "notes": notes})
    write_text(settings.results / f"{checkpoint}.md", render.markdown(tables.reproduction(rows, f"# {title}", notes)))
    say(f"written: {settings.results / checkpoint}.md and .json")
    return show(swept.results, "The same runs, scored our way", folders=False) or int(not swept.complete)
