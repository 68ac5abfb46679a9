"""Dropping or merging audio tokens at layer K: layers below K see every token, later ones compute and cache k of them.

Kept tokens stay in order and keep their positions. At the input instead of a layer, the LLM never sees the others, and
positions close up as in a shorter prompt. What a method may look at is an :class:`Evidence`; how tokens are dropped is
in `dropping.py`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from audiomarathon.compression.layers import cached, has_windows, source_of, window_of
from audiomarathon.compression.method import Method, kept_count, plain
from audiomarathon.errors import MethodError
from audiomarathon.models.merge import Merge
from audiomarathon.models.trace import Trace

if TYPE_CHECKING:
    import torch
    from torch import nn

    from audiomarathon.compression.attention import Attention
    from audiomarathon.models.audio_lm import AudioLM
    from audiomarathon.models.prompt import Inputs


@dataclass(frozen=True)
class Scored:
    """What the model made of one sample by layer K; S counts prompt positions, left padding included.

    All where the inputs are: a model over several GPUs has its layers, and its final norm, elsewhere.

    Attributes
    ----------
    last_attention
        Attention of the last prompt token at layer K − 1, float32, shape (H, S).
    key
        That layer's keys after rotation, shape (Hkv, S, d).
    entering
        Hidden states that enter layer K, shape (S, D), and the decoder's final norm.
    """

    last_attention: torch.Tensor
    key: torch.Tensor
    entering: torch.Tensor
    norm: nn.Module

    @cached_property
    def hidden(self) -> torch.Tensor:
        """Hidden states entering layer K through the decoder's final norm, shape (S, D)."""
        normed: torch.Tensor = self.norm(self.entering)
        return normed.to(self.key.device)


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
    text_after
        How many text tokens follow the last audio token.
    scored
        What the model made of the sample; None for methods that are not `scored`.
    states
        Hidden states of the audio tokens that enter layer K (at the input, embeddings), shape (N, D); None for methods
        that do not declare `sees_states`.
    """

    positions: torch.Tensor
    n_keep: int
    seed: int
    text_after: int = 0
    scored: Scored | None = None
    states: torch.Tensor | None = None

    @property
    def seen(self) -> Scored:
        """`scored`, for methods that declare it."""
        assert self.scored is not None, "a method that looks at the model must declare `scored = True`"
        return self.scored


@dataclass(frozen=True)
class TokenPruner(Method):
    """Base of the methods that drop or merge audio tokens at layer K.

    A subclass is one file that defines :meth:`select`; `sees_states = True` gives it the audio tokens' hidden states,
    `scored = True` attention, keys and hidden states of all, and `ranks_by_attention = True` says that it uses the
    first, which a layer with a window leaves at zero for most audio. `at` is `layer` (K), or `input`.
    """

    saves: ClassVar[str] = "LLM prefill from layer K on (at the input all of it), KV cache, decode"
    needs: ClassVar[str] = "where layers have windows no flash attention, and K instead of the input"
    scored: ClassVar[bool] = False
    ranks_by_attention: ClassVar[bool] = False
    sees_states: ClassVar[bool] = False

    layer: int = 2
    at: str = "layer"

    @abstractmethod
    def select(self, evidence: Evidence) -> torch.Tensor | Merge:
        """Choose which audio tokens stay, or how they are merged.

        Returns
        -------
        torch.Tensor or Merge
            Exactly `evidence.n_keep` distinct indices into `evidence.positions`, in any order; or as many groups.
        """

    @property
    def first_layer(self) -> int:
        """The first layer that computes fewer tokens."""
        return 0 if self.at == "input" else self.layer

    @property
    def label(self) -> str:
        """See :attr:`Method.label`; `frame-0.5-input` at the input."""
        return super().label if self.at == "layer" or not self.ratio else f"{self.key}-{plain(self.ratio)}-input"

    def parameters(self) -> dict[str, Any]:
        """Every field but the one of `layer` and `at` that says nothing: K at the input, and "layer" at a layer."""
        unsaid = "at" if self.at == "layer" else "layer"
        return {name: value for name, value in super().parameters().items() if name != unsaid}

    def check_config(self, config: Any) -> None:
        """Refuse a layer that the model does not have, and attention that gathering would get wrong."""
        if self.at == "input":
            self._check_input(config)
            return
        layers, first = config.num_hidden_layers, int(self.scored)
        if not 0 <= self.layer < layers:
            raise MethodError(f"{self.key}: layer {self.layer} is not one of this model's layers {first}–{layers - 1}")
        if self.layer < first:
            raise MethodError(f"{self.key}: scores come from the layer before K, so the layer must be {first} or more")
        last = min(
            (source for index in range(layers) if (source := source_of(config, index)) < index), default=layers - 1
        )
        if self.layer > last:
            raise MethodError(
                f"{self.key}: later layers of this model use the keys and values of layer {last}, so K can be "
                f"{first}–{last} here, not {self.layer}"
            )
        if self.ranks_by_attention and (window := window_of(config, self.layer - 1)):
            able = ", ".join(str(layer) for layer in range(1, last + 1) if not window_of(config, layer - 1))
            raise MethodError(
                f"{self.key}: it ranks by the attention of layer K − 1, which sees {window} tokens in layer "
                f"{self.layer - 1} of this model; K can be {able or 'nothing'} here, not {self.layer}"
            )

    def _check_input(self, config: Any) -> None:
        if self.scored:
            raise MethodError(
                f"{self.key}: it needs attention, which the input has not met yet; allowed: PRUNE_AT=layer"
            )
        if has_windows(config):
            raise MethodError(
                f"{self.key}: this model's sliding-window layers go by positions, so its prompt cannot be shortened; "
                "allowed: PRUNE_AT=layer"
            )

    def check(self, lm: AudioLM) -> None:
        """Refuse also flash attention where layers have windows: it would cut them by place among the kept tokens."""
        super().check(lm)
        layers = range(self.first_layer, len(lm.decoder_layers))
        if "flash" in lm.attn_implementation and any(window_of(lm.decoder.config, layer) for layer in layers):
            raise MethodError(
                f"{self.key}: under {lm.attn_implementation} this model's windows would be cut by place among the kept "
                "tokens and not by position; allowed: ATTN_IMPLEMENTATION=sdpa or eager"
            )

    @contextmanager
    def applied_to(self, lm: AudioLM, inputs: Inputs) -> Iterator[Trace]:
        """See :meth:`Method.applied_to`."""
        import torch

        from audiomarathon.compression.attention import attention_watched
        from audiomarathon.compression.dropping import Drop

        totals = inputs.audio_tokens
        budgets = tuple(kept_count(total, self.ratio) for total in totals)
        trace = Trace(budgets)
        if list(budgets) == totals:
            yield trace  # nothing to drop: no hook, so that ratio 0 is bit-identical to base
            return
        drop = Drop.plan(inputs, budgets, contiguous=self.at == "input")
        everything = torch.arange(inputs.audio_mask.shape[1], device=inputs.audio_mask.device)
        trace.positions = lambda layer: everything if layer < self.first_layer else drop.index[0]
        layers, width = len(lm.decoder_layers), drop.filler.shape[1]
        lengths = (inputs.audio_mask.shape[1],) * self.first_layer + (width,) * (layers - self.first_layer)
        trace.expected_lengths = cached(lm.decoder.config, lengths)
        trace.prompt = width if drop.contiguous else None
        seen: list[Attention] = []
        shown = [positions.clone() for positions in drop.audio]
        looks = self.scored or self.sees_states

        def choose(entering: torch.Tensor | None) -> list[torch.Tensor | Merge]:
            rows = zip(shown, budgets, inputs.seeds, drop.text_after, strict=True)
            return [
                self._chosen(
                    Evidence(
                        *facts,
                        _scored(lm, seen, entering, row) if self.scored else None,
                        _states(lm, entering, row, facts[0]) if self.sees_states else None,
                    )
                )
                for row, facts in enumerate(rows)
            ]

        with ExitStack() as stack:
            if self.scored:
                watching = {lm.decoder_layers[self.layer - 1].self_attn: seen.append}
                take_off = stack.enter_context(attention_watched(lm.attn_implementation, watching))  # type: ignore[arg-type]
            if not looks:
                drop.keep(choose(None))  # nothing of the model is needed, so prefill need not wait for it

            def decide(entering: torch.Tensor) -> None:
                if self.scored:
                    take_off()
                if looks:
                    with trace.scoring(lm.clock):
                        drop.keep(choose(entering))
                    seen.clear()

            for handle in drop.attach(lm.decoder, self.first_layer, decide):
                stack.callback(handle.remove)
            yield trace
            if not all(drop.inside):  # asked only now, so that prefill does not wait for the device
                raise MethodError(f"{self.label} chose audio tokens that do not exist: an index is out of range")
            if not all(map(torch.equal, shown, drop.audio)):
                raise MethodError(f"{self.label} changed the positions it was given; allowed: reading them")
            trace.kept_positions = drop.kept_positions()
            trace.merges = drop.merges if any(drop.merges) else None

    def _chosen(self, evidence: Evidence) -> torch.Tensor | Merge:
        import torch

        if evidence.n_keep == len(evidence.positions):
            return torch.arange(evidence.n_keep)
        chosen, total = self.select(evidence), len(evidence.positions)
        parts = [("choice", chosen, evidence.n_keep)]
        if isinstance(chosen, Merge):
            parts = [("kept of a merge", chosen.kept, evidence.n_keep), ("group of a merge", chosen.group, total)]
            if chosen.weight.shape != (total,) or not chosen.weight.is_floating_point():
                raise MethodError(f"{self.label}: the weights of a merge must be {total} floats, one an audio token")
        for name, indices, count in parts:
            if indices.shape != (count,):
                raise MethodError(f"{self.key}: {name} has shape {tuple(indices.shape)}; it must be exactly ({count},)")
            if indices.dtype not in (torch.int64, torch.int32):
                raise MethodError(f"{self.label}: {name} is of {indices.dtype}; allowed: indices, torch.int64")
        return chosen


def _states(lm: AudioLM, entering: torch.Tensor | None, row: int, at: torch.Tensor | None = None) -> torch.Tensor:
    """Return what enters layer K of one sample, shape (S, D), or only at some positions."""
    assert entering is not None
    if entering.dim() == 4:  # Gemma 3n's alternating updates: the states that the layer attends with, and predictions
        config: Any = lm.decoder.config
        entering = entering[config.altup_active_idx]
    return entering[row] if at is None else entering[row, at.to(entering.device)]


def _scored(lm: AudioLM, seen: list[Attention], entering: torch.Tensor | None, row: int) -> Scored:
    (attention,) = seen
    one = replace(
        attention,
        query=attention.query[row : row + 1],
        key=attention.key[row : row + 1],
        value=attention.value[row : row + 1],
        mask=None if attention.mask is None else attention.mask[row if len(attention.mask) > 1 else 0][None],
    )
    norm: nn.Module = lm.decoder.norm  # type: ignore[assignment]
    last = one.of_last_queries()[0, :, 0].to(lm.device)
    return Scored(last, one.key[0].to(lm.device), _states(lm, entering, row), norm)
