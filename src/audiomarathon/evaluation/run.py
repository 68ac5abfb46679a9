"""From settings to results: find the data, load the model, evaluate, score, write.

Everything that can be wrong about a command is found out before the model is loaded, and everything about the model
before the first sample.
"""

from __future__ import annotations

import datetime
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from audiomarathon.errors import DataError, RecordError, SettingsError
from audiomarathon.evaluation.executor import Ray
from audiomarathon.evaluation.identity import check_folders, run_folders
from audiomarathon.evaluation.records import SCHEMA_VERSION, RunFolder, read_run, rewrite_records
from audiomarathon.evaluation.session import Engine, Setup, opened
from audiomarathon.evaluation.summary import score_records, summarise
from audiomarathon.evaluation.too_long import too_long
from audiomarathon.models.registry import get_model
from audiomarathon.pruning.method import Method
from audiomarathon.pruning.registry import get_method
from audiomarathon.settings import RunSettings
from audiomarathon.tasks import Filters, Loaded, Sample, Task, get_task, select, task_folder
from audiomarathon.tasks.fingerprint import clip_hashes
from audiomarathon.tasks.manifest import read_manifest
from audiomarathon.terminal import counted


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

    def check_all(setup: Setup) -> None:
        for task, data in loaded:  # a clash in the last task is found before hours are spent on the first
            check_folders(setup, task, data)

    with opened(model, settings, methods, ray, ready=check_all, say=say, progress=progress) as session:
        for task, data in loaded:
            yield from run_task(session, task, data)


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
    folder = task_folder(task, Path(settings.data).expanduser() if settings.data else None, dict(settings.data_paths))
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


def run_task(setup: Engine, task: Task, data: Loaded) -> Iterator[Result]:
    """Evaluate one task under every setting of a session, and yield their results when it is finished."""
    import torch

    from audiomarathon.evaluation.batches import Plan
    from audiomarathon.evaluation.evaluate import Job

    settings = setup.settings
    samples = select(data.samples, settings.limit, settings.seed)
    plan = Plan(
        task,
        samples,
        settings.max_new_tokens or task.max_new_tokens,
        settings.decode_tokens,
        settings.seed,
        None if settings.timing else settings.batch_size,
        session=f"{(started := _now())} {os.getpid()}",  # two runs may start in one second
        clips=clip_hashes(samples),
        control=(read_manifest(data.folder).control or {}).get("kind"),
    )
    torch.manual_seed(settings.seed)
    with ExitStack() as stack:
        jobs = [Job(method, stack.enter_context(folder)) for method, folder in run_folders(setup, task, data)]
        setup.say(f"{task.key}: {counted(len(samples), 'sample')} under {counted(len(jobs), 'setting')}")
        for job in jobs:
            _report_resume(job.folder, plan.clips or {}, setup.say)
        machine = setup.machine()
        if (others := machine.pop("other_gpu_processes")) and settings.timing:
            warnings.warn(f"other processes use the GPU, times will suffer: {'; '.join(others)}", stacklevel=2)
        clock = time.monotonic()
        before = [dict(job.folder.records) for job in jobs]
        facts = _facts(setup, task, data, samples) | machine
        for job in jobs:
            answered = len(job.folder.done(plan.clips).intersection(plan.clips or {}))
            session = {"started": started, "ended": None, "answered_before": answered, **machine}
            sessions = [*job.folder.run.get("sessions", []), session]
            job.folder.write_run({**facts, **_method_facts(job.method), "sessions": sessions})
        setup.evaluate(plan, jobs)
        ended = {"settings_side_by_side": len(jobs), "wall_s": time.monotonic() - clock, "gpu_after": setup.gpu_state()}
        for job, old in zip(jobs, before, strict=True):
            _end_session(job.folder, old, ended)
            summary = _summary(task, job.folder, settings.seed)
            job.folder.write_summary(summary)
            yield Result(job.folder.path, job.method.label, summary)


def _facts(setup: Engine, task: Task, data: Loaded, samples: Sequence[Sample]) -> dict[str, Any]:
    """Return what `run.json` says of every setting of a task alike."""
    return {
        "task": task.key,
        "model": setup.spec.key,
        "checkpoint": str(setup.checkpoint.path),
        "checkpoint_name": setup.checkpoint.folder_name,
        "settings": _plain(setup.settings),
        "data_folder": str(data.folder),
        "data_samples": len(data.samples),
        "data_expected": read_manifest(data.folder).expected(task).count,
        "control": dict(read_manifest(data.folder).control or {}) or None,
        "bad_rows": [str(row) for row in data.bad_rows],
        "left_out": dict(data.left_out),
        "samples": [sample.id for sample in samples],
        "certificate": setup.certificate(),
        "cost": setup.cost.as_json() if setup.cost else None,
    }


def _method_facts(method: Method) -> dict[str, Any]:
    """Return what `run.json` says of a setting's method, beside the identity."""
    from audiomarathon.evaluation.flops import drops_of

    drops = drops_of(method)
    return {"method": method.label, "note": method.note, "drops": asdict(drops) if drops else None}


def _end_session(folder: RunFolder, before: Mapping[str, Any], ended: Mapping[str, Any]) -> None:
    """Put on record what the session that ends took, and how much it added."""
    fresh = [r for id_, r in folder.records.items() if r is not before.get(id_) and r.get("error") is None]
    sessions = folder.run["sessions"]
    sessions[-1] |= {
        "ended": _now(),
        **ended,
        "samples": len(fresh),
        "audio_s": sum(r["clip_seconds"] for r in fresh),
    }
    folder.write_run({**folder.run, "sessions": sessions})


def _summary(task: Task, folder: RunFolder, seed: int) -> dict[str, Any]:
    """Summarise the samples that the folder's last run selected, in their order."""
    wanted = folder.run["samples"]
    # Verdicts of records from an earlier session may be those of an earlier version's reader.
    judged = score_records(task, list(folder.records.values()))
    if judged != list(folder.records.values()):
        rewrite_records(folder, judged)
        folder.records = {record["id"]: record for record in judged}
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
            summary = _summary(task, folder, seed)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise RecordError(f"{path}: run.json or a record is not as this version writes them ({reason})") from error
        folder.write_summary(summary)
    return Result(path, label, summary)


def _report_resume(folder: RunFolder, clips: Mapping[str, str], say: Callable[[str], None]) -> None:
    done = folder.done(clips) & set(clips)
    if done:
        say(f"{folder.path}: goes on from {len(done):,} of {counted(len(clips), 'sample')}")
    if beyond := len(folder.done() - set(clips)):
        say(f"{folder.path}: {counted(beyond, 'sample')} more on record, outside this run's limit and its summary")
    if changed := len((folder.done() & set(clips)) - done):
        say(f"{folder.path}: the clips of {counted(changed, 'sample')} have changed; done again")
    if folder.rejected_lines:
        lines = counted(folder.rejected_lines, "unreadable line")
        say(f"{folder.path}: {lines} set aside in samples.rejected, to be redone")


def _plain(settings: RunSettings) -> dict[str, Any]:
    values = {name: getattr(settings, name) for name in settings.__dataclass_fields__}
    return {n: str(v) if isinstance(v, Path) else list(v) if isinstance(v, tuple) else v for n, v in values.items()}


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
