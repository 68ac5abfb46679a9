"""Keep loud: keep the audio tokens that stand for the loudest moments of the waveform."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from audiomarathon.compression.token_pruner import Evidence, TokenPruner

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class KeepLoud(TokenPruner):
    """Keep the k audio tokens of the loudest moments: a baseline that uses only the waveform, not the model.

    Each token stands for an equal part of its clip, including the silence with which a tower pads it. Its loudness is
    the mean square of the waveform there; of equally loud tokens, the earlier is kept.
    """

    key: ClassVar[str] = "keep_loud"
    title: ClassVar[str] = "audio tokens over the loudest moments of the waveform"
    hears: ClassVar[bool] = True
    places: ClassVar[tuple[str, ...]] = ("layer", "input")

    def select(self, evidence: Evidence) -> torch.Tensor:
        """Return the indices of the k audio tokens of the loudest moments."""
        return loudness(evidence).sort(descending=True, stable=True).indices[: evidence.n_keep]


def loudness(evidence: Evidence) -> torch.Tensor:
    """Return the loudness of each audio token: the mean square of the waveform there, float64, shape (N,)."""
    import numpy as np
    import torch

    power = [float(np.square(part, dtype=np.float64).mean()) if len(part) else 0.0 for part in evidence.heard]
    return torch.tensor(power, dtype=torch.float64)
