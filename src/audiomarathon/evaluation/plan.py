"""What a sweep would take, told before it starts and without loading the model.

Hours come from base samples on record where there are some, else from the config's FLOPs and a stated speed. Memory
comes from the weights' headers, the config, and the longest clip's header.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from audiomarathon.audio import probe
from audiomarathon.errors import AudioError, AudioMarathonError, ModelError, RecordError
from audiomarathon.evaluation.flops import drops_of
from audiomarathon.evaluation.model_facts import ModelFacts, model_facts
from audiomarathon.evaluation.run import load_task
from audiomarathon.evaluation.savings import Cost, Drops, Run
from audiomarathon.evaluation.session import Hardware, find_hardware
from audiomarathon.models.checkpoint import Checkpoint, find_checkpoint
from audiomarathon.models.registry import ModelSpec
from audiomarathon.pruning.method import Base, Method
from audiomarathon.settings import RunSettings
from audiomarathon.tasks import Task, select

TEXT_TOKENS = 250  # of a question with its options and the chat template, about
_SPEEDS = {"cuda": (150.0, 1500.0), "cpu": (0.1, 20.0)}  # TFLOP/s in prefill, GB/s in decode
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class SweepPlan:
    """The plan as lines for the user, and whether every task can be run."""

    lines: tuple[str, ...]
    complete: bool


def plan_sweep(
    tasks: Sequence[Task],
    spec: ModelSpec,
    settings: RunSettings,
    methods: Sequence[Method],
    *,
    throughput: float | None = None,
    say: Callable[[str], None] = lambda _line: None,
) -> SweepPlan:
    """Say what a sweep would run and about how long and how much memory it would take.

    Parameters
    ----------
    throughput
        TFLOP/s to reckon with where nothing was measured; None takes a usual one of the device's kind.
    """
    hardware = find_hardware(settings)
    checkpoint, facts, why_not = _model(spec, settings, hardware)
    name = checkpoint.name if checkpoint else settings.model_path or spec.checkpoint
    usual, bandwidth = _SPEEDS[hardware.device.partition(":")[0]]
    speed = throughput or usual
    lines = [
        f"plan: {len(tasks)} tasks x {len(methods)} settings on {spec.key} ({name}), {hardware.device}, "
        f"{hardware.dtype}; nothing is loaded or run",
        f"settings: {', '.join(method.label for method in methods)}",
    ]
    runs = seconds = longest = 0.0
    unknown, failed, reckoned = 0, 0, False
    for task in tasks:
        try:
            data = load_task(task, settings, say)
        except AudioMarathonError as error:
            failed += 1
            lines.append(f"{task.key}: cannot be run: {str(error).removeprefix(f'{task.key}: ')}")
            continue
        samples = select(data.samples, settings.limit, settings.seed)
        durations = [_seconds(sample.clips) for sample in samples]
        longest = max(longest, *durations)
        runs += len(samples) * len(methods)
        folder = settings.results / task.key / (checkpoint.folder_name if checkpoint else "") / Base().label
        tokens = (settings.max_new_tokens or task.max_new_tokens) + settings.decode_tokens
        line = (
            f"{task.key}: {len(samples):,} samples ({sum(durations) / 3600:.2f} h of audio) x {len(methods)} settings"
        )
        if (measured := _measured(folder, durations, methods, settings.decode_tokens)) is not None:
            seconds += measured[0]
            lines.append(f"{line}: {_hours(measured[0])}, from {measured[1]} base samples on record in {folder}")
        elif facts is not None:
            reckoned = True
            own = _reckoned(facts, spec, durations, methods, speed * 1e12, bandwidth * 1e9, tokens)
            seconds += own
            lines.append(f"{line}: {_hours(own)}, from FLOPs")
        else:
            unknown += 1
            lines.append(f"{line}: time unknown")
    lines.append(f"total: {runs:,.0f} replies, {_hours(seconds)}" + (f" and {unknown} tasks unknown" * bool(unknown)))
    if facts is not None and longest:
        lines.append(_memory(facts, spec, longest))
    lines.append(
        "These are estimates. From records: base's measured seconds, LLM prefill scaled by each setting's FLOPs."
    )
    if reckoned:
        lines.append(
            f"From FLOPs: the config's layers at {speed:g} TFLOP/s ({'given' if throughput else 'assumed'}; "
            "--throughput sets it), replies at their token limit, each token one read of the weights at "
            f"{bandwidth:g} GB/s (assumed); decoding of audio and features not counted. "
            "A run of a few base samples first gives better ones."
        )
    if why_not:
        lines.append(f"no estimate of memory, nor of time without records: {why_not}")
    lines.append("Whether the model can carry every method is checked when it is loaded, before the first sample.")
    return SweepPlan(tuple(lines), failed == 0)


def _hours(seconds: float) -> str:
    return f"about {seconds / 3600:.1f} h" if seconds >= 3600 else f"about {seconds / 60:.1f} min"


def _seconds(clips: Sequence[Path]) -> float:
    total = 0.0
    for clip in clips:
        try:
            total += probe(clip).seconds
        except AudioError:
            continue  # the run will put it on record
    return total


def _measured(
    folder: Path, durations: Sequence[float], methods: Sequence[Method], decode_tokens: int
) -> tuple[float, int] | None:
    """Return seconds for all samples and settings from base's records, and how many there are."""
    if not (folder / "run.json").exists():
        return None
    try:
        run = Run.read(folder)
    except RecordError:
        return None
    timed = [record for record in run.records.values() if record.get("time")]
    if not timed:
        return None
    heard = sum(record["clip_seconds"] for record in timed)
    once = sum(record["time"][stage] for record in timed for stage in ("load", "preprocess", "encoder"))
    each = 0.0
    for method in methods:
        drops = drops_of(method) or Drops()
        for record in timed:
            prefill = record["time"]["llm_prefill"] * _share(run.cost, drops, record)
            forced = (record.get("forced_decode") or {}).get("per_token")
            decode = record["time"]["decode"]
            per_token = forced or decode / max(1, record["new_tokens"] - 1)
            # The forced run is a whole generate call of its own.
            each += prefill + decode + (prefill + decode_tokens * per_token if decode_tokens else 0.0)
    return (once + each) / heard * sum(durations), len(timed)


