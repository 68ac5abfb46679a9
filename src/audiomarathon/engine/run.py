"""From settings to results: find the data, load the model, evaluate, score, write.

Everything that can be wrong about a command is found out before the model is loaded, and everything about the model
before the first sample.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from audiomarathon.compression.method import Method
from audiomarathon.compression.registry import get_method
from audiomarathon.embedded.without_data import data_root
from audiomarathon.engine.engine import Engine
from audiomarathon.engine.executor import Ray
from audiomarathon.engine.identity import check_folders, run_folders
from audiomarathon.engine.open import opened
from audiomarathon.engine.resume import report_resume
from audiomarathon.engine.sessions import facts_of, now, run_session
from audiomarathon.engine.setup import Setup
from audiomarathon.engine.source import source_hash
from audiomarathon.errors import AudioMarathonError, DataError, PluginError, RecordError, SettingsError, told
from audiomarathon.models.registry import get_model
from audiomarathon.runs.folder import SCHEMA_VERSION, Job, RunFolder, read_run
from audiomarathon.runs.summary import score_records, summarise
from audiomarathon.settings import RunSettings
from audiomarathon.tasks import Filters, Loaded, Task, get_task, select, task_folder
from audiomarathon.tasks.clip_limits import too_long
from audiomarathon.tasks.fingerprint import clip_hashes
from audiomarathon.tasks.manifest import read_manifest
from audiomarathon.text import counted


@dataclass(frozen=True)
class Result:
    """A finished setting of a task: its folder, its method's label and the content of its `summary.json`."""

    folder: Path
    method: str
    summary: dict[str, Any]


def run(
    tasks: Sequence[str | Task],
    model: str,
    settings: RunSettings,
    methods: Sequence[Method] | None = None,
    *,
    ray: Ray | None = None,
    say: Callable[[str], None] = lambda _line: None,
    progress: bool | None = None,
) -> Iterator[Result]:
    """Evaluate a model on tasks, yielding each setting's result when its task is finished.

    Parameters
    ----------
    tasks
        Names, or tasks.
    model
        A model's name (`audiomarathon list models`).
    methods
        Settings to run side by side on each sample; None runs the one that `settings` names.
    ray
        Workers to share the samples out to; None runs in this process.
    say
        Called with lines for the user: what is loaded, what was left out, where results are.

    Raises
    ------
    AudioMarathonError
        Before the first sample, for anything that is the user's to mend.
    """
    chosen = [task if isinstance(task, Task) else get_task(task) for task in tasks]
    spec = get_model(model)
    methods = (
        [get_method(settings.method, settings.ratio, settings.layer, settings.scope)]
        if methods is None
        else list(methods)
    )
    if len({method.label for method in methods}) < len(methods):
        raise SettingsError(f"a setting is named twice: {', '.join(method.label for method in methods)}")
    check_batch_size(settings, methods)
    loaded = [(task, load_task(task, settings, say)) for task in chosen]
    for task, data in loaded:
        if line := too_long(spec, task, select(data.samples, settings.limit, settings.seed)):
            say(line)

    def anything_left(setup: Setup) -> bool:
        for task, data in loaded:  # a clash in the last task is found before hours are spent on the first
            check_folders(setup, task, data)
        return not all(is_finished(setup, task, data) for task, data in loaded)

    with opened(model, settings, methods, ray, needed=anything_left, say=say, progress=progress) as (setup, engine):
        for task, data in loaded:
            yield from run_task(setup, engine, task, data, say)


def check_batch_size(settings: RunSettings, methods: Sequence[Method]) -> None:
    """Refuse batches to methods that work on one sample at a time.

    Raises
    ------
    SettingsError
        Naming them.
    """
    if settings.batch_size > 1 and (alone := [method.label for method in methods if not method.batches]):
        raise SettingsError(f"BATCH_SIZE={settings.batch_size}: {', '.join(alone)} works at batch size 1; allowed: 1")


def load_task(task: Task, settings: RunSettings, say: Callable[[str], None]) -> Loaded:
    """Find and read a task's samples.

    Raises
    ------
    DataError
        When there are none, or rows are bad and may not be left out.
    """
    folder = task_folder(task, data_root(settings.data), dict(settings.data_paths))
    filters = Filters(settings.skip_persons, settings.skip_emotion, settings.balance, settings.seed)
    loaded = task.load(folder, filters)
    if loaded.bad_rows and not settings.allow_bad_rows:
        shown = "; ".join(str(row) for row in loaded.bad_rows[:3])
        more = f" and {len(loaded.bad_rows) - 3} more" if len(loaded.bad_rows) > 3 else ""
        raise DataError(
            f"{task.key}: {counted(len(loaded.bad_rows), 'bad row')}: {shown}{more}; mend them, or leave them out with "
            f"--allow-bad-rows (ALLOW_BAD_ROWS=1)"
        )
    for name, count in {"bad rows": len(loaded.bad_rows), **loaded.left_out}.items():
        if count:
            say(f"{task.key}: left out {counted(count, 'sample')} ({name})")
    if not loaded.samples:
        raise DataError(f"{task.key}: {folder} holds no samples")
    expected = read_manifest(folder).expected(task).count
    if (found := len(loaded.samples) + sum(loaded.left_out.values())) != expected:
        say(f"{task.key}: {counted(found, 'sample')} in {folder}; the whole task has {expected:,}")
    return loaded


