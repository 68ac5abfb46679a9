"""Merging audio tokens into exactly k: which group each goes into, with which weight, and where the group stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Merge:
    """N audio tokens as k weighted sums.

    With one token of weight 1 in each group, which is also the one kept, merging is dropping, to the bit.

    Attributes
    ----------
    kept
        For each group the index of the audio token whose position it takes, ascending, shape (k,).
    group
        The group that each token goes into, from 0 to k − 1, shape (N,).
    weight
        What each token's hidden state is multiplied by before a group's are summed, float32, shape (N,).
    """

    kept: torch.Tensor
    group: torch.Tensor
    weight: torch.Tensor

    @classmethod
    def average_from(cls, starts: torch.Tensor, total: int) -> Merge:
        """Average runs of neighbours: each begins at one of `starts` (the first is 0) and takes its position."""
        import torch

        begins = torch.zeros(total, dtype=torch.long, device=starts.device).index_fill_(0, starts, 1)
        group = begins.cumsum(0) - 1
        sizes = torch.zeros_like(starts).index_add_(0, group, torch.ones_like(group))
        return cls(starts, group, 1 / sizes[group].float())

    def of(self, states: torch.Tensor) -> torch.Tensor:
        """Return the merged states, shape (…, k, D), of states of shape (…, N, D): summed in float32, in order."""
        import torch

        group = self.group.to(states.device).long().clamp(0, len(self.kept) - 1)  # out of range: told afterwards
        sizes = group.new_zeros(len(self.kept)).index_add_(0, group, torch.ones_like(group))
        weighted = states.float() * self.weight.to(states.device)[:, None]
        rows = weighted.index_select(-2, group.sort(stable=True).indices).movedim(-2, 0).contiguous()
        summed = torch.segment_reduce(rows, "sum", lengths=sizes, unsafe=True)  # no atomics: the same bits every time
        return summed.movedim(0, -2).to(states.dtype)
