"""Run tasks: find the data, load the model, evaluate, score and write. Also import replies generated elsewhere.

Errors in the command are reported before the model is loaded, and errors of the model before the first sample runs.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from audiomarathon.benchmarks import Filters, Loaded, Sample, Task, get_task, selected, task_folder
from audiomarathon.benchmarks.clip_limits import longest_clips, too_short
from audiomarathon.benchmarks.fingerprint import clip_hashes
from audiomarathon.benchmarks.manifest import read_manifest
from audiomarathon.compression.method import Method
from audiomarathon.compression.registry import get_method
from audiomarathon.costs.limits import check_length
from audiomarathon.embedded.without_data import data_root
from audiomarathon.engine.engine import Engine, LocalEngine, open_local
from audiomarathon.engine.identity import check_edited, run_folders
from audiomarathon.engine.ray_options import Ray
from audiomarathon.engine.recorded import recorded_setup
from audiomarathon.engine.sessions import facts_of, now, report_resume, run_session
from audiomarathon.engine.setup import Setup, check_able, find_setup, language_of
from audiomarathon.engine.stopping import Margin, Stopping, without_stopping
from audiomarathon.engine.transcripts import readings_of
from audiomarathon.errors import AudioMarathonError, DataError, ModelError, RecordError, SettingsError
from audiomarathon.files import check_writable, write_bytes, write_json
from audiomarathon.judges.judgements import Judgement, judgements_file
from audiomarathon.models.registry import get_model
from audiomarathon.records import Corpus, Record
from audiomarathon.runs.attention import FOLDER, captured
from audiomarathon.runs.folder import Job, RunFolder, read_run, with_context
from audiomarathon.runs.record_line import to_line
from audiomarathon.runs.scored import cannot_be_judged, judged, write_verdicts
from audiomarathon.runs.summary import IMPORTED, summarise
from audiomarathon.settings import AUTO, COLD, RunSettings
from audiomarathon.terminal import progress_of
from audiomarathon.text import Say, counted
from audiomarathon.tracking.following import following
from audiomarathon.tracking.tracker import Tracker

if TYPE_CHECKING:
    from audiomarathon.engine.batches import Plan


@dataclass(frozen=True)
class Result:
    """A finished run: one task under one setting.

    `method` is the setting's label, and `summary` the content of `summary.json`. `without_attention` counts the
    answered samples whose attention should have been captured but is missing.
    """

    folder: Path
    method: str
    summary: dict[str, Any] = field(repr=False)
    without_attention: int = 0


def run(
    tasks: Sequence[str | Task],
    model: str,
    settings: RunSettings,
    methods: Sequence[Method] | None = None,
    *,
    ray: Ray | None = None,
    say: Say = lambda _line: None,
    progress: bool | None = None,
    trackers: Sequence[Tracker] = (),
) -> Iterator[Result]:
    """Evaluate a model on tasks. Yield the result of each setting when its task is finished.

    Parameters
    ----------
    tasks
        Names of tasks, or task objects.
    model
        A model's name (`audiomarathon list models`).
    methods
        Settings to run side by side on each sample; None runs the method that `settings` names.
    ray
        Options for Ray's workers; None runs the samples in this process.
    say
        Receives lines for the user, about the model, skipped samples and run folders.
    trackers
        Trackers that show each run, such as MLflow; see :mod:`audiomarathon.tracking`.

    Raises
    ------
    AudioMarathonError
        For anything that the user must fix; most errors are raised before the first sample.
    """
    chosen = [task if isinstance(task, Task) else get_task(task) for task in tasks]
    spec = get_model(model)
    methods = [get_method(settings.method, settings.ratio, **settings.places)] if methods is None else list(methods)
    if len({method.label for method in methods}) < len(methods):
        raise SettingsError(
            f"two methods have the same label, leave one out: {', '.join(method.label for method in methods)}"
        )
    check_batch_size(settings, methods)
    check_edited(chosen, spec, settings, methods)
    loaded = [(task, load_task(task, settings, say)) for task in chosen]
    for task, data in loaded:
        samples = selected(data, settings)
        if line := too_short(task, data, samples):
            say(line)

    def anything_left(setup: Setup) -> bool:
        # Check every task now: an error in the last task must be found before hours are spent on the first.
        finished = [is_finished(setup, task, data) for task, data in loaded]
        return not all(finished)

    remaining = list(trackers)  # a copy, since a tracker that fails is removed
    known = known_as_finished(loaded, model, settings, methods) if ray is None else None
    with opened(model, settings, methods, ray, needed=anything_left, known=known, say=say) as (setup, engine):
        for task, data in loaded:
            yield from run_task(setup, engine, task, data, say, progress, remaining)


@contextmanager
def opened(
    model: str,
    settings: RunSettings,
    methods: Sequence[Method],
    ray: Ray | None = None,
    *,
    needed: Callable[[Setup], bool] = lambda _setup: True,
    known: Setup | None = None,
    say: Say = lambda _line: None,
) -> Iterator[tuple[Setup, Engine | None]]:
    """Yield (setup, engine): the model loaded in this process, in Ray's workers, or reached through an endpoint.

    Parameters
    ----------
    needed
        Called before the weights are loaded, which may take minutes. It returns whether any work is left (if not, no
        model is loaded), and raises errors that are known without the model. When a running Ray cluster is joined,
        the model is always loaded first, since only the workers know their machines.
    known
        The setup that :func:`known_as_finished` returned; if given, nothing is loaded.

    Yields
    ------
    tuple of Setup and Engine
        The engine is None if no work is left.
    """
    check_writable(settings.results)
    if settings.save_attn and (ray is not None or get_model(model).remote):
        raise SettingsError("SAVE_ATTN=1: attention is captured in this process only; allowed: a local model, no Ray")
    if known is not None:
        yield known, None
        return
    if get_model(model).remote:
        from audiomarathon.engine.remote import open_endpoint

        if ray is not None:
            several = "leave it out; for several requests at once set BATCH_SIZE and --no-timing"
            raise SettingsError(f"--executor ray: {model} runs behind an endpoint; {several}")
        engine = open_endpoint(model, settings, methods, say=say)
        needed(engine.setup)
        yield engine.setup, engine
        return
    if ray is None or ray.address is None:
        on_cpu = ray is not None and ray.gpus_per_worker == 0 and settings.device == "auto"
        setup = find_setup(model, replace(settings, device="cpu") if on_cpu else settings, methods)
        if not needed(setup):
            yield setup, None
            return
        if ray is None:
            yield setup, open_local(model, settings, methods, setup=setup, say=say)
            return
    from audiomarathon.engine.ray_engine import open_workers

    with open_workers(model, settings, methods, ray, say=say) as workers:
        if ray.address is not None:
            needed(workers.setup)
        yield workers.setup, workers


def check_batch_size(settings: RunSettings, methods: Sequence[Method]) -> None:
    """Raise SettingsError if the batch size is above 1 and a method works on one sample at a time.

    The message names the method.
    """
    if settings.batch_size != 1 and (unbatched := [method.label for method in methods if not method.batches]):
        raise SettingsError(f"BATCH_SIZE={settings.batch_size}: {', '.join(unbatched)} needs batch size 1; allowed: 1")


def load_task(task: Task, settings: RunSettings, say: Say) -> Loaded:
    """Find, read and return a task's samples; tell the user which samples were left out.

    Raises
    ------
    DataError
        There are no samples, or rows are invalid and ALLOW_BAD_ROWS is off.
    SettingsError
        The task is run by another command.
    """
    if task.own_command:
        raise SettingsError(f"{task.key} has a command of its own; run it with: {task.own_command}")
    folder = task_folder(task, data_root(settings.data), dict(settings.data_paths))
    filters = Filters(
        settings.skip_persons, settings.skip_emotion, settings.balance, settings.seed, settings.split, settings.prompt
    )
    loaded = task.load(folder, filters)
    if loaded.bad_rows and not settings.allow_bad_rows:
        shown = "; ".join(str(row) for row in loaded.bad_rows[:3])
        more = f" and {len(loaded.bad_rows) - 3} more" if len(loaded.bad_rows) > 3 else ""
        rows = f"{task.key}: {counted(len(loaded.bad_rows), 'bad row')}: {shown}{more}"
        raise DataError(f"{rows}; fix them, or leave them out with --allow-bad-rows (ALLOW_BAD_ROWS=1)")
    for name, count in {"bad rows": len(loaded.bad_rows), **loaded.left_out}.items():
        if count:
            say(f"{task.key}: left out {counted(count, 'sample')} ({name})")
    for name, count in loaded.defects.items():
        say(f"{task.key}: {counted(count, 'sample')}: {name}")
    if not loaded.samples:
        raise DataError(f"{task.key}: no samples to run in {folder}")
    if few := task.too_few(loaded):
        raise DataError(f"{task.key}: {few}")
    expected = read_manifest(folder).expected(task)
    if expected and (sample_count := len(loaded.samples) + sum(loaded.left_out.values())) != expected.count:
        say(f"{task.key}: {counted(sample_count, 'sample')} in {folder}; the whole task has {expected.count:,}")
    return loaded


def is_finished(setup: Setup, task: Task, data: Loaded, margin: Margin | None = None) -> bool:
    """Tell whether every selected sample has a recorded reply under every setting (with SAVE_ATTN, also its attention).

    With a margin, a setting that is decided needs no more replies.

    Raises
    ------
    RecordError
        A folder holds another run, or another process is writing to it.
    ModelError, SettingsError
        The model cannot do the task: it does not know the language, it needs audio but samples have no clips, or the
        like.
    """
    settings = setup.settings
    samples = selected(data, settings)
    check_able(setup.spec, setup.checkpoint.path, task, settings)
    check_length(setup.spec, setup.checkpoint.path, task, samples, settings, setup.methods)
    without_clips, spec = sum(not sample.clips for sample in samples), setup.spec
    if without_clips and not spec.remote and not spec.load_family().text_only:
        problem = f"{task.key}: {without_clips} of {len(samples)} samples have no clips"
        raise SettingsError(f"{problem}, and {spec.key} needs audio in every prompt; allowed: tasks with clips")
    clips = clip_hashes(samples)
    jobs = [Job(method, folder) for method, folder in run_folders(setup, task, data)]
    folders = [job.folder for job in jobs]
    for folder in folders:
        if folder.path.exists():
            with folder:  # reads its records
                pass
    if margin and (stopping := margin.stopping(task, samples, settings.seed, data.samples, jobs, clips)):
        left = stopping.rounds(jobs, 1)
        return all({sample.id for sample in part} <= job.folder.done(clips) for part, active in left for job in active)
    done = [
        folder.done(clips) & (captured(folder, clips, settings) if settings.save_attn else {*clips})
        for folder in folders
    ]
    return all(ids >= set(clips) for ids in done)


def known_as_finished(
    loaded: Sequence[tuple[Task, Loaded]],
    model: str,
    settings: RunSettings,
    methods: Sequence[Method],
    margin: Margin | None = None,
) -> Setup | None:
    """Return the setup if all runs are certainly finished; None in any doubt.

    PyTorch is not imported (:mod:`.recorded`). No error is raised here, since the full check reports errors.
    """
    with suppress(AudioMarathonError):
        setup = recorded_setup([task for task, _data in loaded], model, settings, methods)
        if setup and all(is_finished(setup, task, data, margin) for task, data in loaded):
            return setup
    return None


def planned_sizes(setup: Setup, samples: Sequence[Sample]) -> dict[str, int]:
    """Estimate how many of the longest samples fit into memory at a time, as {label of the setting: number of samples}.

    A batch that still does not fit is halved (:mod:`.evaluate`). Call this after the model is loaded.
    """
    from audiomarathon.costs.config_facts import DTYPE_BYTES, model_facts
    from audiomarathon.costs.cost import Drops
    from audiomarathon.costs.flops import drops_of
    from audiomarathon.costs.memory_plan import MOST_IN_BATCH, largest_batch, room_left

    spec = setup.spec
    try:
        facts = model_facts(setup.checkpoint.path, DTYPE_BYTES[setup.hardware.dtype], spec.load_family())
    except ModelError:  # its config does not say how large the model is, so begin with the largest batch
        return {method.label: MOST_IN_BATCH for method in setup.methods}
    longest = max(longest_clips(samples, together=True, most=spec.heard_seconds).values(), default=0.0)
    (prompt, audio), room = facts.cost.prompt(longest, spec.tokens_per_second), room_left(setup.settings)
    sizes = dict[str, int]()
    for method in setup.methods:
        drops = drops_of(method) or Drops()
        tokens = max(drops.tokens(len(facts.cost.flops_per_token_per_layer), prompt, audio))
        sizes[method.label] = largest_batch(facts, tokens, room, setup.settings.prefill_chunk)
    return sizes


def run_task(
    setup: Setup,
    engine: Engine | None,
    task: Task,
    data: Loaded,
    say: Say = lambda _line: None,
    progress: bool | None = None,
    trackers: list[Tracker] | None = None,
    margin: Margin | None = None,
) -> Iterator[Result]:
    """Evaluate one task under every setting, and yield the results when it is finished.

    Parameters
    ----------
    engine
        None if every sample is answered; then only the scores are computed again.
    margin
        Largest loss of score against base: a setting stops when it is decided whether it loses more. None runs all
        samples.
    """
    settings = setup.settings
    samples = selected(data, settings)
    clips, language = clip_hashes(samples), language_of(setup.spec, task, settings)
    if 0 < settings.limit < len(samples):
        why = "samples that belong together are all run or all left out"
        say(f"{task.key}: {len(samples)} samples for SAMPLE_LIMIT={settings.limit}: {why}")
    with ExitStack() as stack:
        jobs = [Job(method, stack.enter_context(folder)) for method, folder in run_folders(setup, task, data)]
        stopping = margin.stopping(task, samples, settings.seed, data.samples, jobs, clips) if margin else None
        under = counted(len(jobs), "setting")
        say(f"{task.key}: {counted(len(samples), 'sample')} in {data.folder} under {under}")
        corpus = task.corpus(data)
        for job in jobs:
            report_resume(job.folder, clips, say)
            if corpus:
                job.folder.write_corpus(corpus)
        finished = stack.enter_context(following(trackers or [], task, jobs, setup.name, clips, say))
        keep_records = settings.attn_only and all(job.folder.done(clips) >= {*clips} for job in jobs)
        if language not in ("", task.language):
            say(f"{task.key}: LANGUAGE={language}, but the task's speech is in {task.language}")
        elif settings.language and task.transcribes and not language:
            say(f"{task.key}: {setup.spec.key} takes no language, so LANGUAGE={settings.language} has no effect")
        plan = None if engine is None else _plan(setup, task, data, samples, clips, stopping)
        if settings.save_attn and isinstance(engine, LocalEngine):
            from audiomarathon.engine.attention_capture import capture_missing, check_layers

            check_layers(engine.lm, settings.attn_layers)
        if engine is not None and plan is not None and not keep_records:
            run_session(engine, data, plan, jobs, say, progress)
        for line in stopping.lines(jobs) if stopping and engine is None else ():
            say(line)
        if settings.save_attn and isinstance(engine, LocalEngine) and plan is not None:
            with progress_of(len(samples), f"{task.key}: attention", "sample") as step:
                capture_missing(engine.lm, plan, jobs, settings, say=say, step=step)
        for job in jobs:
            if engine is None and not keep_records:  # store which samples this run selects: the summary covers them
                outcome = stopping.outcomes(jobs)[job.method.label] if stopping else without_stopping(job)
                job.folder.write_run({**job.folder.run, **facts_of(setup, task, data, samples), **outcome})
            without_attention = set[str]()
            if settings.save_attn:
                saved = captured(job.folder, clips, settings)
                without_attention = job.folder.done(clips) & {*clips} - saved
                say(f"{job.method.label}: attention of {counted(len(saved), 'sample')} in {job.folder.path / FOLDER}")
            summary = _score(task, job.folder)
            finished(job, summary)
            yield Result(job.folder.path, job.method.label, summary, len(without_attention))


def _plan(
    setup: Setup,
    task: Task,
    data: Loaded,
    samples: tuple[Sample, ...],
    clips: Mapping[str, str],
    stopping: Stopping | None,
) -> Plan:
    """Return the plan that tells an engine how to answer the samples, and seed PyTorch.

    `clips` has the hash of each sample's clips; `stopping` may end a setting early.
    """
    import torch

    from audiomarathon.engine.batches import Plan

    settings = setup.settings
    on_gpu, auto = bool(settings.timing) and setup.hardware.on_gpu, settings.batch_size == AUTO
    sizes = planned_sizes(setup, samples) if auto else {}
    torch.manual_seed(settings.seed)
    return Plan(
        task,
        samples,
        settings.max_new_tokens or task.max_new_tokens,
        settings.decode_tokens,
        settings.seed,
        None if settings.timing else max(sizes.values(), default=1) if auto else int(settings.batch_size),
        sizes=sizes,
        warm=on_gpu and settings.timing != COLD,
        profiled=frozenset(sample.id for sample in samples[: settings.busy_samples * on_gpu]),
        language=language_of(setup.spec, task, settings) or task.language,
        session=f"{now()} {os.getpid()}",  # two runs may start in one second
        clips=clips,
        control=(read_manifest(data.folder).control or {}).get("kind"),
        readings=readings_of(setup.methods, task),
        stopping=stopping,
    )


def _score(task: Task, folder: RunFolder) -> dict[str, Any]:
    """Score a folder's records; write the verdicts and `summary.json`, and return the summary's content.

    The summary covers only the samples that the last run selected; the folder may hold records of other samples.

    Raises
    ------
    PluginError
        The scorer fails on a record. All records are kept.
    """

    def failed(record: Record, error: BaseException) -> None:
        raise cannot_be_judged(task.scorer, record, error) from error

    known = with_context(folder.path, folder.records)
    verdicts = judged(task.scorer, known.values(), folder.path, failed)
    write_verdicts(folder.path, task.scorer, verdicts.values())
    records = [known[id_] for id_ in folder.run["samples"] if id_ in known]
    summary = summarise(task, folder.run, records, verdicts)
    write_json(folder.path / "summary.json", summary)
    return summary


def score(path: Path) -> Result:
    """Score a run's stored replies again, write `summary.json`, and return the result. Neither the model nor the data
    is needed.

    Raises
    ------
    RecordError
        The folder holds no run, or another process is writing to it.
    """
    run_facts = read_run(path)
    try:
        task, label, identity = get_task(run_facts["task"]), run_facts["method"], run_facts["identity"]
        _ = run_facts["settings"]["seed"], run_facts["samples"]
    except (KeyError, TypeError) as error:
        raise RecordError(f"{path / 'run.json'}: a field is missing ({error})") from None
    with RunFolder(path, identity, task.scorer.fits) as folder:
        folder.run = run_facts  # entering a folder without records does not read run.json
        return Result(path, label, _score(task, folder))


def as_run(
    folder: Path,
    task: str,
    file: Path,
    name: str,
    records: Sequence[Record],
    *,
    control: str | None = None,
    corpus: Sequence[Sequence[str]] = (),
    judgements: Sequence[Judgement] = (),
    facts: Mapping[str, Any] = MappingProxyType({}),
) -> Result:
    """Write imported records to a run folder, score the run, and return the result.

    If the folder exists, add only the missing records. Two imported runs can be compared if they have the same
    questions.

    Parameters
    ----------
    file
        The file that the records were read from; named in errors and in `run.json`.
    name
        The model's name in tables.
    control
        Kind of audio control that replaced the clips; None for the real audio.
    corpus
        Reference texts of the whole data, if the scorer weights words by them; see
        :meth:`~audiomarathon.benchmarks.task.Task.corpus`.
    judgements
        Judges' answers about the records.
    facts
        Further content of `run.json`, such as a `method` other than "imported", or `samples` that includes missing
        samples. `identity` holds what the records depend on besides their questions; `data`, if given, replaces the
        questions in the identity.

    Raises
    ------
    DataError
        The folder holds a different reply to one of the questions. No record is written.
    RecordError
        A record cannot be written.
    """
    for record in records:
        to_line(record)  # refuse a record that could not be read again, before anything is written
    questions = json.dumps([[record.id, record.reference] for record in sorted(records, key=lambda record: record.id)])
    digest = hashlib.sha256(questions.encode("utf-8", "surrogatepass")).hexdigest()
    controlled = {"control": {"kind": control}} if control else {}
    weighed = {"corpus": Corpus(tuple(map(tuple, corpus))).hash} if corpus else {}
    identity = {"data": digest, **facts.get("identity", {}), "task": task, "origin": IMPORTED, **controlled, **weighed}
    with RunFolder(folder, identity) as run:
        fresh = [record for record in records if record.id not in run.records]
        for record in records:
            known = run.records.get(record.id, record)
            if (known.reply, known.answered, known.extra) != (record.reply, record.answered, record.extra):
                what = "what it keeps of" if known.reply == record.reply else "its reply to"
                why = f"{what} {record.id} differs from {file}"
                if known.answered != record.answered:
                    counts = ["as a failed sample", "as a reply"]
                    why = f"{record.id} counts {counts[known.answered]} there, and {counts[record.answered]} in {file}"
                    why += " (one import was --faithful, or the file changed)"
                raise DataError(f"{folder}: {why}; remove the folder first")
        named = {"task": task, "method": IMPORTED, "model": name, "checkpoint": name, "checkpoint_name": name}
        origin = {"origin": IMPORTED, "file": file.name, "settings": {"seed": 42}}
        run.write_run({**named, "samples": [record.id for record in records], **origin, **controlled, **facts})
        if corpus:
            run.write_corpus(corpus)
        for judge in {judgement.judge for judgement in judgements}:
            lines = [judgement.to_line() for judgement in judgements if judgement.judge == judge]
            if not (answers := judgements_file(folder, judge)).exists():  # judges may have answered more since then
                write_bytes(answers, b"".join(lines))
        for record in fresh:
            run.append(record)
    return score(folder)
