"""Random: keep random audio tokens, the baseline that every method should beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from audiomarathon.compression.token_pruner import Evidence, TokenPruner

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Random(TokenPruner):
    """Keep the first k audio tokens of a random permutation, seeded for each sample.

    The permutation is drawn on the CPU, so that it is equal on every machine.
    """

    key: ClassVar[str] = "random"
    title: ClassVar[str] = "a seeded random subset of the audio tokens"

    def select(self, evidence: Evidence) -> torch.Tensor:
        """Return the indices of k random audio tokens."""
        import torch

        generator = torch.Generator().manual_seed(evidence.seed)
        return torch.randperm(len(evidence.positions), generator=generator)[: evidence.n_keep]
