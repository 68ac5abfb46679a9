"""Gemma 3n (ai.google.dev/gemma/docs/gemma-3n), on transformers' native class, without its eyes.

The audio encoder hears clips of 30 s at most, each of which has 188 audio tokens, silence included; a longer clip goes
as several. The vision tower (timm, which wants torchvision) is left on disk: no picture is ever shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers import (
    AutoModel,
    Gemma3nAudioFeatureExtractor,
    Gemma3nConfig,
    Gemma3nForConditionalGeneration,
    Gemma3nProcessor,
    Gemma3nVisionConfig,
    PreTrainedModel,
)

from audiomarathon.errors import ModelError
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.chat import (
    AudioOnly,
    audio_token,
    chat_text,
    conversation,
    windows,
    with_audio_tokens,
)
from audiomarathon.models.loading import refuse_other_kinds
from audiomarathon.models.prompt import Inputs, Prompt

_WINDOW = 480000  # samples: 30 s


class _NoVisionConfig(Gemma3nVisionConfig):  # type: ignore[misc]
    """What the embedding of picture tokens needs to know of the vision tower."""

    model_type = "gemma3n_no_vision"


class _NoVision(PreTrainedModel):  # type: ignore[misc]
    """Stands where the vision tower would be."""

    config_class = _NoVisionConfig
    _keys_to_ignore_on_load_unexpected = [r"^model\.vision_tower\."]  # noqa: RUF012 - transformers' own name
    _supports_sdpa = _supports_flash_attn = True  # it attends to nothing, so whatever the LLM uses will do


AutoModel.register(_NoVisionConfig, _NoVision)


class Gemma3n(AudioLM):
    """Gemma 3n E2B and E4B, hearing clips whole: window after window."""

    title: ClassVar[str] = "Gemma 3n"
    architecture: ClassVar[Any] = Gemma3nForConditionalGeneration
    model_types: ClassVar[tuple[str, ...]] = ("gemma3n",)
    feature_extractor_class: ClassVar[Any] = Gemma3nAudioFeatureExtractor
    encoder_window_seconds: ClassVar[float] = 30.0

    @classmethod
    def read_config(cls, path: Path) -> Gemma3nConfig:
        """See :meth:`AudioLM.read_config`. The vision tower's part is replaced by what its embedding needs."""
        refuse_other_kinds(path, Gemma3nConfig.model_type)
        given, _ = Gemma3nConfig.get_config_dict(path)
        names = ("hidden_size", "vocab_size", "vocab_offset", "rms_norm_eps")
        seen = {name: value for name, value in (given.get("vision_config") or {}).items() if name in names}
        return Gemma3nConfig.from_dict(given | {"vision_config": _NoVisionConfig(**seen)})

    @classmethod
    def load_options(cls, path: Path) -> dict[str, Any]:
        """See :meth:`AudioLM.load_options`."""
        return {"config": cls.read_config(path)}

    def __init__(self, model: Any, tokenizer: Any, feature_extractor: Any) -> None:
        super().__init__(model, tokenizer, feature_extractor)
        self.audio_token = audio_token(tokenizer, tokenizer.audio_token, model.config)
        self.tokens_per_window: int = model.config.audio_soft_tokens_per_image
        strides = model.config.audio_config.sscp_conv_stride_size
        self.frames_per_token = strides[0][0] * strides[1][0] * model.config.audio_config.conf_reduction_factor

    def rotation(self, start: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """See :meth:`AudioLM.rotation`. Of the first layer: layers with a window turn faster than those without."""
        positions = torch.arange(start, start + count, device=self.device)[None]
        kind = self.decoder.config.layer_types[0]  # type: ignore[union-attr, index]
        cos, sin = self.decoder.rotary_emb.forward(self.like, positions, kind)  # type: ignore[union-attr]
        return cos[0], sin[0]

    def prepare(self, prompts: Sequence[Prompt]) -> Inputs:
        """See :meth:`AudioLM.prepare`. Audio of any length stays whole; each window is an audio of its own.

        Every window is filled up to 30 s. The processor fills up to the longest of its call, so that what is heard of a
        clip's end would depend on its batch.
        """
        prompts = [_in_windows(prompt) for prompt in prompts]
        clips = [window for prompt in prompts for window in prompt.clips]
        if not clips:
            return self.batch_of_text(prompts, self.tokenizer.audio_token)
        features = self.feature_extractor(
            clips,
            padding="max_length",
            max_length=_WINDOW,
            truncation=False,
            return_tensors="pt",
        )
        frames = features["input_features_mask"].sum(-1)
        silent = iter((self.tokens_per_window - (frames - 1) // self.frames_per_token - 1).tolist())
        inputs = self.batch(
            prompts,
            [self._text(prompt) for prompt in prompts],
            input_features=features["input_features"],
            input_features_mask=features["input_features_mask"].bool(),
        )
        return replace(inputs, window_padding=tuple(sum(next(silent) for _ in prompt.clips) for prompt in prompts))

    def _text(self, prompt: Prompt) -> str:
        token = self.tokenizer.audio_token
        framed = f"\n\n{self.tokenizer.boa_token}{token}{self.tokenizer.eoa_token}\n\n"
        text = chat_text(self.tokenizer, prompt, token).replace(token, framed)
        return with_audio_tokens(text, token, [self.tokens_per_window] * len(prompt.clips))

    def documented_inputs(self, path: Path, prompt: Prompt) -> Mapping[str, torch.Tensor]:
        """See :meth:`AudioLM.documented_inputs`. The processor is given the windows: it takes 30 s of a clip."""
        processor = _Processor(
            feature_extractor=Gemma3nAudioFeatureExtractor.from_pretrained(path),
            image_processor=None,
            tokenizer=self.tokenizer,
            chat_template=self.tokenizer.chat_template,
            audio_seq_length=self.tokens_per_window,
        )
        prompt = _in_windows(prompt)
        text = processor.apply_chat_template(conversation(prompt), add_generation_prompt=True, tokenize=False)
        inputs: Mapping[str, torch.Tensor] = processor(
            text=text,
            audio=list(prompt.clips),
            text_kwargs={"add_special_tokens": False},
            audio_kwargs={"padding": "max_length"},
            return_tensors="pt",
        )
        return inputs


class _Processor(AudioOnly, Gemma3nProcessor):  # type: ignore[misc]
    """The family's processor for audio and text."""


def _in_windows(prompt: Prompt) -> Prompt:
    if not all(len(clip) for clip in prompt.clips):
        raise ModelError("a clip is empty")
    return replace(prompt, clips=tuple(window for clip in prompt.clips for window in windows(clip, _WINDOW)))
