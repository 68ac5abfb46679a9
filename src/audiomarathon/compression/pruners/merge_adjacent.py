"""Merge adjacent: average the most similar neighbours (after A-ToMe)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from audiomarathon.compression.token_pruner import Evidence, TokenPruner
from audiomarathon.models.merge import Merge

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class MergeAdjacent(TokenPruner):
    """Join the N − k pairs of neighbouring audio tokens with the most similar hidden states, and average each group.

    N is the number of audio tokens, k the number to keep. Y. Li et al., "Accelerating Transducers through Adjacent
    Token Merging", arXiv 2306.16009, merge neighbours by the cosine similarity of their keys, pair by pair in several
    layers. Here merging is one step with an exact budget (single-linkage clustering along time). Of equally similar
    pairs, the earlier is joined first. Audio tokens with text between them, from two clips, are joined last.
    """

    key: ClassVar[str] = "merge_adjacent"
    title: ClassVar[str] = "most similar neighbours averaged"
    paper: ClassVar[str] = "2306.16009"
    sees_states: ClassVar[bool] = True
    in_steps: ClassVar[bool] = False

    def select(self, evidence: Evidence) -> Merge:
        """Return the rule that merges the most similar neighbouring audio tokens into k groups."""
        assert evidence.states is not None
        starts = starts_of_runs(evidence.states, evidence.positions, evidence.n_keep)
        return Merge.average_from(starts, len(evidence.positions))


def starts_of_runs(states: torch.Tensor, positions: torch.Tensor, n_keep: int) -> torch.Tensor:
    """Join the pairs of neighbours with the most similar states into `n_keep` runs; return the index where each run
    starts.

    Parameters
    ----------
    states
        One vector for each audio token, shape (N, D), compared by cosine.
    positions
        Prompt positions of the tokens, shape (N,).
    """
    import torch
    from torch.nn.functional import normalize

    states = normalize(states.float(), dim=-1)
    alike = (states[1:] * states[:-1]).sum(-1).to(positions.device)
    alike = alike.masked_fill(positions.diff() > 1, -2.0)
    joined = alike.sort(descending=True, stable=True).indices
    apart = joined[len(joined) - (n_keep - 1) :]
    return torch.cat([apart.new_zeros(1), apart + 1]).sort().values
