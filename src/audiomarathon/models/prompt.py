"""What goes into a model: prompts as a task words them, and batches of them as tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

Waveform = npt.NDArray[np.float32]
_Numbers = TypeVar("_Numbers", bound=npt.NDArray[Any])

_WINDOW = 30  # seconds


@dataclass(frozen=True)
class Prompt:
    """What one sample asks of the model.

    Attributes
    ----------
    text
        The task's words, without the family's chat template.
    clips
        Mono waveforms of shape (samples,) at the model's sampling rate; they come before the text. Empty for a prompt
        of text alone.
    seed
        Seeds methods that draw at random; the same for the same run seed and sample, whatever the batch.
    transcription
        Whether the text asks for a transcript: some families have a request form of their own for that.
    """

    text: str
    clips: tuple[Waveform, ...]
    seed: int = 0
    transcription: bool = False


@dataclass(frozen=True)
class Inputs:
    """A batch of prompts as tensors on the model's device.

    Attributes
    ----------
    tensors
        What the model's `generate` takes: `input_ids` and `attention_mask` of shape (B, S), left-padded, and the audio
        features.
    audio_mask
        Boolean, shape (B, S): which prompt positions are audio tokens. They need not be contiguous.
    seeds
        One seed a sample, from its :class:`Prompt`.
    window_padding
        How many of a sample's audio tokens stand for the silence that fills up its last window; empty for families
        without fixed windows.
    truncated
        Whether a sample's audio was cut short, as some models' published practice has it; empty where none was.
    heard_seconds
        How much of each sample's audio the model hears, where a model's published practice cuts it short; empty where
        it hears all.
    """

    tensors: Mapping[str, torch.Tensor]
    audio_mask: torch.Tensor
    seeds: tuple[int, ...]
    window_padding: tuple[int, ...] = ()
    truncated: tuple[bool, ...] = ()
    heard_seconds: tuple[float, ...] = ()

    @property
    def attention_mask(self) -> torch.Tensor:
        """Shape (B, S): 1 for prompt tokens, 0 for the padding on the left."""
        return self.tensors["attention_mask"]

    @property
    def prompt_tokens(self) -> list[int]:
        """Prompt tokens a sample, padding not counted."""
        return [int(n) for n in self.attention_mask.sum(-1).tolist()]

    @property
    def audio_tokens(self) -> list[int]:
        """Audio tokens a sample, before any is dropped."""
        return [int(n) for n in self.audio_mask.sum(-1).tolist()]


def by_clip(values: _Numbers, inputs: Inputs, seconds: Sequence[float]) -> tuple[_Numbers, ...]:
    """Split values of the audio tokens of a batch of one into one array a clip.

    Each run of audio tokens in the prompt is a clip, or one of the windows of 30 s that a family cuts clips into. Where
    there are others (clips stand side by side) tokens are shared out by the clips' lengths, right to one token.
    """
    places = inputs.audio_mask[0].cpu().nonzero().flatten().numpy()
    starts = np.flatnonzero(np.diff(places) > 1) + 1
    windows = [math.ceil(length / _WINDOW) for length in seconds]
    if len(starts) + 1 == sum(windows):
        starts = starts[np.cumsum(windows)[:-1] - 1]
    elif len(starts) + 1 != len(seconds):
        ends = np.cumsum(seconds) / sum(seconds)
        starts = np.round(ends[:-1] * len(places)).astype(int)
    return tuple(np.split(values, starts))  # type: ignore[arg-type]
