"""Random entries: the control that every press should beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from audiomarathon.compression.press import Cached, KVPress

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class KVRandom(KVPress):
    """Score entries at random, seeded by sample and layer. Draw on the CPU: scores are the same on every machine."""

    key: ClassVar[str] = "kv_random"
    title: ClassVar[str] = "seeded random entries"

    def score(self, cached: Cached) -> torch.Tensor:
        """Draw a random score for each entry; see :meth:`KVPress.score`."""
        import torch

        generator = torch.Generator().manual_seed(cached.seed * 1009 + cached.layer)
        drawn, device = torch.rand(cached.key.shape[:2], generator=generator), cached.key.device
        # A copy to the GPU is asynchronous only from pinned memory.
        return (drawn.pin_memory() if device.type == "cuda" else drawn).to(device, non_blocking=True)
