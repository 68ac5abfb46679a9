"""Qwen2.5-Omni (arXiv 2503.20215): the thinker alone, on transformers' native class.

The hub's checkpoints hold `thinker.*` beside `talker.*` and `token2wav.*`; the last two make speech and are left on
disk. Audio is encoded in independent two-second windows; the LLM sees 25 audio tokens a second.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers import (
    Qwen2_5OmniProcessor,
    Qwen2_5OmniThinkerForConditionalGeneration,
    WhisperFeatureExtractor,
)

from audiomarathon.errors import ModelError
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.chat import (
    AudioOnly,
    audio_token,
    chat_text,
    conversation,
    with_audio_tokens,
)
from audiomarathon.models.prompt import Inputs, Prompt, Waveform


class _Processor(AudioOnly, Qwen2_5OmniProcessor):  # type: ignore[misc]
    """The family's processor for audio and text."""


class Qwen2_5Omni(AudioLM):  # noqa: N801 - the family's own spelling
    """The Qwen2.5-Omni thinker."""

    title: ClassVar[str] = "Qwen2.5-Omni"
    architecture: ClassVar[Any] = Qwen2_5OmniThinkerForConditionalGeneration
    model_types: ClassVar[tuple[str, ...]] = ("qwen2_5_omni", "qwen2_5_omni_thinker")
    processor: ClassVar[Any] = _Processor
    placeholder: ClassVar[str] = "<|AUDIO|>"

    def __init__(self, model: Any, tokenizer: Any, feature_extractor: Any) -> None:
        super().__init__(model, tokenizer, feature_extractor)
        self.audio_token = audio_token(tokenizer, self.placeholder, model.config)

    def rotation(self, start: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """See :meth:`AudioLM.rotation`. The three rows of M-RoPE (time, height, width) are alike for text."""
        positions = torch.arange(start, start + count, device=self.device).expand(3, 1, -1)
        cos, sin = self.decoder.rotary_emb.forward(self.like, positions)  # type: ignore[union-attr]
        return cos[0], sin[0]

    @contextmanager
    def generating(self, inputs: Inputs, max_new_tokens: int) -> Iterator[None]:  # noqa: ARG002
        """Drop, afterwards, the position offsets that the thinker keeps between prefill and decode."""
        try:
            yield
        finally:
            self.model.model.rope_deltas = None

    def documented_inputs(self, path: Path, prompt: Prompt) -> Mapping[str, torch.Tensor]:
        """See :meth:`AudioLM.documented_inputs`."""
        processor = self.processor(
            feature_extractor=WhisperFeatureExtractor.from_pretrained(path),
            tokenizer=self.tokenizer,
            chat_template=self.tokenizer.chat_template,
        )
        text = processor.apply_chat_template(conversation(prompt), add_generation_prompt=True, tokenize=False)
        inputs: Mapping[str, torch.Tensor] = processor(
            text=text, audio=list(prompt.clips), return_tensors="pt", padding=True
        )
        return inputs

    def prepare(self, prompts: Sequence[Prompt]) -> Inputs:
        """See :meth:`AudioLM.prepare`. Audio of any length stays whole."""
        clips = [clip for prompt in prompts for clip in prompt.clips]
        if not clips:
            return self.batch_of_text(prompts, self.placeholder)
        features, mask = self._features(clips)
        tokens = self._audio_tokens(mask.sum(-1))
        if int(tokens.min()) < 1:
            raise ModelError("a clip is too short for a single audio token")
        counts = iter(tokens.tolist())
        texts = [
            with_audio_tokens(
                chat_text(self.tokenizer, prompt, self.placeholder),
                self.placeholder,
                [next(counts) for _ in prompt.clips],
            )
            for prompt in prompts
        ]
        return self.batch(prompts, texts, input_features=features, feature_attention_mask=mask.long())

    def _features(self, clips: Sequence[Waveform]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return features (clips, mel bins, frames) and a mask (clips, frames) of the frames that are a clip's own."""
        # The extractor cuts at 300 s unless told not to. Padding one window past the longest clip makes every clip
        # end in zeros, as in the processor's own fixed-length padding: the last frames do not depend on the batch.
        features = self.feature_extractor(
            clips,
            sampling_rate=self.sampling_rate,
            padding="max_length",
            max_length=max(len(clip) for clip in clips) + self.feature_extractor.n_fft,
            truncation=False,
            return_attention_mask=True,
            return_tensors="pt",
        )
        frames = int(features["attention_mask"].sum(-1).max())
        return features["input_features"][..., :frames], features["attention_mask"][:, :frames]

    def _audio_tokens(self, frames: torch.Tensor) -> torch.Tensor:
        """Return how many audio tokens clips of so many mel frames have: 25 a second."""
        return ((frames - 1) // 2 + 1 - 2) // 2 + 1
