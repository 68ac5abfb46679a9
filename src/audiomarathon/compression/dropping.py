"""Drop tokens at layer K by hooks: select kept tokens, adapt masks, and where possible add no hook to decode.

In prefill, the hook on layer K selects the hidden states of kept tokens, or sums those of merged tokens. Hooks on layer
K and all later layers also select from the other inputs of a layer: rotary cos and sin, position ids, mask, Gemma 3n's
per-layer inputs. The hooks find arguments by the layer's signature, since some models pass them by position. In decode,
a layer needs a hook only if it gets a mask or has a sliding window; otherwise the hook removes itself after prefill. If
tokens are dropped at the LLM's input, a hook on the rotary embedding renumbers the kept positions without gaps, in
prefill and decode. Several drops at rising layers form a chain: each drop selects from the tokens that the previous
drop kept.
"""

from __future__ import annotations

import inspect
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from audiomarathon.models.layers import call_of, source_of, window_of
from audiomarathon.models.merge import Merge
from audiomarathon.models.prefill_chunks import LaterMask

if TYPE_CHECKING:
    from audiomarathon.models.prompt import Inputs


class Drop:
    """The prompt positions that each sample of a batch keeps, with the hooks that drop all other positions.

    Shapes: B samples, S tokens of a prompt, D numbers of a hidden state, S' tokens after the drop. A sample that keeps
    fewer positions than another gets fillers on the left, like a shorter prompt. All sizes are known before the
    positions are chosen, so that prefill never waits for the GPU.

    Parameters
    ----------
    inputs, budgets
        The batch, and the number of audio tokens that each sample keeps.
    contiguous
        Whether kept tokens get new positions without gaps. If not, they keep their positions.
    before
        The drop at an earlier layer, if tokens are dropped in several steps; see :meth:`follow`.

    Attributes
    ----------
    audio, text
        Places of each sample's audio and text tokens, ascending: in the prompt, or among the tokens that the previous
        drop kept.
    budgets, lengths
        Number of audio tokens, and of positions, that each sample keeps.
    text_after
        Number of text tokens after each sample's last audio token.
    filler
        Shape (B, S'): True at fillers. S' is the prompt's length after tokens are dropped.
    prompt
        S, the prompt's length.
    index, places_in
        Shape (B, S'): the kept prompt positions, and their places among the tokens that enter the layer; empty until
        they are chosen. In a first drop, both are equal.
    inside
        Booleans on the device: whether the indices that the method chose were in range.
    merges
        How each sample's audio tokens are merged; None for a sample whose tokens are dropped.
    """

    def __init__(self, inputs: Inputs, budgets: Sequence[int], *, contiguous: bool, before: Drop | None = None) -> None:
        mask = self.is_audio = inputs.audio_mask
        self.prompt, self.budgets, self.before = mask.shape[1], budgets, before
        self.audio = [row.nonzero().flatten() for row in mask]
        self.text = [row.nonzero().flatten() for row in inputs.attention_mask.bool() & ~mask]
        self.text_after = [self.prompt - 1 - int(spots[-1]) if len(spots) else 0 for spots in self.audio]
        self.lengths = [len(words) + budget for words, budget in zip(self.text, budgets, strict=True)]
        width = max(self.lengths)
        fillers = torch.tensor([width - length for length in self.lengths], device=mask.device)
        self.filler = torch.arange(width, device=mask.device)[None] < fillers[:, None]
        self.any_filler = min(self.lengths) < width
        self.contiguous = contiguous
        self.index = self.places_in = torch.empty(0, dtype=torch.long)
        self.inside: list[torch.Tensor] = []
        self.merges: tuple[Merge | None, ...] = ()

    def follow(self) -> None:
        """Set `audio` and `text` to the places of audio and text tokens among the tokens that the previous drop kept.

        This does not wait for the GPU.
        """
        from audiomarathon.compression.ragged import places_of

        assert self.before is not None
        before = self.before
        real = ~before.filler
        audio = self.is_audio.gather(1, before.index) & real
        words = [len(positions) for positions in self.text]
        self.audio = [places_of(row, count) for row, count in zip(audio, before.budgets, strict=True)]
        self.text = [places_of(row, count) for row, count in zip(~audio & real, words, strict=True)]

    def keep(self, chosen: Sequence[torch.Tensor | Merge]) -> None:
        """Set which audio tokens each sample keeps: indices into its audio positions, or a rule to merge them.

        An index out of range would crash a GPU process. So indices are clamped, and `inside` records whether all were
        in range. Read it after the call: reading it here would wait for the GPU. A choice that was made on the CPU,
        before prefill, is copied to the GPU here, so that prefill does not wait for the copy.
        """
        chosen = [choice.to(audio.device) for choice, audio in zip(chosen, self.audio, strict=True)]
        self.merges = tuple(choice if isinstance(choice, Merge) else None for choice in chosen)
        self.inside, rows = [], []
        for text, audio, choice in zip(self.text, self.audio, chosen, strict=True):
            pick = choice.kept if isinstance(choice, Merge) else choice
            self.inside.append(((pick >= 0) & (pick < len(audio))).all())
            if isinstance(choice, Merge):
                self.inside.append(((choice.group >= 0) & (choice.group < len(pick))).all())
            rows.append(torch.cat([text, audio[pick.clamp(0, len(audio) - 1)]]).sort().values)
        width = self.filler.shape[1]
        self.places_in = torch.stack([nn.functional.pad(row, (width - len(row), 0)) for row in rows])
        self.index = self.places_in if self.before is None else self.before.index.gather(1, self.places_in)

    def states(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the hidden states of the kept tokens, shape (…, B, S', D); merged tokens become weighted sums."""
        kept = self.rows(hidden, self.places_in)
        for row, (merge, audio) in enumerate(zip(self.merges, self.audio, strict=True)):
            if merge is not None:
                spots = audio[merge.kept.clamp(0, len(audio) - 1)]
                # Take the last match, since fillers hold 0 too.
                places = torch.searchsorted(self.places_in[row], spots, right=True) - 1
                summed = merge.of(hidden[..., row, :, :].index_select(-2, audio.to(hidden.device)))
                kept[..., row, :, :] = kept[..., row, :, :].index_copy(-2, places.to(hidden.device), summed)
        return kept

    def kept_positions(self) -> tuple[torch.Tensor, ...]:
        """Return each sample's kept prompt positions, on the CPU."""
        return tuple(row[~empty].cpu() for row, empty in zip(self.index, self.filler, strict=True))

    def rows(self, tensor: torch.Tensor, index: torch.Tensor | None = None) -> torch.Tensor:
        """Select the states at the kept positions (or at `index`): turn (…, B or 1, S, D) into (…, B, S', D)."""
        index = (self.index if index is None else index).to(tensor.device)
        batch = len(index)
        if batch == 1:
            return tensor.index_select(-2, index[0])
        lead, size = tensor.shape[:-3], tensor.shape[-1]
        tensor = tensor.expand(*lead, batch, *tensor.shape[-2:])
        return tensor.gather(-2, index[..., None].expand(*lead, batch, index.shape[1], size))

    def places(self, tensor: torch.Tensor) -> torch.Tensor:
        """Select the items at the kept positions: turn a tensor of shape (…, B or 1, S) into (…, B, S')."""
        return self.rows(tensor[..., None])[..., 0]

    def prefill_mask(self, given: torch.Tensor | LaterMask | None) -> torch.Tensor | LaterMask | None:
        """Reduce the attention mask of a layer in prefill to the kept tokens; return a mask of the same kind."""
        if isinstance(given, LaterMask):
            return given
        if given is None and not self.any_filler:
            return None  # without a mask the model attends causally, and kept tokens stay in order
        device = self.index.device if given is None else given.device
        filler = self.filler.to(device)
        if given is not None and given.dim() == 2:  # flash attention: 1 at real tokens
            return self.places(given) * ~filler
        width = filler.shape[1]
        if given is None:
            causal = torch.ones(width, width, dtype=torch.bool, device=device).tril()
            visible = causal.expand(len(filler), 1, -1, -1)
        else:
            visible = self.rows(given.squeeze(1))  # (B, S', S)
            visible = self.rows(visible.transpose(-1, -2)).transpose(-1, -2)[:, None]
        # A row without a visible key would give NaN, which would spread. So each filler sees itself. No token sees it.
        alone = torch.eye(width, dtype=torch.bool, device=device)[None, None] & filler[:, None, :, None]
        hidden = filler[:, None, None, :] & ~alone
        return _hide(visible, hidden, shown=alone)

    def decode_mask(self, given: torch.Tensor | None, cached: int) -> torch.Tensor:
        """Return the attention mask of a new token over a layer's `cached` keys and the token's key.

        It hides only fillers: entries on the left of samples that keep fewer tokens than others.
        """
        device = self.index.device if given is None else given.device
        real = ~self.filler.to(device)
        # If a press has shortened the cache too, its hook runs after this one, and replaces a mask of fillers.
        if not self.any_filler:
            return like_given(real.new_ones(len(real), cached + 1), given)
        fresh = real.new_ones(len(real), max(0, cached + 1 - real.shape[1]))
        return like_given(torch.cat([real, fresh], dim=-1), given)

    def window_mask(self, given: torch.Tensor | None, past: int, window: int) -> torch.Tensor | None:
        """Return the attention mask of a new token in a layer with a sliding window, after `past` tokens.

        The cache holds the last `window` − 1 tokens. But the window counts positions, which have gaps after pruning, so
        some cached tokens lie outside the window. Return None (no mask needed) if the model gave no mask, all samples
        keep equally many positions, and the window reaches back to the prompt's beginning.
        """
        last = self.prompt + past - self.filler.shape[1]
        if given is None and not self.any_filler and last < window:
            return None
        device = self.index.device if given is None else given.device
        fresh = torch.arange(self.prompt, last + 1, device=device).expand(len(self.index), -1)
        positions = torch.cat([self.index.to(device), fresh], dim=-1)
        real = torch.cat([~self.filler.to(device), torch.ones_like(fresh, dtype=torch.bool)], dim=-1)
        return like_given((real & (last - positions < window))[:, -window:], given)

    def attach(
        self, decoder: nn.Module, first: int, decide: Callable[[torch.Tensor], None], last: int | None = None
    ) -> list[Any]:
        """Hook layer `first` and all later layers before layer `last` (None: to the end), to drop tokens there.

        In prefill, `decide` is called with the hidden states that enter layer `first`; it must call :meth:`keep` unless
        this has been done before.

        Returns
        -------
        list
            Handles of the hooks; the caller removes them.
        """
        handles = [
            self._attach(decoder, index, decide if index == first else None)
            for index in range(first, len(decoder.layers) if last is None else last)  # type: ignore[arg-type]
        ]
        return [*handles, self._close_up(decoder)] if self.contiguous else handles

    def _close_up(self, decoder: Any) -> Any:
        """Hook the rotary embedding to number kept and generated tokens without gaps; return the hook's handle.

        Numbers begin at the prompt's first position after the padding.
        """
        signature = inspect.signature(decoder.rotary_emb.forward)
        filled = self.filler.sum(-1)
        padded = self.prompt - torch.tensor([len(a) + len(t) for a, t in zip(self.audio, self.text, strict=True)])
        padded = padded.to(filled.device)
        gone = self.prompt - padded - (self.filler.shape[1] - filled)

        def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[()], dict[str, Any]]:
            call = call_of(signature, args, kwargs)
            given = call["position_ids"]  # (…, B or 1, S)
            if given.shape[-1] == 1:
                call["position_ids"] = given - gone[:, None].to(given.device)
            else:
                given = given.expand(*given.shape[:-2], len(gone), -1)
                begin = given.gather(-1, padded.to(given.device)[:, None].expand(*given.shape[:-1], 1))
                places = torch.arange(self.filler.shape[1], device=given.device) - filled.to(given.device)[:, None]
                call["position_ids"] = begin + places.clamp(min=0)
            return (), call

        return decoder.rotary_emb.register_forward_pre_hook(hook, with_kwargs=True)

    def _attach(self, decoder: Any, index: int, decide: Callable[[torch.Tensor], None] | None) -> Any:
        layer = decoder.layers[index]
        window, source = window_of(decoder.config, index), source_of(decoder.config, index)
        signature = inspect.signature(layer.forward)
        flash = "flash" in str(decoder.config._attn_implementation)

        def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[()], dict[str, Any]]:
            call = call_of(signature, args, kwargs)
            hidden, given = call["hidden_states"], call.get("attention_mask")
            if hidden.shape[-2] == 1:
                past = call["past_key_values"].get_seq_length(source)
                past -= source != index  # the cache of an earlier layer already holds this token
                mask = self.window_mask(given, past, window) if window else self.decode_mask(given, past)
                call["attention_mask"] = mask
                return (), call
            if decide is not None:
                decide(hidden)
                call["hidden_states"] = self.states(hidden)
            if not self.contiguous:  # if contiguous, the rotary embedding has already made them for the kept tokens
                call["position_embeddings"] = tuple(self.rows(part) for part in call["position_embeddings"])
            if call.get("per_layer_input") is not None:
                call["per_layer_input"] = self.rows(call["per_layer_input"])
            if call.get("position_ids") is not None:
                # Flash attention takes gaps in positions for packed sequences, and waits for the GPU in every layer.
                call["position_ids"] = None if flash else self.places(call["position_ids"])
            call["attention_mask"] = self.prefill_mask(given)
            if call["attention_mask"] is None and not window:
                handle.remove()  # in decode, this layer attends to its whole cache, so it needs no hook
            return (), call

        handle = layer.register_forward_pre_hook(hook, with_kwargs=True)
        return handle


