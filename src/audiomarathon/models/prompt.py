"""What goes into a model: prompts as a task words them, and batches of them as tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

Waveform = npt.NDArray[np.float32]


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
