"""Measure how fast this machine is, for a plan's time estimates.

Three things are timed: a matrix product, a short prefill, and a decode step, which mostly reads weights. No checkpoint
is loaded: the prefill and the step run one random layer of the size and attention kind of the model's layers.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass

from audiomarathon.costs.cost import Cost

_SIDE = 1024  # of the matrices
_TOKENS = 512  # of the prefill
_MOST_PARAMETERS = 64_000_000  # size of the layer: too large for a CPU's caches, and quick to make
_PRODUCT_S, _PREFILL_S = 1.0, 0.5


@dataclass(frozen=True)
class Speed:
    """How fast this machine computes, and reads weights from memory.

    Attributes
    ----------
    product
        FLOP/s of a matrix product.
    prefill
        FLOP/s of a prefill.
    reading
        Bytes/s at which a decode step reads the weights.
    """

    product: float
    prefill: float
    reading: float


@functools.cache
def measured(device: str, dtype: str, cost: Cost, clock: Callable[[], float] = time.perf_counter) -> Speed | None:
    """Return the speed of this machine, in FLOP/s and bytes/s; None if the device cannot run the measurement now.

    `cost` gives the sizes of the model's layers: a random layer of these sizes is timed.
    """
    import torch

    def now() -> float:
        if device.startswith("cuda"):
            torch.cuda.synchronize(device)
        return clock()

    def rate(work: Callable[[], object], amount: float, seconds: float) -> float:
        work()  # a first call sets up kernels
        begin, count = now(), 0
        while not count or now() - begin < seconds:
            work()
            count += 1
        return amount * count / (now() - begin)

    def layer(tokens: int) -> Callable[[], object]:
        x = random(tokens, width)
        heads = random(1, max(1, attended // 64), tokens, 64)

        def work() -> object:
            attention = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
            return torch.nn.functional.silu(x @ up) @ down, attention

        return work

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device, dtype=getattr(torch, dtype))

    attended = int(max(cost.attention_flops_coefficient) / 2)
    width = max(attended, 64)
    inner = max(1, int(min(max(cost.flops_per_token_per_layer) / 2, _MOST_PARAMETERS) / (2 * width)))
    parameters = 2 * width * inner
    try:
        with torch.inference_mode():
            square, up, down = random(_SIDE, _SIDE), random(width, inner), random(inner, width)
            product = rate(lambda: square @ square, 2.0 * _SIDE**3, _PRODUCT_S)
            flops = 2.0 * parameters * _TOKENS + 2.0 * attended * _TOKENS**2
            prefill = rate(layer(_TOKENS), flops, _PREFILL_S)
            reading = rate(layer(1), parameters * float(up.element_size()), _PREFILL_S)
    except RuntimeError:
        return None
    return Speed(product, prefill, reading)
