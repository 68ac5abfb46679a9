"""DivPrune: keep the tokens whose smallest distance to each other is largest (CVPR 2025)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from audiomarathon.compression.token_pruner import Evidence, TokenPruner

if TYPE_CHECKING:
    import torch

_BLOCK = 1024  # number of rows of the distance matrix in memory at once


@dataclass(frozen=True)
class DivPrune(TokenPruner):
    """Keep k tokens that are far from each other: repeatedly add the token farthest from the kept tokens.

    S. Alvar et al., "DivPrune: Diversity-based Visual Token Pruning for Large Multimodal Models", arXiv 2503.02175,
    section 3: the max–min diversity problem, solved greedily. Distance is 1 − cosine of two tokens' states. The first
    token is the token whose nearest neighbour is farthest away; each next token has the largest distance to its nearest
    kept token. The paper drops at the LLM's input: `--at input`.

    Time is O(N²·D) for N tokens with states of D numbers, and each of the k steps waits for the previous step, so on a
    GPU the choice can take longer than it saves. Memory is O(1024·N), not N².
    """

    key: ClassVar[str] = "divprune"
    title: ClassVar[str] = "tokens that are far from each other (greedy max–min distance)"
    paper: ClassVar[str] = "2503.02175"
    sees_states: ClassVar[bool] = True
    places: ClassVar[tuple[str, ...]] = ("layer", "input")

    def select(self, evidence: Evidence) -> torch.Tensor:
        """Return the indices of k audio tokens that are far from each other."""
        import torch
        from torch.nn.functional import normalize

        assert evidence.states is not None
        states = normalize(evidence.states.float(), dim=-1)
        nearest = []
        for start in range(0, len(states), _BLOCK):
            alike = states[start : start + _BLOCK] @ states.T
            alike.diagonal(start).fill_(-torch.inf)
            nearest.append(1 - alike.amax(-1))
        gap, chosen = torch.cat(nearest), []
        for step in range(evidence.n_keep):
            chosen.append(gap.argmax()[None])
            apart = 1 - states @ states.index_select(0, chosen[-1])[0]
            gap = (apart if step == 0 else torch.minimum(gap, apart)).index_fill(0, chosen[-1], -torch.inf)
        return torch.cat(chosen)