class DropsInSteps:
    """One or several drops of tokens at rising layers; each keeps fewer audio tokens than the previous drop.

    Parameters
    ----------
    firsts, budgets
        For each step: the first layer that computes only the remaining tokens, and each sample's number of remaining
        audio tokens.
    layers
        Number of the LLM's layers.

    Attributes
    ----------
    row_lengths
        For each sample, the number of positions that each layer computes, without fillers.
    widths
        Number of positions that each layer computes, with padding and fillers.
    """

    def __init__(
        self, inputs: Inputs, firsts: Sequence[int], budgets: Sequence[Sequence[int]], layers: int, *, contiguous: bool
    ) -> None:
        self.firsts, self.layers = firsts, layers
        self.drops: list[Drop] = []
        for step_budgets in budgets:
            before = self.drops[-1] if self.drops else None
            self.drops.append(Drop(inputs, step_budgets, contiguous=contiguous, before=before))
        self._whole, size = inputs.prompt_tokens, inputs.audio_mask.shape[1]
        self._everything = torch.arange(size, device=inputs.audio_mask.device)
        self._lengths = [self._whole, *(drop.lengths for drop in self.drops)]  # indexed by the number of finished steps
        self._widths = [size, *(drop.filler.shape[1] for drop in self.drops)]
        self._done = [bisect_right(firsts, layer) for layer in range(layers)]
        self.row_lengths = tuple(
            tuple(self._lengths[done][row] for done in self._done) for row in range(len(self._whole))
        )
        self.widths = [self._widths[done] for done in self._done]

    def positions(self, layer: int, row: int) -> torch.Tensor:
        """Return the prompt positions of one sample (`row` of the batch) that a layer computes, without padding."""
        done = self._done[layer]
        length = self._lengths[done][row]
        return self.drops[done - 1].index[row, -length:] if done else self._everything[-length:]

    def begin(self, step: int, row: int) -> int:
        """Return the index of a sample's first token among the tokens that enter a step's layer.

        Before it come padding, and fillers if the sample keeps fewer tokens than others.
        """
        return self._widths[step] - self._lengths[step][row]

    def begun(self, step: int) -> Drop:
        """Return the :class:`Drop` of a step that is about to begin.

        Its `audio` and `text` are set to places among the tokens that earlier steps kept.
        """
        if step:
            self.drops[step].follow()
        return self.drops[step]

    def left_of(self, heard: Sequence[Any], step: int, row: int) -> Sequence[Any]:
        """Return the items of `heard` (one per audio token) for the tokens that are left when `step` begins."""
        before = self.drops[step].before
        if before is None:
            return heard
        left = before.index[row][self.drops[step].audio[row]]
        return [heard[place] for place in torch.searchsorted(self.drops[0].audio[row], left).tolist()]

    def attach(self, decoder: nn.Module, decide: Callable[[int, torch.Tensor], None]) -> list[Any]:
        """Hook all layers from the first step's layer on; return the hooks' handles, which the caller removes.

        In prefill, `decide` gets the number of the step and the hidden states that enter its layer; see
        :meth:`Drop.attach`.
        """
        ends = zip(self.drops, self.firsts, [*self.firsts[1:], self.layers], strict=True)
        return [
            handle
            for step, (drop, first, last) in enumerate(ends)
            for handle in drop.attach(decoder, first, partial(decide, step), last)
        ]

    def inside(self) -> bool:
        """Tell, after the `generate` call, whether all indices that the method chose were in range."""
        return all(all(drop.inside) for drop in self.drops)

    def unchanged(self, shown: Sequence[Sequence[torch.Tensor]]) -> bool:
        """Tell, after the `generate` call, whether the method left the tensors that it got unchanged.

        `shown` has the tensors that the method got: for each step, the places of each sample's audio tokens. It may
        only read them.
        """
        return all(all(map(torch.equal, places, drop.audio)) for places, drop in zip(shown, self.drops, strict=True))

    def kept_steps(self) -> tuple[tuple[int, tuple[torch.Tensor, ...]], ...]:
        """Return (first layer, each sample's prompt positions that are left from this layer on) for each step."""
        return tuple((first, drop.kept_positions()) for first, drop in zip(self.firsts, self.drops, strict=True))


def like_given(visible: torch.Tensor, given: torch.Tensor | None) -> torch.Tensor:
    """Return booleans (B, keys), True at visible keys, as a mask for one query, in the form of the mask `given`.

    The forms are 2-D, boolean and additive.
    """
    if given is not None and given.dim() == 2:
        return visible.to(given.dtype)
    visible = visible[:, None, None]
    if given is None or given.dtype == torch.bool:
        return visible
    return _hide(torch.zeros(visible.shape, dtype=given.dtype, device=visible.device), ~visible)


def _hide(mask: torch.Tensor, hidden: torch.Tensor, shown: torch.Tensor | None = None) -> torch.Tensor:
    """Return `mask` (boolean or additive) with keys hidden where `hidden` is True, and shown where `shown` is True."""
    if mask.dtype == torch.bool:
        mask = mask & ~hidden
        return mask if shown is None else mask | shown
    mask = mask.masked_fill(hidden, torch.finfo(mask.dtype).min)
    return mask if shown is None else mask.masked_fill(shown, 0)
