"""The FLOPs of prefill and the bytes of a decode step, and the ideal speed-ups by dropping tokens.

A decoder layer that computes s tokens costs 2·(active parameters)·s + 2·s²·heads·head_dim FLOPs (causal attention). At
the end of prefill, the LM head computes one position. A run counts these factors once, from the loaded model, and
writes them to `run.json`; this module needs no model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from audiomarathon.compression.method import kept_count
from audiomarathon.metrics.statistics import Floats
from audiomarathon.records import Record

LAUNCH_BOUND = 0.6  # limit of a stage's busy ÷ wall seconds; below it, the GPU mostly waits for the program
TEXT_TOKENS = 250  # a typical question with its options and the chat template


@dataclass(frozen=True)
class Cost:
    """Factors from which the FLOPs of a prompt and the bytes of a decode step are computed.

    A multiplication and an addition are two FLOPs.

    Attributes
    ----------
    flops_per_token_per_layer
        Twice the active parameters of each decoder layer.
    attention_flops_coefficient
        2·heads·head_dim of each decoder layer: the factor of the square of its number of tokens.
    lm_head_flops
        FLOPs of the LM head for one position.
    encoder_flops_per_second
        FLOPs of the audio tower per second of audio; None if not counted.
    encoder_window_seconds
        Length of the windows into which clips are cut for the audio tower, the last one padded; 0 if clips are not cut.
    tower_layers, tower_linear, tower_attention
        Number of layers of the audio tower, and the FLOPs of each layer per second of audio: of its matrices, and of
        its attention between states (proportional to the square of the number of states). 0 layers if not counted.
    attention_windows
        Sliding attention window of each decoder layer in tokens (0 for a layer without); empty if no layer has one.
    weight_bytes
        Bytes of the weights that every decode step reads: decoder, active adapters and LM head, without embedding
        tables and experts; None if not counted.
    expert_bytes, experts, experts_per_token
        For a mixture of experts: bytes of all experts, number of experts in a layer, and how many a token uses.
    window_tokens, window_states, window_flops
        For an encoder-decoder: prompt tokens and encoder states of a window, padding included, and the FLOPs of its
        prefill that do not depend on the kept states. The FLOPs per token are then those of one state. 0 for other
        models.
    """

    flops_per_token_per_layer: tuple[float, ...]
    attention_flops_coefficient: tuple[float, ...]
    lm_head_flops: float
    encoder_flops_per_second: float | None
    encoder_window_seconds: float = 0.0
    attention_windows: tuple[int, ...] = ()
    weight_bytes: float | None = None
    expert_bytes: float = 0.0
    experts: int = 0
    experts_per_token: int = 0
    window_tokens: int = 0
    window_states: int = 0
    window_flops: float = 0.0
    tower_layers: int = 0
    tower_linear: float = 0.0
    tower_attention: float = 0.0

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> Cost:
        """Make a :class:`Cost` from the field `cost` of a `run.json`."""
        known: dict[str, Any] = {field.name: content[field.name] for field in fields(cls) if field.name in content}
        known |= {name: tuple(value) for name, value in known.items() if isinstance(value, list)}
        return cls(**known)

    def as_json(self) -> dict[str, Any]:
        """Return the cost's fields and the number of `layers`, as {name: value}: the field `cost` of a `run.json`."""
        return {**asdict(self), "layers": len(self.flops_per_token_per_layer)}

    def llm_prefill(self, tokens: Sequence[Any]) -> Any:
        """Return the FLOPs of a prefill in which layer i computes `tokens[i]` tokens.

        If `tokens[i]` is an array with an item per sample, so is the result.
        """
        windows = self.attention_windows or (0,) * len(tokens)
        layers = zip(self.flops_per_token_per_layer, self.attention_flops_coefficient, tokens, windows, strict=True)
        return (
            sum(
                linear * s + square * (s * s - (np.maximum(0, s - window) ** 2 if window else 0))
                for linear, square, s, window in layers
            )
            + self.lm_head_flops
        )

    def step_bytes(self, kv_bytes: float, batch: int = 1) -> float:
        """Return the bytes that a decode step reads for `batch` samples, each with a KV cache of `kv_bytes`.

        If each of B tokens chooses k of E experts at random, together they use E·(1 − (1 − k/E)^B) experts on average.
        """
        assert self.weight_bytes is not None
        met = 1 - (1 - self.experts_per_token / self.experts) ** batch if self.experts else 0.0
        return self.weight_bytes + met * self.expert_bytes + batch * kv_bytes

    def prompt(self, clip_seconds: float, tokens_per_second: float) -> tuple[int, int]:
        """Estimate the length of a clip's prompt; return (its tokens, how many of them a method may drop).

        For an encoder-decoder, the tokens fill whole windows, since it stores the states of padding too.
        """
        if self.window_tokens:
            windows = max(1, math.ceil(clip_seconds / self.encoder_window_seconds))
            return windows * self.window_tokens, windows * self.window_states
        audio = math.ceil(clip_seconds * tokens_per_second)
        return audio + TEXT_TOKENS, audio

    def encoder(self, clip_seconds: Any, drops: Drops | None = None) -> Any:
        """Return the audio tower's FLOPs for a clip, or for an array of clips, each padded to whole windows.

        Drops inside the tower reduce the later layers' FLOPs: of matrices by the share of kept states, of attention by
        its square.
        """
        assert self.encoder_flops_per_second is not None
        if window := self.encoder_window_seconds:
            clip_seconds = np.ceil(clip_seconds / window) * window
        return (self.encoder_flops_per_second - self._spared(drops)) * clip_seconds

    def _spared(self, drops: Drops | None) -> float:
        """Return how many FLOPs per second of audio the drops inside the audio tower save."""
        left = [] if drops is None or not self.tower_layers else drops.left_in_tower(self.tower_layers)
        return sum((1 - share) * self.tower_linear + (1 - share**2) * self.tower_attention for share in left)


