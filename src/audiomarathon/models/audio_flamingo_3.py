"""Audio Flamingo 3 (arXiv 2507.08128), on transformers' native class.

Its Whisper encoder takes windows of 30 s. A clip has 25 audio tokens per second, and the tokens of its windows follow
each other in the prompt without a gap. The last window is padded with silence for the encoder, but the silence gets no
audio tokens. The model takes clips of up to ten minutes. Its processor would cut a longer clip; here it is an error.
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
from audiomarathon.models.prompt import Inputs, Prompt, Waveform
from audiomarathon.models.tower_states import TowerStates

_MOST_SECONDS = 600


class AudioFlamingo3(AudioLM):
    """Audio Flamingo 3 on clips of up to ten minutes, window by window."""

    title: ClassVar[str] = "Audio Flamingo 3"
    architecture: ClassVar[Any] = AudioFlamingo3ForConditionalGeneration
    model_types: ClassVar[tuple[str, ...]] = ("audioflamingo3",)
    eager_because = whole_because = no_tower_drop = ""
    encoder_window_seconds: ClassVar[float] = 30.0
    template = ""  # do not use the tokenizer's template: it is for the LLM alone, without audio
    placeholder = "<sound>"

    def heard(self, clips: Sequence[Waveform]) -> tuple[Sequence[int], dict[str, torch.Tensor]]:
        """Return (number of audio tokens of each clip, {argument name of the model: features of all 30-second
        windows}).

        A clip of more than ten minutes raises an error. See :meth:`AudioLM.heard`.
        """
        cut = [self._windows(clip) for clip in clips]
        features = self.features([window for clip in cut for window in clip])
        mask = features["attention_mask"]
        tokens = iter(self.tokens_of(mask.sum(-1)).tolist())
        counts = [sum(next(tokens) for _ in clip) for clip in cut]
        return counts, {"input_features": features["input_features"], "input_features_mask": mask}

    def tower_states(self, inputs: Inputs) -> TowerStates:
        """Return a :class:`TowerStates`: from which states of the audio tower each audio token is made, per window of
        30 s.
        """
        frames = inputs.tensors["input_features_mask"].sum(-1)
        return TowerStates.padded(frames, self.tokens_of(frames), self.model.config.audio_config.max_source_positions)

    def transcript(self, tokens: Sequence[int]) -> str:
        """Return the transcript inside a reply: the text in quotes of `The spoken content of the audio is "…".`"""
        processor = AudioFlamingo3Processor(self.feature_extractor, self.tokenizer)
        text: str = processor.decode([list(tokens)], strip_prefix=True, skip_special_tokens=True)[0]
        return text

    def _windows(self, clip: Waveform) -> list[Waveform]:
        """Cut a clip into the encoder's windows of 30 s.

        Raises
        ------
        ModelError
            The clip is too long or too short for the model.
        """
        extractor = self.feature_extractor
        if len(clip) > _MOST_SECONDS * self.sampling_rate:
            raise ModelError(
                f"a clip of {len(clip) / self.sampling_rate:.1f} s: Audio Flamingo 3 hears {_MOST_SECONDS} s at most; "
                "cut the clip, or use another model"
            )
        if len(clip) <= 2 * extractor.hop_length:
            raise ModelError("a clip is too short for a single audio token (0.04 s)")
        return list(windows(clip, extractor.n_samples))

    def worded(self, prompt: Prompt) -> str:
        """Return a prompt's text with a placeholder for each clip.

        The chat template writes one placeholder, since the processor takes one clip. For several clips, replace it by
        several placeholders, each on a line.
        """
        several = "\n".join([self.placeholder] * max(1, len(prompt.clips)))
        return super().worded(prompt).replace(self.placeholder, several, 1)

    def documented_inputs(self, path: Path, prompt: Prompt) -> Mapping[str, torch.Tensor] | None:
        """Return the inputs, as {name: tensor}, that the family's own processor makes of a prompt; None unless it has
        one clip.
        """
        if len(prompt.clips) != 1:
            return None
        processor = AudioFlamingo3Processor.from_pretrained(path)
        return self.processed(processor, prompt, sampling_rate=self.sampling_rate)
