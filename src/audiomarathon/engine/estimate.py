"""Estimate a run's time and memory without loading the model: from recorded base samples, or from FLOPs.

FLOPs and memory come from the checkpoint's config and the headers of its weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from audiomarathon.audio.decode import probe
from audiomarathon.benchmarks import Sample
from audiomarathon.benchmarks.fingerprint import clip_hashes
from audiomarathon.compression.method import Method
from audiomarathon.costs.config_facts import DTYPE_BYTES, ModelFacts, model_facts, published_config
from audiomarathon.costs.flops import drops_of
from audiomarathon.costs.prefill import TEXT_TOKENS, Cost, Drops
from audiomarathon.engine.setup import Hardware
from audiomarathon.errors import AudioError, ModelError, RecordError
from audiomarathon.models.checkpoint import Checkpoint, find_checkpoint
from audiomarathon.models.registry import ModelSpec
from audiomarathon.records import Record
from audiomarathon.runs.folder import RunFolder
from audiomarathon.runs.read import Run
from audiomarathon.settings import RunSettings


@dataclass(frozen=True)
class KnownModel:
    """Facts of a model that is not loaded; `why_not` explains missing ones."""

    spec: ModelSpec
    checkpoint: Checkpoint | None
    facts: ModelFacts | None
    why_not: str


@dataclass(frozen=True)
class Todo:
    """Work left in one task: audio seconds of each missing sample, in all (`heard`) and per setting (`durations`).

    Attributes
    ----------
    samples, seconds
        Selected samples, and seconds of their audio.
    on_record
        Replies that are already recorded.
    """

    samples: int
    seconds: float
    heard: tuple[float, ...]
    durations: tuple[tuple[Method, tuple[float, ...]], ...]
    on_record: int

    @property
    def replies(self) -> int:
        """Number of replies left to generate."""
        return sum(len(seconds) for _method, seconds in self.durations)


def what_is_left(
    samples: Sequence[Sample], folders: Sequence[tuple[Method, RunFolder | None]], heard: float = 0.0
) -> Todo:
    """Return the work that the folders lack; a model hears at most `heard` seconds of a clip (0: all).

    Raises
    ------
    RecordError
        A folder holds another run.
    """
    clips = clip_hashes(samples)
    seconds = {sample.id: _seconds(sample.clips, heard or math.inf) for sample in samples}
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


def _seconds(clips: Sequence[Path], most: float) -> float:
    total = 0.0
    for clip in clips:
        try:
            total += min(probe(clip).seconds, most)
        except AudioError:
            continue  # the run will record the error
    return total


def from_records(folder: Path, todo: Todo, decode_tokens: int) -> tuple[float, int] | None:
    """Return the estimated seconds of all work left, from base's records, and the number of those records."""
    if not (folder / "run.json").exists():
        return None
    try:
        run = Run.read(folder)
        timed = [(record, record.time) for record in run.records.values() if record.time]
        heard = sum(record.clip_seconds for record, _ in timed)
        if not heard:
            return None
        once = sum(time[stage] for _, time in timed for stage in ("load", "preprocess", "encoder"))
        seconds = once / heard * sum(todo.heard)
        for method, durations in todo.durations:
            drops = drops_of(method) or Drops()
            own = sum(_after_encoder(*one, _share(run.cost, drops, one[0]), decode_tokens) for one in timed)
            seconds += own / heard * sum(durations)
    except (RecordError, KeyError, TypeError):  # written by another version, or damaged
        return None
    return seconds, len(timed)


def _after_encoder(record: Record, time: Mapping[str, float], share: float, decode_tokens: int) -> float:
    """Return the seconds of a sample's reply plus its forced run, which is another whole generate call."""
    prefill, decode = time["llm_prefill"] * share, time["decode"]
    if not decode_tokens:
        return float(prefill + decode)
    forced = (record.forced_decode or {}).get("per_token")
    per_token = forced or decode / max(1, (record.new_tokens or 1) - 1)
    return float(2 * prefill + decode + decode_tokens * per_token)


def _share(cost: Cost | None, drops: Drops, record: Record) -> float:
    """Return the share of base's prefill FLOPs that a setting still needs."""
    if cost is None:
        return 1.0
    layers = len(cost.flops_per_token_per_layer)
    sizes = record.prompt_tokens or 0, record.audio_tokens or 0
    return cost.llm_prefill(drops.tokens(layers, *sizes)) / cost.llm_prefill(Drops().tokens(layers, *sizes))


def from_flops(
    facts: ModelFacts,
    spec: ModelSpec,
    todo: Todo,
    speeds: tuple[float, float],
    new_tokens: int,
    decode_tokens: int,
) -> float:
    """Return the estimated seconds from FLOPs; a forced run adds a prefill."""
    flops, bandwidth = speeds[0] * 1e12, speeds[1] * 1e9
    layers = len(facts.cost.flops_per_token_per_layer)
    prefills, tokens = (2, new_tokens + decode_tokens) if decode_tokens else (1, new_tokens)
    total = sum(facts.cost.encoder(seconds) for seconds in todo.heard) / flops
    for method, durations in todo.durations:
        drops = drops_of(method) or Drops()
        for seconds in durations:
            audio = math.ceil(seconds * spec.tokens_per_second)
            prompt = drops.tokens(layers, audio + TEXT_TOKENS, audio)
            total += prefills * facts.cost.llm_prefill(prompt) / flops + tokens * facts.weight_bytes / bandwidth
    return total


def memory(facts: ModelFacts, spec: ModelSpec, longest: float, batch: int) -> str:
    """Return a line with the memory of a batch of the longest clip; shorter clips are padded to it."""
    tokens = math.ceil(longest * spec.tokens_per_second) + TEXT_TOKENS
    parts = facts.memory(tokens, batch)
    shown = ", ".join(f"{name} {size / 1e9:.2f}" for name, size in parts.items())
    where = f"at the longest clip ({longest:.0f} s, {tokens:,} tokens)" + f" in batches of {batch}" * (batch > 1)
    return f"memory: about {sum(parts.values()) / 1e9:.2f} GB {where}: {shown}"


def find_model(spec: ModelSpec, settings: RunSettings, hardware: Hardware) -> KnownModel:
    """Return the checkpoint if it is here, and the facts in its headers, or the reason why they are missing."""
    try:
        checkpoint = find_checkpoint(settings.model_path or spec.checkpoint, download=False)
        checkpoint = replace(checkpoint, variant=spec.variant)
    except ModelError as error:
        if (sizes := published_config(settings.model_path or spec.checkpoint)) is None:
            return KnownModel(spec, None, None, str(error))
        return KnownModel(spec, None, model_facts(sizes, DTYPE_BYTES[hardware.dtype], spec.load_family()), "")
    try:
        facts = model_facts(checkpoint.path, DTYPE_BYTES[hardware.dtype], spec.load_family())
        return KnownModel(spec, checkpoint, facts, "")
    except ModelError as error:
        return KnownModel(spec, checkpoint, None, str(error))
