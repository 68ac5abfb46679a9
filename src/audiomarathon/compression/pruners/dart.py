"""DART: keep pivots, and the tokens least similar to them (EMNLP 2025)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from audiomarathon.compression.token_pruner import Evidence, TokenPruner

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Dart(TokenPruner):
    """Keep a few pivot tokens (those with large keys) and, for each pivot, the audio tokens whose hidden states are
    least similar to it.

    Z. Wen et al., "Stop Looking for Important Tokens in Multimodal Language Models: Duplication Matters More", arXiv
    2502.11494. The pivots are the audio tokens, and the text tokens after the audio, whose keys have the largest L1
    norm. Audio pivots are kept. Then each pivot, first audio and then text, selects an equal share of the rest of the
    budget: the remaining audio tokens with the lowest cosine similarity to the pivot.
    """

    key: ClassVar[str] = "dart"
    title: ClassVar[str] = "pivots, and the audio tokens least similar to them"
    paper: ClassVar[str] = "2502.11494"
    needs: ClassVar[str] = "K ≥ 1"
    scored: ClassVar[bool] = True

    audio_pivots: int = 4
    text_pivots: int = 4

    def select(self, evidence: Evidence) -> torch.Tensor:
        """Return the indices of the audio tokens to keep: pivots, and the tokens least similar to them."""
        import torch
        from torch.nn.functional import normalize

        positions, seen = evidence.positions, evidence.seen
        norm = seen.key.float().abs().sum((0, 2))  # L1 over all heads, (S,)
        audio = norm[positions].topk(min(self.audio_pivots, evidence.n_keep)).indices
        places = torch.arange(len(norm), device=norm.device)
        # Only text follows the audio, since padding is on the left.
        after = norm.masked_fill(places <= positions[-1], -torch.inf)
        steering = after.topk(min(self.text_pivots, evidence.text_after)).indices
        budget = evidence.n_keep - len(audio)
        pivots = torch.cat([positions[audio], steering])
        hidden = normalize(seen.hidden.float(), dim=-1)
        similarity = hidden[pivots] @ hidden[positions].T  # (pivots, N)
        taken = torch.zeros(len(positions), device=norm.device).index_fill_(0, audio, torch.inf)
        chosen = [audio]
        for rank, row in enumerate(similarity):
            share = budget // (len(pivots) - rank)  # the rest, split evenly over the remaining pivots
            pick = (row + taken).topk(share, largest=False).indices
            taken = taken.index_fill(0, pick, torch.inf)
            chosen.append(pick)
            budget -= share
        return torch.cat(chosen)
