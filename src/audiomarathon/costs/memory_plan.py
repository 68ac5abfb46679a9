"""Estimate whether long audio fits this GPU's memory, for `audiomarathon doctor --model`. No weights are loaded."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from audiomarathon.benchmarks import all_tasks, task_folder
from audiomarathon.benchmarks.clip_limits import too_long
from audiomarathon.costs.config_facts import DTYPE_BYTES, ModelFacts, model_facts, published_config
from audiomarathon.costs.cost import TEXT_TOKENS
from audiomarathon.costs.limits import Limits, limits_of
from audiomarathon.embedded.without_data import data_root
from audiomarathon.errors import AudioMarathonError, ModelError
from audiomarathon.models.checkpoint import Checkpoint, find_checkpoint, hub_cache
from audiomarathon.models.registry import ModelSpec
from audiomarathon.settings import RunSettings

LENGTHS = (90, 180, 300)
CUDA_BYTES = 0.5e9
"""Approximate size of the CUDA context."""
_GPU_GIB = (6, 8, 12, 16, 24, 32, 40, 48, 80, 96, 141, 192)
_USABLE = 0.95
_FIT = 10**6, 2 * 10**6  # two numbers of tokens, larger than a chunk, at which memory is computed to find how it grows
MOST_IN_BATCH = 64
"""Largest batch of `BATCH_SIZE=auto`: larger batches gain little speed, and hold more clips in memory."""


@dataclass(frozen=True)
class MemoryPlan:
    """The memory that a model needs, and the free memory of this machine's GPU.

    Attributes
    ----------
    source
        Text for the user: where the number of parameters comes from.
    room
        Free bytes of the GPU; None without a GPU.
    room_name
        Name of the GPU.
    limits
        Lines for the user: the longest clip that the model takes, and tasks on this machine with longer clips.
    chunk
        Tokens that a layer takes at a time in prefill; 0 for whole prompts.
    known
        The checkpoint's limits on the length of audio.
    """

    spec: ModelSpec
    checkpoint: str
    dtype: str
    source: str
    facts: ModelFacts
    room: float | None
    room_name: str
    limits: tuple[str, ...] = ()
    chunk: int = 0
    known: Limits | None = None

    def need(self, seconds: float) -> tuple[int, dict[str, float]]:
        """Return (the prompt's tokens, {part: bytes}) for `seconds` of audio, at batch size 1 with nothing dropped."""
        heard = min(seconds, self.spec.heard_seconds or math.inf)
        tokens, _audio = self.facts.cost.prompt(heard, self.spec.tokens_per_second)
        return tokens, {**self.facts.memory(tokens, chunk=self.chunk), "CUDA": CUDA_BYTES}

    def fits(self, seconds: float) -> bool | None:
        """Tell whether `seconds` of audio fit into this GPU's memory; None without a GPU."""
        return None if self.room is None else sum(self.need(seconds)[1].values()) <= self.room

    def longest(self, room: float) -> float:
        """Return how many seconds of audio fit into `room` bytes and the model's positions; 0 if none fit.

        The result is at most the longest clip that the model takes without an error or a cut.
        """
        few, many = (sum(self.facts.memory(count, chunk=self.chunk).values()) for count in _FIT)
        each = (many - few) / (_FIT[1] - _FIT[0])  # beyond a chunk, memory grows evenly
        left = room - CUDA_BYTES - (few - each * _FIT[0])
        positions = (self.known and self.known.positions) or math.inf
        tokens = min(left / each, positions) - TEXT_TOKENS
        most = self.spec.most_seconds or self.spec.heard_seconds or math.inf
        return max(0.0, min(math.floor(tokens / self.spec.tokens_per_second), most))

    def card(self, seconds: float) -> int | None:
        """Return the GiB of the smallest usual GPU (6 to 192 GiB) that is enough for `seconds` of audio; None if none
        is.
        """
        need = sum(self.need(seconds)[1].values())
        return next((size for size in _GPU_GIB if need <= size * 2**30 * _USABLE), None)


def plan_memory(spec: ModelSpec, settings: RunSettings) -> MemoryPlan:
    """Return the memory that a checkpoint needs, from its config, and the free memory of this machine's GPU.

    Raises
    ------
    ModelError
        The checkpoint is neither a folder nor downloaded, or its config cannot be read.
    """
    source = settings.model_path or spec.checkpoint
    try:
        checkpoint = find_checkpoint(source, download=False)
    except ModelError:
        sizes = published_config(source)
        if Path(source).expanduser().is_dir() or (sizes is None and source.count("/") != 1):
            raise  # a user's folder with a fault, or not a hub id
        if sizes is None:
            raise ModelError(
                f"{spec.key}: {source} is not in {hub_cache()}; download it with `audiomarathon models download "
                f"{spec.key if source == spec.checkpoint else source}`, or set --model-path to a folder with its "
                "config.json, which is enough for these estimates"
            ) from None
        checkpoint = Checkpoint(source, sizes)
    dtype = settings.dtype
    if dtype == "auto":
        dtype = "float32" if settings.device == "cpu" else "bfloat16"
    facts = model_facts(checkpoint.path, DTYPE_BYTES[dtype], spec.load_family())
    weights = any(checkpoint.path.glob("*.safetensors"))
    room, name = _gpu(settings)
    return MemoryPlan(
        spec,
        checkpoint.name,
        f"{dtype} (auto)" if settings.dtype == "auto" else dtype,
        "parameters counted in the weights' headers"
        if weights
        else "no weights there; parameters counted from the config",
        facts,
        room,
        name,
        tuple(_limits(spec, settings)),
        settings.prefill_chunk,
        limits_of(spec, checkpoint.path),
    )


def largest_batch(facts: ModelFacts, tokens: int, room: float | None, chunk: int = 0) -> int:
    """Return how many prompts of `tokens` tokens fit into `room` bytes beside the weights, from 1 to 64.

    If the free memory is not known (`room` is None), return 64.
    """
    each = sum(facts.memory(tokens, chunk=chunk).values()) - facts.weight_bytes
    return MOST_IN_BATCH if room is None else max(1, min(MOST_IN_BATCH, int(room * _USABLE / each)))


def room_left(settings: RunSettings) -> float:
    """Return the free bytes of the run's GPUs, or of main memory without a GPU. Call this after the model is loaded."""
    room, _name = _gpu(settings)
    return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")) if room is None else room


def _limits(spec: ModelSpec, settings: RunSettings) -> Iterator[str]:
    if spec.heard_seconds:
        yield f"{spec.key} hears the first {spec.heard_seconds:g} s of a clip: a longer clip needs no more memory."
    if not spec.most_seconds:
        return
    yield f"{spec.key} takes clips of up to {spec.most_seconds:g} s: a run with longer ones is refused."
    root = data_root(settings.data)
    for task in all_tasks():
        try:
            samples = task.load(task_folder(task, root, dict(settings.data_paths))).samples
        except AudioMarathonError:
            continue  # `audiomarathon doctor` reports on data
        if line := too_long(spec, task, samples):
            yield line


def _gpu(settings: RunSettings) -> tuple[float | None, str]:
    """Return (free bytes, name) of the run's GPU, or of all GPUs with a device map; (None, "") without a GPU."""
    import torch

    if not torch.cuda.is_available() or settings.device == "cpu":
        return None, ""
    number = int(settings.device[5:] or 0)  # N of cuda:N; auto and cuda mean the first GPU
    indices = range(torch.cuda.device_count()) if settings.device_map else [number]
    free = sum(torch.cuda.mem_get_info(index)[0] for index in indices)
    return float(free), " + ".join(torch.cuda.get_device_name(index) for index in indices)
