"""`audiomarathon transcribe` makes transcripts; `audiomarathon cascade` lets a text LLM answer from them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from audiomarathon.cli.command import with_executor, with_settings
from audiomarathon.cli.config import with_config
from audiomarathon.cli.options import (
    Model,
    PlanRuns,
    Tasks,
    Track,
    argument,
    complete_methods,
    listed,
    option,
    tasks_named,
)
from audiomarathon.cli.output import say, show
from audiomarathon.engine.ray_options import Ray
from audiomarathon.errors import AudioMarathonError, RecordError, SettingsError
from audiomarathon.settings import RunSettings
from audiomarathon.tracking.registry import open_trackers


@with_config
@with_executor
@with_settings(but=("method", "ratio"))
def transcribe(
    settings: RunSettings,
    ray: Ray | None,
    tasks: Tasks,
    model: Model,
    methods: Annotated[
        str,
        option("Methods beside base (audiomarathon list methods).", "--methods", "--method", complete=complete_methods),
    ] = "",
    ratios: Annotated[str, option("Fractions removed, such as 0.5,0.8.", "--ratios", "--ratio")] = "",
    track: Track = "",
) -> int:
    """Transcribe the clips of tasks, each clip once per setting, for `audiomarathon cascade`.

    Example: audiomarathon transcribe tau race --model whisper-base --methods frame --ratios 0.5,0.8 --at input

    Runs go to RESULTS/transcripts/TASK. With --limit, only clips of the samples that a run with this limit selects.
    """
    from audiomarathon.benchmarks.transcripts import Transcripts
    from audiomarathon.engine.run import run as run_tasks
    from audiomarathon.engine.sweep import grid, parse_ratios

    if ratios and not methods:
        raise SettingsError(f"--ratios {ratios}: name a method too, such as --methods frame")
    chosen = [Transcripts(task) for task in tasks_named(tasks)]
    settings_to_run = grid(listed(methods), parse_ratios(ratios or None, settings.schedule, "0.5"), **settings.places)
    trackers = open_trackers(track)
    return show(list(run_tasks(chosen, model, settings, settings_to_run, ray=ray, say=say, trackers=trackers)))


@with_config
@with_settings(
    but=(
        "method",
        "ratio",
        "layer",
        "at",
        "tower_layer",
        "schedule",
        "scope",
        "model_path",
        "language",
        "save_attn",
        "attn_layers",
    )
)
def cascade(
    settings: RunSettings,
    given: Annotated[
        list[str],
        argument("Folders with runs of transcripts (audiomarathon transcribe), then tasks, as for `run`."),
    ],
    with_: Annotated[str, option("LLM: a folder, hub id, or openai:NAME.", "--with")],
    plan: PlanRuns = False,
    track: Track = "",
) -> int:
    """Let a text LLM answer tasks from transcripts, as a system to compare with audio LLMs.

    Example: audiomarathon cascade results/transcripts tau race --with Qwen/Qwen2.5-7B-Instruct

    The prompt is the task's prompt, with the transcript in place of the audio. Each model and setting that made
    transcripts becomes a run: RESULTS/TASK/TRANSCRIBER+LLM/SETTING. The models that transcribe are not loaded.
    """
    from audiomarathon.engine.cascade import cascade as run_cascade

    folders = [Path(name) for name in given if _holds_transcripts(name)]
    names = [name for name in given if Path(name) not in folders]
    if not folders or not names:
        lacks = "task" if folders else "folder with runs of transcripts (audiomarathon transcribe makes them)"
        raise SettingsError(f"cascade {' '.join(given)}: names no {lacks}; give folders, then tasks")
    words = _of_all() if names == ["all"] else names
    if plan:
        return _show_plan(folders, words, with_, settings)
    trackers = open_trackers(track)
    return show(list(run_cascade(folders, words, with_, settings, say=say, trackers=trackers)))


def _of_all() -> list[str]:
    """Return the tasks that `all` means for a text LLM: all except those that only ask for a transcript."""
    tasks = tasks_named(["all"])
    for task in tasks:
        if task.transcribes:
            say(f"{task.key}: left out of all: it only asks for a transcript")
    return [task.key for task in tasks if not task.transcribes]


def _holds_transcripts(given: str) -> bool:
    """Tell whether an argument of `cascade` is a folder with runs, rather than a task.

    A folder that is named like a task must hold runs of transcripts, since it may also hold the task's data or its
    other results.
    """
    from audiomarathon.benchmarks import get_task
    from audiomarathon.runs.read import run_folders

    try:
        runs = run_folders([Path(given)])
    except RecordError:
        return False
    try:
        get_task(given)
    except AudioMarathonError:
        return bool(runs)
    return any(map(_is_of_transcripts, runs))


def _is_of_transcripts(folder: Path) -> bool:
    """Tell whether a run folder holds transcripts; False if it cannot be read."""
    from audiomarathon.runs.folder import read_run
    from audiomarathon.runs.read import Run

    try:
        task = Run(read_run(folder), {}).task
    except RecordError:
        return False
    return task is not None and task.transcribes


def _show_plan(folders: list[Path], words: list[str], llm: str, settings: RunSettings) -> int:
    """Print the time and the memory that the LLM needs to answer from transcripts.

    Return 1 if a task cannot be run, else 0.
    """
    from audiomarathon.engine.cascade import find_transcribers, llm_settings, load_tasks
    from audiomarathon.engine.sweep_plan import plan_sweep
    from audiomarathon.models.registry import TEXT_LLM, get_local_model, get_model

    loaded = load_tasks(words, settings, say)
    transcribers = find_transcribers(folders, loaded, settings, say)
    model, settings = llm_settings(llm, settings)
    if get_model(model).remote:
        raise SettingsError(f"--with {llm}: an endpoint's time and memory are unknown; leave out --plan")
    complete = True
    for system in dict.fromkeys(transcriber.system for transcriber in transcribers):
        of_system = [transcriber for transcriber in transcribers if transcriber.system == system]
        lines, able = plan_sweep(
            [task for task, _data in loaded.values()], get_local_model(model), settings, of_system, say=say
        )
        complete &= able
        for line in (f"{system}+LLM, the LLM's part; {TEXT_LLM.tokens_per_second:g} tokens a second of speech", *lines):
            typer.echo(line)
    return 0 if complete else 1
