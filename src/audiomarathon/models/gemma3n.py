"""Gemma 3n (ai.google.dev/gemma/docs/gemma-3n), on transformers' native class, without its eyes.

The audio encoder hears clips of 30 s at most, each of which has 188 audio tokens, silence included; a longer clip goes
as several. The vision tower (timm, which wants torchvision) is left on disk: no picture is ever shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModel,
    AutoTokenizer,
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
    audio_token,
    chat_text,
    processor_template,
    refuse_control_tokens,
    template_beside,
    windows,
    with_audio_tokens,
)
from audiomarathon.models.loading import check_loading, loading, pretrained, refuse_other_kinds
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

    @classmethod
    def load(cls, path: Path, *, device: str, dtype: str, attn_implementation: str, device_map: str = "") -> Gemma3n:
        """Load a checkpoint in the hub's layout; see :meth:`AudioLM.load`."""
        with loading(path, "Gemma 3n"):
            refuse_other_kinds(path, "gemma3n")
            config = config_without_vision(path)
            model, info = pretrained(
                Gemma3nForConditionalGeneration,
                path,
                dtype=dtype,
                attn_implementation=attn_implementation,
                device_map=device_map,
                config=config,
            )
            tokenizer = AutoTokenizer.from_pretrained(path)
            feature_extractor = Gemma3nAudioFeatureExtractor.from_pretrained(path)
            if not device_map:
                model = model.to(device)
        check_loading(path, info)
        tokenizer.chat_template = processor_template(path) or tokenizer.chat_template or template_beside(path)
        return cls(model, tokenizer, feature_extractor)

    def __init__(self, model: Any, tokenizer: Any, feature_extractor: Any) -> None:
        super().__init__(model, tokenizer, feature_extractor)
        self.audio_token = audio_token(tokenizer, tokenizer.audio_token, model.config)
        self.tokens_per_window: int = model.config.audio_soft_tokens_per_image
        strides = model.config.audio_config.sscp_conv_stride_size
        self.frames_per_token = strides[0][0] * strides[1][0] * model.config.audio_config.conf_reduction_factor
        self.control_tokens = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]

    def rotation(self, start: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """See :meth:`AudioLM.rotation`. Of the first layer: layers with a window turn faster than those without."""
        positions = torch.arange(start, start + count, device=self.device)[None]
        kind = self.decoder.config.layer_types[0]  # type: ignore[union-attr, index]
        cos, sin = self.decoder.rotary_emb(self.lm_head.weight, positions, kind)  # type: ignore[operator]
        return cos[0], sin[0]

    def prepare(self, prompts: Sequence[Prompt]) -> Inputs:
        """See :meth:`AudioLM.prepare`. Audio of any length stays whole; each window is an audio of its own.

        Every window is filled up to 30 s. The processor fills up to the longest of its call, so that what is heard of a
        clip's end would depend on its batch.
        """
        prompts = [_in_windows(prompt) for prompt in prompts]
        features = self.feature_extractor(
            [window for prompt in prompts for window in prompt.clips],
            padding="max_length",
            max_length=_WINDOW,
            truncation=False,
            return_tensors="pt",
        )
        encoded = self.tokenizer(
            [self._text(prompt) for prompt in prompts],
            padding=True,
            padding_side="left",
            add_special_tokens=False,
            return_tensors="pt",
        )
        audio_mask = encoded["input_ids"] == self.audio_token
        tensors = {
            "input_ids": encoded["input_ids"],
            "attention_mask": encoded["attention_mask"],
            "input_features": features["input_features"].to(self.model.dtype),
            "input_features_mask": features["input_features_mask"].bool(),
        }
        frames = features["input_features_mask"].sum(-1)
        silent = iter((self.tokens_per_window - (frames - 1) // self.frames_per_token - 1).tolist())
        return Inputs(
            tensors={name: tensor.to(self.device) for name, tensor in tensors.items()},
            audio_mask=audio_mask.to(self.device),
            seeds=tuple(prompt.seed for prompt in prompts),
            window_padding=tuple(sum(next(silent) for _ in prompt.clips) for prompt in prompts),
        )

    def _text(self, prompt: Prompt) -> str:
        refuse_control_tokens(prompt.text, self.control_tokens)
        token = self.tokenizer.audio_token
        framed = f"\n\n{self.tokenizer.boa_token}{token}{self.tokenizer.eoa_token}\n\n"
        text = chat_text(self.tokenizer, prompt).replace(token, framed)
        return with_audio_tokens(text, token, [self.tokens_per_window] * len(prompt.clips))

    def documented_inputs(self, path: Path, prompt: Prompt) -> Mapping[str, torch.Tensor]:
        """See :meth:`AudioLM.documented_inputs`. The processor is given the windows: it takes 30 s of a clip."""
        processor = _AudioOnly(
            feature_extractor=Gemma3nAudioFeatureExtractor.from_pretrained(path),
            image_processor=None,
            tokenizer=self.tokenizer,
            chat_template=self.tokenizer.chat_template,
            audio_seq_length=self.tokens_per_window,
        )
        prompt = _in_windows(prompt)
        content = [*({"type": "audio", "audio": ""} for _ in prompt.clips), {"type": "text", "text": prompt.text}]
        text = processor.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
        )
        inputs: Mapping[str, torch.Tensor] = processor(
            text=text,
            audio=list(prompt.clips),
            text_kwargs={"add_special_tokens": False},
            audio_kwargs={"padding": "max_length"},
            return_tensors="pt",
        )
        return inputs


class _AudioOnly(Gemma3nProcessor):  # type: ignore[misc]
    """The family's processor without its part for pictures, which wants torchvision."""

    def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
        return None if argument is None else super().check_argument_for_proper_class(argument_name, argument)


def _in_windows(prompt: Prompt) -> Prompt:
    if not all(len(clip) for clip in prompt.clips):
        raise ModelError("a clip is empty")
    return replace(prompt, clips=tuple(window for clip in prompt.clips for window in windows(clip, _WINDOW)))


def config_without_vision(path: Path) -> Gemma3nConfig:
    """Read a checkpoint's config, the vision tower's replaced by what its embedding needs.

    Raises
    ------
    ValueError
        When it is of another kind of model.
    """
    given, _ = Gemma3nConfig.get_config_dict(path)
    if given.get("model_type") != Gemma3nConfig.model_type:
        raise ValueError(f"config.json says model type {given.get('model_type')!r}, not 'gemma3n'")
    names = ("hidden_size", "vocab_size", "vocab_offset", "rms_norm_eps")
    seen = {name: value for name, value in (given.get("vision_config") or {}).items() if name in names}
    return Gemma3nConfig.from_dict(given | {"vision_config": _NoVisionConfig(**seen)})
