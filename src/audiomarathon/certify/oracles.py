"""Oracles for pruning and presses: remove nothing, but hide tokens or KV-cache entries with attention masks.

An oracle is a second way to compute what a method should give. Oracles share no code with the methods. A method's
tokens and logits must equal those of its oracle.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from audiomarathon.compression.method import Method
from audiomarathon.models.layers import call_of
from audiomarathon.models.merge import Merge
from audiomarathon.models.trace import Trace

if TYPE_CHECKING:
    from audiomarathon.models.audio_lm import AudioLM
    from audiomarathon.models.prompt import Inputs


def hidden_instead_of_dropped(
    layers: nn.ModuleList, first: int, kept: torch.Tensor, prompt: int
) -> AbstractContextManager[None]:
    """Mask every prompt position that is not in `kept`, in layer `first` and all later layers, inside the `with` block.

    The batch must be one sample without padding; `prompt` is the prompt's length.
    """
    dropped = torch.ones(prompt, dtype=torch.bool)
    dropped[kept] = False

    def mask_for(
        queries: torch.Tensor, total: int, like: torch.Tensor | None, hidden: torch.Tensor, window: int | None
    ) -> torch.Tensor:
        keys = torch.arange(total)
        visible = keys[None] <= queries[:, None]
        visible &= ~torch.cat([dropped, torch.zeros(total - prompt, dtype=torch.bool)])[None] | (
            keys[None] == queries[:, None]
        )
        if window:
            visible &= queries[:, None] - keys[None] < window
            visible = visible[:, -(window + len(queries) - 1) :]  # a sliding cache holds at most this many entries
        return _as_mask(visible[None, None].to(hidden.device), like, hidden.dtype)

    def hook(index: int) -> Any:
        attention: Any = layers[index].self_attn
        # Phi-4-multimodal's layers have no window of their own; the config's applies to all.
        window = getattr(attention, "sliding_window", getattr(attention.config, "sliding_window", None))

        def before(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            hidden = args[0] if args else kwargs["hidden_states"]
            length = hidden.shape[-2]
            # Layer 0's length, since some layers have no cache. For later layers it already counts this token.
            past = 0 if length > 1 else kwargs["past_key_values"].get_seq_length() - (index > 0)
            given = kwargs.get("attention_mask")
            queries = torch.arange(past, past + length)
            kwargs["attention_mask"] = mask_for(queries, past + length, given, hidden, window)
            return args, kwargs

        return before

    return _hooked(layers, {index: hook(index) for index in range(first, len(layers))})


def hidden_states(lm: AudioLM, inputs: Inputs, kept: torch.Tensor, merge: Merge | None) -> AbstractContextManager[None]:
    """Inside the `with` block, hide an encoder-decoder's states that are not in `kept` from all cross-attention.

    The batch must be one sample. `kept` has positions in the virtual prompt, which holds the states of all windows,
    then the decoder's forced tokens. Merged states overwrite kept ones.
    """
    windows = len(inputs.states[0])
    visible = torch.zeros(inputs.audio_mask.shape[1], dtype=torch.bool)
    visible[kept] = True
    total = (len(visible) - inputs.tensors["decoder_input_ids"].numel()) // windows
    mask = torch.zeros(windows, 1, 1, total, dtype=lm.model.dtype)
    mask[~visible[: windows * total].view(windows, 1, 1, total)] = torch.finfo(lm.model.dtype).min
    audio = inputs.audio_mask[0].nonzero().flatten()

    def before(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call = call_of(signature, args, kwargs)
        call["encoder_attention_mask"] = mask.to(lm.device)
        if merge is not None:
            flat = call["encoder_hidden_states"].flatten(0, 1).clone()
            flat[audio[merge.kept.to(audio.device)]] = merged(flat, audio, merge)
            call["encoder_hidden_states"] = flat.view(windows, total, -1)
        return (), call

    signature = inspect.signature(lm.decoder_layers[0].forward)
    return _hooked(lm.decoder_layers, dict.fromkeys(range(len(lm.decoder_layers)), before))


def merged(states: torch.Tensor, audio: torch.Tensor, merge: Merge) -> torch.Tensor:
    """Merge the audio tokens of hidden states (…, S, D) into shape (…, k, D), by one product with a (k, N) matrix.

    Like :meth:`Merge.of`, it sums in float32 and rounds once to the states' precision.
    """
    weights = torch.zeros(len(merge.kept), len(audio))
    weights[merge.group.cpu(), torch.arange(len(audio))] = merge.weight.float().cpu()
    merged_states: torch.Tensor = weights.to(states.device) @ states[..., audio.to(states.device), :].float()
    return merged_states.to(states.dtype)


def overwritten(layer: nn.Module, audio: torch.Tensor, merge: Merge) -> RemovableHandle:
    """Hook a layer so that merged states overwrite the kept tokens' states that enter it in prefill; return the handle.

    The batch must be one sample.
    """

    def before(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        hidden = args[0] if args else kwargs["hidden_states"]
        if hidden.shape[-2] == 1:
            return None
        hidden = hidden.clone()
        hidden[..., audio[merge.kept.to(audio.device)].to(hidden.device), :] = merged(hidden, audio, merge)
        return ((hidden, *args[1:]), kwargs) if args else ((), {**kwargs, "hidden_states": hidden})

    return layer.register_forward_pre_hook(before, with_kwargs=True)


def hidden_instead_of_evicted(
    layers: nn.ModuleList, heads: int, kept: Sequence[torch.Tensor], prompt: int
) -> AbstractContextManager[None]:
    """Inside the `with` block, mask in decode the KV-cache entries that a layer's head does not keep.

    The batch must be one sample.

    Parameters
    ----------
    heads
        Number of query heads.
    kept
        For each layer, whether each KV head keeps each entry: boolean, shape (Hkv heads, entries of the prompt).
    """

    def hook(index: int) -> Any:
        def before(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            hidden = args[0] if args else kwargs["hidden_states"]
            if hidden.shape[-2] > 1:
                return None
            total = kwargs["past_key_values"].get_seq_length(index) + 1
            by_head = kept[index].repeat_interleave(heads // len(kept[index]), dim=0)
            visible = torch.cat([by_head, by_head.new_ones(heads, total - prompt)], dim=-1)[None, :, None]
            kwargs["attention_mask"] = _as_mask(visible.to(hidden.device), kwargs.get("attention_mask"), hidden.dtype)
            return args, kwargs

        return before

    return _hooked(layers, {index: hook(index) for index in range(len(layers))})


def _as_mask(visible: torch.Tensor, like: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    if like is None or like.dtype == torch.bool:
        return visible
    return torch.zeros_like(visible, dtype=dtype).masked_fill(~visible, torch.finfo(dtype).min)


@contextmanager
def _hooked(layers: nn.ModuleList, hooks: dict[int, Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for index, hook in hooks.items():
            stack.enter_context(layers[index].register_forward_pre_hook(hook, with_kwargs=True))
        yield


@contextmanager
def _masks_possible(lm: AudioLM) -> Iterator[None]:
    """Inside the `with` block, use sdpa in the LLM instead of flash attention, which rejects the oracles' masks."""
    config: Any = lm.decoder.config
    active = lm.attn_implementation
    if "flash" not in active:
        yield
        return
    config._attn_implementation = {"": "sdpa"}  # a plain name would also be set on the encoders' configs
    try:
        yield
    finally:
        config._attn_implementation = {"": active}


