"""The base class of token pruners, which drop or merge audio tokens at layer K, at the LLM's input, or in the tower.

At layer K: layers below K compute every token; layer K and later layers compute and cache only k audio tokens, in order
and at their old positions. At the input: the LLM never computes the dropped tokens, and the kept tokens get positions
without gaps, as in a shorter prompt. In the tower: states are dropped between two of its layers, so that its later
layers compute less too. A method chooses the tokens from an :class:`Evidence`; `dropping.py` and `tower.py` drop them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar

from audiomarathon.compression.method import STATES_DROPPED_BY, Method, kept_count, plain
from audiomarathon.errors import MethodError
from audiomarathon.models.layers import cached, has_windows, source_of, window_of
from audiomarathon.models.merge import Merge
from audiomarathon.models.trace import Trace

if TYPE_CHECKING:
    import torch
    from torch import nn

    from audiomarathon.compression.attention import Attention
    from audiomarathon.models.audio_lm import AudioLM
    from audiomarathon.models.prompt import Inputs, Waveform

_QUERIES = 128  # whose attention is in memory at once


@dataclass(frozen=True)
class Scored:
    """The model's state at layer K, where tokens are dropped, for one sample.

    S is the number of prompt positions, left padding included.

    Attributes
    ----------
    last_attention
        Attention of the last prompt token in layer K − 1, float32, shape (H, S).
    key
        Keys of layer K − 1 after the rotary embedding, shape (Hkv, S, d).
    entering
        Hidden states that enter layer K, shape (S, D).
    norm
        The decoder's final norm.
    attention
        All of layer K − 1's queries and keys, without padding; see :meth:`received`.
    """

    last_attention: torch.Tensor
    key: torch.Tensor
    entering: torch.Tensor
    norm: nn.Module
    attention: Attention | None = None

    @cached_property
    def hidden(self) -> torch.Tensor:
        """Hidden states that enter layer K, after the decoder's final norm is applied to them, shape (S, D)."""
        normed: torch.Tensor = self.norm(self.entering)
        return normed.to(self.key.device)

    def received(self, positions: torch.Tensor) -> torch.Tensor:
        """Return the attention that these ascending positions receive, summed over heads and all queries after them.

        Float32, shape (N,). Memory is O(H·128·S), never S×S; time is that of the layer's own attention.

        Raises
        ------
        MethodError
            Prefill runs in chunks, and the layer has a sliding window: then only the last chunk's queries are known.
        """
        import torch

        assert self.attention is not None
        if self.attention.query.shape[2] < self.attention.key.shape[2]:
            raise MethodError(
                "the attention received in a layer with a sliding window is not known when prefill runs in chunks; "
                "allowed: another layer (set `ranks_by_attention = True` in the method's class), or PREFILL_CHUNK=0"
            )
        length = self.attention.query.shape[2]
        total = torch.zeros(length, device=self.attention.query.device)
        for start in range(0, length, _QUERIES):
            weights = self.attention.of_queries(start, min(_QUERIES, length - start))
            total[: weights.shape[-1]] += weights[0].sum((0, 1))
        return total[positions.to(total.device) - (len(self.entering) - length)].to(positions.device)


@dataclass(frozen=True)
class Evidence:
    """Everything that a token pruner may use to choose the tokens of one sample.

    Attributes
    ----------
    positions
        Prompt positions of the N audio tokens, shape (N,), ascending.
    n_keep
        Number of audio tokens to keep.
    seed
        Seed of this sample.
    text_after
        Number of text tokens after the last audio token.
    scored
        The model's state at layer K; None unless the method sets `scored = True`.
    states
        Hidden states of the audio tokens that enter layer K (at the input: embeddings; in the tower: of its states, or
        their keys if the method sets `sees_keys = True`), shape (N, D); None unless the method sets
        `sees_states = True`.
    heard
        The waveform under each audio token, N arrays; empty unless the method sets `hears = True`.
    sampling_rate
        Of `heard`, in Hz.
    """

    positions: torch.Tensor
    n_keep: int
    seed: int
    text_after: int = 0
    scored: Scored | None = None
    states: torch.Tensor | None = None
    heard: Sequence[Waveform] = ()
    sampling_rate: int = 16000

    @property
    def seen(self) -> Scored:
        """The model's state at layer K, where tokens are dropped; only for methods that set `scored = True`."""
        assert self.scored is not None, "a method that uses the model's state must declare `scored = True`"
        return self.scored


