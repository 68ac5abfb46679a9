"""`audiomarathon data …`: download, verify, measure, vary, review and describe the tasks' data."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from audiomarathon.cli.command import group
from audiomarathon.cli.options import (
    PICTURES,
    Data,
    Runs,
    argument,
    complete_tasks,
    listed,
    load_task,
    option,
    output_file,
    output_folder,
    places,
    tasks_named,
)
from audiomarathon.cli.output import say
from audiomarathon.errors import MissingDataError, SettingsError
from audiomarathon.files import named_folder, write_json
from audiomarathon.settings import SEED
from audiomarathon.text import counted

if TYPE_CHECKING:
    from audiomarathon.benchmarks import Loaded, Task

_SHOWN_PROBLEMS = 20  # number of problems to print for each task

Tasks = Annotated[list[str] | None, argument("Tasks, or 'all' (default: all tasks found).", complete=complete_tasks)]
Jobs = Annotated[int, option("Threads; 0 = one per core.", min=0)]


def download(
    tasks: Annotated[list[str] | None, argument("Tasks, or 'all' (59 GB).", complete=complete_tasks)] = None,
    data: Data = None,
    limit: Annotated[int, option("Download only the samples that a run with this limit uses; 0 = all.", min=0)] = 0,
    seed: Annotated[int, option("Seed of that run.", min=0)] = SEED,
    source: Annotated[
        Path | None, option("Folder or archive (.zip, .tar, .tar.gz, .7z) to read instead of the hub.", "--from")
    ] = None,
    split: Annotated[str, option("Split to download, such as evaluation, validation or development of Clotho.")] = "",
    dry_run: Annotated[bool, option("Only show what would be downloaded.", "--dry-run")] = False,
) -> None:
    """Download tasks' data into the data root, from the hub or from a copy on disk.

    Example: audiomarathon data download vesus --data data

    The same command resumes an interrupted download. Without --data or AUDIOMARATHON_DATA, the root is ./data.

    lalm/clotho and lalm/mmau_pro get a folder each. Their archives are read on the hub and not stored; with --limit,
    only the needed clips of a .zip are read. A folder after --from may also contain archives (.zip, .tar, .7z).
    """
    from audiomarathon.benchmarks.audiomarathon.benchmark import AUDIOMARATHON
    from audiomarathon.benchmarks.locate import HUB_DATASET
    from audiomarathon.benchmarks.registry import OTHER, all_benchmarks, benchmark_of
    from audiomarathon.data.archive import OpenSource, Source, UnpackedSource, from_web, open_source
    from audiomarathon.data.download import download as fetch
    from audiomarathon.data.hub import HubSource

    if not tasks:
        raise SettingsError("name at least one task (smallest: vesus, under 1 GB) or 'all' (59 GB)")
    root = named_folder(data or os.environ.get("AUDIOMARATHON_DATA", "").strip() or "data")  # mini too is a folder
    chosen = tasks_named(tasks)
    keys = sorted({benchmark_of(task.key) for task in chosen})
    if len(keys) > 1:
        where = f"{' and '.join(keys)} are downloaded from different places"
        raise SettingsError(f"{where}; use a separate command for each")
    benchmark = next((known for known in all_benchmarks() if known.key == keys[0]), AUDIOMARATHON)
    for task in chosen:
        if split and split not in (allowed := getattr(task, "splits", ())):
            raise SettingsError(f"--split={split}: allowed for {task.key}: {', '.join(allowed) or 'none'}")
        if source is None and (keys == [OTHER] or (benchmark.hubs and task.key not in benchmark.hubs)):
            how = task.source or "no public copy to download"
            raise SettingsError(f"{task.key}: {how}; pass your copy with --from FOLDER or --from ARCHIVE")
    if (source is None or benchmark.archive) and not benchmark.hubs:
        terms = f"the licence {benchmark.licence}: not for commercial use, credit its authors"
        say(f"the data of {benchmark.key} has {terms}")
    if source is None and benchmark.archive:
        say(f"{benchmark.key}: {', '.join(chosen[0].download or ['size unknown'])}")
        source = from_web(benchmark.archive, root / f"{benchmark.key}.zip", say)
    for together in [[task] for task in chosen] if benchmark.hubs else [chosen]:
        key, place, licence = together[0].key, root, ""
        opened: Source = open_source(source.expanduser()) if source else HubSource(benchmark.hubs.get(key, HUB_DATASET))
        if benchmark.hubs:
            place, (_size, licence) = root / key.rpartition("/")[2], together[0].download or ("", "not stated")
            opened = UnpackedSource(opened) if isinstance(opened, OpenSource) else opened
        for done in fetch(
            together, opened, place, limit=limit, seed=seed, split=split, licence=licence, dry_run=dry_run, say=say
        ):
            samples, clips = counted(len(done.loaded.samples), "sample"), counted(len(done.clips), "clip")
            size = f"{sum(clip.size for clip in done.clips) / 1e9:.2f} GB"
            where = f"{'would be' if dry_run else 'are'} in {place / done.folder} (licence: {done.manifest.licence})"
            say(f"{done.task.key}: {len(done.chosen):,} of {samples}, {clips}, {size} {where}")
    if not dry_run:
        say(f"export AUDIOMARATHON_DATA={root.absolute()}")
        say(f"next: audiomarathon data verify {' '.join(task.key for task in chosen)}")


def verify(
    tasks: Tasks = None,
    data: Data = None,
    deep: Annotated[bool, option("Decode every clip, not only its header.")] = False,
    jobs: Jobs = 0,
    tolerance: Annotated[
        float,
        option(
            "Tolerance in seconds: a clip may be this much shorter or longer than the task's expected durations.", min=0
        ),
    ] = 1.0,
    report: Annotated[Path | None, option("Write all results to this file.", "--json")] = None,
) -> int:
    """Check that the rows, clips, durations and counts of tasks are as expected.

    Example: audiomarathon data verify tau --deep

    Exit code 0: no problem; 1: problems found. A missing task is a problem if you name it ('all' names all ten).
    Without names, tasks without data are skipped, but at least one must be found.
    """
    from audiomarathon.data.verify import verify as verify_task
    from audiomarathon.report import tables
    from audiomarathon.report.render import show

    reports = [
        verify_task(task, *places(data), deep=deep, jobs=jobs, tolerance=tolerance) for task in tasks_named(tasks)
    ]
    show(tables.verification(reports))
    wrong = [report for report in reports if report.state == "wrong"]
    missing = [report for report in reports if report.state == "missing"]
    for task_report in wrong:
        for problem in task_report.problems[:_SHOWN_PROBLEMS]:
            say(f"{task_report.task}: {problem.kind}: {problem.text.removeprefix(f'{task_report.task}: ')}")
        if (more := len(task_report.problems) - _SHOWN_PROBLEMS) > 0:
            say(f"{task_report.task}: {counted(more, 'more problem')}; --json FILE lists all")
    for task_report in reports:
        for note in task_report.notes:
            say(f"{task_report.task}: note: {note}")
    if missing:
        say(f"missing: {', '.join(report.task for report in missing)}. {missing[0].problems[0].text}")
    good = not wrong and not (missing and tasks) and len(missing) < len(reports)
    if report:
        write_json(report, {"good": good, "deep": deep, "tasks": [report.as_json() for report in reports]})
    return 0 if good else 1


def durations(
    tasks: Tasks = None,
    data: Data = None,
    jobs: Jobs = 0,
    output: Annotated[Path | None, output_folder("Folder for JSON, CSV, and a PNG for each task and for all.")] = None,
) -> int:
    """Show how long the clips are, and how many audio tokens they take in each model.

    Exit code 1 if a clip cannot be read; the other clips are still measured.
    """
    from audiomarathon.data.durations import durations as durations_of
    from audiomarathon.data.durations import write_durations
    from audiomarathon.report import tables
    from audiomarathon.report.pictures import plot_durations
    from audiomarathon.report.render import show

    measured = [durations_of(task, loaded, jobs=jobs) for task, loaded in _present(tasks, data)]
    show(tables.durations(measured), tables.tokens(measured))
    for task_durations in measured:
        for clip, reason in task_durations.broken:
            say(f"{task_durations.task.key}: broken: {clip}: {reason}")
        if task_durations.bad_rows:
            bad = counted(task_durations.bad_rows, "bad row")
            say(
                f"{task_durations.task.key}: {bad} left out; to list them: "
                f"audiomarathon data verify {task_durations.task.key}"
            )
    for path in [*write_durations(measured, output), *plot_durations(measured, output)] if output else ():
        say(f"wrote {path}")
    return 1 if any(clip_lengths.broken for clip_lengths in measured) else 0


def controls(
    tasks: Annotated[list[str], argument("Tasks, or 'all'.", complete=complete_tasks)],
    output: Annotated[Path, output_folder("Output folder; each variant in it is a data root.")],
    data: Data = None,
    durations: Annotated[str, option("Clip lengths in seconds, such as 30,60,90,180,300.")] = "",
    control: Annotated[
        str,
        option(
            "Audio of the variant: audio, silence, noise, mismatched, joined by commas; jasco also has text-both, "
            "text-sound, text-speech, speech-first, speech-last."
        ),
    ] = "audio",
    seed: Annotated[int, option("Seed of the noise, and of the choice of mismatched audio.", min=0)] = SEED,
    jobs: Jobs = 0,
) -> None:
    """Make control variants of tasks: clips cut or extended to one length, or clips with other audio or silence.

    Example: audiomarathon data controls desed --durations 30,60,90 --control audio,silence -o controls

    Each variant is a data root: pass it to --data of a run. The run's records name the control.
    """
    from audiomarathon.benchmarks import all_tasks
    from audiomarathon.data.controls import KINDS, build_controls

    try:
        lengths: list[float | None] = [float(part) for part in listed(durations)]
    except ValueError:
        lengths = [0.0]
    if not all(length and 1 <= length <= 3600 for length in lengths):
        raise SettingsError(f"--durations={durations}: not allowed; allowed: seconds from 1 to 3600, joined by commas")
    kinds = list(dict.fromkeys(listed(control)))
    for task in tasks_named(tasks):
        if unknown := [kind for kind in kinds if kind not in (*KINDS, *task.own_controls)]:
            more = [
                f"{known_task.key} also {', '.join(known_task.own_controls)}"
                for known_task in all_tasks()
                if known_task.own_controls
            ]
            raise SettingsError(
                f"--control={control}: {unknown[0]!r} is not allowed for {task.key}; allowed, joined by commas: "
                f"{'; '.join([', '.join(KINDS), *more])}"
            )
    if lengths and (task_kinds := [kind for kind in kinds if kind not in KINDS]):
        raise SettingsError(f"--durations={durations}: not allowed with --control {task_kinds[0]}, which keeps lengths")
    if not lengths and "audio" in kinds:
        raise SettingsError("--control audio changes nothing without --durations; add it, or name another control")
    loaded = _present(tasks, data)
    for length in lengths or [None]:
        for kind in kinds:
            root, left_out = build_controls(loaded, output, seconds=length, kind=kind, seed=seed, jobs=jobs)
            for key, count in left_out.items():
                if count:
                    say(f"{key}: {counted(count, 'sample')} left out: their answers are unknown for a part of a clip")
            say(f"wrote {root}; run it with: --data {root} --results results/{root.name}")


def plot_controls(
    runs: Runs, output: Annotated[Path, output_file("Picture.", "controls.png", *PICTURES)] = Path("controls.png")
) -> None:
    """Plot score against duration, one line per control, from finished runs on a task and its variants."""
    from audiomarathon.report.controls import control_runs, plot
    from audiomarathon.report.render import show

    table = control_runs(runs)
    show(table)
    say(f"picture: {plot(table, output)}")


def review(
    task: Annotated[str, argument("Task.", complete=complete_tasks)],
    data: Data = None,
    share: Annotated[float, option("Share of the task's samples to review.", min=0, max=1)] = 0.1,
    seed: Annotated[int, option("Seed that chooses the samples.", min=0)] = SEED,
    output: Annotated[
        Path | None, output_file("JSONL file of verdicts (default: review-TASK.jsonl).", ".jsonl")
    ] = None,
    play: Annotated[bool, option("Play clips with ffplay, aplay, paplay or afplay.")] = True,
) -> None:
    """Show and play a task's samples one by one, and ask whether each is right. The same command resumes a review."""
    from audiomarathon.data.review import review as ask_for_verdicts

    chosen, loaded = load_task(task, data)
    verdicts = output or Path(f"review-{chosen.key.replace('/', '-')}.jsonl")
    count = ask_for_verdicts(loaded, verdicts, seed=seed, share=share, ask=input, show=typer.echo, play=play)
    say(f"{count['accept']} accepted, {count['reject']} rejected, {count['left']} left; verdicts in {verdicts}")