def is_finished(setup: Setup, task: Task, data: Loaded) -> bool:
    """Tell whether every sample that a run selects has its reply under every setting; nothing is written."""
    clips = clip_hashes(select(data.samples, setup.settings.limit, setup.settings.seed))
    folders = [folder for _method, folder in run_folders(setup, task, data)]
    for folder in folders:
        folder.peek()
    return all(folder.done(clips) >= set(clips) for folder in folders)


def run_task(
    setup: Setup, engine: Engine | None, task: Task, data: Loaded, say: Callable[[str], None] = lambda _line: None
) -> Iterator[Result]:
    """Evaluate one task under every setting, and yield their results when it is finished.

    Parameters
    ----------
    engine
        Without one the task must be finished, and its results are told again.
    """
    import torch

    from audiomarathon.engine.batches import Plan

    settings = setup.settings
    samples = select(data.samples, settings.limit, settings.seed)
    plan = Plan(
        task,
        samples,
        settings.max_new_tokens or task.max_new_tokens,
        settings.decode_tokens,
        settings.seed,
        None if settings.timing else settings.batch_size,
        session=f"{now()} {os.getpid()}",  # two runs may start in one second
        clips=clip_hashes(samples),
        control=(read_manifest(data.folder).control or {}).get("kind"),
    )
    torch.manual_seed(settings.seed)
    with ExitStack() as stack:
        jobs = [Job(method, stack.enter_context(folder)) for method, folder in run_folders(setup, task, data)]
        say(f"{task.key}: {counted(len(samples), 'sample')} under {counted(len(jobs), 'setting')}")
        for job in jobs:
            _judge(task, job.folder)
            report_resume(job.folder, plan.clips or {}, say)
        if engine is not None:
            run_session(replace(engine, say=say), task, data, plan, jobs)
        for job in jobs:
            if engine is None:  # the summary is of the samples that this run selects
                job.folder.write_run({**job.folder.run, **facts_of(setup, task, data, samples)})
            summary = _summary(task, job.folder, settings.seed)
            job.folder.write_summary(summary)
            yield Result(job.folder.path, job.method.label, summary)


def _judge(task: Task, folder: RunFolder) -> None:
    """Judge the records of earlier sessions anew: their verdicts may be those of an earlier version's reader.

    A record that one of our own tasks cannot score is damaged, and set aside.
    """
    before, judged = list(folder.records.values()), []
    for record in before:
        try:
            judged += score_records(task, [record])
        except (AudioMarathonError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            if source_hash(task):
                raise PluginError(f"{task.key}: its score fails on record {record['id']!r}: {told(error)}") from error
    if judged != before:
        folder.replace(judged)


def _summary(task: Task, folder: RunFolder, seed: int) -> dict[str, Any]:
    """Summarise the samples that the folder's last run selected, in their order."""
    wanted = folder.run["samples"]
    records = [folder.records[id_] for id_ in wanted if id_ in folder.records]
    # Settings that ran side by side shared the wall time: whose it was cannot be told.
    alone = [s for s in folder.run["sessions"] if s.get("wall_s") and s.get("settings_side_by_side") == 1]
    wall, heard = sum(s["wall_s"] for s in alone), sum(s["audio_s"] for s in alone)
    summary = summarise(
        task, records, expected=len(wanted), seed=seed, audio_seconds_per_second=heard / wall if wall else None
    )
    names = ("data_samples", "data_expected", "left_out")
    summary |= {"control": folder.run.get("control")}
    return summary | {"bad_rows": len(folder.run["bad_rows"]), **{name: folder.run[name] for name in names}}


def score(path: Path) -> Result:
    """Judge a run's stored replies again and rewrite its verdicts and `summary.json`; no model and no data needed.

    Raises
    ------
    RecordError
        When the folder holds no run, or another process writes it.
    """
    run_facts = read_run(path)
    try:
        task, seed = get_task(run_facts["task"]), run_facts["settings"]["seed"]
        label, identity = run_facts["method"], run_facts["identity"]
    except (KeyError, TypeError) as error:
        raise RecordError(f"{path / 'run.json'}: lacks a field ({error})") from None
    if run_facts.get("schema_version") != SCHEMA_VERSION:
        raise RecordError(
            f"{path}: schema version {run_facts.get('schema_version')}, this version reads {SCHEMA_VERSION}"
        )
    with RunFolder(path, identity) as folder:
        try:
            _judge(task, folder)
            summary = _summary(task, folder, seed)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise RecordError(f"{path}: run.json or a record is not as this version writes them ({reason})") from error
        folder.write_summary(summary)
    return Result(path, label, summary)