@dataclass(frozen=True)
class Hidden(Method):
    """The oracle of token pruning: hides, from layer `first` on, the tokens that the pruner dropped.

    Attributes
    ----------
    kept
        Prompt positions that stay.
    merge
        How audio tokens are merged into kept tokens; None if they are dropped.
    """

    key: ClassVar[str] = "hidden"

    kept: torch.Tensor | None = None
    first: int = 0
    merge: Merge | None = None

    @contextmanager
    def applied_to(self, lm: AudioLM, inputs: Inputs) -> Iterator[Trace]:
        """Mask the dropped tokens, and overwrite merged ones, inside the `with` block.

        Yield an empty report (trace).
        """
        assert self.kept is not None
        prompt, layers = inputs.audio_mask.shape[1], lm.decoder_layers
        with ExitStack() as stack:
            stack.enter_context(_masks_possible(lm))
            if inputs.states:
                stack.enter_context(hidden_states(lm, inputs, self.kept, self.merge))
                yield Trace(tuple(inputs.audio_tokens))
                return
            stack.enter_context(hidden_instead_of_dropped(layers, self.first, self.kept, prompt))
            if self.merge is not None:
                audio = inputs.audio_mask[0].nonzero().flatten()
                stack.enter_context(overwritten(layers[self.first], audio, self.merge))
            yield Trace(tuple(inputs.audio_tokens))


