"""Map the encoder states of a Whisper-like audio tower to audio tokens, and find the tower's number of layers.

Dropping states inside the tower needs this map: see :mod:`audiomarathon.compression.tower`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class TowerStates:
    """How many states the audio tower has between its layers, and which of them make an audio token, for a batch's
    clips.

    Attributes
    ----------
    pooling
        Number of neighbouring states that make an audio token, after the tower's last layer.
    windows
        (number of states, number of audio tokens) of each window into which the clips are cut, in order. The first
        states of a window make its audio tokens. States of a window's padding are not counted.
    width
        Number of states of a window, padding included; 0 if windows follow each other without padding.
    """

    pooling: int
    windows: tuple[tuple[int, int], ...]
    width: int = 0

    @classmethod
    def padded(cls, frames: torch.Tensor, tokens: torch.Tensor, width: int) -> TowerStates:
        """Return the :class:`TowerStates` of windows that are padded to `width` states; two states make an audio token.

        `frames` and `tokens` have each window's number of mel frames and of audio tokens.
        """
        states = (frames - 1) // 2 + 1
        return cls(2, tuple(zip(states.tolist(), tokens.tolist(), strict=True)), width)


def tower_depth(config: Any) -> int:
    """Return the number of layers of the audio tower that a checkpoint's config describes; 0 if it names none."""
    audio = getattr(getattr(config, "thinker_config", config), "audio_config", config)
    return int(getattr(audio, "encoder_layers", None) or getattr(audio, "num_hidden_layers", None) or 0)
