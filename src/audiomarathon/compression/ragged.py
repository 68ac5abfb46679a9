"""A cache layer whose heads hold different numbers of KV-cache entries, and how heads share a layer's budget of
entries.

Y. Feng et al., "Ada-KV: Optimizing KV Cache Eviction by Adaptive Budget Allocation for Efficient LLM Inference", arXiv
2407.11550.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import DynamicLayer


def places_of(mask: torch.Tensor, count: int) -> torch.Tensor:
    """Return the indices at which each row of a boolean tensor is True, in order; each row has `count` of them.

    `nonzero` would wait for the GPU to learn how many there are, and a sort takes ten times as long as counting.
    """
    rank = mask.cumsum(-1) - 1
    slots = rank.where(mask & (rank < count), count)  # the last slot takes all other indices, and is cut off
    indices = torch.arange(mask.shape[-1], device=mask.device).expand_as(slots)
    return indices.new_zeros(*mask.shape[:-1], count + 1).scatter_(-1, slots, indices)[..., :count]


def highest(worth: torch.Tensor, count: int) -> torch.Tensor:
    """Return a boolean tensor, True at the `count` highest scores of each row; of equal scores, the earlier is higher.

    No sort is needed: the lowest chosen score is a threshold. All scores above it are chosen, then the first scores
    that equal it.
    """
    if not count:
        return torch.zeros_like(worth, dtype=torch.bool)
    least = worth.topk(count, dim=-1, sorted=False).values.amin(-1, keepdim=True)
    above, tied = worth > least, worth == least
    return above | (tied & (tied.cumsum(-1) <= count - above.sum(-1, keepdim=True)))


class RaggedLayer(DynamicLayer):  # type: ignore[misc]
    """A layer's KV cache in which each head holds a different number of prompt entries, as a press kept them.

    Entries of later tokens are added to every head. The prompt's entries are stored head after head without gaps, so
    that memory is really freed. For transformers, `keys` and `values` have shape (B, Hkv, S', d), where S' is the mean
    over heads of the sample that keeps most; but row i of head h is *not* an entry of head h. Only during the layer's
    attention are heads padded to the longest; :meth:`visible` tells which entries are real.

    Parameters
    ----------
    keys, values
        Keys and values of the whole prompts, shape (B samples, Hkv heads, S tokens, d numbers).
    kept
        Boolean, shape (B, Hkv, S): True at entries to keep.
    entries
        Mean number of entries to keep per head, for each sample.
    """

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, kept: torch.Tensor, entries: Sequence[int]) -> None:
        super().__init__()
        (batch, heads, length, size), most = keys.shape, max(entries)
        self.lazy_initialization(keys, values)
        rows = [
            nn.functional.pad(places_of(mask.flatten(), heads * count), (0, heads * (most - count)))
            + row * heads * length
            for row, (mask, count) in enumerate(zip(kept, entries, strict=True))
        ]
        chosen = torch.cat(rows)
        self.keys, self.values = (part.flatten(0, 2)[chosen].view(batch, heads, -1, size) for part in (keys, values))
        self.new_keys, self.new_values = (part[:, :, :0].clone() for part in (keys, values))
        self._lengths = kept.sum(-1)

    @cached_property
    def _ranks(self) -> torch.Tensor:
        """For each entry of the padded heads, its rank in its head; below 0 at padding, which is on the left.

        The ranks are computed in decode, since the length of the longest head must be read from the GPU.
        """
        width = int(self._lengths.max())
        return torch.arange(width, device=self._lengths.device) - (width - self._lengths[..., None])

    @cached_property
    def real(self) -> torch.Tensor:
        """Which entries of the padded heads are not padding: boolean, shape (B, Hkv, longest head)."""
        return self._ranks >= 0

    @cached_property
    def places(self) -> torch.Tensor:
        """For each entry of the padded heads, its index among all stored entries, shape (B, Hkv, longest head)."""
        stored = self.keys.shape[1] * self.keys.shape[2]
        begins = (self._lengths.cumsum(1) - self._lengths)[..., None]
        places = (begins + self._ranks.clamp(min=0)).clamp(max=stored - 1)  # the last head may be empty
        return places + torch.arange(len(places), device=places.device)[:, None, None] * stored

    def by_head(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the prompt's (keys, values, which entries are real), with each head padded to the longest."""
        keys, values = (part.flatten(0, 2)[self.places] for part in (self.keys, self.values))
        return keys, values, self.real

    def visible(self, more: int) -> torch.Tensor:
        """Return which entries of the padded heads are not padding: boolean, shape (B, Hkv, entries).

        `more` is the number of entries that will be added before the mask is used; they are real.
        """
        fresh = self.new_keys.shape[2] + more
        return torch.cat([self.real, self.real.new_ones(*self.real.shape[:2], fresh)], dim=-1)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_args: Any, **_kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add new entries to every head; return all (keys, values), padded, each of shape (B, Hkv, entries, d)."""
        self.new_keys = torch.cat([self.new_keys, key_states], dim=-2)
        self.new_values = torch.cat([self.new_values, value_states], dim=-2)
        pairs = zip(self.by_head(), (self.new_keys, self.new_values), strict=False)
        keys, values = (torch.cat(pair, dim=-2) for pair in pairs)
        return keys, values

    def get_seq_length(self) -> int:
        """Return the cache's length as transformers needs it: the mean number of entries per head."""
        return int(self.keys.shape[2] + self.new_keys.shape[2])


def across_heads(worth: torch.Tensor, entries: int, certain: int) -> torch.Tensor:
    """Return which KV-cache entries to keep if a layer's heads share one budget: boolean, shape (Hkv, S), True if kept.

    The entries of all heads are ranked together. A tie goes to the head that has kept fewer entries so far, then to the
    earlier head. Within a head, it goes to the earlier position. So if more entries have the highest score than fit
    into the budget, the heads share it evenly. NVIDIA's kvpress leaves the order of ties to `topk`.

    Parameters
    ----------
    worth
        Score of each entry, shape (Hkv heads, S entries).
    entries
        Mean number of entries to keep per head.
    certain
        Smallest number of entries that each head keeps (Ada-KV's safeguard).
    """
    worth = worth.masked_fill(highest(worth, certain), torch.inf)
    ordered = worth.sort(dim=-1, descending=True, stable=True)
    chosen = highest(ordered.values.T.reshape(1, -1), entries * len(worth))  # the best of all heads, the second best, …
    return torch.zeros_like(worth, dtype=torch.bool).scatter(1, ordered.indices, chosen.view(-1, len(worth)).T)
