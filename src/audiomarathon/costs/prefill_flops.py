"""The FLOPs of prefill, and the speed-up that dropping tokens promises.

A decoder layer that sees s tokens costs 2·(active parameters)·s + 2·s²·heads·head_dim FLOPs (causal attention). At the
end of prefill, the LM head computes one position. A run counts these factors once, from the loaded model, and writes
them to `run.json`; this module needs no model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from audiomarathon.compression.method import kept_count
from audiomarathon.records import Record

TEXT_TOKENS = 250  # a typical question with its options and the chat template


@dataclass(frozen=True)
class Cost:
    """Factors from which the FLOPs of a prompt follow (a multiplication and an addition are two FLOPs).

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
        Length of the audio tower's windows, to which the end of a clip is padded; 0 without windows.
    attention_windows
        Sliding window of each decoder layer in tokens (0 for a layer without); empty if no layer has one.
    """

    flops_per_token_per_layer: tuple[float, ...]
    attention_flops_coefficient: tuple[float, ...]
    lm_head_flops: float
    encoder_flops_per_second: float | None
    encoder_window_seconds: float = 0.0
    attention_windows: tuple[int, ...] = ()

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> Cost:
        """Make a cost from the field `cost` of a `run.json`."""
        known: dict[str, Any] = {field.name: content[field.name] for field in fields(cls) if field.name in content}
        known |= {name: tuple(value) for name, value in known.items() if isinstance(value, list)}
        return cls(**known)

    def as_json(self) -> dict[str, Any]:
        """Return the cost as the field `cost` of a `run.json`."""
        return {**asdict(self), "layers": len(self.flops_per_token_per_layer)}

    def llm_prefill(self, tokens: Sequence[int]) -> float:
        """Return the FLOPs of a prefill in which layer i sees `tokens[i]` tokens."""
        windows = self.attention_windows or (0,) * len(tokens)
        layers = zip(self.flops_per_token_per_layer, self.attention_flops_coefficient, tokens, windows, strict=True)
        return (
            sum(
                linear * s + square * (s * s - (max(0, s - window) ** 2 if window else 0))
                for linear, square, s, window in layers
            )
            + self.lm_head_flops
        )

    def encoder(self, clip_seconds: float) -> float:
        """Return the audio tower's FLOPs for a clip, which is padded to whole windows."""
        assert self.encoder_flops_per_second is not None
        if window := self.encoder_window_seconds:
            clip_seconds = math.ceil(clip_seconds / window) * window
        return self.encoder_flops_per_second * clip_seconds


@dataclass(frozen=True)
class Drops:
    """Audio tokens dropped in prefill: the fraction `ratio`, before layer `layer` (None: nothing is dropped)."""

    layer: int | None = None
    ratio: float = 0.0

    def tokens(self, layers: int, prompt: int, audio: int) -> list[int]:
        """Return how many tokens each layer sees in prefill, if `audio` of the `prompt` tokens are audio tokens."""
        if self.layer is None:
            return [prompt] * layers
        left = prompt - audio + kept_count(audio, self.ratio)
        return [prompt if index < self.layer else left for index in range(layers)]


def ideal_speed_up(cost: Cost, drops: Drops, record: Record, *, encoder: bool = False) -> float:
    """Return base's FLOPs ÷ the setting's FLOPs for one sample's LLM prefill; with `encoder`, for the whole prefill."""
    layers = len(cost.flops_per_token_per_layer)
    prompt, audio = record.prompt_tokens or 0, record.audio_tokens or 0
    always = cost.encoder(record.clip_seconds) if encoder else 0.0
    whole = cost.llm_prefill(Drops().tokens(layers, prompt, audio))
    return (always + whole) / (always + cost.llm_prefill(drops.tokens(layers, prompt, audio)))
