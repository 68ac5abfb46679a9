"""SnapKV with scores that are smoothed along time, since neighbouring moments of audio belong together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from audiomarathon.compression.press import Cached
from audiomarathon.compression.presses.snapkv import SnapKV

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class AudioKV(SnapKV):
    """SnapKV with scores that are low-passed along time, by FFT: only the lowest quarter of the spectrum is kept.

    The idea comes from arXiv 2604.06694; the code does not.
    """

    key: ClassVar[str] = "audio_kv"
    title: ClassVar[str] = "snapkv's scores, low-passed along time"
    paper: ClassVar[str] = "2604.06694"

    passed: float = 0.25

    def smoothed(self, score: torch.Tensor, cached: Cached) -> torch.Tensor:
        """Return the pooled scores, shape (Hkv, S − window), with the candidates' scores smoothed over time by a
        low-pass filter.

        Candidates are the entries that may be removed. The last `window` prompt positions have no scores here, since
        they always stay.
        """
        import torch

        places = cached.before(score.shape[-1])
        if len(places) < 2:
            return score
        spectrum = torch.fft.rfft(score[:, places])
        spectrum[:, max(1, round(spectrum.shape[-1] * self.passed)) :] = 0
        return score.index_copy(-1, places, torch.fft.irfft(spectrum, n=len(places)))
