"""Plan a sweep without loading the model: estimate time and memory, and find errors that would stop it.

Time is estimated from the records of base (the run without compression), or without records from FLOPs at this
machine's measured speed. FLOPs and memory are computed from the checkpoint's config and the headers of its weights.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from audiomarathon.benchmarks import Sample, Task, selected
from audiomarathon.benchmarks.clip_limits import longest_clips
from audiomarathon.benchmarks.fingerprint import clip_hashes
from audiomarathon.compression.method import Base, Method
from audiomarathon.costs.config_facts import DTYPE_BYTES, ModelFacts, model_facts, published_config
from audiomarathon.costs.cost import Drops, flops_of, ideal_speed_up, tower_speed_up
from audiomarathon.costs.flops import drops_of
from audiomarathon.costs.limits import check_length
from audiomarathon.engine.batches import WARM_PASS_TOKENS
from audiomarathon.engine.calibration import measured
from audiomarathon.engine.identity import run_folders
from audiomarathon.engine.run import check_batch_size, load_task
from audiomarathon.engine.setup import Hardware, Setup, check_able, check_chunks, find_hardware
from audiomarathon.engine.stopping import Margin, stop_margin
from audiomarathon.errors import AudioMarathonError, ModelError, RecordError
from audiomarathon.models.checkpoint import Checkpoint, find_checkpoint
from audiomarathon.models.registry import ModelSpec
from audiomarathon.records import Record
from audiomarathon.runs.folder import Job, RunFolder
from audiomarathon.runs.read import Run
from audiomarathon.settings import AUTO, RunSettings
from audiomarathon.text import Say, counted

_SPEEDS = {
    "cuda": (150.0, 1500.0),
    "cpu": (0.1, 20.0),
}  # assumed speed if none can be measured: TFLOP/s in prefill, GB/s in decode


@dataclass(frozen=True)
class Todo:
    """A sweep's remaining work in one task.

    Attributes
    ----------
    samples, seconds
        Number of selected samples, and seconds of their audio.
    heard
        Seconds of audio of each sample that lacks a reply under one or more settings.
    durations
        Each setting, with the seconds of audio of each sample that lacks a reply under it.
    on_record
        Number of replies that are already recorded.
    """

    samples: int
    seconds: float
    heard: tuple[float, ...]
    durations: tuple[tuple[Method, tuple[float, ...]], ...]
    on_record: int


@dataclass(frozen=True)
class Calls:
    """The `generate` calls that a run makes for one sample.

    Attributes
    ----------
    further
        Number of tokens of each call that a setting makes besides the recorded one: the forced decode run, which times
        a fixed number of tokens, and an uncounted call that warms up a GPU.
    towers
        How often the audio tower runs, over all settings.
    """

    further: tuple[int, ...] = ()
    towers: int = 1


@dataclass(frozen=True)
class _Part:
    """One task in the plan: its line of text, and its share of the totals.

    `replies` is the number of replies to make. `seconds` is the estimated time, or None; `by_flops` tells whether it
    was computed from FLOPs. `runs` is False if an error would stop the task. `longest` is its longest clip in seconds.
    """

    line: str
    replies: int = 0
    seconds: float | None = None
    longest: float = 0.0
    by_flops: bool = False
    runs: bool = True


def plan_sweep(
    tasks: Sequence[Task],
    spec: ModelSpec,
    settings: RunSettings,
    methods: Sequence[Method],
    *,
    tflops: float | None = None,
    margins: Mapping[str, float] | None = None,
    say: Say = lambda _line: None,
) -> tuple[list[str], bool]:
    """Describe a sweep without running it.

    Return (the plan's lines, whether every task can run). The lines have tasks, settings, estimated time and memory.

    Parameters
    ----------
    tflops
        Assumed TFLOP/s if no run has been timed yet; None measures this machine.
    margins
        {task key: largest loss of score against base}; the key "" is for all other tasks. If given, the lines also say
        how many clusters of samples it takes to decide whether a setting loses more.

    Raises
    ------
    AudioMarathonError
        The device is missing, or the model's config rules a method out.
    """
    check_batch_size(settings, methods)
    if not spec.remote:
        check_chunks(spec, settings, methods)
    margin = stop_margin(margins, tasks, methods, settings) if margins else None
    hardware = find_hardware(settings)
    checkpoint, facts, why_not = _find_model(spec, settings, hardware)
    if facts is not None:
        for method in methods:
            method.check_config(facts.config)
            method.check_family(spec.load_family(), 0)
    speeds = functools.cache(lambda: _speeds(hardware, facts, tflops))
    calls = calls_of(settings, hardware)
    setup = Setup(checkpoint, checkpoint.fingerprint(), hardware, settings, methods, spec) if checkpoint else None
    parts = [_part(task, spec, facts, setup, settings, methods, speeds, calls, say) for task in tasks]
    name = checkpoint.name if checkpoint else settings.model_path or spec.checkpoint
    unknown = sum(part.runs and part.seconds is None for part in parts)
    lines = [
        f"plan: {counted(len(tasks), 'task')} x {counted(len(methods), 'setting')} on {spec.key} ({name}), "
        f"{hardware.device}, {hardware.dtype}; nothing is loaded or run",
        *(
            f"settings of {key}: {', '.join(method.label for method in same)}"
            for key, same in groupby(methods, lambda method: method.key)
        ),
        *(part.line for part in parts),
        f"total: {sum(part.replies for part in parts):,} replies, {_hours(sum(part.seconds or 0.0 for part in parts))}"
        + f" and {counted(unknown, 'task')} unknown" * bool(unknown),
    ]
    if margin and setup:
        for task, part in zip(tasks, parts, strict=True):
            lines += _of_margin(task, part, setup, margin) if part.runs else []
    if facts is not None and (longest := max((part.longest for part in parts), default=0.0)):
        batch = 1 if settings.batch_size == AUTO else int(settings.batch_size)
        lines.append(memory(facts, spec, longest, batch, settings.prefill_chunk))
    if all(part.seconds is None for part in parts) and facts is not None:
        lines.append("No time estimate: no task can be run.")
    elif all(part.seconds is None for part in parts):
        lines.append(
            "No time estimate: no base sample is recorded, and no config can be used (the reason is below). Run a few "
            "base samples, or name a folder with this model's config.json (--model-path) and a speed (--tflops)."
        )
    else:
        lines.append(
            "These are estimates. Estimates from records use base's measured seconds, with LLM prefill scaled by FLOPs."
        )
    if any(part.by_flops for part in parts):
        speed, bandwidth, how = speeds()
        lines.append(
            f"Estimates from FLOPs run the config's layers at {speed:.3g} TFLOP/s ({how}; "
            "--tflops sets it). They assume replies of the longest allowed length, and one read of the weights per "
            f"token at {bandwidth:.3g} GB/s. They leave out audio decoding and features. "
            "Run a few base samples first for better estimates."
        )
    if calls.towers > 1:
        lines.append(
            "Each recorded call follows an uncounted one, the warm pass (TIMING=cold leaves it out): included."
        )
    if why_not:
        lines.append(f"no estimate of memory, nor of the time of tasks without records: {why_not}")
    lines.append("Other requirements of a method are checked when the model is loaded, before any sample.")
    return lines, all(part.runs for part in parts)


def _find_model(
    spec: ModelSpec, settings: RunSettings, hardware: Hardware
) -> tuple[Checkpoint | None, ModelFacts | None, str]:
    """Return (checkpoint, the model's facts, ""), for a plan. The facts are the sizes from which FLOPs are computed.

    The checkpoint is None if it is not on this machine. If the facts are unknown, they are None, and the text gives the
    reason.
    """
    source, checkpoint = settings.model_path or spec.checkpoint, None
    try:
        checkpoint = replace(find_checkpoint(source, download=False), variant=spec.variant)
        folder = checkpoint.path
    except ModelError as error:
        if (sizes := published_config(source)) is None:
            return None, None, str(error)
        folder = sizes
    try:
        return checkpoint, model_facts(folder, DTYPE_BYTES[hardware.dtype], spec.load_family()), ""
    except ModelError as error:
        return checkpoint, None, str(error)


def _part(
    task: Task,
    spec: ModelSpec,
    facts: ModelFacts | None,
    setup: Setup | None,
    settings: RunSettings,
    methods: Sequence[Method],
    speeds: Callable[[], tuple[float, float, str]],
    calls: Calls,
    say: Say,
) -> _Part:
    """Return one task's part of the plan; if an error would stop the task, the part's text says so.

    The function `speeds` returns what :func:`_speeds` returns.
    """
    try:
        check_able(spec, setup.checkpoint.path if setup else None, task, settings)
        data = load_task(task, settings, say)
        samples = selected(data, settings)
        check_length(spec, setup.checkpoint.path if setup else None, task, samples, settings, methods)
        folders = run_folders(setup, task, data) if setup else [(method, None) for method in methods]
        todo = what_is_left(samples, folders, spec.heard_seconds)
    except AudioMarathonError as error:
        return _Part(f"{task.key}: cannot be run: {str(error).removeprefix(f'{task.key}: ')}", runs=False)
    replies, longest = sum(len(seconds) for _method, seconds in todo.durations), max(todo.heard, default=0.0)
    line = f"{task.key}: {counted(todo.samples, 'sample')} ({todo.seconds / 3600:.2f} h of audio)"
    line += f" x {counted(len(methods), 'setting')}"
    if todo.on_record:
        line += f", {counted(todo.on_record, 'reply', 'replies')} on record, {replies:,} to do"
    base = settings.results / task.key / (setup.name if setup else "") / Base().label
    if (measured := from_records(base, todo, calls)) is not None:
        seconds, count = measured
        how = f"{_hours(seconds)}, from {counted(count, 'base sample')} on record in {base}"
        return _Part(f"{line}: {how}", replies, seconds, longest)
    if facts is None:
        return _Part(f"{line}: time unknown", replies, None, longest)
    tokens = settings.max_new_tokens or task.max_new_tokens
    seconds = from_flops(facts, spec, todo, speeds()[:2], tokens, calls) if replies else 0.0
    return _Part(f"{line}: {_hours(seconds)}, from FLOPs", replies, seconds, longest, by_flops=True)


def _speeds(hardware: Hardware, facts: ModelFacts | None, tflops: float | None) -> tuple[float, float, str]:
    """Return (TFLOP/s of prefill, GB/s of reading weights, text on their source: measured, given or assumed)."""
    usual, bandwidth = _SPEEDS[hardware.device.partition(":")[0]]
    if tflops:
        return tflops, bandwidth, "given"
    if facts is None or (speeds := measured(hardware.device, hardware.dtype, facts.cost)) is None:
        return usual, bandwidth, "assumed"
    how = f"measured here in a short prefill; a matrix product reaches {speeds.product / 1e12:.3g}"
    return speeds.prefill / 1e12, speeds.reading / 1e9, how


def _of_margin(task: Task, part: _Part, setup: Setup, margin: Margin) -> list[str]:
    """Return lines that estimate how many clusters of samples it takes to decide whether settings lose more than a
    task's margin.

    The estimate uses the records that the task's settings already have.
    """
    data = load_task(task, setup.settings, lambda _line: None)
    settings = setup.settings
    stopping = margin.stopping(task, selected(data, settings), settings.seed, data.samples)
    jobs = [Job(method, folder) for method, folder in run_folders(setup, task, data)]
    for job in jobs:
        job.folder.peek()
    seconds = part.seconds / part.replies if part.seconds and part.replies else None
    return stopping.planned(jobs, seconds, setup.settings.seed) if stopping else []


def _hours(seconds: float) -> str:
    return f"about {seconds / 3600:.1f} h" if seconds >= 3600 else f"about {seconds / 60:.1f} min"


def what_is_left(
    samples: Sequence[Sample], folders: Sequence[tuple[Method, RunFolder | None]], heard: float = 0.0
) -> Todo:
    """Return a task's remaining work (:class:`Todo`): the samples that lack a reply in the settings' run folders.

    The model takes in at most `heard` seconds of a clip; 0 means the whole clip.

    Raises
    ------
    RecordError
        A folder holds another run.
    """
    readable = longest_clips(samples, together=True, most=heard)
    clips, seconds = clip_hashes(samples), {sample.id: readable.get(sample.id, 0.0) for sample in samples}
    pending: list[tuple[Method, list[str]]] = []
    for method, folder in folders:
        if folder is not None:
            folder.peek()
        done = folder.done(clips) if folder is not None else set()
        pending.append((method, [id_ for id_ in seconds if id_ not in done]))
    needed = {id_ for _method, ids in pending for id_ in ids}
    return Todo(
        len(samples),
        sum(seconds.values()),
        tuple(seconds[id_] for id_ in seconds if id_ in needed),
        tuple((method, tuple(seconds[id_] for id_ in ids)) for method, ids in pending),
        sum(len(seconds) - len(ids) for _method, ids in pending),
    )


def calls_of(settings: RunSettings, hardware: Hardware) -> Calls:
    """Return the `generate` calls that a run with these settings makes for each sample."""
    warm = hardware.on_gpu and settings.timing is True
    return Calls((settings.decode_tokens,) * bool(settings.decode_tokens) + (WARM_PASS_TOKENS,) * warm, 1 + warm)


def from_records(folder: Path, todo: Todo, calls: Calls) -> tuple[float, int] | None:
    """Estimate how many seconds a sweep's remaining work in one task takes, from the records of base (no compression)
    in `folder`.

    Return (seconds, number of records used); None if no record is usable.
    """
    if not (folder / "run.json").exists():
        return None
    try:
        run = Run.read(folder)
        timed = [(record, record.time) for record in run.records.values() if record.time]
        heard = sum(record.clip_seconds for record, _ in timed)
        if not heard:
            return None
        once = sum(time["load"] + time["preprocess"] + calls.towers * time["encoder"] for _, time in timed)
        seconds = once / heard * sum(todo.heard)
        for method, durations in todo.durations:
            drops = drops_of(method, run.cost.tower_layers if run.cost else 0) or Drops()
            for record, time in timed:
                share = 1 / ideal_speed_up(run.cost, drops, record) if run.cost else 1.0
                if method.changes_tower and run.cost:
                    encoder_seconds = time["encoder"] / tower_speed_up(run.cost, drops)
                    seconds += (1 + len(calls.further)) * encoder_seconds / heard * sum(durations)
                seconds += _after_encoder(record, time, share, calls) / heard * sum(durations)
    except (RecordError, KeyError, TypeError):  # written by another version, or damaged
        return None
    return seconds, len(timed)


def _after_encoder(record: Record, time: Mapping[str, float], share: float, calls: Calls) -> float:
    """Estimate the seconds of LLM prefill and decode in all calls of a sample, from a record of base (no compression).

    Parameters
    ----------
    share
        The setting's LLM prefill as a fraction of base's.
    """
    forced = (record.forced_decode or {}).get("per_token")
    per_token = forced or time["decode"] / max(1, (record.new_tokens or 1) - 1)
    prefills = (1 + len(calls.further)) * time["llm_prefill"] * share
    setups = time.get("decode_setup", 0) * (1 + bool(record.forced_decode))
    return float(prefills + setups + time["decode"] + sum(calls.further) * per_token)


def from_flops(
    facts: ModelFacts, spec: ModelSpec, todo: Todo, speeds: tuple[float, float], new_tokens: int, calls: Calls
) -> float:
    """Estimate from FLOPs how many seconds a sweep's remaining work (`todo`) in one task takes.

    `speeds` is (TFLOP/s, GB/s at which weights are read).
    """
    flops, bandwidth = speeds[0] * 1e12, speeds[1] * 1e9
    prefills, tokens = 1 + len(calls.further), new_tokens + sum(calls.further)
    total = calls.towers * sum(facts.cost.encoder(seconds) for seconds in todo.heard) / flops
    for method, durations in todo.durations:
        drops = drops_of(method, facts.cost.tower_layers) or Drops()
        for seconds in durations:
            total += method.changes_tower * prefills * facts.cost.encoder(seconds, drops) / flops
            prompt, audio = facts.cost.prompt(seconds, spec.tokens_per_second)
            prefill = flops_of(facts.cost, drops, Record("", prompt_tokens=prompt, audio_tokens=audio))
            total += prefills * prefill / flops + tokens * facts.weight_bytes / bandwidth
    return float(total)


def memory(facts: ModelFacts, spec: ModelSpec, longest: float, batch: int, chunk: int = 0) -> str:
    """Return a line for a plan: the memory that a batch of `batch` clips of `longest` seconds each takes."""
    tokens, _audio = facts.cost.prompt(longest, spec.tokens_per_second)
    parts = facts.memory(tokens, batch, chunk)
    shown = ", ".join(f"{name} {size / 1e9:.2f}" for name, size in parts.items())
    where = f"at the longest clip ({longest:.0f} s, {tokens:,} tokens)" + f" in batches of {batch}" * (batch > 1)
    return f"memory: about {sum(parts.values()) / 1e9:.2f} GB {where}: {shown}"
