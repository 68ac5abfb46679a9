"""Choose which of PyTorch's kernels `scaled_dot_product_attention` may use."""

from __future__ import annotations

from contextlib import AbstractContextManager

from torch.nn.attention import SDPBackend, sdpa_kernel

from audiomarathon.settings import SDPA_BACKENDS

_BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}


def kernels_for(device: str, names: str) -> str:
    """Return the kernels that a run's setting allows on a device; a CPU has its own kernels, which are always allowed.

    Without this, no kernel of a CPU would be left by `SDPA_BACKENDS=cudnn`.
    """
    return names if device.startswith("cuda") else SDPA_BACKENDS


def attention_kernels(names: str = SDPA_BACKENDS) -> AbstractContextManager[None]:
    """Inside the block, allow only the kernels of these names, which are joined by commas.

    cuDNN's kernel is off by default: it plans every new length anew, which takes up to ten times as long as the
    attention. PyTorch prefers it on Hopper and Blackwell.
    """
    block: AbstractContextManager[None] = sdpa_kernel([_BACKENDS[name] for name in names.split(",")])
    return block
