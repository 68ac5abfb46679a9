"""Dropping audio tokens at layer K: layers below K see every token, layers from K on compute and cache only the kept
ones.

It works by forward pre-hooks on the decoder layers. In prefill, the hook on layer K gathers the hidden states of the
kept tokens; the hooks on layers K… gather the side inputs that the model's loop passes again to each layer (rotary cos
and sin, position ids, mask), bound by signature since some models pass them by position. Kept tokens stay in order and
keep their positions. In decode a layer needs a hook only where it is given a mask; elsewhere the hook has removed
itself.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from audiomarathon.errors import MethodError
from audiomarathon.pruning.method import Method, Trace, kept_count

if TYPE_CHECKING:
    from audiomarathon.models.audio_lm import AudioLM, Inputs


@dataclass(frozen=True)
class Evidence:
    """What a token pruner may look at when it chooses, for one sample.

    Attributes
    ----------
    positions
        Prompt positions of the N audio tokens, shape (N,), ascending.
    n_keep
        How many to keep.
    seed
        Seed of this sample.
    """

    positions: torch.Tensor
    n_keep: int
    seed: int


@dataclass(frozen=True)
class TokenPruner(Method):
    """Base of the methods that drop audio tokens at layer K.

    A subclass is one file that defines :meth:`select`.
    """

    saves: ClassVar[str] = "LLM prefill from layer K on, KV cache, decode"

    layer: int = 2

    @abstractmethod
    def select(self, evidence: Evidence) -> torch.Tensor:
        """Choose which audio tokens stay.

        Returns
        -------
        torch.Tensor
            Exactly `evidence.n_keep` distinct indices into `evidence.positions`, in any order.
        """

    def check(self, lm: AudioLM) -> None:
        """Refuse a layer that the model does not have, and attention that gathering would get wrong."""
        layers = len(lm.decoder_layers)
        if not 0 <= self.layer < layers:
            raise MethodError(f"{self.key}: layer {self.layer} is not one of this model's layers 0–{layers - 1}")
        types = getattr(lm.decoder.config, "layer_types", None) or []
        if "sliding_attention" in types[self.layer :]:
            raise MethodError(
                f"{self.key}: layers from {self.layer} on use sliding-window attention, not yet supported"
            )

    @contextmanager
    def applied_to(self, lm: AudioLM, inputs: Inputs) -> Iterator[Trace]:
        """See :meth:`Method.applied_to`."""
        totals = inputs.audio_tokens
        budgets = tuple(kept_count(total, self.ratio) for total in totals)
        trace = Trace(budgets)
        if list(budgets) == totals:
            yield trace  # nothing to drop: no hook, so that ratio 0 is bit-identical to base
            return
        drop = _Drop.plan(self, inputs, budgets)
        layers = lm.decoder_layers
        handles = [_attach(drop, layers[index], index, self.layer) for index in range(self.layer, len(layers))]
        try:
            yield trace
        finally:
            for handle in handles:
                handle.remove()
            trace.kept_positions = drop.kept_positions()


@dataclass
class _Drop:
    """Which prompt positions a batch keeps, as tensors ready for gathering.

    Kept sets of unequal size are filled up on the left, as the prompts themselves were: `index` is (B, S') and `filler`
    marks the places of a row that stand for nothing.
    """

    index: torch.Tensor
    filler: torch.Tensor
    any_filler: bool
    prompt_length: int
    _lengths: list[int] = field(default_factory=list)

    @classmethod
    def plan(cls, method: TokenPruner, inputs: Inputs, budgets: tuple[int, ...]) -> _Drop:
        """Choose the kept tokens of each sample; everything is on the device before prefill is timed."""
        audio = inputs.audio_mask
        text = inputs.attention_mask.bool() & ~audio
        kept = []
        for row, (budget, seed) in enumerate(zip(budgets, inputs.seeds, strict=True)):
            positions = audio[row].nonzero().flatten()
            chosen = method.select(Evidence(positions, budget, seed)).to(positions.device)
            if len(chosen) != budget:
                raise MethodError(f"{method.key} chose {len(chosen)} audio tokens where exactly {budget} are to stay")
            kept.append(torch.cat([text[row].nonzero().flatten(), positions[chosen]]).sort().values)
        lengths = [len(row) for row in kept]
        width = max(lengths)
        index = torch.stack([nn.functional.pad(row, (width - len(row), 0)) for row in kept])
        places = torch.arange(width, device=index.device)
        filler = places[None] < torch.tensor([width - n for n in lengths], device=index.device)[:, None]
        return cls(index, filler, min(lengths) < width, audio.shape[1], lengths)

    def kept_positions(self) -> tuple[torch.Tensor, ...]:
        return tuple(row[len(row) - n :].cpu() for row, n in zip(self.index, self._lengths, strict=True))

    def rows(self, tensor: torch.Tensor) -> torch.Tensor:
        """Gather (…, B or 1, S, D) to (…, B, S', D)."""
        index = self.index.to(tensor.device)
        batch = len(index)
        if batch == 1:
            return tensor.index_select(-2, index[0])
        lead, size = tensor.shape[:-3], tensor.shape[-1]
        tensor = tensor.expand(*lead, batch, *tensor.shape[-2:])
        return tensor.gather(-2, index[..., None].expand(*lead, batch, index.shape[1], size))

    def places(self, tensor: torch.Tensor) -> torch.Tensor:
        """Gather (…, B or 1, S) to (…, B, S')."""
        return self.rows(tensor[..., None])[..., 0]

    def prefill_mask(self, given: torch.Tensor | None) -> torch.Tensor | None:
        """Return the mask among kept tokens, of the same kind as the model's own."""
        if given is None and not self.any_filler:
            return None  # the model relies on plain causality, and order is kept
        device = self.index.device if given is None else given.device
        filler = self.filler.to(device)
        if given is not None and given.dim() == 2:  # flash attention: which places are real
            return self.places(given) * ~filler
        width = filler.shape[1]
        if given is None:
            causal = torch.ones(width, width, dtype=torch.bool, device=device).tril()
            visible = causal.expand(len(filler), 1, -1, -1)
        else:
            visible = self.rows(given.squeeze(1))  # (B, S', S)
            visible = self.rows(visible.transpose(-1, -2)).transpose(-1, -2)[:, None]
        # A row without any visible place would turn into NaN and spread: fillers see themselves, and nothing sees them.
        alone = torch.eye(width, dtype=torch.bool, device=device)[None, None] & filler[:, None, :, None]
        hidden = filler[:, None, None, :] & ~alone
        return _hide(visible, hidden, shown=alone)

    def decode_mask(self, given: torch.Tensor | None, cached: int) -> torch.Tensor:
        """Return which of a layer's `cached` + 1 keys one new token sees: all that is not filler."""
        device = self.index.device if given is None else given.device
        real = ~self.filler.to(device)
        fresh = real.new_ones(len(real), cached + 1 - real.shape[1])
        visible = torch.cat([real, fresh], dim=-1)
        if given is not None and given.dim() == 2:
            return visible.to(given.dtype)
        visible = visible[:, None, None]
        if given is None or given.dtype == torch.bool:
            return visible
        return _hide(torch.zeros(visible.shape, dtype=given.dtype, device=device), ~visible)


def _hide(mask: torch.Tensor, hidden: torch.Tensor, shown: torch.Tensor | None = None) -> torch.Tensor:
    """Return a boolean or additive mask with some places hidden and others shown."""
    if mask.dtype == torch.bool:
        mask = mask & ~hidden
        return mask if shown is None else mask | shown
    mask = mask.masked_fill(hidden, torch.finfo(mask.dtype).min)
    return mask if shown is None else mask.masked_fill(shown, 0)


def _attach(drop: _Drop, layer: nn.Module, index: int, first: int) -> Any:
    signature = inspect.signature(layer.forward)
    flash = "flash" in str(getattr(layer.self_attn.config, "_attn_implementation", ""))  # type: ignore[union-attr]

    def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[()], dict[str, Any]]:
        call = dict(signature.bind(*args, **kwargs).arguments)
        call.update(call.pop("kwargs", {}))
        hidden, given = call["hidden_states"], call.get("attention_mask")
        if hidden.shape[-2] == 1:
            call["attention_mask"] = drop.decode_mask(given, call["past_key_values"].get_seq_length(index))
            return (), call
        if index == first:
            call["hidden_states"] = drop.rows(hidden)
        call["position_embeddings"] = tuple(drop.rows(part) for part in call["position_embeddings"])
        if call.get("position_ids") is not None:
            # Flash attention takes gaps in positions for packed sequences, and waits for the device in every layer.
            call["position_ids"] = None if flash else drop.places(call["position_ids"])
        call["attention_mask"] = drop.prefill_mask(given)
        if call["attention_mask"] is None:
            handle.remove()  # decode attends to all that the layer's own cache holds: no hook needed
        return (), call

    handle = layer.register_forward_pre_hook(hook, with_kwargs=True)
    return handle
