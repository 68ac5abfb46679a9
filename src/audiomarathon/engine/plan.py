"""Plan a sweep without loading the model: its time, its memory, and errors that would stop it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from audiomarathon.benchmarks import Task, select
from audiomarathon.benchmarks.clip_limits import too_long
from audiomarathon.compression.method import Base, Method
from audiomarathon.engine.estimate import KnownModel, find_model, from_flops, from_records, memory, what_is_left
from audiomarathon.engine.identity import run_folders
from audiomarathon.engine.run import check_batch_size, load_task
from audiomarathon.engine.setup import Setup, find_hardware
from audiomarathon.errors import AudioMarathonError
from audiomarathon.models.registry import ModelSpec
from audiomarathon.settings import RunSettings
from audiomarathon.text import counted

_SPEEDS = {"cuda": (150.0, 1500.0), "cpu": (0.1, 20.0)}  # TFLOP/s in prefill, GB/s in decode


@dataclass(frozen=True)
class SweepPlan:
    """The plan as lines for the user, and whether every task can be run."""

    lines: tuple[str, ...]
    complete: bool


@dataclass(frozen=True)
class _Part:
    """One task of the plan: its line, and its share of the totals; `seconds` is None without an estimate."""

    line: str
    replies: int = 0
    seconds: float | None = None
    longest: float = 0.0
    reckoned: bool = False
    runs: bool = True


def plan_sweep(
    tasks: Sequence[Task],
    spec: ModelSpec,
    settings: RunSettings,
    methods: Sequence[Method],
    *,
    tflops: float | None = None,
    say: Callable[[str], None] = lambda _line: None,
) -> SweepPlan:
    """Return the tasks and settings of a sweep with its estimated time and memory.

    Parameters
    ----------
    tflops
        Assumed TFLOP/s if no run has been timed yet; None assumes a usual value for the device.

    Raises
    ------
    AudioMarathonError
        The device is missing, or the model's config rules a method out.
    """
    check_batch_size(settings, methods)
    hardware = find_hardware(settings)
    model = find_model(spec, settings, hardware)
    if model.facts is not None:
        for method in methods:
            method.check_config(model.facts.config)
    usual, bandwidth = _SPEEDS[hardware.device.partition(":")[0]]
    speed = tflops or usual
    setup = (
        Setup(model.checkpoint, model.checkpoint.fingerprint(), hardware, settings, methods, spec)
        if model.checkpoint
        else None
    )
    parts = [_part(task, model, setup, settings, methods, (speed, bandwidth), say) for task in tasks]
    name = model.checkpoint.name if model.checkpoint else settings.model_path or spec.checkpoint
    lines = [
        f"plan: {counted(len(tasks), 'task')} x {counted(len(methods), 'setting')} on {spec.key} ({name}), "
        f"{hardware.device}, {hardware.dtype}; nothing is loaded or run",
        f"settings: {', '.join(method.label for method in methods)}",
        *(part.line for part in parts),
        _total(parts),
    ]
    if model.facts is not None and (longest := max((part.longest for part in parts), default=0.0)):
        lines.append(memory(model.facts, spec, longest, 1 if settings.timing else settings.batch_size))
    if all(part.seconds is None for part in parts):
        lines.append(
            "No time estimate: no base sample is recorded, and the checkpoint's config is missing. Run "
            "a few base samples, or name a folder with its config.json (--model-path) and a speed (--tflops)."
        )
    else:
        lines.append(
            "These are estimates. From records: base's measured seconds, with the LLM prefill scaled by FLOPs."
        )
    if any(part.reckoned for part in parts):
        lines.append(
            f"From FLOPs: the config's layers at {speed:g} TFLOP/s ({'given' if tflops else 'assumed'}; "
            "--tflops sets it), replies at their token limit, one read of the weights per token at "
            f"{bandwidth:g} GB/s (assumed); audio decoding and features are not counted. "
            "Run a few base samples first for better estimates."
        )
    if model.why_not:
        lines.append(f"no estimate of memory, or of time without records: {model.why_not}")
    lines.append("Other requirements of a method are checked when the model is loaded, before any sample.")
    return SweepPlan(tuple(lines), all(part.runs for part in parts))


def _part(
    task: Task,
    model: KnownModel,
    setup: Setup | None,
    settings: RunSettings,
    methods: Sequence[Method],
    speeds: tuple[float, float],
    say: Callable[[str], None],
) -> _Part:
    """Plan one task; an error that would stop it is in its line."""
    try:
        data = load_task(task, settings, say)
        folders = run_folders(setup, task, data) if setup else [(method, None) for method in methods]
        samples = select(data.samples, settings.limit, settings.seed, settings.samples)
        todo = what_is_left(samples, folders, model.spec.heard_seconds)
    except AudioMarathonError as error:
        return _Part(f"{task.key}: cannot be run: {str(error).removeprefix(f'{task.key}: ')}", runs=False)
    if warning := too_long(model.spec, task, samples):
        say(warning)
    line = f"{task.key}: {counted(todo.samples, 'sample')} ({todo.seconds / 3600:.2f} h of audio)"
    line += f" x {counted(len(methods), 'setting')}"
    if todo.on_record:
        line += f", {counted(todo.on_record, 'reply', 'replies')} on record, {todo.replies:,} to do"
    replies, longest = todo.replies, max(todo.heard, default=0.0)
    base = settings.results / task.key / (model.checkpoint.folder_name if model.checkpoint else "") / Base().label
    if (measured := from_records(base, todo, settings.decode_tokens)) is not None:
        seconds, count = measured
        how = f"{_hours(seconds)}, from {counted(count, 'base sample')} on record in {base}"
        return _Part(f"{line}: {how}", replies, seconds, longest)
    if model.facts is None:
        return _Part(f"{line}: time unknown", replies, None, longest)
    tokens = settings.max_new_tokens or task.max_new_tokens
    seconds = from_flops(model.facts, model.spec, todo, speeds, tokens, settings.decode_tokens)
    return _Part(f"{line}: {_hours(seconds)}, from FLOPs", replies, seconds, longest, reckoned=True)


def _total(parts: Sequence[_Part]) -> str:
    unknown = sum(part.runs and part.seconds is None for part in parts)
    replies, seconds = sum(part.replies for part in parts), sum(part.seconds or 0.0 for part in parts)
    return f"total: {replies:,} replies, {_hours(seconds)}" + (
        f" and {counted(unknown, 'task')} unknown" * bool(unknown)
    )


def _hours(seconds: float) -> str:
    return f"about {seconds / 3600:.1f} h" if seconds >= 3600 else f"about {seconds / 60:.1f} min"
