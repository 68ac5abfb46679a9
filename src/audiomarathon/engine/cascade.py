"""Combine a transcriber and a text LLM: the LLM answers a task's questions from transcripts in finished runs.

The model that transcribes is never loaded here, so each of the two models runs alone, in its one timed pass.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from audiomarathon.benchmarks import Loaded, Sample, Task, get_task, selected
from audiomarathon.benchmarks.fingerprint import clip_hashes
from audiomarathon.benchmarks.transcripts import PREFIX
from audiomarathon.compression.method import Base, plain
from audiomarathon.engine.run import Result, check_batch_size, is_finished, load_task, opened, run_task
from audiomarathon.engine.setup import Setup
from audiomarathon.engine.transcripts import LATENCY, STAGES, Reading, Transcriber, made_by
from audiomarathon.errors import RecordError, SettingsError
from audiomarathon.models.checkpoint import Checkpoint, find_checkpoint
from audiomarathon.models.registry import TEXT_LLM, get_model
from audiomarathon.records import Record
from audiomarathon.runs.read import Run, named, read_runs
from audiomarathon.settings import RunSettings, flags_for
from audiomarathon.text import Say, counted
from audiomarathon.tracking.tracker import Tracker

_REMOTE = ("openai", "endpoint")  # prefixes of the name of an LLM behind an endpoint

#: Settings that a command for transcripts leaves out: the choice of samples, paths, methods, and others.
_OF_SAMPLES = ("data", "limit", "results", "skip_persons", "skip_emotion", "balance", "split", "allow_bad_rows")
_PLACES = ("layer", "at", "scope", "tower_layer", "schedule")
_NOT_ITS = ("method", "ratio", "save_attn", "attn_layers")


@dataclass(frozen=True)
class _Made:
    """The transcripts that one model made under one setting, in all its runs, for clips of any task.

    Attributes
    ----------
    records
        {hash of a clip: (task key, record) of every run that transcribed the clip}.
    failed
        {hash of a clip: the record of its failed transcription}.
    """

    runs: Sequence[Run]
    records: Mapping[str, Sequence[tuple[str, Record]]]
    failed: Mapping[str, Record]

    def of(self, task: Task, clip: str) -> list[Record]:
        """Return the records that hold a clip's transcript: those from runs of this task, or if there are none, from
        all runs.
        """
        every = self.records[clip]
        return [record for key, record in every if key == f"{PREFIX}{task.key}"] or [record for _key, record in every]

    @property
    def name(self) -> str:
        """Name of the model that transcribed, and the label of its setting, for messages."""
        return f"{self.runs[0].checkpoint} {self.runs[0].method}"

    def command(self, task: str, settings: RunSettings) -> str:
        """Return the shell command that makes the transcripts of a task's clips."""
        run, sampling = self.runs[0], {name: getattr(settings, name) for name in _OF_SAMPLES}
        parts = [run.identity[name] for name in ("first", "second") if name in run.identity] or [run.identity]
        removing = [f"{part.get('method')}:{plain(part['ratio'])}" for part in parts if part.get("ratio")]
        places = {name: value for part in parts for name, value in part.items() if name in _PLACES and removing}
        left_out = dict.fromkeys((*_PLACES, *_NOT_ITS))
        its = {**(run.facts.get("settings") or {}), **left_out, **places, **sampling}
        methods = ["--methods", "+".join(removing)] if removing else []
        words = ["--model", str(run.facts.get("model")), *methods, *flags_for(its)]
        return shlex.join(["audiomarathon", "transcribe", task, *words])


