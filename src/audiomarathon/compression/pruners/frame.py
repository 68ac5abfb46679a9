"""Frame: keep audio tokens at a uniform stride in time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from audiomarathon.compression.method import at_stride
from audiomarathon.compression.token_pruner import Evidence, TokenPruner

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Frame(TokenPruner):
    """Keep audio tokens at a uniform stride: index ⌊i·N/k⌋ for i < k (AudioMarathon, arXiv 2510.07293)."""

    key: ClassVar[str] = "frame"
    title: ClassVar[str] = "audio tokens at a uniform stride in time"
    paper: ClassVar[str] = "2510.07293"

    def select(self, evidence: Evidence) -> torch.Tensor:
        """Return the indices of k audio tokens at a uniform stride."""
        return at_stride(len(evidence.positions), evidence.n_keep)
