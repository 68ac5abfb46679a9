"""Merge audio tokens: each of k groups of tokens becomes one token, a weighted sum with one position."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Merge:
    """A rule that merges N audio tokens into k groups; each group becomes a weighted sum of its tokens' hidden states.

    If each group gives weight 1 to the token whose position it takes, and 0 to its other tokens, merging gives exactly
    the result of dropping those other tokens.

    Attributes
    ----------
    kept
        Index of the audio token whose position each group takes, ascending, shape (k,).
    group
        Group of each token, from 0 to k − 1, shape (N,).
    weight
        Factor of each token's hidden state in the sum of its group, float32, shape (N,).
    """

    kept: torch.Tensor
    group: torch.Tensor
    weight: torch.Tensor

    @classmethod
    def average_from(cls, starts: torch.Tensor, total: int) -> Merge:
        """Return the rule that averages runs of neighbouring tokens; each run keeps the position of its first token.

        `starts` has the index of each run's first token (the first is 0); `total` is the number of tokens.
        """
        import torch

        begins = torch.zeros(total, dtype=torch.long, device=starts.device).index_fill_(0, starts, 1)
        group = begins.cumsum(0) - 1
        sizes = torch.zeros_like(starts).index_add_(0, group, torch.ones_like(group))
        return cls(starts, group, 1 / sizes[group].float())

    @classmethod
    def joined(cls, parts: Sequence[Merge]) -> Merge:
        """Return one rule that has the effect of several rules, each on its own tokens; the rules' tokens follow each
        other.
        """
        import torch

        begins = itertools.accumulate((len(merge.group) for merge in parts), initial=0)
        groups = itertools.accumulate((len(merge.kept) for merge in parts), initial=0)
        return cls(
            torch.cat([merge.kept + begin for merge, begin in zip(parts, begins, strict=False)]),
            torch.cat([merge.group + group for merge, group in zip(parts, groups, strict=False)]),
            torch.cat([merge.weight for merge in parts]),
        )

    def then(self, later: Merge) -> Merge:
        """Return one rule with the effect of this rule, then of the rule `later`, which merges the groups that this
        rule makes.
        """
        weight = self.weight * later.weight[self.group]
        return Merge(self.kept[later.kept], later.group[self.group], weight)

    def to(self, device: torch.device) -> Merge:
        """Return the rule with its tensors on a device."""
        return Merge(self.kept.to(device), self.group.to(device), self.weight.to(device))

    def of(self, states: torch.Tensor) -> torch.Tensor:
        """Apply the rule: turn N hidden states of size D, shape (…, N, D), into k, shape (…, k, D).

        Sums are computed in float32, in token order.
        """
        import torch

        group = (
            self.group.to(states.device).long().clamp(0, len(self.kept) - 1)
        )  # an index out of range is reported after the call
        sizes = group.new_zeros(len(self.kept)).index_add_(0, group, torch.ones_like(group))
        weighted = states.float() * self.weight.to(states.device)[:, None]
        rows = weighted.index_select(-2, group.sort(stable=True).indices).movedim(-2, 0).contiguous()
        summed = torch.segment_reduce(rows, "sum", lengths=sizes, unsafe=True)  # no atomics, so the same bits each time
        return summed.movedim(0, -2).to(states.dtype)
