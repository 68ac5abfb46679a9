"""Keep random KV-cache entries: the baseline that every press should beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from audiomarathon.compression.press import Cached, KVPress

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class KVRandom(KVPress):
    """Score KV-cache entries at random, seeded by sample and layer.

    The scores are drawn on the CPU, so that they are equal on every machine.
    """

    key: ClassVar[str] = "kv_random"
    title: ClassVar[str] = "seeded random entries"

    def score(self, cached: Cached) -> torch.Tensor:
        """Return a random score for each KV-cache entry, shape (key heads, entries)."""
        import torch

        generator = torch.Generator().manual_seed(cached.seed * 1009 + cached.layer)
        drawn, device = torch.rand(cached.key.shape[:2], generator=generator), cached.key.device
        # A copy to the GPU is asynchronous only from pinned memory.
        return (drawn.pin_memory() if device.type == "cuda" else drawn).to(device, non_blocking=True)
