"""Seeing queries and keys of chosen layers without eager attention and without a line of modelling code.

Every modelling file of transformers asks one registry, `ALL_ATTENTION_FUNCTIONS`, for the active attention function.
For the length of a block that entry is wrapped; the wrapper sees queries and keys after norms and rotary embedding,
whatever projections, partial rotation or scaling the model uses, and hands them on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Attention:
    """What one layer's attention was given in prefill.

    Attributes
    ----------
    query
        After rotation, shape (B, H, S, d).
    key, value
        After rotation, shape (B, Hkv, S, d); each serves H / Hkv query heads.
    mask
        As the model made it: None (causal), (B, 1, S, S) boolean or additive, or (B, S) for flash attention.
    scaling
        What query-key products are multiplied by.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    scaling: float

    def of_last_queries(self, count: int = 1) -> torch.Tensor:
        """Return the attention of the last `count` prompt positions, computed anew.

        Returns
        -------
        torch.Tensor
            Softmax in float32, shape (B, H, count, S): O(H·count·S), never S×S.
        """
        batch, heads, length, size = self.query.shape
        groups = self.key.shape[1]
        query = (self.query[:, :, length - count :].float() * self.scaling).reshape(batch, groups, -1, size)
        logits = query @ self.key.float().transpose(-1, -2)  # (B, Hkv, H / Hkv · count, S)
        return self._masked(logits.view(batch, heads, count, length), count).softmax(-1)

    def _masked(self, logits: torch.Tensor, count: int) -> torch.Tensor:
        """Hide, in place, what each of the last `count` queries does not see."""
        length = logits.shape[-1]
        if self.mask is not None and self.mask.dim() == 4:
            rows = self.mask[:, :, -count:, :length]
            return logits.masked_fill_(~rows, -torch.inf) if rows.dtype == torch.bool else logits.add_(rows)
        later = torch.ones(count, count, dtype=torch.bool, device=logits.device).triu(1)
        logits[..., length - count :].masked_fill_(later, -torch.inf)
        return logits if self.mask is None else logits.masked_fill_(~self.mask[:, None, None, :].bool(), -torch.inf)


@contextmanager
def attention_watched(
    implementation: str, looks: Mapping[nn.Module, Callable[[Attention], None]]
) -> Iterator[Callable[[], None]]:
    """Call `looks[module]` with what each of these attention modules is given in prefill, before it attends.

    Parameters
    ----------
    implementation
        Name of the active attention implementation (`sdpa`, `eager`, `flash_attention_2`).
    looks
        By attention module; single-token calls (decode) are not shown.

    Yields
    ------
    Callable
        Takes the wrapper off before the block ends: to be called once all is seen, so that decode pays nothing.
    """
    local = _registry()._local_mapping
    watched = _Watched(implementation, looks, local.get(implementation))

    def take_off() -> None:
        watched.done = True
        top = local.get(implementation)
        while isinstance(top, _Watched) and top.done:  # also those that ended while another lay on top of them
            top = top.below
        if top is None:
            local.pop(implementation, None)
        else:
            local[implementation] = top

    local[implementation] = watched
    try:
        yield take_off
    finally:
        take_off()


def _registry() -> Any:
    """Return transformers' attention functions: its import takes seconds, which listing methods can do without."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    return ALL_ATTENTION_FUNCTIONS


class _Watched:
    """What stands in for an attention function: looks, then attends as what lies below it does."""

    def __init__(self, implementation: str, looks: Mapping[nn.Module, Callable[[Attention], None]], below: Any) -> None:
        self.looks = looks
        self.below = below
        self.done = False
        # "eager" is registered nowhere: each modelling file has its own function, found in the calling module's file.
        # What is registered under that name all the same is the wrapper of a block around this one.
        eager = implementation == "eager" and below is None
        self.function = None if eager else _registry()[implementation]

    def __call__(
        self, module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any, **kwargs: Any
    ) -> Any:
        look = self.looks.get(module)
        if look is not None and not self.done and query.shape[2] > 1:
            mask = rest[0] if rest else kwargs["attention_mask"]
            look(Attention(query, key, value, mask, kwargs.get("scaling") or query.shape[-1] ** -0.5))
        attend = self.function or sys.modules[type(module).__module__].eager_attention_forward
        return attend(module, query, key, value, *rest, **kwargs)
