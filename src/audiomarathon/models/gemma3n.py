"""Gemma 3n (ai.google.dev/gemma/docs/gemma-3n), on transformers' native class; the vision tower is not loaded.

Its audio encoder takes windows of 30 s. Each window has 188 audio tokens, even where it is padded with silence. The
vision tower needs timm and torchvision; we leave it out, since no task has pictures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache, partial
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
from audiomarathon.models.chat import audio_only, windows
from audiomarathon.models.loading import patched_attribute
from audiomarathon.models.prompt import Inputs, Prompt, Waveform

_WINDOW = 480000  # samples: 30 s


class _NoVisionConfig(Gemma3nVisionConfig):  # type: ignore[misc]
    """A vision config with only the sizes that the embedding of picture tokens needs."""

    model_type = "gemma3n_no_vision"


class _NoVision(PreTrainedModel):  # type: ignore[misc]
    """An empty module in place of the vision tower."""

    config_class = _NoVisionConfig
    _keys_to_ignore_on_load_unexpected = [r"^model\.vision_tower\."]  # noqa: RUF012 - transformers' name
    _supports_sdpa = _supports_flash_attn = True  # the module computes no attention, so it supports any implementation


AutoModel.register(_NoVisionConfig, _NoVision)


@cache
def _factor(sparsity: float, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Return the cutoff, in standard deviations above the mean, below which the share `sparsity` of normal values lies.

    The cutoff is computed on the device, as in the model's own code, since another device may round the last bit
    differently.
    """
    factor: torch.Tensor = torch.distributions.Normal(0, 1).icdf(torch.tensor(sparsity, device=device))  # type: ignore[no-untyped-call]
    return factor.to(dtype)