def card(
    output: Annotated[Path, output_folder("Folder for card.md, card.html and audio/.")],
    tasks: Tasks = None,
    data: Data = None,
    jobs: Jobs = 0,
) -> None:
    """Describe a data root in Markdown and HTML: counts, durations, classes, licence, ten audio examples."""
    from audiomarathon.data.card import write_card

    for path in write_card(_present(tasks, data), output, jobs=jobs):
        say(f"wrote {path}")


def _present(tasks: list[str] | None, data: Path | None) -> list[tuple[Task, Loaded]]:
    """Return pairs (task, its samples) of the named tasks; without names, of every task whose data is found.

    Raise :class:`MissingDataError` if a named task has no data, or no task has.
    """
    from audiomarathon.benchmarks import task_folder

    present = []
    for task in tasks_named(tasks):
        try:
            folder = task_folder(task, *places(data))
        except MissingDataError as error:
            if tasks:
                raise
            missing = error
        else:
            present.append((task, task.load(folder)))
    if not present:
        raise missing
    return present


data_app = group(
    "Download, verify, measure, vary and describe the benchmarks' data.",
    {
        "download": download, "verify": verify, "review": review, "durations": durations, "controls": controls,
        "plot-controls": plot_controls, "card": card,
    },
)  # fmt: skip
