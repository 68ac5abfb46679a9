"""Handle lack of memory: recognise the error, free memory, halve the batch.

The loop in `evaluate.py` then tries again.
"""

from __future__ import annotations

import gc

import torch

MEMORY_ADVICE = (
    "out of memory; DTYPE=bfloat16 takes half of float32, DEVICE_MAP=auto spreads the model over several GPUs"
)


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether a call failed because GPU or main memory ran out."""
    words = ("DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory", "ALLOC_FAILED")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(word in str(error) for word in words)


def half(batch_size: int) -> int:
    """Return half of a batch size, rounded up: the size to try after a batch did not fit into memory."""
    return (batch_size + 1) // 2


def free_memory() -> None:
    """Free GPU memory after a failed call.

    The call's tensors are deleted, but PyTorch's allocator still holds their memory.
    """
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