@dataclass(frozen=True)
class HiddenInSteps(Method):
    """The oracle of pruning in steps, for a batch of one: hides from each layer the tokens dropped by then.

    `steps` are pairs (first layer, prompt positions that stay from this layer on).
    """

    key: ClassVar[str] = "hidden_in_steps"

    steps: Sequence[tuple[int, torch.Tensor]] = ()

    @contextmanager
    def applied_to(self, lm: AudioLM, inputs: Inputs) -> Iterator[Trace]:
        """Mask the dropped tokens inside the `with` block; yield an empty report (trace)."""
        with ExitStack() as stack:
            stack.enter_context(_masks_possible(lm))
            for first, kept in self.steps:  # a later step's mask replaces the earlier ones
                prompt = inputs.audio_mask.shape[1]
                stack.enter_context(hidden_instead_of_dropped(lm.decoder_layers, first, kept, prompt))
            yield Trace(tuple(inputs.audio_tokens))


@dataclass(frozen=True)
class HiddenEntries(Method):
    """The oracle of presses: keeps every KV-cache entry, but hides from decode the entries that the press removed.

    Attributes
    ----------
    kept
        For each layer, whether the press kept each entry in each KV head, boolean, shape (Hkv, prompt).
    """

    key: ClassVar[str] = "hidden_entries"

    kept: tuple[torch.Tensor, ...] = ()

    @contextmanager
    def applied_to(self, lm: AudioLM, inputs: Inputs) -> Iterator[Trace]:
        """Mask the removed KV-cache entries in decode, inside the `with` block; yield an empty report (trace)."""
        config: Any = lm.decoder.config
        prompt = inputs.audio_mask.shape[1]
        heads = config.num_attention_heads
        with _masks_possible(lm), hidden_instead_of_evicted(lm.decoder_layers, heads, self.kept, prompt):
            yield Trace(tuple(inputs.audio_tokens))


@dataclass(frozen=True)
class Shorter(Method):
    """The oracle of dropping before the LLM, for a batch of one: a prompt that never held the dropped audio tokens.

    The model gets no audio: the given states take the place of the audio tokens' embeddings.

    Attributes
    ----------
    kept
        Positions of the whole prompt that stay.
    states
        The states of the audio tokens that stay, which enter the LLM's first layer, shape (k, D).
    """

    key: ClassVar[str] = "shorter"

    kept: torch.Tensor | None = None
    states: torch.Tensor | None = None

    @contextmanager
    def applied_to(self, lm: AudioLM, inputs: Inputs) -> Iterator[Trace]:
        """Shorten the prompt, and put the given states in place of the audio tokens, inside the `with` block.

        Yield a report (trace) with the shortened batch.
        """
        assert self.kept is not None
        assert self.states is not None
        kept, states = self.kept.to(inputs.audio_mask.device), self.states
        tensors = {name: inputs.tensors[name][:, kept] for name in ("input_ids", "attention_mask")}
        mask = inputs.audio_mask[:, kept]

        def put_in(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            handle.remove()
            call = call_of(signature, args, kwargs)
            call["hidden_states"] = call["hidden_states"].clone()
            call["hidden_states"][..., mask[0].to(states.device), :] = states
            return (), call

        layer = lm.decoder_layers[0]
        signature = inspect.signature(layer.forward)
        with layer.register_forward_pre_hook(put_in, with_kwargs=True) as handle:
            trace = Trace(tuple(inputs.audio_tokens))
            trace.inputs = replace(inputs, tensors=tensors, audio_mask=mask, windows=None)
            yield trace
