"""What prefill costs in FLOPs, and what a method that drops tokens promises to save of it.

A decoder layer that sees s tokens costs 2·(active parameters)·s + 2·s²·heads·head_dim FLOPs (causal attention), and
prefill ends with one row of the LM head. The counts are taken from the loaded model once and written to `run.json`, so
that everything else here needs no model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from audiomarathon.compression.method import kept_count
from audiomarathon.records import Record

TEXT_TOKENS = 250  # of a question with its options and the chat template, about


@dataclass(frozen=True)
class Cost:
    """What one prompt costs a model, in FLOPs (a multiplication and an addition are two).

    Attributes
    ----------
    flops_per_token_per_layer
        For each decoder layer twice its active parameters.
    attention_flops_coefficient
        For each decoder layer 2·heads·head_dim: what the square of its tokens is multiplied by.
    lm_head_flops
        Of one position.
    encoder_flops_per_second
        Of the audio tower, a second of audio; None where it could not be counted.
    encoder_window_seconds
        The audio tower hears whole windows of so many seconds, the last one filled up; 0 for none.
    attention_windows
        For each decoder layer how many tokens back it sees; 0 for all. Empty where all see all.
    """

    flops_per_token_per_layer: tuple[float, ...]
    attention_flops_coefficient: tuple[float, ...]
    lm_head_flops: float
    encoder_flops_per_second: float | None
    encoder_window_seconds: float = 0.0
    attention_windows: tuple[int, ...] = ()

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> Cost:
        """Return the cost that a `run.json` holds under `cost`."""
        return cls(
            tuple(content["flops_per_token_per_layer"]),
            tuple(content["attention_flops_coefficient"]),
            content["lm_head_flops"],
            content["encoder_flops_per_second"],
            content.get("encoder_window_seconds", 0.0),  # records of earlier versions lack both
            tuple(content.get("attention_windows", ())),
        )

    def as_json(self) -> dict[str, Any]:
        """Return what `run.json` holds under `cost`."""
        return {**asdict(self), "layers": len(self.flops_per_token_per_layer)}

    def llm_prefill(self, tokens: Sequence[int]) -> float:
        """Return the FLOPs of a prefill whose layers see `tokens` tokens, one number a layer."""
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
        """Return the FLOPs of the audio tower."""
        assert self.encoder_flops_per_second is not None
        if window := self.encoder_window_seconds:
            clip_seconds = math.ceil(clip_seconds / window) * window
        return self.encoder_flops_per_second * clip_seconds


@dataclass(frozen=True)
class Drops:
    """What prefill is spared: audio tokens dropped at the input of layer `layer`; None when none are."""

    layer: int | None = None
    ratio: float = 0.0

    def tokens(self, layers: int, prompt: int, audio: int) -> list[int]:
        """Return how many tokens each layer sees in prefill."""
        if self.layer is None:
            return [prompt] * layers
        left = prompt - audio + kept_count(audio, self.ratio)
        return [prompt if index < self.layer else left for index in range(layers)]


def ideal_speed_up(cost: Cost, drops: Drops, record: Record, *, encoder: bool = False) -> float:
    """Return what counted FLOPs promise for one sample: base ÷ setting, of LLM prefill or, with the encoder, of time to
    first token."""
    layers = len(cost.flops_per_token_per_layer)
    prompt, audio = record.prompt_tokens or 0, record.audio_tokens or 0
    always = cost.encoder(record.clip_seconds) if encoder else 0.0
    whole = cost.llm_prefill(Drops().tokens(layers, prompt, audio))
    return (always + whole) / (always + cost.llm_prefill(drops.tokens(layers, prompt, audio)))
