"""Types for the input of a model: a sample's prompt (text and clips), and a batch of prompts as tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

if TYPE_CHECKING:
    from audiomarathon.models.tower_windows import Windows

Waveform = npt.NDArray[np.float32]
_Numbers = TypeVar("_Numbers", bound=npt.NDArray[Any])

_WINDOW = 30  # seconds


@dataclass(frozen=True)
class Prompt:
    """The question about one sample, with its clips.

    Attributes
    ----------
    text
        The task's text, without the model's chat template.
    clips
        Mono waveforms of shape (samples,) at the model's sampling rate, placed before the text. Empty for a prompt of
        text only.
    seed
        Seed for methods that choose at random. It depends on the run's seed and the sample, never on the batch.
    transcription
        Whether the text asks for a transcript. Some families have a special request for this.
    language
        Language of the speech, as a code of ISO 639-1; used for transcripts only.
    """

    text: str
    clips: tuple[Waveform, ...]
    seed: int = 0
    transcription: bool = False
    language: str = "en"


@dataclass(frozen=True)
class Inputs:
    """A batch of B prompts, padded to S tokens, as tensors on the model's device.

    Attributes
    ----------
    tensors
        Arguments of the model's `generate`: `input_ids` and `attention_mask` of shape (B, S), left-padded, and the
        audio features.
    audio_mask
        Boolean, shape (B, S): True at audio tokens, which need not be contiguous.
    seeds
        Seed of each sample, from its :class:`Prompt`.
    window_padding
        Number of each sample's audio tokens that stand for silence at the end of windows; empty for families without
        fixed windows.
    truncated
        Whether each sample's audio was cut, as some models' published code does; empty for models that cut nothing.
    heard_seconds
        Seconds of each sample's audio that the model takes in; empty for models that cut nothing.
    states
        For an encoder-decoder, the number of the encoder's states that stand for audio, not for padding, for each
        window of each sample; then `audio_mask` describes a virtual prompt (see :mod:`audiomarathon.models.whisper`).
        Empty for models whose prompt holds the audio tokens.
    windows
        The windows of the clips, for audio towers whose attention is limited to windows; None for other towers.
    clips
        Each sample's waveforms; if a family cuts clips into windows, the windows.
    """

    tensors: Mapping[str, torch.Tensor]
    audio_mask: torch.Tensor
    seeds: tuple[int, ...]
    window_padding: tuple[int, ...] = ()
    truncated: tuple[bool, ...] = ()
    heard_seconds: tuple[float, ...] = ()
    states: tuple[tuple[int, ...], ...] = ()
    windows: Windows | None = None
    clips: tuple[tuple[Waveform, ...], ...] = ()

    @property
    def attention_mask(self) -> torch.Tensor:
        """Shape (B, S): 1 at prompt tokens, 0 at the padding on the left."""
        return self.tensors["attention_mask"]

    @property
    def prompt_tokens(self) -> list[int]:
        """Number of prompt tokens of each sample, without padding."""
        return [int(n) for n in self.attention_mask.sum(-1).tolist()]

    @property
    def audio_tokens(self) -> list[int]:
        """Number of audio tokens of each sample, before any is dropped."""
        return [int(n) for n in self.audio_mask.sum(-1).tolist()]


def by_clip(values: _Numbers, inputs: Inputs, seconds: Sequence[float], row: int = 0) -> tuple[_Numbers, ...]:
    """Split `values`, an array with one value for each audio token of one prompt, into one array for each clip.

    The prompt is the given `row` of the batch. Each run of neighbouring audio tokens is a clip, or a window of 30 s of
    a clip. If the number of runs equals neither the number of clips nor that of windows (since clips follow each other
    without text), split in proportion to the clips' lengths, exact to one token.
    """
    places = inputs.audio_mask[row].cpu().nonzero().flatten().numpy()
    starts = np.flatnonzero(np.diff(places) > 1) + 1
    windows = [math.ceil(length / _WINDOW) for length in seconds]
    if len(starts) + 1 == sum(windows):
        starts = starts[np.cumsum(windows)[:-1] - 1]
    elif len(starts) + 1 != len(seconds):
        ends = np.cumsum(seconds) / sum(seconds)
        starts = np.round(ends[:-1] * len(places)).astype(int)
    return tuple(np.split(values, starts))  # type: ignore[arg-type]
