"""Knorm: keep the KV-cache entries whose keys have a small norm, since they attract attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from audiomarathon.compression.press import Cached, KVPress

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Knorm(KVPress):
    """Score each KV-cache entry by −‖key‖₂: entries with small keys stay.

    A. Devoto et al., "A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression", arXiv 2406.11430.
    """

    key: ClassVar[str] = "knorm"
    title: ClassVar[str] = "entries whose keys have the smallest norm"
    paper: ClassVar[str] = "2406.11430"

    def score(self, cached: Cached) -> torch.Tensor:
        """Return each KV-cache entry's score, shape (key heads, entries): −‖key‖₂."""
        import torch

        norm: torch.Tensor = torch.linalg.vector_norm(cached.key.float(), dim=-1)
        return -norm