def llm_settings(llm: str, settings: RunSettings) -> tuple[str, RunSettings]:
    """Return (model key, settings) to run the text LLM `llm`, which names a folder, a hub id or `openai:NAME`.

    Raises
    ------
    ModelError
        The checkpoint is missing.
    SettingsError
        The settings ask to save attention, or an endpoint's model has no name.
    """
    kind, _, name = llm.partition(":")
    if settings.save_attn:
        raise SettingsError("SAVE_ATTN=1: a text LLM attends to no audio; leave it out")
    if kind in _REMOTE:
        if not name.strip():
            raise SettingsError(f"--with {llm}: names no model; write openai:NAME, such as openai:gpt-4o")
        return "openai", replace(settings, model_path=name)
    find_checkpoint(llm, named="name a folder that holds it: --with FOLDER")
    return TEXT_LLM.key, replace(settings, model_path=llm)


def find_transcribers(
    paths: Sequence[Path], tasks: Mapping[str, tuple[Task, Loaded]], settings: RunSettings, say: Say
) -> list[Transcriber]:
    """Return the models that transcribed the clips of the tasks' samples: one `Transcriber` per model and setting.

    For each task, models that transcribed none of its clips are left out, unless no model transcribed any.

    Parameters
    ----------
    paths
        Run folders of transcripts, or folders that contain them.
    tasks
        Tasks and their samples, as {name that the user gave the task: (task, samples)}.

    Raises
    ------
    RecordError
        There are no transcripts, a clip of a task has none, or two different runs transcribed the same clips.
    SettingsError
        A task only asks for a transcript.
    """
    made = _made(paths)
    transcribers: dict[int, Transcriber] = {}
    for word, (task, data) in tasks.items():
        if task.transcribes:
            able = "audiomarathon score reads its runs"
            raise SettingsError(f"{task.key}: only asks for a transcript, which a text LLM cannot improve; {able}")
        samples = selected(data, settings)
        clips = _hashes(samples)
        known = {hashed for hashes in clips.values() for hashed in hashes}
        with_any = [candidate for candidate in made if known & {*candidate.records, *candidate.failed} or not known]
        for system in with_any or made[:1]:
            _check(system, word, task, known, settings)
        if without := [candidate.name for candidate in made if candidate not in with_any]:
            say(f"{task.key}: left out {', '.join(without)}: no transcripts of its clips")
        for system in with_any:
            name = Checkpoint(system.runs[0].checkpoint, Path()).folder_name, system.runs[0].method
            twice = any(
                task.key in known_transcriber.readings and (known_transcriber.system, known_transcriber.setting) == name
                for known_transcriber in transcribers.values()
            )
            if twice or any(len({each.text.strip() for each in system.of(task, clip)}) > 1 for clip in known):
                differ = f"two different runs of {system.name} have transcripts of {task.key}; name only one of them"
                raise RecordError(f"{named(system.runs)}: {differ}")
            transcriber = transcribers.get(id(system)) or Transcriber(
                system=name[0], setting=name[1], made_by=made_by(system.runs[0])
            )
            readings = {
                id_: Reading(tuple(system.of(task, clip)[-1] for clip in hashes)) for id_, hashes in clips.items()
            }
            transcribers[id(system)] = replace(transcriber, readings={**transcriber.readings, task.key: readings})
            if flaws := transcribers[id(system)].reading(task).flaws:
                say(f"{task.key}: {system.name}: {flaws}")
    return list(transcribers.values())


def _made(paths: Sequence[Path]) -> list[_Made]:
    """Read all runs of transcripts; return a list of :class:`_Made`, one for each model and setting that transcribed.

    Uncompressed runs come first. Two runs belong to one item if their identities (the facts that must not change) are
    equal except for the data.
    """
    runs = [run for run in read_runs(paths) if run.task is not None and run.task.transcribes]
    if not runs:
        what = "no run of transcripts there; make them: audiomarathon transcribe TASK --model whisper-base"
        raise RecordError(f"{', '.join(map(str, paths))}: {what}")
    groups: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.method != Base().label):
        groups.setdefault(repr((run.checkpoint, run.method, sorted(made_by(run).items()))), []).append(run)
    systems = []
    for group in groups.values():
        records: dict[str, list[tuple[str, Record]]] = {}
        for run in group:
            for clip, record in {
                str(transcript.clips): transcript for transcript in run.whole.records.values()
            }.items():
                records.setdefault(clip, []).append((run.key, record))
        failed = {str(failure.clips): failure for run in group for failure in run.failed.values()}
        systems.append(_Made(group, records, failed))
    return systems


