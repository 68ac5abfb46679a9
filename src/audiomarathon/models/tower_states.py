"""Map the states of a Whisper-like audio tower to audio tokens, and find the tower's number of layers.

Dropping inside the tower needs this map: see :mod:`audiomarathon.compression.tower`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class TowerStates:
    """The states between the layers of a tower, for the clips of a batch.

    Attributes
    ----------
    pooling
        Number of neighbouring states that make an audio token, after the tower's last layer.
    windows
        For each window, in order: its number of states, and its number of audio tokens. The first states of a window
        make its audio tokens. States of a window's padding are not counted.
    width
        Number of states of a window, padding included; 0 if windows follow each other without padding.
    """

    pooling: int
    windows: tuple[tuple[int, int], ...]
    width: int = 0

    @classmethod
    def padded(cls, frames: torch.Tensor, tokens: torch.Tensor, width: int) -> TowerStates:
        """Return the states of windows that are padded to `width` states; two states make an audio token.

        `frames` and `tokens` have each window's number of mel frames and of audio tokens.
        """
        states = (frames - 1) // 2 + 1
        return cls(2, tuple(zip(states.tolist(), tokens.tolist(), strict=True)), width)


def tower_depth(config: Any) -> int:
    """Return the number of layers of the audio tower that a checkpoint's config describes; 0 if it names none."""
    audio = getattr(getattr(config, "thinker_config", config), "audio_config", config)
    return int(getattr(audio, "encoder_layers", None) or getattr(audio, "num_hidden_layers", None) or 0)
