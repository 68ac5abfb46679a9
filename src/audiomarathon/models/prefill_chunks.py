"""Prefill in chunks: each layer of the LLM takes the prompt in parts, so that memory grows little with its length.

A layer's feed-forward network makes several times as many numbers as its input has. In chunks, only the hidden states
and the cache are as long as the prompt. We cut *inside* a layer: layer 0 takes all chunks one after another, then layer
1, and so on. So every layer's input is there as a whole, as without chunks, and whatever chooses tokens or entries
between two layers works as it is. A chunk attends to its own and all earlier keys of its layer.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from audiomarathon.models.layers import call_of, source_of, window_of
from audiomarathon.models.loading import patched_attribute
from audiomarathon.models.static_decode import places_in_prompt
from audiomarathon.models.tower_windows import modelling_file

if TYPE_CHECKING:
    from audiomarathon.models.prompt import Inputs
    from audiomarathon.models.trace import Trace


@dataclass(frozen=True)
class Part:
    """The chunk that a layer takes now.

    Attributes
    ----------
    last
        Whether it is the prompt's last.
    real
        Shape (B, S'): False at padding and fillers; None if there are none. S' is the layer's number of tokens.
    window
        Span of the layer's sliding window; 0 without a window.
    """

    last: bool
    real: torch.Tensor | None
    window: int


#: The chunk that is being computed; None outside of chunks.
NOW: ContextVar[Part | None] = ContextVar("chunk", default=None)


class LaterMask:
    """Stands for the mask of a whole prompt, which would be as large as the square of its length.

    Each layer makes the rows of one chunk at a time.
    """


@contextmanager
def prefill_in_chunks(lm: Any, inputs: Inputs, trace: Trace, size: int) -> Iterator[None]:
    """Inside the block, the LLM's layers take the prompt in chunks of `size` tokens, in the one prefill of a call."""
    theirs, decoder = modelling_file(lm.decoder), lm.decoder
    flash = "flash" in lm.attn_implementation
    always = "eager" in lm.attn_implementation or len(inputs.prompt_tokens) > 1

    def later(make: Callable[..., Any], *, sliding: bool) -> Callable[..., Any]:
        def made(*args: Any, **kwargs: Any) -> Any:
            if flash or kwargs["inputs_embeds"].shape[1] == 1:
                return make(*args, **kwargs)
            return LaterMask() if always or sliding else None

        return made

    with ExitStack() as stack:
        for name in ("create_causal_mask", "create_sliding_window_causal_mask"):
            if make := getattr(theirs, name, None):
                stack.enter_context(patched_attribute(theirs, name, later(make, sliding="sliding" in name)))
        facts = _Facts(lm, inputs, trace, size)
        for index, layer in enumerate(lm.decoder_layers):
            stack.enter_context(patched_attribute(layer, "forward", _InChunks(facts, index, layer)))
        whole = decoder.norm.forward
        stack.enter_context(
            patched_attribute(
                decoder.norm, "forward", lambda states: _joined((whole(one) for one in states.split(size, -2)), states)
            )
        )
        yield


@contextmanager
def attending_in_chunks(implementation: str) -> Iterator[None]:
    """Inside the block, sdpa attends in chunks without copies of the keys that several query heads share.

    With a mask, transformers repeats keys and values for each query head, which would be the largest tensors of all.
    Enter this before anything watches attention, so that it stays below.
    """
    inner = ALL_ATTENTION_FUNCTIONS.get(implementation)
    own: dict[str, Any] = ALL_ATTENTION_FUNCTIONS._local_mapping  # these entries win over the library's functions
    before = own.get(implementation)

    def attend(
        module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any, **more: Any
    ) -> Any:
        mask = rest[0] if rest else more["attention_mask"]
        if NOW.get() is None or mask is None:
            return inner(module, query, key, value, *rest, **more)
        scale = more.get("scaling")
        heads = key.shape[1]
        rows = query.view(query.shape[0], heads, -1, *query.shape[2:]).unbind(2)  # one query head for each key head
        done = [nn.functional.scaled_dot_product_attention(row, key, value, mask, scale=scale) for row in rows]
        return torch.stack(done, dim=2).flatten(1, 2).transpose(1, 2).contiguous(), None

    if implementation != "sdpa":
        yield
        return
    own[implementation] = attend
    try:
        yield
    finally:
        own.pop(implementation) if before is None else own.update({implementation: before})


class _Facts:
    """What all layers share: the size of a chunk, and where each layer's tokens are in the prompt."""

    def __init__(self, lm: Any, inputs: Inputs, trace: Trace, size: int) -> None:
        self.lm, self.inputs, self.trace, self.size = lm, inputs, trace, size
        self._known: tuple[Any, torch.Tensor, torch.Tensor, bool] | None = None

    def places(self, index: int, width: int) -> tuple[torch.Tensor, torch.Tensor, bool]:
        """Return the places of a layer's tokens (B, S'), which are real (B, S'), and whether all are.

        Equal layers follow one another, so the last answer is kept.
        """
        lengths = [row[index] for row in self.trace.row_lengths or ()] or self.inputs.prompt_tokens
        if self._known is None or self._known[0] != (width, *lengths):
            begins = torch.tensor([width - one for one in lengths], device=self.inputs.audio_mask.device)
            filler = (torch.arange(width, device=begins.device) < begins[:, None])[:, None, None]
            places = places_in_prompt(self.inputs, self.trace, index, filler)
            self._known = (width, *lengths), places[:, 0, 0], ~filler[:, 0, 0], min(lengths) == width
        return self._known[1:]


class _InChunks:
    """A layer's `forward`, until its prefill is done: then the layer has its own again."""

    def __init__(self, facts: _Facts, index: int, layer: nn.Module) -> None:
        self.facts, self.index, self.layer, self.whole = facts, index, layer, layer.forward
        config = facts.lm.decoder.config
        self.signature = inspect.signature(layer.forward)
        self.window, self.shares = window_of(config, index) or 0, source_of(config, index) != index

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = call_of(self.signature, args, kwargs)
        states: torch.Tensor = call["hidden_states"]
        width = states.shape[-2]
        places, real, unfilled = self.facts.places(self.index, width)
        places, real = places.to(states.device), real.to(states.device)  # layers may be on several GPUs
        cache, keys = call.get("past_key_values"), _Keys(width)
        shared = call.get("shared_kv_states")

        def parts() -> Iterator[torch.Tensor]:
            for begin in range(0, width, self.facts.size):
                end = min(begin + self.facts.size, width)
                given = {name: _cut(name, value, begin, end) for name, value in call.items()}
                given["attention_mask"] = self._mask(places, real, unfilled, begin, end, states.dtype)
                if cache is not None:
                    given["past_key_values"] = keys.of(cache, end)
                if self.shares and shared is not None:  # an earlier layer's keys, which are complete
                    given["shared_kv_states"] = {
                        kind: tuple(part[:, :, :end] for part in both) for kind, both in shared.items()
                    }
                token = NOW.set(Part(end == width, None if unfilled else real, self.window))
                try:
                    done = self.whole(**given)
                finally:
                    NOW.reset(token)
                yield done

        joined = _joined(parts(), states)
        self.layer.forward = self.whole  # decode steps need none of this
        return joined

    def _mask(
        self, places: torch.Tensor, real: torch.Tensor, unfilled: bool, begin: int, end: int, dtype: torch.dtype
    ) -> torch.Tensor | None:
        """Return which keys up to `end` the tokens from `begin` on see, in the kind that the attention takes."""
        how = self.facts.lm.attn_implementation
        if "flash" in how:  # it counts from the last key, and knows the window
            return None if unfilled else real[:, :end]
        if not begin and unfilled and not self.window and how != "eager":
            return None  # without a mask the model attends causally
        if unfilled and not self.window:
            return torch.full((1, 1, end - begin, end), -torch.inf, dtype=dtype, device=places.device).triu_(begin + 1)
        rows, columns = places[:, begin:end, None], places[:, None, :end]
        visible = (columns <= rows) & real[:, None, :end]
        if self.window:
            visible &= rows - columns < self.window
        # A row without a visible key would give NaN, which would spread. No token sees a filler.
        own = torch.arange(end, device=rows.device)
        visible |= own[begin:, None] == own
        if how != "eager":
            return visible[:, None]
        return torch.zeros(visible.shape, dtype=dtype, device=rows.device).masked_fill(
            ~visible, torch.finfo(dtype).min
        )[:, None]


class _Keys:
    """Collects the keys and values of a layer's chunks, and gives them to the cache when they are complete.

    So the cache holds what it holds without chunks, also where it keeps only what a window sees.
    """

    def __init__(self, width: int) -> None:
        self.width, self.end, self.cache = width, 0, None
        self.both: tuple[torch.Tensor, ...] = ()

    def of(self, cache: Any, end: int) -> _Keys:
        """Prepare for the chunk that ends at `end`."""
        self.cache, self.end = cache, end
        return self

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer: int, *args: Any, **kwargs: Any) -> Any:
        """Return the keys and values up to this chunk's end."""
        count = keys.shape[-2]
        if count == self.width:
            return self.cache.update(keys, values, layer, *args, **kwargs)  # type: ignore[attr-defined]
        if not self.both:
            self.both = tuple(part.new_empty(*part.shape[:2], self.width, part.shape[-1]) for part in (keys, values))
        for held, new in zip(self.both, (keys, values), strict=True):
            held[:, :, self.end - count : self.end] = new
        if self.end == self.width:
            return self.cache.update(*self.both, layer, *args, **kwargs)  # type: ignore[attr-defined]
        return tuple(held[:, :, : self.end] for held in self.both)


def _cut(name: str, value: Any, begin: int, end: int) -> Any:
    """Cut an argument of a layer to the tokens from `begin` to `end`, if it has an item for each token."""
    if name == "position_embeddings":
        return tuple(part[..., begin:end, :] for part in value)
    if name in ("hidden_states", "per_layer_input") and value is not None:
        return value[..., begin:end, :]
    return value[..., begin:end] if name == "position_ids" and value is not None else value


def _joined(parts: Iterator[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    """Join the outputs of chunks along the tokens; a single one is returned as it is."""
    done, end = torch.empty(0), 0
    for part in parts:
        if part.shape == like.shape:
            return part
        if not end:
            done = part.new_empty(*like.shape[:-1], part.shape[-1])
        done[..., end : end + part.shape[-2], :] = part
        end += part.shape[-2]
    return done
