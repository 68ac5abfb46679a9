"""The base class of token pruners, which drop or merge audio tokens at layer K, at the LLM's input, or in the tower.

At layer K: layers below K compute every token; layer K and later layers compute and cache only k audio tokens, in order
and at their old positions. At the input: the LLM never computes the dropped tokens, and the kept tokens get positions
without gaps, as in a shorter prompt. In the audio tower: states are dropped between two of its layers, so that its
later layers compute less too. A method chooses the tokens from an :class:`Evidence`; `dropping.py` and `tower.py` drop
them.
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
from audiomarathon.models.layers import cached, has_windows, source_of, states_of, window_of
from audiomarathon.models.merge import Merge
from audiomarathon.models.trace import Trace
from audiomarathon.settings import RISING, Schedule, as_text, schedule_of

if TYPE_CHECKING:
    import torch
    from torch import nn

    from audiomarathon.compression.attention import Attention
    from audiomarathon.models.audio_lm import AudioLM
    from audiomarathon.models.prompt import Inputs, Waveform

_QUERIES = 128  # number of queries whose attention is in memory at once


@dataclass(frozen=True)
class Scored:
    """Attention, keys and hidden states of one sample at layer K, where tokens are dropped.

    Shapes: S prompt positions (left padding included), H query heads, Hkv key heads, heads of size d, hidden states of
    size D.

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
        """Return the attention that each of the given positions receives, summed over heads and over all later queries.

        The positions are ascending. The result is float32, shape (N,). Memory is O(H·128·S), never S×S; time is that of
        the layer's own attention.

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
        Attention, keys and hidden states at layer K; None unless the method sets `scored = True`.
    states
        Hidden states of the audio tokens that enter layer K, shape (N, D). At the input, these are embeddings; in the
        tower, the tower's states, or their keys if the method sets `sees_keys = True`. None unless the method sets
        `sees_states = True`.
    heard
        The part of the waveform that each audio token stands for, N arrays; empty unless the method sets
        `hears = True`.
    sampling_rate
        Sampling rate of `heard`, in Hz.
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
        """`scored`, never None: attention, keys and hidden states at layer K, where tokens are dropped.

        Only for methods that set `scored = True`.
        """
        assert self.scored is not None, "a method that uses the model's state must declare `scored = True`"
        return self.scored


@dataclass(frozen=True)
class TokenPruner(Method):
    """Base class of the methods that drop or merge audio tokens: at layer K (`at = "layer"`), input or tower.

    In the tower, `positions` count a window's states instead of a prompt's audio tokens; several states make one token.

    A subclass only defines :meth:`select`. If it sets `sees_states = True`, the :class:`Evidence` holds the audio
    tokens' hidden states; with `scored = True`, also attention, keys and all hidden states; with `hears = True`, the
    part of the waveform that each token stands for. A subclass that ranks by attention must set
    `ranks_by_attention = True`: such a method cannot use a layer with a sliding window, where most audio gets no
    attention.
    """

    saves: ClassVar[str] = "LLM prefill from layer K on (all of it at the input), KV cache, decode"
    needs: ClassVar[str] = "models with windows: no flash attention, and not at the input"
    scored: ClassVar[bool] = False
    ranks_by_attention: ClassVar[bool] = False
    sees_states: ClassVar[bool] = False
    hears: ClassVar[bool] = False
    sees_keys: ClassVar[bool] = False
    places: ClassVar[tuple[str, ...]] = ("layer", "input", "tower")
    """Values of `at` (where tokens are dropped) that the method allows."""
    static_decode: ClassVar[bool] = True
    chunked_prefill: ClassVar[bool] = True
    in_steps: ClassVar[bool] = True
    """Whether the method may drop in several steps; one that merges tokens may not."""

    layer: int = 2
    at: str = "layer"
    tower_layer: int | None = None
    """The first layer of the tower that computes only the kept states, if `at = "tower"`; None for half its depth."""
    schedule: Schedule = ()
    """Pairs (layer, fraction of audio tokens removed from this layer on), ending with `ratio`; () is one step."""

    @abstractmethod
    def select(self, evidence: Evidence) -> torch.Tensor | Merge:
        """Return which audio tokens to keep, or how to merge them.

        Returns
        -------
        torch.Tensor or Merge
            Exactly `evidence.n_keep` distinct indices into `evidence.positions`, in any order; or a merge into exactly
            `evidence.n_keep` groups.
        """

    @property
    def first_layer(self) -> int:
        """The LLM's first layer that computes only the kept tokens; with a schedule, the layer of its first step."""
        return self.drops[0][0]

    @property
    def drops(self) -> Schedule:
        """Where tokens are dropped, as pairs (layer, fraction removed from this layer on): `schedule`, or one step."""
        return self.schedule or ((self.layer if self.at == "layer" else 0, self.ratio),)

    @property
    def label(self) -> str:
        """Name for folders and tables, such as `frame-0.5-layer2`, `frame-0.5-input` or `frame-0.5-tower16`.

        `frame-0.5-tower` drops at half the tower's depth, and `frame-0.7-layer2=0.3-8=0.7` drops in two steps.
        """
        if self.schedule and self.ratio:
            return f"{self.key}-{plain(self.ratio)}-layer" + "-".join(f"{k}={plain(r)}" for k, r in self.schedule)
        if self.at == "layer" or not self.ratio:
            return super().label
        layer = self.tower_layer if self.at == "tower" and self.tower_layer is not None else ""
        return f"{self.key}-{plain(self.ratio)}-{self.at}{layer}"

    def parameters(self) -> dict[str, Any]:
        """Return the method's fields as {name: value}, which tell runs apart.

        A schedule is given as text, such as `2:0.3,8:0.5`. Fields that do not matter where the method drops tokens are
        left out; so is `at` if it drops at a layer of the LLM.
        """
        used = {"layer": {"layer"}, "input": {"at"}, "tower": {"at", "tower_layer"}}[self.at]
        omitted = {"layer", "at", "tower_layer", "schedule"} - ({"schedule"} if self.schedule else used)
        parameters = {name: value for name, value in super().parameters().items() if name not in omitted}
        return parameters | ({"schedule": as_text(self.schedule)} if self.schedule else {})

    def in_tower(self, depth: int) -> int:
        """Return the first layer that computes only the kept states, in an audio tower of `depth` layers."""
        return depth // 2 if self.tower_layer is None else self.tower_layer

    def steps(self, depth: int) -> Sequence[tuple[int, float]]:
        """Return at which layers of an audio tower with `depth` layers states are dropped, as pairs (layer, fraction).

        The fraction is the share of all drops that are done from this layer on, so the last fraction is 1.
        """
        return [(self.in_tower(depth), 1.0)]

    def check_config(self, config: Any) -> None:
        """Raise MethodError if the model lacks the layer at which the method drops, or the method cannot drop there."""
        if self.at not in self.places:
            allowed = ", ".join(f"PRUNE_AT={place} (--at {place})" for place in self.places)
            raise MethodError(f"{self.key}: does not work at {self.at!r}; allowed: {allowed}")
        if self.schedule:
            self.check_schedule()
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
        last = min(
            (source for index in range(layers) if (source := source_of(config, index)) < index), default=layers - 1
        )
        for layer, _ratio in self.drops:
            self._check_layer(layer, config, first, last)

    def _check_layer(self, layer: int, config: Any, first: int, last: int) -> None:
        """Raise MethodError if the model lacks the layer, or the method cannot drop there.

        The method can drop at the layers from `first` to `last`.
        """
        layers = config.num_hidden_layers
        if not 0 <= layer < layers:
            raise MethodError(f"{self.key}: layer {layer} is not one of this model's layers {first}–{layers - 1}")
        if layer < first:
            raise MethodError(f"{self.key}: scores come from the layer before, so the layer must be at least {first}")
        if layer > last:
            raise MethodError(
                f"{self.key}: later layers of this model use the keys and values of layer {last}, so the layer must be "
                f"{first}–{last}, got {layer}"
            )
        if self.ranks_by_attention and (window := window_of(config, layer - 1)):
            able = ", ".join(str(layer) for layer in range(1, last + 1) if not window_of(config, layer - 1))
            raise MethodError(
                f"{self.key}: ranks by the attention of the layer before, but layer {layer - 1} of this model "
                f"sees only {window} tokens; allowed layers: {able or 'none'}, got {layer}"
            )

    def check_schedule(self) -> None:
        """Raise MethodError if the schedule does not end at the ratio, or the method or `at` allows only one step."""
        told = f"{self.key}: PRUNE_SCHEDULE (--schedule) {as_text(self.schedule)}"
        if not self.in_steps or self.at != "layer":
            why = "merges tokens, which is done at once" if not self.in_steps else f"drops at {self.at!r}, at once"
            raise MethodError(f"{told}: the method {why}; allowed: no schedule")
        try:
            rises = schedule_of(as_text(self.schedule)) == tuple(map(tuple, self.schedule))
        except ValueError:
            rises = False
        if not rises:
            raise MethodError(f"{told}: not allowed; allowed: {RISING}")
        if (last := self.schedule[-1][1]) != self.ratio:
            raise MethodError(f"{told}: it ends at {last!r}, but the ratio is {self.ratio!r}; allowed: ratio {last!r}")

    def check_family(self, family: type[AudioLM], depth: int) -> None:
        """Raise MethodError if nothing can be dropped in the family's audio tower, or the tower lacks the layer."""
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
        """Raise MethodError if the method cannot work with a loaded model, such as one with flash attention and sliding
        windows.

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
        """Drop or merge audio tokens in prefill, inside the `with` block; yield the method's report (trace)."""

        from audiomarathon.compression.attention import attention_watched
        from audiomarathon.compression.dropping import DropsInSteps
        from audiomarathon.compression.heard import heard_by_token
        from audiomarathon.models.loading import patched_attribute

        if self.at == "tower":
            # Do this even if rounding leaves nothing to drop, so that this setting's tower is timed in its own call.
            with (
                patched_attribute(lm, "shares_tower", not self.changes_tower),
                self._tower_dropped(lm, inputs) as trace,
            ):
                yield trace
            return
        steps = [tuple(kept_count(total, ratio) for total in inputs.audio_tokens) for _layer, ratio in self.drops]
        trace = Trace(steps[-1])
        if list(steps[-1]) == inputs.audio_tokens:
            yield trace  # nothing to drop: no hook, so that ratio 0 is bit-identical to base
            return
        if inputs.states:
            with self._states_dropped(lm, inputs) as trace:
                yield trace
            return
        firsts = [layer for layer, _ratio in self.drops]
        drops = DropsInSteps(inputs, firsts, steps, len(lm.decoder_layers), contiguous=self.at == "input")
        trace.positions, trace.row_lengths = drops.positions, drops.row_lengths
        trace.expected_lengths = cached(lm.decoder.config, drops.widths)
        trace.prompts = tuple(drops.drops[0].lengths) if self.at == "input" else None
        seen: list[list[Attention]] = [[] for _ in steps]
        shown: list[list[torch.Tensor]] = []
        looks = self.scored or self.sees_states
        heard = heard_by_token(lm, inputs) if self.hears else [()] * len(inputs.seeds)

        def choose(step: int, entering: torch.Tensor | None) -> None:
            drop = drops.begun(step)
            shown.append([places.clone() for places in drop.audio])
            rows = zip(shown[-1], drop.budgets, inputs.seeds, drop.text_after, strict=True)
            drop.keep([
                self._chosen(
                    Evidence(
                        *facts,
                        _scored(lm, seen[step], entering, row, drops.begin(step, row)) if self.scored else None,
                        states_of(lm.decoder.config, entering, row, facts[0]) if self.sees_states else None,
                        drops.left_of(heard[row], step, row) if self.hears else (),
                        lm.sampling_rate,
                    )
                )
                for row, facts in enumerate(rows)
            ])  # fmt: skip

        def decide(step: int, entering: torch.Tensor) -> None:
            if looks:
                with trace.scoring(lm.clock):
                    choose(step, entering)
                seen[step].clear()

        with ExitStack() as stack:
            if self.scored:
                watching = {
                    lm.decoder_layers[k - 1].self_attn: layer_seen.append
                    for k, layer_seen in zip(firsts, seen, strict=True)
                }
                stack.enter_context(attention_watched(lm.attn_implementation, watching))  # type: ignore[arg-type]
            for step in range(0 if looks else len(steps)):
                choose(step, None)  # the choice does not depend on the model's state, so make it before prefill
            trace.decode_hooks += drops.attach(lm.decoder, decide)
            for handle in trace.decode_hooks:
                stack.enter_context(handle)
            yield trace
            self._check_choices(inside=drops.inside(), unchanged=drops.unchanged(shown))
            last = drops.drops[-1]
            trace.kept_positions, trace.merges = last.kept_positions(), last.merges if any(last.merges) else None
            trace.kept_steps = drops.kept_steps() if self.schedule else None

    @contextmanager
    def _states_dropped(self, lm: AudioLM, inputs: Inputs) -> Iterator[Trace]:
        """Drop or merge an encoder-decoder's encoder states inside the `with` block; yield the trace (what is kept).

        The hooks are in `states.py`.
        """
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
        """Drop or merge states inside the audio tower; yield the method's report (trace). See `tower.py`."""
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
        """Raise MethodError if an index that the method chose was out of range, or the method changed its input.

        `inside` tells that all indices are in range, `unchanged` that the input is as before. Called after `generate`,
        since reading the results earlier would wait for the GPU.
        """
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
        """Let the method choose which states of a window to keep: return their indices, or a merge.

        Take the window's waveform from `heard`, and append `positions` to `shown`, to check later that the method did
        not change them.
        """
        shown.append(positions)
        sound = next(heard, ())
        return self._chosen(Evidence(positions, keep, seed, states=states, heard=sound, sampling_rate=rate))

    def _chosen(self, evidence: Evidence) -> torch.Tensor | Merge:
        import torch

        if evidence.n_keep == len(evidence.positions):
            return torch.arange(evidence.n_keep, device=evidence.positions.device)
        chosen, total = self.select(evidence), len(evidence.positions)
        if isinstance(chosen, Merge):
            if self.schedule:
                raise MethodError(f"{self.label}: select returned a merge, which is done at once; allowed: no schedule")
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


def _scored(lm: AudioLM, seen: list[Attention], entering: torch.Tensor | None, row: int, begin: int) -> Scored:
    """Return attention, keys and hidden states where tokens are dropped, for the sample in `row` of the batch.

    `seen` has the attention of the layer before; `entering` has the hidden states. The sample's prompt begins at
    position `begin`, after padding.
    """
    (attention,) = seen
    sample_attention = attention.of_sample(row)
    last = sample_attention.of_last_queries()[0, :, 0]
    norm: nn.Module = lm.decoder.norm  # type: ignore[assignment]
    return Scored(
        last.to(lm.device),
        sample_attention.key[0].to(lm.device),
        states_of(lm.decoder.config, entering, row),
        norm,
        attention.of_sample(row, begin),
    )