def _sparse(factor: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """Return how far each input lies above the cutoff, and 0 for inputs below it, as the model's `_gaussian_topk` does.

    The cutoff is the inputs' mean + `factor` × their standard deviation.
    """
    spread = inputs.std(dim=-1, keepdim=True, unbiased=False)
    return torch.relu(inputs - (inputs.mean(dim=-1, keepdim=True) + spread * factor))


class Gemma3n(AudioLM):
    """Gemma 3n E2B and E4B on whole clips, cut into windows of 30 s."""

    title: ClassVar[str] = "Gemma 3n"
    architecture: ClassVar[Any] = Gemma3nForConditionalGeneration
    model_types: ClassVar[tuple[str, ...]] = ("gemma3n",)
    eager_because = whole_because = ""
    feature_extractor_class: ClassVar[Any] = Gemma3nAudioFeatureExtractor
    encoder_window_seconds: ClassVar[float] = 30.0
    no_tower_drop = "its layers convolve over neighbouring states, so they need all of them"
    tower_list = "conformer"

    @classmethod
    def read_config(cls, path: Path) -> Gemma3nConfig:
        """Read a checkpoint's config; of the vision part, keep only the sizes that loading needs."""
        cls.refuse_other_kinds(path)
        given, _ = Gemma3nConfig.get_config_dict(path)
        names = ("hidden_size", "vocab_size", "vocab_offset", "rms_norm_eps")
        seen = {name: value for name, value in (given.get("vision_config") or {}).items() if name in names}
        return Gemma3nConfig.from_dict(given | {"vision_config": _NoVisionConfig(**seen)})

    @classmethod
    def load_options(cls, path: Path) -> dict[str, Any]:
        """Return further arguments for `from_pretrained`, as {name: value}: the config without the vision tower."""
        return {"config": cls.read_config(path)}

    def __init__(self, model: Any, tokenizer: Any, feature_extractor: Any) -> None:
        self.placeholder = tokenizer.audio_token
        super().__init__(model, tokenizer, feature_extractor)
        self.tokens_per_window: int = model.config.audio_soft_tokens_per_image
        strides = model.config.audio_config.sscp_conv_stride_size
        self.frames_per_token = strides[0][0] * strides[1][0] * model.config.audio_config.conf_reduction_factor

    def rotary_arguments(self, positions: torch.Tensor) -> tuple[Any, ...]:
        """Return the arguments to call the rotary embedding with, for text at `positions`.

        The rotation differs between sliding-window and full-attention layers; the arguments ask for that of the first
        layer.
        """
        return positions, self.decoder.config.layer_types[0]  # type: ignore[union-attr, index]

    @property
    def rotary_kinds(self) -> Sequence[tuple[Any, ...]]:
        """Two tuples of arguments to the rotary embedding, besides the positions.

        One is for sliding-window layers, the other for full-attention layers.
        """
        return [(kind,) for kind in self.decoder.rotary_emb.layer_types]  # type: ignore[union-attr]

    def step(self, token: torch.Tensor, given: Mapping[str, Any]) -> torch.Tensor:
        """Run one decode step through the whole model, which makes per-layer inputs and caps logits.

        Return the raw logits; see :meth:`AudioLM.step`.
        """
        logits: torch.Tensor = self.model(input_ids=token, **given).logits
        return logits

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """Inside the `with` block, replace the cutoffs of the sparse layers by values computed before the block.

        A layer computes its cutoff from Python numbers, which a CUDA graph cannot copy to the GPU.
        """
        with ExitStack() as stack:
            for layer in self.decoder_layers:
                mlp: Any = layer.mlp
                if mlp.activation_sparsity:
                    factor = _factor(mlp.activation_sparsity, self.device, self.model.dtype)
                    stack.enter_context(patched_attribute(mlp, "_gaussian_topk", partial(_sparse, factor)))
            yield

    def prepare(self, prompts: Sequence[Prompt]) -> Inputs:
        """Turn prompts into a batch of tensors, with each sample's number of audio tokens that stand for padding."""
        inputs = super().prepare(prompts)
        if (mask := inputs.tensors.get("input_features_mask")) is None:
            return inputs
        silent = iter((self.tokens_per_window - (mask.sum(-1) - 1) // self.frames_per_token - 1).tolist())
        counts = [tokens // self.tokens_per_window for tokens in inputs.audio_tokens]
        return replace(inputs, window_padding=tuple(sum(next(silent) for _ in range(count)) for count in counts))

    def windowed(self, prompt: Prompt) -> Prompt:
        """Return the prompt with its clips cut into windows of 30 s."""
        if not all(len(clip) for clip in prompt.clips):
            raise ModelError("a clip is empty")
        return replace(prompt, clips=tuple(window for clip in prompt.clips for window in windows(clip, _WINDOW)))

    def heard(self, clips: Sequence[Waveform]) -> tuple[Sequence[int], dict[str, torch.Tensor]]:
        """Return (number of audio tokens of each window, {argument name of the model: features of all windows}).

        Every window is padded to 30 s. The processor pads only to the longest clip of its call, so the features at the
        end of a clip would depend on the batch.
        """
        features = self.features(clips, max_length=_WINDOW)
        mask = features["input_features_mask"].bool()
        tensors = {"input_features": features["input_features"], "input_features_mask": mask}
        return [self.tokens_per_window] * len(clips), tensors

    def worded(self, prompt: Prompt) -> str:
        """Return a prompt's text with tokens and blank lines around each clip, as the family's processor writes it."""
        framed = f"\n\n{self.tokenizer.boa_token}{self.placeholder}{self.tokenizer.eoa_token}\n\n"
        return super().worded(prompt).replace(self.placeholder, framed)

    def documented_inputs(self, path: Path, prompt: Prompt) -> Mapping[str, torch.Tensor]:
        """Return the inputs, as {name: tensor}, that the family's own processor makes of a prompt already cut into
        windows.

        The processor itself would cut a clip at 30 s.
        """
        processor = audio_only(
            Gemma3nProcessor,
            feature_extractor=Gemma3nAudioFeatureExtractor.from_pretrained(path),
            image_processor=None,
            tokenizer=self.tokenizer,
            chat_template=self.tokenizer.chat_template,
            audio_seq_length=self.tokens_per_window,
        )
        how = {"text_kwargs": {"add_special_tokens": False}, "audio_kwargs": {"padding": "max_length"}}
        return self.processed(processor, self.windowed(prompt), **how)
