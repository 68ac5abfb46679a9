"""SpeechPrune in outline: first similarity to the question's text, then attention (arXiv 2412.12009)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from audiomarathon.compression.pruners.fast_v import attention_received
from audiomarathon.compression.token_pruner import Evidence, TokenPruner

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class SpeechPruneLike(TokenPruner):
    """Drop half of the excess tokens by low similarity to the question's text, the other half by low attention.

    After Y. Lin et al., "SpeechPrune: Context-aware Token Pruning for Speech Information Retrieval", arXiv 2412.12009:
    two phases, first the similarity of speech tokens to the text, then an approximation of attention. Here the first
    phase ranks by the mean cosine of a token's state to the states of the text after the audio, where they enter layer
    K. The second phase ranks the remaining tokens by the last prompt token's exact attention in layer K − 1. The paper
    differs in how much each phase drops, compares embeddings, and approximates attention. So this is the paper's idea
    with our choice of budget, not the published method. Without text after the audio, tokens are ranked by attention
    only.
    """

    key: ClassVar[str] = "speechprune_like"
    title: ClassVar[str] = "tokens like the question's text, then those with most attention"
    paper: ClassVar[str] = "2412.12009"
    needs: ClassVar[str] = "K ≥ 1, full attention in layer K − 1"
    scored: ClassVar[bool] = True
    ranks_by_attention: ClassVar[bool] = True

    def select(self, evidence: Evidence) -> torch.Tensor:
        """Return the indices of k audio tokens, chosen by similarity to the question's text and by attention."""
        from torch.nn.functional import normalize

        score = attention_received(evidence)
        if not evidence.text_after:
            return score.topk(evidence.n_keep).indices
        states = normalize(evidence.seen.entering.float(), dim=-1).to(score.device)
        text = states[len(states) - evidence.text_after :].mean(0)  # the mean of cosines is the cosine's numerator
        alike = states[evidence.positions] @ text
        first = alike.topk((len(alike) + evidence.n_keep + 1) // 2).indices
        return first[score[first].topk(evidence.n_keep).indices]
