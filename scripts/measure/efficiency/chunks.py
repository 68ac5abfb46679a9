"""Measure prefill in chunks against prefill of whole prompts: peak memory and time."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from audiomarathon.compression.method import Method
from audiomarathon.engine.encoder_cache import encoder_shared
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.generation import Generation
from efficiency.stages import forced, prepare


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all tensors that are created in the `with` block and still exist, also on the meta device.

    `known` are tensors that existed before and do not count, such as weights; `peak` is the largest count.
    """

    def __init__(self, known: Sequence[torch.Tensor] = ()) -> None:
        super().__init__()
        self._known = {tensor.untyped_storage()._cdata for tensor in known}
        self._held: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Callable[..., Any], _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor) and (place := leaf.untyped_storage())._cdata not in self._known:
                self._held[place._cdata] = (StorageWeakRef(place), place.nbytes())
        self._held = {key: held for key, held in self._held.items() if not held[0].expired()}
        self.peak = max(self.peak, sum(size for _ref, size in self._held.values()))
        return out


def chunked_against_whole(
    lm: AudioLM, seconds: float, methods: Sequence[Method], chunk: int, *, repeats: int
) -> list[dict[str, Any]]:
    """Measure prefill with whole prompts and in chunks, alternately; return each method's seconds and peak bytes.

    On a CPU, for which torch reports no peak, bytes are counted in a further call, and the weights are added.
    """
    weights = [*lm.model.parameters(), *lm.model.buffers()]
    measurements = []
    inputs = prepare(lm, round(seconds * 25))

    def run(method: Method, size: int) -> Generation:
        lm.prefill_chunk = size
        try:
            return forced(lm, inputs, method, 1)
        finally:
            lm.prefill_chunk = 0

    with encoder_shared(lm):
        for method in methods:
            done: dict[int, list[Generation]] = {0: [], chunk: []}
            for size in done:
                run(method, size)  # the first call chooses kernels and claims memory
            for _ in range(repeats):
                for size, calls in done.items():
                    calls.append(run(method, size))
            measurement = {
                "seconds": seconds,
                "setting": method.label,
                "chunk": chunk,
                "prompt_tokens": inputs.prompt_tokens[0],
            }
            for name, size in (("whole", 0), ("chunked", chunk)):
                peaks = [each.peak_memory_bytes for each in done[size] if each.peak_memory_bytes is not None]
                if not peaks:
                    with LiveBytes(weights) as live:
                        run(method, size)
                    peaks = [live.peak + sum(part.nbytes for part in weights)]
                measurement[f"{name}_peak_bytes"] = max(peaks)
                measurement[f"{name}_s"] = statistics.median(each.stages.llm_prefill for each in done[size])
            measurements.append(measurement)
    return measurements
