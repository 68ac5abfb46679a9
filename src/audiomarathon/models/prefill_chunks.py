"""Prefill in chunks: each layer of the LLM processes the prompt in parts, so that memory grows little with its length.

A layer's feed-forward network makes several times as many numbers as its input has. In chunks, only the hidden states
and the KV cache are as long as the prompt. We cut *inside* a layer: layer 0 processes all chunks one after another,
then layer 1, and so on. So every layer gets its whole input, as without chunks, and methods that choose tokens or
KV-cache entries between two layers work unchanged. A chunk attends to its own keys and all earlier keys of its layer.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention as sdpa
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
    """The chunk of the prompt that a layer processes now.

    Attributes
    ----------
    last
        Whether this is the prompt's last chunk.
    real
        Shape (B, S'): False at padding and at fillers, which make samples that keep fewer tokens as long as the others;
        None if there are none. S' is the layer's number of tokens.
    window
        Length of the layer's sliding attention window in tokens; 0 if it has none.
    """

    last: bool
    real: torch.Tensor | None
    window: int


#: The chunk that a layer processes now; None if prefill does not run in chunks.
NOW: ContextVar[Part | None] = ContextVar("chunk", default=None)


class LaterMask:
    """Placeholder for the attention mask of a whole prompt, whose size would be the square of the prompt's length.

    From the placeholder, each layer makes the mask's rows for one chunk at a time.
    """


@contextmanager
def prefill_in_chunks(lm: Any, inputs: Inputs, trace: Trace, size: int) -> Iterator[None]:
    """Inside the `with` block, make the LLM's layers process a call's prompt in chunks of `size` tokens."""
    theirs, decoder = modelling_file(lm.decoder), lm.decoder
    flash = "flash" in lm.attn_implementation
    whole = inputs.prompt_tokens  # read before the call, since it waits for the GPU
    always = "eager" in lm.attn_implementation or len(whole) > 1

    def later(make: Callable[..., Any], *, sliding: bool) -> Callable[..., Any]:
        def made(*args: Any, **kwargs: Any) -> Any:
            if flash or kwargs["inputs_embeds"].shape[1] == 1:
                return make(*args, **kwargs)
            return LaterMask() if always or sliding else None

        return made

    norm, norms = decoder.norm, decoder.norm.forward

    def normed(states: torch.Tensor) -> Any:
        if states.shape[-2] <= size:
            return norms(states)
        return _joined(map(norms, torch.split(states, size, dim=-2)), states)

    with ExitStack() as stack:
        for name in ("create_causal_mask", "create_sliding_window_causal_mask"):
            if make := getattr(theirs, name, None):
                stack.enter_context(patched_attribute(theirs, name, later(make, sliding="sliding" in name)))
        for index, layer in enumerate(lm.decoder_layers):
            lengths = [row[index] for row in trace.row_lengths or ()] or whole
            forward = _InChunks(lm, index, size, lengths, partial(places_in_prompt, inputs, trace, index))
            stack.enter_context(patched_attribute(layer, "forward", forward))
        stack.enter_context(patched_attribute(norm, "forward", normed))
        yield


@contextmanager
def attending_in_chunks(implementation: str) -> Iterator[None]:
    """Make sdpa attend in chunks inside the `with` block, without copying keys that several query heads share.

    With a mask, transformers repeats keys and values for each query head; these copies would be the largest tensors of
    all. If each token attends to all earlier tokens, half precisions on a GPU need no mask, and the fast kernels accept
    them, since those kernels align queries with the last keys. Enter this block before any code that watches attention,
    so that the watching code wraps this.
    """
    inner = ALL_ATTENTION_FUNCTIONS.get(implementation)
    functions: dict[str, Any] = ALL_ATTENTION_FUNCTIONS._local_mapping  # these entries win over the library's functions
    before = functions.get(implementation)

    def attend(
        module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any, **more: Any
    ) -> Any:
        mask = rest[0] if rest else more["attention_mask"]
        heads, tokens, keys = key.shape[1], query.shape[2], key.shape[2]
        if NOW.get() is None or (mask is None and tokens == keys):
            return inner(module, query, key, value, *rest, **more)
        scale = more.get("scaling")
        if mask is None:
            if query.is_cuda and query.dtype in (torch.float16, torch.bfloat16):
                last = causal_lower_right(tokens, keys)
                return sdpa(query, key, value, last, scale=scale, enable_gqa=True).transpose(1, 2).contiguous(), None
            mask = query.new_ones(tokens, keys, dtype=torch.bool).tril_(keys - tokens)
        rows = query.view(query.shape[0], heads, -1, *query.shape[2:]).unbind(2)  # one query head for each key head
        done = [sdpa(row, key, value, mask, scale=scale) for row in rows]
        return torch.stack(done, dim=2).flatten(1, 2).transpose(1, 2).contiguous(), None

    if implementation != "sdpa":
        yield
        return
    functions[implementation] = attend
    try:
        yield
    finally:
        functions.pop(implementation) if before is None else functions.update({implementation: before})


class _InChunks:
    """A layer's replacement for `forward` during prefill; after it, the layer has its original `forward` again.

    `lengths` has each sample's number of tokens in this layer. `places` is a function that takes a mask of padding and
    fillers (which make samples with fewer tokens as long as the others), and returns the tokens' positions in the
    prompt.
    """

    def __init__(
        self, lm: Any, index: int, size: int, lengths: Sequence[int], places: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        self.how, self.size, self.lengths, self.places = lm.attn_implementation, size, lengths, places
        self.layer, config = lm.decoder_layers[index], lm.decoder.config
        self.whole, self.signature = self.layer.forward, inspect.signature(self.layer.forward)
        self.window, self.shares = window_of(config, index) or 0, source_of(config, index) != index

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = call_of(self.signature, args, kwargs)
        states: torch.Tensor = call["hidden_states"]
        width, keys = states.shape[-2], _Keys(call["past_key_values"], states.shape[-2])
        places = real = None
        if min(self.lengths) < width or self.window:  # else each token sees all tokens before it
            begins = torch.tensor([width - length for length in self.lengths])[:, None, None, None]
            filler = (torch.arange(width) < begins).to(states.device)
            places, real = self.places(filler), ~filler[:, 0, 0]

        def parts() -> Iterator[torch.Tensor]:
            for begin in range(0, width, self.size):
                end = keys.end = min(begin + self.size, width)
                given = {name: _cut(name, value, begin, end) for name, value in call.items()}
                given |= {"past_key_values": keys, "attention_mask": self._mask(places, real, begin, end, states)}
                if self.shares:  # an earlier layer's keys, which are complete
                    shared = call["shared_kv_states"].items()
                    given["shared_kv_states"] = {kind: [part[:, :, :end] for part in both] for kind, both in shared}
                token = NOW.set(Part(end == width, real, self.window))
                try:
                    done = self.whole(**given)
                finally:
                    NOW.reset(token)
                yield done

        joined = _joined(parts(), states)
        self.layer.forward = self.whole  # decode steps need none of this
        return joined

    def _mask(
        self, places: torch.Tensor | None, real: torch.Tensor | None, begin: int, end: int, like: torch.Tensor
    ) -> torch.Tensor | None:
        """Return the attention mask of a chunk (`begin` to `end`) over the keys up to `end`; None if none is needed."""
        if "flash" in self.how:  # flash attention aligns queries with the last key, and knows the window
            return None if real is None else real[:, :end]
        if places is None or real is None:
            if self.how != "eager":
                return None  # without a mask a token sees all before it
            return like.new_full((1, 1, end - begin, end), -torch.inf).triu_(begin + 1)
        rows, columns, order = places[..., begin:end].mT, places[..., :end], torch.arange(end, device=like.device)
        visible = (columns <= rows) & real[:, None, None, :end]
        if self.window:
            visible &= rows - columns < self.window
        # A row without a visible key would give NaN, which would spread. No token sees a filler.
        visible |= order[begin:, None] == order
        if self.how != "eager":
            return visible
        return like.new_zeros(visible.shape).masked_fill_(~visible, torch.finfo(like.dtype).min)


class _Keys:
    """Stands in for a layer's KV cache in prefill: collects the keys and values of all chunks, then fills the real
    cache.

    So the cache has the same entries as without chunks, even if it keeps only the entries within a sliding window.
    `end` is the end of the present chunk.
    """

    def __init__(self, cache: Any, width: int) -> None:
        self.cache, self.width, self.end = cache, width, 0
        self.both: tuple[torch.Tensor, ...] = ()

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer: int, *args: Any, **kwargs: Any) -> Any:
        """Store a chunk's keys and values; return those of all chunks so far, for the layer's attention.

        With the last chunk, put all keys and values into the real cache, and return what its `update` returns.
        """
        if not self.both:
            self.both = tuple(part.new_empty(*part.shape[:2], self.width, part.shape[-1]) for part in (keys, values))
        for held, new in zip(self.both, (keys, values), strict=True):
            held[:, :, self.end - new.shape[-2] : self.end] = new
        if self.end < self.width:
            return tuple(held[:, :, : self.end] for held in self.both)
        return self.cache.update(*self.both, layer, *args, **kwargs)


#: Arguments of a layer that have an item for each token, as {name: dimension of the tokens}.
_ALONG = {"hidden_states": -2, "per_layer_input": -2, "position_ids": -1}


def _cut(name: str, value: Any, begin: int, end: int) -> Any:
    """Return an argument of a layer, cut to the tokens from `begin` to `end` if it has an item for each token.

    Other arguments are returned unchanged.
    """
    if name == "position_embeddings":
        return tuple(part[..., begin:end, :] for part in value)
    return value.narrow(_ALONG[name], begin, end - begin) if name in _ALONG and value is not None else value


def _joined(parts: Iterable[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    """Join the outputs of chunks along the tokens, into one tensor of the shape of `like` (the whole prompt)."""
    joined, end = like.new_empty(0), 0
    for part in parts:
        if not end:
            joined = part.new_empty(like.shape)  # on the device of the layer
        joined[..., end : end + part.shape[-2], :] = part
        end += part.shape[-2]
    return joined
