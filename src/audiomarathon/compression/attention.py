"""Read the queries and keys of chosen attention layers, without eager attention or copies of modelling code.

Every modelling file of transformers looks up its attention function in one registry, `ALL_ATTENTION_FUNCTIONS`. We wrap
the active entry for the length of a `with` block. The wrapper sees queries and keys after norms and rotary embedding,
whatever projections, partial rotation or scaling the model uses. Then it calls the wrapped function.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from audiomarathon.models.kernels import products
from audiomarathon.models.prefill_chunks import NOW

_WRAPPERS: dict[str, Any] = ALL_ATTENTION_FUNCTIONS._local_mapping  # these entries win over the library's functions


@dataclass(frozen=True)
class Attention:
    """Arguments of one layer's attention, in prefill or for one new token.

    B is the number of samples, H of query heads, Hkv of key heads, S of prompt tokens, d the size of a head.

    Attributes
    ----------
    query
        Queries after the rotary embedding, shape (B, H, S, d).
    key, value
        Keys after the rotary embedding, and values, each of shape (B, Hkv, S, d). H / Hkv query heads share a key head.
    mask
        The model's attention mask: None (causal), (B, 1, S, S) boolean or additive, or (B, S) for flash attention.
    scaling
        Factor by which query-key products are multiplied.
    softcap
        Bound of the query-key products, applied by tanh; None without a bound.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    scaling: float
    softcap: float | None = None

    def of_sample(self, row: int, begin: int = 0) -> Attention:
        """Return the arguments for one sample, without its padding.

        The sample is a row of the batch, and its prompt begins at position `begin`.
        """
        if begin == 0 and len(self.query) == 1:
            return self
        mask = self.mask
        if mask is not None:
            sample_mask = mask[min(row, len(mask) - 1)][None]
            mask = sample_mask[..., begin:, begin:] if mask.dim() == 4 else sample_mask[:, begin:]
        query, key, value = (part[row : row + 1, :, begin:] for part in (self.query, self.key, self.value))
        return replace(self, query=query, key=key, value=value, mask=mask)

    def of_last_queries(self, count: int = 1) -> torch.Tensor:
        """Recompute the attention weights of the last `count` prompt positions.

        Returns
        -------
        torch.Tensor
            Softmax weights in float32, shape (B, H, count, S). Memory is O(H·count·S), never S×S.
        """
        return self.of_queries(self.query.shape[2] - count, count)

    def of_queries(self, start: int, count: int) -> torch.Tensor:
        """Recompute the attention weights of `count` queries, the first at position `start`.

        Returns
        -------
        torch.Tensor
            Softmax weights in float32, shape (B, H, count, seen). `seen` counts the keys up to the last query's
            position, since no query attends to later keys.
        """
        batch, heads, length, size = self.query.shape
        seen = self.key.shape[2] - length + start + count
        query = self.query[:, :, start : start + count].reshape(batch, self.key.shape[1], -1, size)
        logits = products(query, self.key[:, :, :seen], self.scaling)  # (B, Hkv, H / Hkv · count, seen)
        if self.softcap is not None:
            logits = (logits / self.softcap).tanh() * self.softcap
        return self._masked(logits.view(batch, heads, count, seen), start).softmax(-1)

    def _masked(self, logits: torch.Tensor, start: int) -> torch.Tensor:
        """Set the logits of hidden keys (those that a query may not attend to) to −∞, in place; return the logits.

        The first query is at position `start`.
        """
        count, seen = logits.shape[-2:]
        if self.mask is not None and self.mask.dim() == 4:
            rows = self.mask[:, :, start : start + count, :seen]
            return logits.masked_fill_(~rows, -torch.inf) if rows.dtype == torch.bool else logits.add_(rows)
        later = torch.ones(count, count, dtype=torch.bool, device=logits.device).triu(1)
        logits[..., seen - count :].masked_fill_(later, -torch.inf)
        if self.mask is None:
            return logits
        return logits.masked_fill_(~self.mask[:, None, None, :seen].bool(), -torch.inf)


@contextmanager
def attention_watched(
    implementation: str, callbacks: Mapping[nn.Module, Callable[[Attention], None]], *, decode: bool = False
) -> Iterator[None]:
    """Inside the `with` block, call `callbacks[module]` with a module's attention arguments before the module attends.

    Parameters
    ----------
    implementation
        Name of the active attention implementation (`sdpa`, `eager`, `flash_attention_2`).
    callbacks
        Function to call for each attention module. If prefill runs in chunks, it is called once, in the last chunk,
        with the queries of all chunks; in a layer with a sliding window, with those of the last chunk.
    decode
        Whether to watch decode steps (calls with a single query) too. If not, each function is called once; after all
        have been called, the wrapper is removed, so that decode is not slowed.
    """
    wrapper = _Wrapper(implementation, callbacks, decode=decode)
    _WRAPPERS[implementation] = wrapper
    try:
        yield
    finally:
        wrapper.remove()


class _Wrapper:
    """Wrapper of an attention function: calls the module's callback, then the wrapped function."""

    def __init__(
        self, implementation: str, callbacks: Mapping[nn.Module, Callable[[Attention], None]], *, decode: bool
    ) -> None:
        self.implementation = implementation
        self.callbacks = dict(callbacks)
        self.decode = decode
        self.queries: list[torch.Tensor] = []  # queries of the chunks so far
        self.outer = _WRAPPERS.get(implementation)
        # "eager" has no entry, so this is None: each modelling file defines its own eager function, which is looked up
        # in the file of the calling module.
        self.function = ALL_ATTENTION_FUNCTIONS.get(implementation)

    def __call__(
        self, module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any, **kwargs: Any
    ) -> Any:
        chunk = NOW.get()
        if module in self.callbacks and chunk is not None and not chunk.last:
            self.queries += [] if chunk.window else [query]
        elif module in self.callbacks and (self.decode or chunk is not None or query.shape[2] > 1):
            mask = rest[0] if rest else kwargs["attention_mask"]
            scaling = kwargs.get("scaling") or query.shape[-1] ** -0.5
            whole = query
            if chunk is not None and self.queries:
                whole = torch.cat([*self.queries, query], dim=2)
                mask = None if chunk.real is None else chunk.real.to(query.device)  # on another GPU with a device map
                self.queries.clear()
            self.callbacks[module](Attention(whole, key, value, mask, scaling, kwargs.get("softcap")))
            if not self.decode:
                del self.callbacks[module]
                if not self.callbacks:
                    self.remove()
        attend = self.function or sys.modules[type(module).__module__].eager_attention_forward
        return attend(module, query, key, value, *rest, **kwargs)

    def remove(self) -> None:
        """Drop this wrapper's callbacks, and remove it from transformers' registry of attention functions.

        Wrappers may be nested. As long as the outermost wrapper has no callbacks left, replace it by the function that
        it wraps. So this wrapper stays registered until the wrappers around it are done.
        """
        self.callbacks.clear()
        top = _WRAPPERS.get(self.implementation)
        while isinstance(top, _Wrapper) and not top.callbacks:
            top = top.outer
        if top is None:
            _WRAPPERS.pop(self.implementation, None)
        else:
            _WRAPPERS[self.implementation] = top