def _hashes(samples: Sequence[Sample]) -> dict[str, list[str]]:
    """Return the hashes of each sample's clips, as {sample id: [hash of a clip, …]}."""
    every = {str(clip): replace(sample, id=str(clip), clips=(clip,)) for sample in samples for clip in sample.clips}
    alone = clip_hashes(every.values())
    return {sample.id: [alone[str(clip)] for clip in sample.clips] for sample in samples}


def _check(system: _Made, word: str, task: Task, clips: set[str], settings: RunSettings) -> None:
    """Raise RecordError if transcripts of a task's clips (given by hash) are missing.

    The message gives the command that makes them.
    """
    missing = sorted(clips - {*system.records})
    if not missing:
        return
    failed = [system.failed[clip] for clip in missing if clip in system.failed]
    why = f"; {len(failed)} failed, the first: {failed[0].id}: {failed[0].error}" if failed else ""
    lacking = f"{len(missing):,} of {counted(len(clips), 'clip')} have no transcript by {system.name}{why}"
    raise RecordError(
        f"{task.key}: {lacking}; make them: {system.command(word, settings)}; or name only the runs to use"
    )


def cascade(
    paths: Sequence[Path],
    tasks: Sequence[str | Task],
    llm: str,
    settings: RunSettings,
    *,
    say: Say = lambda _line: None,
    progress: bool | None = None,
    trackers: Sequence[Tracker] = (),
) -> Iterator[Result]:
    """Let a text LLM answer tasks from the transcripts in run folders. Yield the result of each task and setting.

    Parameters
    ----------
    paths
        Run folders of transcripts, or folders that contain them.
    llm
        A folder or hub id of a causal LM with a chat template, or `openai:NAME`.

    Raises
    ------
    AudioMarathonError
        For anything that the user must fix; missing transcripts are reported before the LLM is loaded.
    """
    loaded = load_tasks(tasks, settings, say)
    transcribers = find_transcribers(paths, loaded, settings, say)
    model, settings = llm_settings(llm, settings)
    check_batch_size(settings, transcribers)
    times = "" if not settings.timing else LATENCY if get_model(model).remote else STAGES
    work = [
        (replace(transcriber.reading(task), times=times), task, data)
        for task, data in loaded.values()
        for transcriber in transcribers
        if task.key in transcriber.readings
    ]

    def anything_left(setup: Setup) -> bool:
        # Check every task now: an error in the last task must be found before hours are spent on the first.
        finished = [is_finished(replace(setup, methods=(setting,)), task, data) for setting, task, data in work]
        return not all(finished)

    remaining = list(trackers)
    with opened(model, settings, transcribers, needed=anything_left, say=say) as (setup, engine):
        for method, task, data in work:
            setup_of = replace(setup, methods=(method,))
            answering = (
                replace(engine, setup=setup_of, cost=None) if engine else None
            )  # its FLOPs are a part of the sum
            yield from run_task(setup_of, answering, task, data, say, progress, remaining)


def load_tasks(tasks: Sequence[str | Task], settings: RunSettings, say: Say) -> dict[str, tuple[Task, Loaded]]:
    """Find tasks and read their samples, each task once; return {name that the user gave the task: (task, samples)}."""
    loaded_tasks: dict[str, tuple[Task, Loaded]] = {}
    for given in tasks:
        task = given if isinstance(given, Task) else get_task(given)
        if not any(task.key == other.key for other, _data in loaded_tasks.values()):
            loaded_tasks[given if isinstance(given, str) else task.key] = (task, load_task(task, settings, say))
    return loaded_tasks