@dataclass(frozen=True)
class TokenPruner(Method):
    """Base class of the methods that drop or merge audio tokens: at layer K (`at = "layer"`), input or tower.

    In the tower, `positions` are a window's states instead of a prompt's audio tokens, several of which make one token.

    A subclass only defines :meth:`select`. If it sets `sees_states = True`, the :class:`Evidence` holds the audio
    tokens' hidden states; with `scored = True`, also attention, keys and all hidden states; with `hears = True`, the
    waveform under each token. It must set
    `ranks_by_attention = True` if it ranks by attention: such a method cannot use a layer with a sliding window, where
    most audio gets no attention.
    """

    saves: ClassVar[str] = "LLM prefill from layer K on (all of it at the input), KV cache, decode"
    needs: ClassVar[str] = "models with windows: no flash attention, and not at the input"
    scored: ClassVar[bool] = False
    ranks_by_attention: ClassVar[bool] = False
    sees_states: ClassVar[bool] = False
    hears: ClassVar[bool] = False
    sees_keys: ClassVar[bool] = False
    places: ClassVar[tuple[str, ...]] = ("layer", "input", "tower")
    """Values of `at` that the method allows."""
    static_decode: ClassVar[bool] = True
    chunked_prefill: ClassVar[bool] = True

    layer: int = 2
    at: str = "layer"
    tower_layer: int | None = None
    """The first layer of the tower that computes only the kept states, if `at = "tower"`; None for half its depth."""

    @abstractmethod
    def select(self, evidence: Evidence) -> torch.Tensor | Merge:
        """Choose the audio tokens to keep, or how to merge them.

        Returns
        -------
        torch.Tensor or Merge
            Exactly `evidence.n_keep` distinct indices into `evidence.positions`, in any order; or a merge into exactly
            `evidence.n_keep` groups.
        """

    @property
    def first_layer(self) -> int:
        """The first layer that computes only the kept tokens."""
        return self.layer if self.at == "layer" else 0

    @property
    def label(self) -> str:
        """Name for folders and tables, such as `frame-0.5-layer2`, `frame-0.5-input` or `frame-0.5-tower16`.

        `frame-0.5-tower` drops at half the tower's depth.
        """
        if self.at == "layer" or not self.ratio:
            return super().label
        layer = self.tower_layer if self.at == "tower" and self.tower_layer is not None else ""
        return f"{self.key}-{plain(self.ratio)}-{self.at}{layer}"

    def parameters(self) -> dict[str, Any]:
        """Return every field by name, for the identities of runs.

        Leave out the fields that do not matter where tokens are dropped; and `at` if it is a layer of the LLM.
        """
        used = {"layer": {"layer"}, "input": {"at"}, "tower": {"at", "tower_layer"}}[self.at]
        omitted = {"layer", "at", "tower_layer"} - used
        return {name: value for name, value in super().parameters().items() if name not in omitted}

    def in_tower(self, depth: int) -> int:
        """Return the first layer of a tower of `depth` layers that computes only the kept states."""
        return depth // 2 if self.tower_layer is None else self.tower_layer

    def steps(self, depth: int) -> Sequence[tuple[int, float]]:
        """Return where in a tower of `depth` layers states are dropped: see :data:`~.tower.Steps`."""
        return [(self.in_tower(depth), 1.0)]

    def check_config(self, config: Any) -> None:
        """Refuse a `layer` that the model lacks, or at which the method cannot drop tokens."""
        if self.at not in self.places:
            allowed = ", ".join(f"PRUNE_AT={place} (--at {place})" for place in self.places)
            raise MethodError(f"{self.key}: does not work at {self.at!r}; allowed: {allowed}")
        if self.at == "tower":
            self._check_score_free("inside the audio tower")
            return
        if getattr(config, "is_encoder_decoder", False) and (self.at != "input" or self.scored):
            raise MethodError(
                f"{self.key}: the decoder hears the audio by cross-attention, so its layers hold no audio tokens"
                f"{' to rank' * self.scored}; allowed here: {STATES_DROPPED_BY}"
            )
        if self.at == "input":
            self._check_input(config)
            return
        layers, first = config.num_hidden_layers, int(self.scored)
        if not 0 <= self.layer < layers:
            raise MethodError(f"{self.key}: layer {self.layer} is not one of this model's layers {first}–{layers - 1}")
        if self.layer < first:
            raise MethodError(f"{self.key}: scores come from the layer before, so the layer must be at least {first}")
        last = min(
            (source for index in range(layers) if (source := source_of(config, index)) < index), default=layers - 1
        )
        if self.layer > last:
            raise MethodError(
                f"{self.key}: later layers of this model use the keys and values of layer {last}, so the layer must be "
                f"{first}–{last}, got {self.layer}"
            )
        if self.ranks_by_attention and (window := window_of(config, self.layer - 1)):
            able = ", ".join(str(layer) for layer in range(1, last + 1) if not window_of(config, layer - 1))
            raise MethodError(
                f"{self.key}: ranks by the attention of the layer before, but layer {self.layer - 1} of this model "
                f"sees only {window} tokens; allowed layers: {able or 'none'}, got {self.layer}"
            )

    def check_family(self, family: type[AudioLM], depth: int) -> None:
        """Refuse a family whose tower cannot drop states, and a layer that the tower lacks."""
        if self.at != "tower":
            return
        if reason := family.no_tower_drop:
            raise MethodError(
                f"{self.key}: nothing can be dropped inside {family.title}'s audio tower: {reason}; allowed: "
                + (" or ".join(f"--at {place}" for place in self.places if place != "tower") or "other methods")
            )
        if depth and not 0 <= self.in_tower(depth) < depth:
            raise MethodError(
                f"{self.key}: PRUNE_TOWER_LAYER={self.tower_layer} (--tower-layer) is not one of the tower's layers "
                f"0–{depth - 1}"
            )

    def _check_score_free(self, where: str) -> None:
        if self.scored:
            raise MethodError(
                f"{self.key}: needs attention of the LLM, and none exists {where}; allowed: PRUNE_AT=layer (--at layer)"
            )

    def _check_input(self, config: Any) -> None:
        self._check_score_free("before the LLM")
        if has_windows(config):
            raise MethodError(
                f"{self.key}: this model's sliding-window layers count positions, so its prompt cannot be shortened; "
                "allowed: PRUNE_AT=layer (--at layer)"
            )

    def check(self, lm: AudioLM) -> None:
        """Refuse a model as :meth:`Method.check` does, and flash attention with sliding windows.

        In such windows, flash attention would count kept tokens instead of positions.
        """
        super().check(lm)
        self.check_family(type(lm), len(lm.tower_layers))
        layers = range(self.first_layer, len(lm.decoder_layers))
        if lm.cross and "flash" in lm.attn_implementation:
            raise MethodError(
                f"{self.key}: windows of a batch keep different numbers of states, which needs a mask that "
                f"{lm.attn_implementation} does not take here; allowed: ATTN_IMPLEMENTATION=sdpa or eager"
            )
        if "flash" in lm.attn_implementation and any(window_of(lm.decoder.config, layer) for layer in layers):
            raise MethodError(
                f"{self.key}: {lm.attn_implementation} would count kept tokens instead of positions in this model's "
                "windows; allowed: ATTN_IMPLEMENTATION=sdpa or eager"
            )

    @contextmanager
    def applied_to(self, lm: AudioLM, inputs: Inputs) -> Iterator[Trace]:
        """Drop or merge audio tokens in prefill; see :meth:`Method.applied_to`."""
        import torch

        from audiomarathon.compression.attention import attention_watched
        from audiomarathon.compression.dropping import Drop
        from audiomarathon.compression.heard import heard_by_token
        from audiomarathon.models.loading import patched_attribute

        if self.at == "tower":
            # Also where rounding leaves nothing to drop: this setting's tower is timed in its own call.
            with (
                patched_attribute(lm, "shares_tower", not self.changes_tower),
                self._tower_dropped(lm, inputs) as trace,
            ):
                yield trace
            return
        totals = inputs.audio_tokens
        budgets = tuple(kept_count(total, self.ratio) for total in totals)
        trace = Trace(budgets)
        if list(budgets) == totals:
            yield trace  # nothing to drop: no hook, so that ratio 0 is bit-identical to base
            return
        if inputs.states:
            with self._states_dropped(lm, inputs) as trace:
                yield trace
            return
        drop = Drop(inputs, budgets, contiguous=self.at == "input")
        everything = torch.arange(inputs.audio_mask.shape[1], device=inputs.audio_mask.device)
        layers, width, whole = len(lm.decoder_layers), drop.filler.shape[1], inputs.prompt_tokens
        trace.positions = lambda layer, row: (
            everything[-whole[row] :] if layer < self.first_layer else drop.index[row, -drop.lengths[row] :]
        )
        trace.row_lengths = tuple(
            (before,) * self.first_layer + (after,) * (layers - self.first_layer)
            for before, after in zip(whole, drop.lengths, strict=True)
        )
        lengths = (inputs.audio_mask.shape[1],) * self.first_layer + (width,) * (layers - self.first_layer)
        trace.expected_lengths = cached(lm.decoder.config, lengths)
        trace.prompts = tuple(drop.lengths) if drop.contiguous else None
        seen: list[Attention] = []
        shown = [positions.clone() for positions in drop.audio]
        looks = self.scored or self.sees_states
        heard = heard_by_token(lm, inputs) if self.hears else [()] * len(budgets)

        def choose(entering: torch.Tensor | None) -> list[torch.Tensor | Merge]:
            rows = zip(shown, budgets, inputs.seeds, drop.text_after, strict=True)
            return [
                self._chosen(
                    Evidence(
                        *facts,
                        _scored(lm, seen, entering, row, everything.shape[0] - whole[row]) if self.scored else None,
                        _states(lm, entering, row, facts[0]) if self.sees_states else None,
                        heard[row],
                        lm.sampling_rate,
                    )
                )
                for row, facts in enumerate(rows)
            ]

        with ExitStack() as stack:
            if self.scored:
                watching = {lm.decoder_layers[self.layer - 1].self_attn: seen.append}
                stack.enter_context(attention_watched(lm.attn_implementation, watching))  # type: ignore[arg-type]
            if not looks:
                drop.keep(choose(None))  # the choice does not depend on the model's state, so make it before prefill

            def decide(entering: torch.Tensor) -> None:
                if looks:
                    with trace.scoring(lm.clock):
                        drop.keep(choose(entering))
                    seen.clear()

            trace.decode_hooks += drop.attach(lm.decoder, self.first_layer, decide)
            for handle in trace.decode_hooks:
                stack.enter_context(handle)
            yield trace
            self._check_choices(inside=all(drop.inside), unchanged=all(map(torch.equal, shown, drop.audio)))
            trace.kept_positions = drop.kept_positions()
            trace.merges = drop.merges if any(drop.merges) else None

    @contextmanager
    def _states_dropped(self, lm: AudioLM, inputs: Inputs) -> Iterator[Trace]:
        """Drop or merge an encoder-decoder's states; see `states.py`."""
        from audiomarathon.compression.heard import heard_by_state
        from audiomarathon.compression.states import StateDrop

        shown: list[torch.Tensor] = []
        heard = iter(heard_by_state(lm, inputs) if self.hears else ())
        choose = partial(self._in_window, shown, heard, lm.sampling_rate)
        drop = StateDrop(lm, inputs, self.ratio, choose, looks=self.sees_states)
        trace = Trace(tuple(map(sum, drop.budgets)))
        forced, layers = inputs.tensors["decoder_input_ids"].shape[1], len(lm.decoder_layers)
        trace.expected_lengths = (forced,) * layers + (max(drop.widths),) * layers

        def decide(states: torch.Tensor) -> None:
            if self.sees_states:
                with trace.scoring(lm.clock):
                    drop.decide(states)

        with ExitStack() as stack:
            drop.attach(stack, decide)
            yield trace
            self._check_choices(inside=drop.inside(), unchanged=all(map(_counts_up, shown)))
            trace.kept_positions, trace.merges = drop.kept_positions(), drop.merges()

    @contextmanager
    def _tower_dropped(self, lm: AudioLM, inputs: Inputs) -> Iterator[Trace]:
        """Drop or merge states inside the audio tower; see `tower.py`."""
        from audiomarathon.compression.tower import TowerDrop

        trace = Trace(tuple(inputs.audio_tokens))
        if not self.ratio or not any(inputs.audio_tokens):
            yield trace
            return
        shown: list[torch.Tensor] = []
        choose = partial(self._in_window, shown, iter(()), lm.sampling_rate)
        steps = self.steps(len(lm.tower_layers))
        drop = TowerDrop(lm, inputs, self.ratio, choose, steps=steps, looks=self.sees_states)
        if drop.budgets == inputs.audio_tokens:
            yield trace
            return
        trace.kept_audio_tokens, short = tuple(drop.budgets), drop.shortened()
        layers = len(lm.decoder_layers)
        if inputs.states:
            forced = inputs.tensors["decoder_input_ids"].shape[1]
            trace.expected_lengths = (forced,) * layers + (drop.width,) * layers
        else:
            trace.inputs = short
            trace.expected_lengths = cached(lm.decoder.config, (short.audio_mask.shape[1],) * layers)
            trace.positions = lambda _layer, row: drop.kept_positions()[row].to(lm.device)
        with ExitStack() as stack:
            drop.attach(stack, lambda: trace.scoring(lm.clock), keys=self.sees_keys)
            yield trace
            self._check_choices(inside=drop.inside(), unchanged=all(map(_counts_up, shown)))
            trace.kept_positions, trace.merges = drop.kept_positions(), drop.merges()

    def _check_choices(self, *, inside: bool, unchanged: bool) -> None:
        """Refuse what a method chose or changed; called after `generate`, so that prefill does not wait for the GPU."""
        if not inside:
            raise MethodError(f"{self.label} chose audio tokens that do not exist: an index is out of range")
        if not unchanged:
            raise MethodError(f"{self.label} changed `positions` in place; only reading is allowed")

    def _in_window(
        self,
        shown: list[torch.Tensor],
        heard: Iterator[Sequence[Waveform]],
        rate: int,
        positions: torch.Tensor,
        keep: int,
        seed: int,
        states: torch.Tensor | None,
    ) -> torch.Tensor | Merge:
        """Choose what a window keeps of its states, and note the positions that the method was shown."""
        shown.append(positions)
        sound = next(heard, ())
        return self._chosen(Evidence(positions, keep, seed, states=states, heard=sound, sampling_rate=rate))

    def _chosen(self, evidence: Evidence) -> torch.Tensor | Merge:
        import torch

        if evidence.n_keep == len(evidence.positions):
            return torch.arange(evidence.n_keep, device=evidence.positions.device)
        chosen, total = self.select(evidence), len(evidence.positions)
        if isinstance(chosen, Merge):
            parts = [("merge.kept", chosen.kept, evidence.n_keep), ("merge.group", chosen.group, total)]
            if chosen.weight.shape != (total,) or not chosen.weight.is_floating_point():
                raise MethodError(f"{self.label}: the weights of a merge must be {total} floats, one per audio token")
        else:
            parts = [("the result of select", chosen, evidence.n_keep)]
        for name, indices, count in parts:
            if indices.shape != (count,):
                raise MethodError(f"{self.key}: {name} has shape {tuple(indices.shape)}; it must be exactly ({count},)")
            if indices.dtype not in (torch.int64, torch.int32):
                raise MethodError(f"{self.label}: {name} is of {indices.dtype}; allowed: torch.int64 or torch.int32")
        return chosen


def _counts_up(positions: torch.Tensor) -> bool:
    return positions.tolist() == list(range(len(positions)))


def _states(lm: AudioLM, entering: torch.Tensor | None, row: int, at: torch.Tensor | None = None) -> torch.Tensor:
    """Return one sample's hidden states that enter layer K, shape (S, D); with `at`, only at these positions."""
    assert entering is not None
    if entering.dim() == 4:  # Gemma 3n (AltUp) has several versions of the hidden states; its layers attend with one
        config: Any = lm.decoder.config
        entering = entering[config.altup_active_idx]
    return entering[row] if at is None else entering[row, at.to(entering.device)]


def _scored(lm: AudioLM, seen: list[Attention], entering: torch.Tensor | None, row: int, begin: int) -> Scored:
    """Return what a method sees of one sample, whose prompt begins at position `begin`, after padding."""
    (attention,) = seen
    own = attention.of_sample(row)
    last = own.of_last_queries()[0, :, 0]
    norm: nn.Module = lm.decoder.norm  # type: ignore[assignment]
    return Scored(
        last.to(lm.device), own.key[0].to(lm.device), _states(lm, entering, row), norm, attention.of_sample(row, begin)
    )
