"""Keep speech: keep the audio tokens where a voice-activity detector finds speech."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from audiomarathon.compression.pruners.keep_loud import loudness
from audiomarathon.compression.token_pruner import Evidence, TokenPruner
from audiomarathon.errors import MethodError, SettingsError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class KeepSpeech(TokenPruner):
    """Keep the k audio tokens with the most speech, as silero-vad finds it; of tokens with equal speech, the louder.

    A baseline that uses only the waveform, not the LLM. The method needs the extra `vad` of this package.
    """

    key: ClassVar[str] = "keep_speech"
    title: ClassVar[str] = "audio tokens with speech, found by a voice-activity detector"
    needs: ClassVar[str] = "the extra vad"
    package: ClassVar[tuple[str, str]] = ("silero_vad", "pip install 'audiomarathon[vad]'")
    hears: ClassVar[bool] = True
    places: ClassVar[tuple[str, ...]] = ("layer", "input")

    def check_config(self, config: Any) -> None:
        """Raise MethodError if the voice-activity detector is not installed, or the config does not fit the method."""
        from audiomarathon.audio.voice_activity import check_detector

        try:
            check_detector()
        except SettingsError as error:
            raise MethodError(f"{self.key}: {error}") from None
        super().check_config(config)

    def select(self, evidence: Evidence) -> torch.Tensor:
        """Return the indices of the k audio tokens with the most speech."""
        import numpy as np
        import torch

        from audiomarathon.audio.voice_activity import find_speech

        rate = evidence.sampling_rate
        whole = np.concatenate(evidence.heard)
        spoken = np.zeros(len(whole) + 1)
        for start, end in find_speech(whole, rate):
            spoken[1 + round(start * rate) : 1 + round(end * rate)] = 1
        ends = np.cumsum([0, *map(len, evidence.heard)])
        share = np.diff(spoken.cumsum()[ends]) / np.maximum(1, np.diff(ends))
        order = np.lexsort([-loudness(evidence).numpy(), -share.round(3)])
        return torch.from_numpy(order[: evidence.n_keep].copy())
