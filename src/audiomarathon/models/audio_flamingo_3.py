"""Audio Flamingo 3 (arXiv 2507.08128), on transformers' native class.

A Whisper encoder hears windows of 30 s. The audio tokens of all windows of a clip, 25 a second, stand in one run in the
prompt. The last window is padded with silence for the encoder only: the silence gets no tokens. The model takes clips
of up to ten minutes, where its processor would cut; here a longer clip is an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers import AudioFlamingo3ForConditionalGeneration, AudioFlamingo3Processor

from audiomarathon.errors import ModelError
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.chat import windows
from audiomarathon.models.prompt import Prompt, Waveform

_MOST_SECONDS = 600


class AudioFlamingo3(AudioLM):
    """Audio Flamingo 3."""

    title: ClassVar[str] = "Audio Flamingo 3"
    architecture: ClassVar[Any] = AudioFlamingo3ForConditionalGeneration
    model_types: ClassVar[tuple[str, ...]] = ("audioflamingo3",)
    encoder_window_seconds: ClassVar[float] = 30.0
    template = ""  # the tokenizer's is for the LLM alone, without audio
    placeholder = "<sound>"

    def heard(self, clips: Sequence[Waveform]) -> tuple[Sequence[int], dict[str, torch.Tensor]]:
        """See :meth:`AudioLM.heard`. A clip longer than ten minutes is refused, never cut."""
        cut = [self._windows(clip) for clip in clips]
        features = self.features([window for clip in cut for window in clip])
        mask = features["attention_mask"]
        tokens = iter(self.tokens_of(mask.sum(-1)).tolist())
        counts = [sum(next(tokens) for _ in clip) for clip in cut]
        return counts, {"input_features": features["input_features"], "input_features_mask": mask}

    def transcript(self, tokens: Sequence[int]) -> str:
        """See :meth:`AudioLM.transcript`. The model replies `The spoken content of the audio is "…".`"""
        processor = AudioFlamingo3Processor(self.feature_extractor, self.tokenizer)
        text: str = processor.decode([list(tokens)], strip_prefix=True, skip_special_tokens=True)[0]
        return text

    def _windows(self, clip: Waveform) -> list[Waveform]:
        """Cut a clip into windows.

        Raises
        ------
        ModelError
            When the clip is too long or too short for the model.
        """
        extractor = self.feature_extractor
        if len(clip) > _MOST_SECONDS * self.sampling_rate:
            raise ModelError(
                f"a clip of {len(clip) / self.sampling_rate:.1f} s: Audio Flamingo 3 hears {_MOST_SECONDS} s at most, "
                f"and audio is not cut here"
            )
        if len(clip) <= 2 * extractor.hop_length:
            raise ModelError("a clip is too short for a single audio token (0.04 s)")
        return list(windows(clip, extractor.n_samples))

    def worded(self, prompt: Prompt) -> str:
        """See :meth:`AudioLM.worded`. The template has a single placeholder for audio.

        Put the placeholders of several clips there, each on a line. The processor itself accepts one clip only.
        """
        several = "\n".join([self.placeholder] * max(1, len(prompt.clips)))
        return super().worded(prompt).replace(self.placeholder, several, 1)

    def documented_inputs(self, path: Path, prompt: Prompt) -> Mapping[str, torch.Tensor] | None:
        """See :meth:`AudioLM.documented_inputs`. The processor takes one clip per prompt."""
        if len(prompt.clips) != 1:
            return None
        processor = AudioFlamingo3Processor.from_pretrained(path)
        return self.processed(processor, prompt, sampling_rate=self.sampling_rate)
