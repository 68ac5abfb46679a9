"""The base class of KV presses, which shrink the KV cache.

In prefill, every layer attends to all tokens. After a layer's attention, its KV cache keeps the entries of audio tokens
with the highest scores, sorted by position; so decode takes less time and memory. Entries of text tokens are removed
only if the setting `scope` is `all`. Each sample of a batch is scored without its padding, so it keeps the entries that
it would keep alone; a sample that keeps fewer entries than another gets fillers on the left, like a shorter prompt.
"""

from __future__ import annotations

import bisect
import functools
import inspect
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from audiomarathon.compression.method import STATES_DROPPED_BY, Method, kept_count
from audiomarathon.errors import MethodError
from audiomarathon.models.layers import has_windows
from audiomarathon.models.trace import Trace

if TYPE_CHECKING:
    import torch
    from torch import nn

    from audiomarathon.compression.attention import Attention
    from audiomarathon.models.audio_lm import AudioLM
    from audiomarathon.models.prompt import Inputs


@dataclass(frozen=True)
class Cached:
    """Everything that a press may use to score one sample's KV cache in one layer: its S entries, and the attention.

    Padding of a batch is left out. H is the number of query heads, Hkv of key heads, S of entries, d the size of a
    head.

    Attributes
    ----------
    query
        Queries after the rotary embedding, shape (H, S, d).
    key, value
        Keys after the rotary embedding, and values, each of shape (Hkv, S, d).
    candidates
        Indices of the entries that may be removed, ascending, shape (N,): the entries of audio tokens, or with scope
        `all` every entry.
    attention
        The layer's :class:`Attention`, to recompute attention weights.
    rotation
        Cosines and sines that rotated this layer's queries and keys, each of shape (S, d_rotated).
    future_rotation
        Function that takes a number n, and returns the rotation of the first n positions after the prompt.
    layer, seed
        Index of the layer; seed of the sample.
    known
        The candidates as Python numbers; None if they are only on the GPU, as after a pruner.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    candidates: torch.Tensor
    attention: Attention
    rotation: tuple[torch.Tensor, torch.Tensor]
    future_rotation: Callable[[int], tuple[torch.Tensor, torch.Tensor]]
    layer: int
    seed: int
    known: Sequence[int] | None = None

    def before(self, entry: int) -> torch.Tensor:
        """Return the candidates (indices of entries that may be removed) below the index `entry`."""
        if self.known is None:
            return self.candidates[self.candidates < entry]  # waits for the GPU
        return self.candidates[: bisect.bisect_left(self.known, entry)]


#: Caveats for readers of a press's results, for its field `note`.
ONE_TOKEN = "a reply of one token comes from prefill, before the cache shrinks: it is base's by construction"
BY_HEAD = "the ratio holds on average over a layer's heads; each decode step pads every head to the longest"
#: When the heads of a layer share a budget, each head keeps at least this share of k: kvpress' default for Ada-KV.
SAFEGUARD = 0.2


@dataclass(frozen=True)
class KVPress(Method):
    """Base class of the methods that shrink the KV cache. A subclass only defines :meth:`score`.

    With `by_head = True`, the heads of a layer share one budget (Ada-KV): the entries of all heads are ranked together.
    """

    saves: ClassVar[str] = "KV cache, decode"
    needs: ClassVar[str] = "full attention"
    note: ClassVar[str] = ONE_TOKEN
    by_head: ClassVar[bool] = False
    static_decode: ClassVar[bool] = True
    chunked_prefill: ClassVar[bool] = True

    scope: str = "audio"

    @abstractmethod
    def score(self, cached: Cached) -> torch.Tensor:
        """Return the score of each KV-cache entry: the entries with the highest scores are kept.

        The scores are floats of shape (Hkv, S): key heads, entries.
        """

    def budgets(self, total: int, layers: int) -> list[int]:
        """Return how many KV-cache entries each layer keeps, as a list of `layers` numbers.

        `total` is the number of entries that may be removed.
        """
        return [kept_count(total, self.ratio)] * layers

    def check_config(self, config: Any) -> None:
        """Raise MethodError for an unknown scope, an encoder-decoder, or layers with a sliding window.

        A press does not shrink the cache of a layer with a sliding window.
        """
        if self.scope not in ("audio", "all"):
            raise MethodError(f"{self.key}: scope {self.scope!r} is not allowed; allowed: audio, all")
        if getattr(config, "is_encoder_decoder", False):
            raise MethodError(
                f"{self.key}: presses do not shrink the cross-attention's cache of an encoder-decoder; "
                f"allowed here: {STATES_DROPPED_BY}"
            )
        if has_windows(config):
            raise MethodError(
                f"{self.key}: presses do not shrink the caches of this model's sliding-window layers; "
                "allowed here: token pruning (`audiomarathon list methods`)"
            )

    def check(self, lm: AudioLM) -> None:
        """Raise MethodError if the press cannot work with a loaded model; with `by_head`, also for flash attention.

        Heads that keep different numbers of entries need a mask for each head, which flash attention does not take.
        """
        super().check(lm)
        if self.by_head and "flash" in lm.attn_implementation:
            raise MethodError(
                f"{self.key}: heads that keep different numbers of entries need a mask for each head, which "
                f"{lm.attn_implementation} does not support; allowed: ATTN_IMPLEMENTATION=sdpa or eager"
            )

    @contextmanager
    def applied_to(self, lm: AudioLM, inputs: Inputs, before: Trace | None = None) -> Iterator[Trace]:
        """Shrink each layer's KV cache in prefill, inside the `with` block; yield the method's report (trace).

        `before` is the trace of a token pruner that is applied before this press; None without a pruner.
        """
        trace, layers = before or Trace(tuple(inputs.audio_tokens)), len(lm.decoder_layers)
        befores = trace.row_lengths or tuple((length,) * layers for length in inputs.prompt_tokens)
        text = [whole - audio for whole, audio in zip(inputs.prompt_tokens, inputs.audio_tokens, strict=True)]
        afters = tuple(self._lengths(*facts) for facts in zip(text, befores, strict=True))
        if afters == befores:
            yield trace  # nothing to remove: no hook, so that ratio 0 is bit-identical to base
            return
        trace.expected_lengths = tuple(map(max, zip(*afters, strict=True)))
        trace.entries = afters
        squeeze = _Squeeze(self, lm, inputs, trace, befores, afters)
        with ExitStack() as stack:
            squeeze.attach(stack)
            yield trace
            squeeze.check()
            # With scope `all`, layers and heads keep different numbers of audio entries, so there is no single number.
            trace.kept_audio_tokens = tuple(
                None if total is None or self.scope != "audio" else kept_count(total, self.ratio)
                for total in trace.kept_audio_tokens
            )

    def _lengths(self, text: int, lengths: tuple[int, ...]) -> tuple[int, ...]:
        """Return a sample's number of KV-cache entries in each layer after this press.

        `lengths` has the numbers before it, and `text` is the number of text tokens.
        """
        totals = [length - text if self.scope == "audio" else length for length in lengths]
        kept = [self.budgets(total, len(lengths))[index] if total else 0 for index, total in enumerate(totals)]
        if any(not 0 <= budget <= total for budget, total in zip(kept, totals, strict=True)):
            most = f"from 0 to the number of entries that may be removed, {totals}"
            raise MethodError(f"{self.label}: budgets by layer are {kept}; allowed: {most}")
        return tuple(length - total + budget for length, total, budget in zip(lengths, totals, kept, strict=True))


class _Squeeze:
    """Shortens each layer's KV cache in one prefill, after the layer's attention.

    `before` and `after` hold each sample's number of entries in each layer, without padding.
    """

    def __init__(
        self,
        press: KVPress,
        lm: AudioLM,
        inputs: Inputs,
        trace: Trace,
        before: Sequence[Sequence[int]],
        after: Sequence[Sequence[int]],
    ) -> None:
        import torch

        self.press, self.lm, self.trace, self.before, self.after = press, lm, trace, before, after
        self.seeds, self.is_audio = inputs.seeds, inputs.audio_mask
        self.prompts = trace.prompts or tuple(inputs.prompt_tokens)
        self.text = [whole - audio for whole, audio in zip(inputs.prompt_tokens, inputs.audio_tokens, strict=True)]
        padding = [inputs.audio_mask.shape[1] - length for length in inputs.prompt_tokens]
        # Where the audio is in each sample's unpadded prompt. Read before the call, since it waits for the GPU.
        self.audio: list[torch.Tensor] = [
            row.nonzero().flatten() - pad for row, pad in zip(inputs.audio_mask, padding, strict=True)
        ]
        # Without a pruner, or if the pruner shortens the prompt itself, every layer holds the whole prompt.
        self.whole = trace.positions is None or trace.inputs is not None
        self.known = [spots.tolist() for spots in self.audio] if self.whole else None
        fillers = torch.tensor([[max(each) - count for count in each] for each in zip(*after, strict=True)])
        self.filled = [bool(each.any()) for each in fillers]  # by layer: whether any sample has fillers
        self.fillers = fillers.to(lm.device)
        self.checks: list[tuple[int, torch.Tensor]] = []  # (layer, (scores hold no NaN, nothing changed))

    def check(self) -> None:
        """Raise MethodError if scores hold NaN, or the press changed `candidates`.

        Called after the `generate` call: in prefill, this would wait for the GPU in each layer. All layers are read in
        one copy.
        """
        import torch

        flags = torch.stack([each.to(self.lm.device) for _layer, each in self.checks]).tolist() if self.checks else []
        for (layer, _flags), (no_nan, unchanged) in zip(self.checks, flags, strict=True):
            if not no_nan:
                raise MethodError(f"{self.press.label}: the scores of layer {layer} hold NaN; allowed: numbers")
            if not unchanged:
                raise MethodError(f"{self.press.label} changed `candidates` in place; only reading is allowed")

    def attach(self, stack: ExitStack) -> None:
        """Hook every layer until the given `stack` closes; each hook shrinks its layer's KV cache after prefill."""
        from audiomarathon.compression.attention import attention_watched

        seen: dict[int, Attention] = {}
        layers = list(enumerate(self.lm.decoder_layers))
        callbacks = {layer.self_attn: functools.partial(seen.__setitem__, index) for index, layer in layers}
        stack.enter_context(attention_watched(self.lm.attn_implementation, callbacks))  # type: ignore[arg-type]
        for index, layer in layers:
            self._attach(stack, layer, index, seen)

    def _attach(self, stack: ExitStack, layer: nn.Module, index: int, seen: dict[int, Attention]) -> None:
        from audiomarathon.models.layers import call_of

        signature = inspect.signature(layer.forward)

        def after(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], _output: Any) -> None:
            after_handle.remove()  # this layer's prefill is over, and decode needs no such hook
            call = call_of(signature, args, kwargs)
            with self.trace.scoring(self.lm.clock):
                self._compress(call["past_key_values"].layers, index, seen.pop(index), call["position_embeddings"])

        def before(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            call = call_of(signature, args, kwargs)
            given = call.get("attention_mask")
            if given is None and not self.press.by_head and not self.filled[index]:
                before_handle.remove()  # without a mask in prefill there is none in decode, so no hook is needed
            elif call["hidden_states"].shape[-2] == 1:
                call["attention_mask"] = self._decode_mask(call["past_key_values"].layers[index], index, given)
            return (), call

        after_handle = stack.enter_context(layer.register_forward_hook(after, with_kwargs=True))
        before_handle = stack.enter_context(layer.register_forward_pre_hook(before, with_kwargs=True))
        self.trace.decode_hooks.append(before_handle)

    def _future(self, row: int, device: torch.device, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        cos, sin = self.lm.rotation(self.prompts[row], count)
        return cos.to(device), sin.to(device)

    def _decode_mask(self, cache: Any, index: int, given: torch.Tensor | None) -> torch.Tensor:
        """Return the attention mask for the next token, which hides only fillers (padding of samples that keep fewer
        entries).

        With `by_head`, it has a row for each head: shape (B, H, 1, entries).
        """
        import torch

        from audiomarathon.compression.dropping import like_given

        if self.press.by_head:
            config: Any = self.lm.decoder.config
            visible: torch.Tensor = cache.visible(1)
            visible = visible.repeat_interleave(config.num_attention_heads // visible.shape[1], dim=1)
            mask: torch.Tensor = like_given(visible.flatten(0, 1), given)
            return mask.reshape(*visible.shape[:2], 1, -1)
        entries, device = cache.get_seq_length() + 1, cache.keys.device
        return like_given(torch.arange(entries, device=device) >= self.fillers[index].to(device)[:, None], given)

    def _audio_places(self, index: int, row: int) -> torch.Tensor:
        """Return the indices of a sample's audio tokens among the KV-cache entries of a layer.

        If a pruner has dropped tokens, these indices differ from the places in the prompt.
        """
        from audiomarathon.compression.ragged import places_of

        if self.whole or self.trace.positions is None:
            return self.audio[row]
        positions: torch.Tensor = self.trace.positions(index, row)
        is_audio = self.is_audio[row].to(positions.device)[positions]
        return places_of(is_audio, len(positions) - self.text[row])  # pruners keep all text

    def _compress(self, caches: list[Any], index: int, attention: Attention, rotation: Any) -> None:
        import torch

        from audiomarathon.compression.ragged import RaggedLayer

        length, device, stays = attention.key.shape[2], attention.key.device, [each[index] for each in self.after]
        masks, indices = [], []
        for row, stay in enumerate(stays):
            begin = length - self.before[row][index]
            kept = self._kept(index, row, attention.of_sample(row, begin), rotation, begin)
            if self.press.by_head:
                masks.append(torch.nn.functional.pad(kept, (begin, 0)))
            else:
                indices.append(torch.nn.functional.pad(kept + begin, (max(stays) - stay, 0)))
                if self.trace.kept_entries is not None:
                    masks.append(kept.new_zeros(len(kept), length, dtype=torch.bool).scatter_(1, kept + begin, True))
        if self.trace.kept_entries is not None:
            self.trace.kept_entries.append(torch.stack(masks) if len(masks) > 1 else masks[0])
        if self.press.by_head:
            caches[index] = RaggedLayer(attention.key, attention.value, torch.stack(masks), stays)
            return
        chosen = torch.stack(indices)  # (B, Hkv, entries)
        rows, heads = (torch.arange(size, device=device) for size in chosen.shape[:2])
        cache = caches[index]
        cache.keys = attention.key[rows[:, None, None], heads[:, None], chosen]
        cache.values = attention.value[rows[:, None, None], heads[:, None], chosen]

    def _kept(self, index: int, row: int, attention: Attention, rotation: Any, begin: int) -> torch.Tensor:
        """Choose which of a sample's KV-cache entries stay in a layer; return their indices, shape (Hkv, entries).

        If heads keep different numbers (`by_head`), return booleans, shape (Hkv, S), True at kept entries.
        """
        import torch

        from audiomarathon.compression.ragged import across_heads, highest, places_of

        length, device = attention.key.shape[2], attention.key.device
        everything = self.press.scope == "all"
        candidates = torch.arange(length, device=device) if everything else self._audio_places(index, row).to(device)
        cos, sin = (part[min(row, len(part) - 1), begin:].to(device) for part in rotation)  # maybe on another GPU
        shown = candidates.clone()
        score = self.press.score(
            Cached(
                query=attention.query[0],
                key=attention.key[0],
                value=attention.value[0],
                candidates=shown,
                attention=attention,
                rotation=(cos, sin),
                future_rotation=functools.partial(self._future, row, device),
                layer=index,
                seed=self.seeds[row],
                known=range(length) if everything else self.known[row] if self.known else None,
            )
        )
        if score.shape != attention.key.shape[1:3] or not score.is_floating_point():
            raise MethodError(
                f"{self.press.label}: scores are {score.dtype} of shape {tuple(score.shape)}; allowed: floats of shape "
                f"{tuple(attention.key.shape[1:3])}"
            )
        self.checks.append((index, torch.stack([~score.isnan().any(), (shown == candidates).all()])))
        # Entries that must stay get the score infinity, and other scores are clamped below it. So one threshold
        # selects everything to keep, without waiting for the GPU. Of equal scores, the earlier entry stays.
        most = torch.finfo(score.dtype).max
        worth = torch.full_like(score, torch.inf).index_copy(1, candidates, score[:, candidates].clamp(max=most))
        stay = self.after[row][index]
        if self.press.by_head:
            text = length - len(candidates)
            return across_heads(worth, stay, text + int(SAFEGUARD * (stay - text)))
        return places_of(highest(worth, stay), stay)
