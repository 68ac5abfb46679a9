"""Write facts about the run, the machine and each session to `run.json`, and report what a resumed run already has.

A session is one call of the command.
"""

from __future__ import annotations

import datetime
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from audiomarathon.benchmarks import Loaded, Sample, Task
from audiomarathon.benchmarks.manifest import read_manifest
from audiomarathon.engine.engine import Engine
from audiomarathon.engine.environment import software
from audiomarathon.engine.recorded import decided
from audiomarathon.engine.setup import Setup
from audiomarathon.engine.stopping import without_stopping
from audiomarathon.engine.transcripts import wording_of
from audiomarathon.errors import BusyMachineWarning, warn
from audiomarathon.runs.folder import RunFolder
from audiomarathon.runs.summary import foreign_count, is_busy, threads_of
from audiomarathon.text import Say, counted

if TYPE_CHECKING:
    from audiomarathon.engine.batches import Plan
    from audiomarathon.runs.folder import Job


def run_session(engine: Engine, data: Loaded, plan: Plan, jobs: Sequence[Job], say: Say, progress: bool | None) -> None:
    """Evaluate a task under its settings, and write this session's times and machine load to each `run.json`.

    A session is one call of the command. The parameters are those of :meth:`Engine.evaluate`.
    """
    from audiomarathon.costs.flops import drops_of

    machine = engine.state()
    load, cpu_s, others = (machine.pop(name) for name in ("load", "cpu_s", "other_gpu_processes"))
    machine |= {"gpu_before": machine.pop("gpu"), "load_before": load}
    if others and engine.setup.settings.timing:
        warn(f"other processes use the GPU, so measured times will be longer: {'; '.join(others)}")
    threads = threads_of(machine, engine.setup.hardware.name)
    if engine.setup.settings.timing:
        _warn_if_busy(load, threads)
    clock = time.monotonic()
    before = [dict(job.folder.records) for job in jobs]
    facts = facts_of(engine.setup, plan.task, data, plan.samples) | {
        "model": engine.setup.spec.key,
        "certificate": engine.certificate(),
        "cost": engine.cost.as_json() if engine.cost else None,
        **machine,
    }
    started = str(plan.session).split()[0]
    for job in jobs:
        answered = len(job.folder.done(plan.clips).intersection(plan.clips))
        session = {"started": started, "ended": None, "answered_before": answered, **machine}
        sessions = [*job.folder.run.get("sessions", []), session]
        drops = drops_of(job.method, engine.cost.tower_layers if engine.cost else 0)
        setting = {"method": job.method.label, "note": job.method.note, "drops": asdict(drops) if drops else None}
        rule = {"stopping": plan.stopping.rule(job)} if plan.stopping else without_stopping(job)
        job.folder.write_run({**facts, **setting, **rule, "sessions": sessions})
    engine.evaluate(plan, jobs, say=say, progress=progress)
    wall, end = time.monotonic() - clock, engine.state()
    if engine.setup.settings.timing:
        _warn_if_busy(end["load"], threads)
    ended = {
        "settings_side_by_side": len(jobs),
        "wall_s": wall,
        "cpu_s": sum(seconds - cpu_s.get(process, 0.0) for process, seconds in end["cpu_s"].items()),
        "gpu_after": end["gpu"],
        "load_after": end["load"],
    }
    outcomes = plan.stopping.outcomes(jobs) if plan.stopping else {}
    for job, old in zip(jobs, before, strict=True):
        job.folder.run |= outcomes.get(job.method.label, {})
        fresh = [record for id_, record in job.folder.records.items() if record is not old.get(id_) and record.answered]
        counts = {"samples": len(fresh), "audio_s": sum(record.clip_seconds for record in fresh)}
        job.folder.run["sessions"][-1] |= {"ended": now(), **ended, **counts}
        job.folder.write_run(job.folder.run)


def _warn_if_busy(load: Mapping[str, Any] | None, threads: int) -> None:
    if load and is_busy(load, threads):
        processes = counted(foreign_count(load), "busy process", "busy processes")
        advice = "wait until they end, or run without times (--no-timing; in Python timing=False)"
        warn(
            f"{processes} of other programs on {load['cores']} cores, so measured times will be longer; {advice}",
            BusyMachineWarning,
        )


def facts_of(setup: Setup, task: Task, data: Loaded, samples: Sequence[Sample]) -> dict[str, Any]:
    """Return {field of `run.json`: value} for the fields that all settings of a task share and that need no loaded
    model.

    Among them are `task`, `checkpoint`, `settings`, `data_folder` and `samples` (ids of the selected samples).
    """
    expected = read_manifest(data.folder).expected(task)
    return {
        "task": task.key,
        "checkpoint": str(setup.checkpoint.path),
        "checkpoint_name": setup.name,
        "settings": {**asdict(setup.settings), "results": str(setup.settings.results)},
        "data_folder": str(data.folder),
        "data_samples": len(data.samples),
        "data_expected": expected.count if expected else None,
        "control": dict(read_manifest(data.folder).control or {}) or None,
        "bad_rows": [str(row) for row in data.bad_rows],
        "left_out": dict(data.left_out),
        "defects": dict(data.defects),
        "samples": [sample.id for sample in samples],
        "largest_cluster": max(Counter(sample.cluster for sample in data.samples).values(), default=1),
        **wording_of(setup.spec, task, data.samples),
        **decided(setup),
    }


def now() -> str:
    """Return the current time in UTC, as ISO text to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def report_resume(folder: RunFolder, clips: Mapping[str, str], say: Say) -> None:
    """Report what a run folder already holds: finished samples, and samples whose clips have changed.

    Also report if another version of this project wrote the records.

    Parameters
    ----------
    clips
        Current hash of each sample's clips, as {sample id: hash}.
    """
    last, now = _version(folder.run.get("environment") or {}), _version(software())
    if folder.records and last != now:
        say(f"{folder.path}: its records were last written by audiomarathon {last}; this is {now}")
    if folder.weak:
        why = "an older version wrote some records; changes of weights or third-party code since then go unnoticed"
        say(f"{folder.path}: weak fingerprint: {why}")
    done = folder.done(clips) & set(clips)
    if done == set(clips):
        say(f"{folder.path}: complete; nothing to do")
    elif done:
        say(f"{folder.path}: resuming: {len(done):,} of {counted(len(clips), 'sample')} done")
    if unselected := len(folder.done() - set(clips)):
        say(
            f"{folder.path}: {counted(unselected, 'more recorded sample')} not selected by this run, not in the summary"
        )
    if changed := len((folder.done() & set(clips)) - done):
        changed_inputs = "changed clips" + " or transcripts" * folder.reads
        say(f"{folder.path}: {counted(changed, 'sample')} with {changed_inputs}: running again")


def _version(facts: Mapping[str, Any]) -> str:
    return f"{facts.get('audiomarathon')} ({str(facts.get('commit') or 'no commit')[:7]})"
