"""FastV (ECCV 2024): keep the audio tokens that the last prompt token attends to most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from audiomarathon.compression.token_pruner import Evidence, TokenPruner

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class FastV(TokenPruner):
    """Keep the k audio tokens with the highest attention from the last prompt token, mean over heads.

    L. Chen et al., "An Image is Worth 1/2 Tokens After Layer 2", arXiv 2403.06764, section 4: rank audio tokens by the
    attention of layer K − 1, and drop the lowest from layer K (the setting `layer`) on.
    """

    key: ClassVar[str] = "fast_v"
    aliases: ClassVar[tuple[str, ...]] = ("fastv",)
    title: ClassVar[str] = "audio tokens that the last prompt token attends to most"
    paper: ClassVar[str] = "2403.06764"
    needs: ClassVar[str] = "K ≥ 1, full attention in layer K − 1"
    scored: ClassVar[bool] = True
    ranks_by_attention: ClassVar[bool] = True

    def select(self, evidence: Evidence) -> torch.Tensor:
        """Return the indices of the k audio tokens that receive the most attention."""
        return attention_received(evidence).topk(evidence.n_keep).indices


def attention_received(evidence: Evidence) -> torch.Tensor:
    """Return the attention that the last prompt token pays to each audio token, mean over heads, shape (N,)."""
    return evidence.seen.last_attention.mean(0)[evidence.positions]
