"""Choose which attention kernels PyTorch may use, and multiply half-precision tensors into float32."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from audiomarathon.settings import SDPA_BACKENDS

_MIXED = hasattr(torch.ops.aten.bmm, "dtype") and not torch.version.hip
"""Whether this PyTorch (2.8 or later, with CUDA) multiplies half precisions into float32."""
_BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}


def kernels_for(device: str, names: str) -> str:
    """Return which attention kernels a run may use: on a GPU those of its setting, on a CPU always PyTorch's CPU
    kernels.

    Otherwise `SDPA_BACKENDS=cudnn` would leave no kernel on a CPU.
    """
    return names if device.startswith("cuda") else SDPA_BACKENDS


def attention_kernels(names: str = SDPA_BACKENDS) -> AbstractContextManager[None]:
    """Inside the `with` block, allow only the named attention kernels (`names` is joined by commas).

    cuDNN's kernel is off by default: it plans every new length anew, which takes up to ten times as long as the
    attention. PyTorch prefers it on Hopper and Blackwell.
    """
    block: AbstractContextManager[None] = sdpa_kernel([_BACKENDS[name] for name in names.split(",")])
    return block


def products(query: torch.Tensor, key: torch.Tensor, scaling: float | None = None) -> torch.Tensor:
    """Return (scaled) products of queries (…, n, d) and keys (…, S, d) in float32, shape (…, n, S).

    On a GPU, half precisions are multiplied directly and summed in float32: the products are exact, run on the tensor
    cores, and need no float32 copy of the keys. The keys are padded to a multiple of eight, since cuBLAS uses kernels
    that are many times slower for other numbers.
    """
    if query.is_cuda and query.dtype in (torch.float16, torch.bfloat16) and _MIXED:
        rows, length = key.flatten(0, -3), key.shape[-2]
        rows = torch.nn.functional.pad(rows, (0, 0, 0, -length % 8)) if length % 8 else rows
        none = torch.empty(1, 1, 1, device=query.device)  # with beta = 0 this tensor is not read
        factors: Any = {"out_dtype": torch.float32, "beta": 0, "alpha": 1 if scaling is None else scaling}
        sums: torch.Tensor = torch.baddbmm(none, query.flatten(0, -3), rows.mT, **factors)
        return sums.view(*key.shape[:-2], -1, sums.shape[-1])[..., :length]
    wide = query.float() if scaling is None else query.float() * scaling
    return wide @ key.float().transpose(-1, -2)