@dataclass(frozen=True)
class Drops:
    """Which audio tokens a method drops in prefill: the fraction `ratio`, before layer `layer` (None: nothing).

    `tower` lists drops inside the audio tower, as pairs (layer, fraction of all drops made by then), such as ((16,
    1.0),); without drops in the tower, `tower` is empty. `steps` lists pairs (layer, fraction removed from this layer
    on), and the last fraction is `ratio`; if all tokens are dropped at once, `steps` is empty.
    """

    layer: int | None = None
    ratio: float = 0.0
    tower: Sequence[Sequence[float]] = ()
    steps: Sequence[Sequence[float]] = ()

    def left_in_tower(self, layers: int) -> list[float]:
        """Return, for each of the audio tower's `layers` layers, the share of all states that it still computes."""
        gone = [max((part for layer, part in self.tower if layer <= index), default=0.0) for index in range(layers)]
        return [1 - self.ratio * part for part in gone]

    def tokens(self, layers: int, prompt: Any, audio: Any) -> list[Any]:
        """Return how many tokens each layer computes in prefill, if `audio` of the `prompt` tokens are audio tokens.

        `prompt` and `audio` may be arrays with a number for each sample.
        """
        if self.layer is None:
            return [prompt] * layers
        lengths = [prompt] * layers
        for layer, ratio in self.steps or ((self.layer, self.ratio),):
            first = min(int(layer), layers)
            counts, places = np.unique(audio, return_inverse=True)
            each = np.array([kept_count(count, ratio) for count in counts.tolist()], counts.dtype)[places]
            lengths[first:] = [prompt - audio + (each if np.ndim(audio) else each.item())] * (layers - first)
        return lengths


def flops_of(cost: Cost, drops: Drops, record: Record, *, encoder: bool = False) -> float:
    """Return one sample's FLOPs of the LLM's prefill; with `encoder`, also of the audio tower."""
    of_sample = record.prompt_tokens or 0, record.audio_tokens or 0, record.clip_seconds
    return float(_flops(cost, drops, *of_sample, encoder=encoder))


def flops_of_each(cost: Cost, drops: Drops, records: Sequence[Record], *, encoder: bool = False) -> Floats:
    """Return an array of each sample's FLOPs of the LLM's prefill; with `encoder`, also of the audio tower."""
    each = [(record.prompt_tokens or 0, record.audio_tokens or 0, record.clip_seconds) for record in records]
    prompt, audio, seconds = (np.array([sizes[place] for sizes in each]) for place in range(3))
    flops: Floats = _flops(cost, drops, prompt, audio, seconds, encoder=encoder)
    return flops


def _flops(cost: Cost, drops: Drops, prompt: Any, audio: Any, seconds: Any, *, encoder: bool) -> Any:
    windows = 0
    if cost.window_tokens:
        windows = prompt // cost.window_tokens
        audio = np.where(
            windows * cost.window_states > 0, windows * cost.window_states, audio
        )  # states of padding are dropped too
        seconds = np.where(windows > 0, windows * cost.encoder_window_seconds, seconds)
    tokens = drops.tokens(len(cost.flops_per_token_per_layer), prompt, audio)
    return cost.llm_prefill(tokens) + windows * cost.window_flops + (cost.encoder(seconds, drops) if encoder else 0.0)


def ideal_speed_up(cost: Cost, drops: Drops, record: Record, *, encoder: bool = False) -> float:
    """Return the speed-up of a sample's LLM prefill if time were proportional to FLOPs: base's FLOPs ÷ the setting's.

    With `encoder`, return the speed-up of the whole prefill (audio tower and LLM).
    """
    return flops_of(cost, Drops(), record, encoder=encoder) / flops_of(cost, drops, record, encoder=encoder)


def tower_speed_up(cost: Cost, drops: Drops) -> float:
    """Return the audio tower's FLOPs with nothing dropped ÷ its FLOPs under a setting, for a clip of any length."""
    return cost.encoder(1.0) / cost.encoder(1.0, drops) if cost.encoder_flops_per_second else 1.0
