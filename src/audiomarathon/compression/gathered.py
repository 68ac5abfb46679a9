"""Find which KV-cache entries a press of another library kept, without its help: recognise entries by their bits.

Most presses only gather: the keys and values that they leave are bit-identical to some that prefill made. So we take a
fingerprint of each entry when a layer attends in prefill, and compare it with the cache's entries after the call. This
way keeps no key or value in memory, and needs no GPU sync before the reply is complete.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from audiomarathon.compression.attention import Attention, attention_watched
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.layers import has_windows, source_of
from audiomarathon.models.trace import Trace


class Gathered:
    """Watches the prefill of a prompt of S tokens, and then tells which of its KV-cache entries a press kept."""

    def __init__(self, lm: AudioLM, prompt: int) -> None:
        config: Any = lm.decoder.config
        self.lm, self.prompt, self.lengths = lm, prompt, list[int]()
        self.cache: Any = None
        self.before: dict[int, torch.Tensor] = {}
        self.layers: list[int] = []
        self.why = ""
        if lm.cross:
            self.why = "an encoder-decoder keeps its audio in the cross-attention's cache"
        elif has_windows(config):
            self.why = "this model's sliding windows remove entries too"
        else:
            self.layers = [index for index in range(len(lm.decoder_layers)) if source_of(config, index) == index]

    @contextmanager
    def watching(self, trace: Trace) -> Iterator[None]:
        """Take the fingerprints of the KV-cache entries of one prefill inside the `with` block.

        Also note each layer's number of entries after the press.
        """
        if self.why:
            yield
            return

        def see(index: int, given: Attention) -> None:
            with trace.looking(self.lm.clock):
                self.before[index] = fingerprints(given.key, given.value)

        def note(_module: Any, _args: Any, kwargs: dict[str, Any]) -> None:
            if self.cache is not None:  # the first step of decode
                self.lengths = self._widths()
                handle.remove()
            self.cache = kwargs.get("past_key_values")

        modules = {self.lm.decoder_layers[index].self_attn: functools.partial(see, index) for index in self.layers}
        with ExitStack() as stack:
            handle = stack.enter_context(self.lm.decoder.register_forward_pre_hook(note, with_kwargs=True))
            stack.enter_context(attention_watched(self.lm.attn_implementation, modules))  # type: ignore[arg-type]
            yield

    def kept(self) -> list[torch.Tensor] | None:
        """Return which of the prompt's KV-cache entries remain in each layer: boolean, shape (B, Hkv, S).

        B is the number of samples, Hkv of key heads, S of prompt tokens. Return None if this is unknown, and set `why`
        to the reason. Call it after the `generate` call, while the press is still applied.
        """
        if not self.why and len(self.before) < len(self.layers):
            self.why = "it attends in its own way"
        elif any(before.shape[-1] != self.prompt for before in self.before.values()):
            self.why = "it drops tokens before they have entries"
        masks = []
        widths = [] if self.why else self.lengths or self._widths()
        for index, width in zip(self.layers if widths else [], widths, strict=True):
            stored, before = self.cache.layers[index], self.before[index]
            if width < 0 or stored.keys.shape[2] < width:
                self.why = "its cache holds no plain keys and values, or loses entries in decode"
                break
            live = torch.ones(*before.shape[:2], width, dtype=torch.bool, device=before.device)
            masked = getattr(self.lm.decoder_layers[index].self_attn, "masked_key_indices", None)
            if masked is not None:  # so kvpress hides entries of single heads, and leaves them in the cache
                live[tuple(places.to(live.device) for places in masked)] = False
            after = fingerprints(stored.keys[:, :, :width], stored.values[:, :, :width]).to(before.device)
            kept = matched(before, after, live)
            if kept is None:
                self.why = "it changes keys or values, adds entries, or removes some in decode"
                break
            masks.append(kept)
        return None if self.why else masks

    def _widths(self) -> list[int]:
        """Return the present number of KV-cache entries of each layer.

        A layer's number is −1 if its cached keys are no tensor (B, Hkv, entries, d) with the B and Hkv of prefill.
        """
        widths = []
        for index in self.layers:
            layers = getattr(self.cache, "layers", ())
            keys: Any = getattr(layers[index], "keys", None) if index < len(layers) else None
            before = self.before.get(index, torch.empty(0))  # a layer may attend with its own code, which we cannot see
            plain = torch.is_tensor(keys) and keys.dim() == 4 and keys.shape[:2] == before.shape[:2]
            widths.append(int(keys.shape[2]) if plain else -1)
        return widths


def fingerprints(keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return a 64-bit hash of each KV-cache entry (its key and value), shape (B, Hkv, S): samples, heads, tokens.

    The hash is the sum of the words of key and value, each multiplied by a fixed odd number, modulo 2⁶⁴.
    """
    total = torch.zeros(keys.shape[:3], dtype=torch.int64, device=keys.device)
    for seed, part in enumerate((keys, values)):
        words = part.contiguous().view({1: torch.int8, 2: torch.int16, 4: torch.int32}[part.element_size()])
        random = torch.Generator().manual_seed(seed)
        factors = torch.randint(-(2**62), 2**62, (words.shape[-1],), generator=random) * 2 + 1
        total += (words * factors.to(words.device)).sum(-1)
    return total


def matched(before: torch.Tensor, after: torch.Tensor, live: torch.Tensor) -> torch.Tensor | None:
    """Return which KV-cache entries of `before` are still in the cache `after`: boolean, shape (B, Hkv, S).

    Both arguments hold the entries' fingerprints. Only entries of `after` at which `live` is True count. They may be in
    any order; equal entries are matched in order, each once. The result is None if an entry of `after` does not occur
    in `before`.
    """
    if before.shape == after.shape and ((before == after) | ~live).all():
        return live  # nothing moved, so the order tells equal entries apart
    order, places = before.sort(dim=-1, stable=True)
    kept = torch.zeros_like(before, dtype=torch.bool)
    for row, head in torch.cartesian_prod(*(torch.arange(size) for size in before.shape[:2])).tolist():
        entries = after[row, head][live[row, head]].sort().values
        turn = torch.arange(len(entries), device=entries.device) - torch.searchsorted(
            entries, entries
        )  # rank among equal entries
        spots = torch.searchsorted(order[row, head], entries) + turn
        within = spots.clamp(max=before.shape[-1] - 1)
        if not ((spots == within) & (order[row, head][within] == entries)).all():
            return None
        kept[row, head, places[row, head][within]] = True
    return kept
