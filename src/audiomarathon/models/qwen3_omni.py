"""Qwen3-Omni (arXiv 2509.17765) on transformers' native class; only the thinker, which writes text, is loaded.

The hub's checkpoints hold `thinker.*`, `talker.*` and `code2wav.*`. The last two make speech. The thinker is a mixture
of experts; each expert's weights are separate tensors on disk, which are joined when they are loaded. Three strided
convolutions turn each second of audio into 13 audio tokens. The encoder attends within windows of eight seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import Qwen3OmniMoeProcessor, Qwen3OmniMoeThinkerForConditionalGeneration

from audiomarathon.errors import ModelError
from audiomarathon.models.prompt import Waveform
from audiomarathon.models.qwen2_5_omni import Qwen2_5Omni
from audiomarathon.models.tower_windows import modelling_file


class Qwen3Omni(Qwen2_5Omni):
    """Qwen3-Omni's thinker: the part that takes audio and writes text."""

    title: ClassVar[str] = "Qwen3-Omni"
    architecture: ClassVar[Any] = Qwen3OmniMoeThinkerForConditionalGeneration
    model_types: ClassVar[tuple[str, ...]] = ("qwen3_omni_moe", "qwen3_omni_moe_thinker")
    eager_because = "its mixture of experts waits for the GPU in each layer"
    states_per_token: ClassVar[int] = 1
    processor: ClassVar[Any] = Qwen3OmniMoeProcessor
    placeholder = "<|audio_pad|>"

    def _features(self, clips: Sequence[Waveform]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return features (clips, mel bins, frames) and their mask (clips, frames), computed clip by clip, then padded.

        In a batch with a longer clip, the processor would change a clip's last frames, and add up to one audio token.
        """
        if min(len(clip) for clip in clips) <= self.feature_extractor.n_fft // 2:
            raise ModelError("a clip is too short for a single audio token")
        alone = [self.features(clip, padding=True)["input_features"][0] for clip in clips]
        features = pad_sequence([clip.T for clip in alone], batch_first=True).transpose(1, 2)
        return features, pad_sequence([torch.ones(clip.shape[1], dtype=torch.long) for clip in alone], batch_first=True)

    def _windows(self, places: torch.Tensor, lengths: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return {name: tensor}, from which :class:`Windows` is built, for windows of eight seconds.

        The parameters are those of :meth:`Qwen2_5Omni._windows`.
        """
        theirs, config = modelling_file(self.audio_tower), self.model.config.audio_config
        places, chunks = theirs.chunk_and_pad_features(places, lengths, config.n_window)
        return {
            "places": places,
            "chunk_lengths": chunks,
            "valid_indices": theirs.get_valid_indices(chunks, config.n_window),
            "cu_seqlens": theirs.get_audio_cu_seqlens(chunks, lengths, config.n_window_infer, config.n_window),
        }

    def tokens_of(self, frames: torch.Tensor) -> torch.Tensor:
        """Return how many audio tokens a clip of `frames` mel frames has.

        Three convolutions halve the number of frames in each chunk of the encoder, rounding up.
        """
        chunk: int = 2 * self.model.config.audio_config.n_window
        return frames // chunk * ((chunk + 7) // 8) + (frames % chunk + 7) // 8