def _share(cost: Cost | None, drops: Drops, record: Any) -> float:
    """Return the part of base's prefill FLOPs that a setting still needs."""
    if cost is None:
        return 1.0
    layers = len(cost.flops_per_token_per_layer)
    sizes = record["prompt_tokens"], record["audio_tokens"]
    return cost.llm_prefill(drops.tokens(layers, *sizes)) / cost.llm_prefill(Drops().tokens(layers, *sizes))


def _reckoned(
    facts: ModelFacts,
    spec: ModelSpec,
    durations: Sequence[float],
    methods: Sequence[Method],
    flops: float,
    bandwidth: float,
    new_tokens: int,
) -> float:
    layers = len(facts.cost.flops_per_token_per_layer)
    total = 0.0
    for seconds in durations:
        audio = math.ceil(seconds * spec.tokens_per_second)
        total += facts.cost.encoder(seconds) / flops
        for method in methods:
            tokens = (drops_of(method) or Drops()).tokens(layers, audio + TEXT_TOKENS, audio)
            total += facts.cost.llm_prefill(tokens) / flops + new_tokens * facts.weight_bytes / bandwidth
    return total


def _memory(facts: ModelFacts, spec: ModelSpec, longest: float) -> str:
    tokens = math.ceil(longest * spec.tokens_per_second) + TEXT_TOKENS
    parts = {
        "weights": facts.weight_bytes,
        "KV cache": facts.kv_bytes * tokens,
        "activations": facts.activation_bytes * tokens + facts.logits_bytes,
    }
    shown = ", ".join(f"{name} {size / 1e9:.2f}" for name, size in parts.items())
    where = f"at the longest clip ({longest:.0f} s, {tokens:,} tokens)"
    return f"memory: about {sum(parts.values()) / 1e9:.2f} GB {where}: {shown}"


def _model(
    spec: ModelSpec, settings: RunSettings, hardware: Hardware
) -> tuple[Checkpoint | None, ModelFacts | None, str]:
    """Return the checkpoint if it is here, what its headers say, and why not."""
    try:
        checkpoint = find_checkpoint(settings.model_path or spec.checkpoint, download=False)
    except ModelError as error:
        return None, None, str(error)
    try:
        return checkpoint, model_facts(checkpoint.path, _BYTES[hardware.dtype]), ""
    except ModelError as error:
        return checkpoint, None, str(error)
