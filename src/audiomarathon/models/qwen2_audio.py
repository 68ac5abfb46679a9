"""Qwen2-Audio (arXiv 2407.10759), on transformers' native class.

Its Whisper encoder takes windows of 30 s. The prompt has a placeholder for each window, with 25 audio tokens per
second. The last window is padded with silence for the encoder, but the silence gets no audio tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn
from transformers import Qwen2AudioConfig, Qwen2AudioForConditionalGeneration, Qwen2AudioProcessor

from audiomarathon.errors import ModelError
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.chat import windows
from audiomarathon.models.loading import patched_attribute
from audiomarathon.models.prompt import Inputs, Prompt, Waveform
from audiomarathon.models.tower_states import TowerStates
from audiomarathon.models.tower_windows import modelling_file


class Qwen2Audio(AudioLM):
    """Qwen2-Audio on whole clips, cut into windows of 30 s."""

    encoder_window_seconds: ClassVar[float] = 30.0
    placeholder = "<|AUDIO|>"
    title: ClassVar[str] = "Qwen2-Audio"
    architecture: ClassVar[Any] = Qwen2AudioForConditionalGeneration
    model_types: ClassVar[tuple[str, ...]] = ("qwen2_audio",)
    eager_because = whole_because = no_tower_drop = ""
    renamed: ClassVar[Mapping[str, str]] = {}
    """Patterns of tensor names, as {name in the checkpoint: name in transformers' class}."""
    template: ClassVar[str | None] = (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
        "{% for part in messages[0]['content'] %}{% if part['type'] == 'audio' %}"
        "Audio {{ loop.index }}: <|audio_bos|><|AUDIO|><|audio_eos|>\n"
        "{% else %}{{ part['text'] }}{% endif %}{% endfor %}<|im_end|>\n"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    """The processor's built-in chat template, reduced to one user turn. A template in the checkpoint replaces it."""

    @classmethod
    def read_config(cls, path: Path) -> Qwen2AudioConfig:
        """Read a checkpoint's config, of Qwen2-Audio or Aero, which have the same fields."""
        cls.refuse_other_kinds(path)
        return Qwen2AudioConfig.from_pretrained(path)

    @classmethod
    def load_options(cls, path: Path) -> dict[str, Any]:
        """Return further arguments for `from_pretrained`, as {name: value}: the config, and new names for Aero's
        tensors.
        """
        return {"config": cls.read_config(path), "key_mapping": dict(cls.renamed)}

    @classmethod
    def complete(cls, model: Any, path: Path, info: Mapping[str, Any]) -> None:  # noqa: ARG003
        """Use the token embeddings as LM head if the config ties the two and the checkpoint has no LM head.

        Transformers' class does not do this itself.
        """
        if model.config.text_config.tie_word_embeddings and "lm_head.weight" in info["missing_keys"]:
            embeddings, device = model.get_input_embeddings().weight, model.lm_head.weight.device
            # The devices differ when the model is spread over several GPUs.
            model.lm_head.weight = embeddings if embeddings.device == device else nn.Parameter(embeddings.to(device))
            info["missing_keys"].discard("lm_head.weight")

    def heard(self, clips: Sequence[Waveform]) -> tuple[Sequence[int], dict[str, torch.Tensor]]:
        """Return (number of audio tokens of each window, {argument name of the model: features of all windows})."""
        features = self.features(clips)
        mask = features["attention_mask"]
        tensors = {"input_features": features["input_features"], "feature_attention_mask": mask.long()}
        return self.tokens_of(mask.sum(-1)).tolist(), tensors

    def tower_states(self, inputs: Inputs) -> TowerStates:
        """Return a :class:`TowerStates`: from which states of the audio tower each audio token of a batch is made, per
        window.
        """
        frames = inputs.tensors["feature_attention_mask"].sum(-1)
        return TowerStates.padded(frames, self.tokens_of(frames), self.model.config.audio_config.max_source_positions)

    def generating(self, inputs: Inputs, max_new_tokens: int) -> AbstractContextManager[None]:  # noqa: ARG002
        """Inside the `with` block, stop transformers' class from repeating audio tokens that are already there.

        If each window has one audio token, as after dropping in the tower, the class treats it as a placeholder to
        repeat, unless the class believes that it is being compiled.
        """
        return patched_attribute(modelling_file(self.model), "is_torchdynamo_compiling", lambda: True)

    def windowed(self, prompt: Prompt) -> Prompt:
        """Return the prompt with its clips cut into windows of 30 s; raise ModelError if a clip is too short."""
        extractor = self.feature_extractor
        lengths = [len(clip) for clip in prompt.clips]
        if not lengths:
            return prompt
        if min(lengths) <= 2 * extractor.hop_length:
            raise ModelError("a clip is too short for a single audio token (0.04 s)")
        if max(lengths) <= 6 * extractor.hop_length:  # transformers' class would repeat a single audio token
            raise ModelError("the audio is too short for two audio tokens (0.06 s)")
        return replace(
            prompt, clips=tuple(window for clip in prompt.clips for window in windows(clip, extractor.n_samples))
        )

    def documented_inputs(self, path: Path, prompt: Prompt) -> Mapping[str, torch.Tensor] | None:
        """Return the inputs, as {name: tensor}, that the family's own processor makes of a prompt already cut into
        windows.

        The processor itself would cut a clip at 30 s.
        """
        processor = Qwen2AudioProcessor.from_pretrained(path)
        return self.processed(processor, self.windowed(prompt), sampling_rate=self.sampling_rate)


class Qwen2AudioFirst30(Qwen2Audio):
    """Qwen2-Audio as published: it takes only the first 30 s of each clip. Records of longer clips say `truncated`."""

    def prepare(self, prompts: Sequence[Prompt]) -> Inputs:
        """Turn prompts into a batch of tensors; its field `truncated` tells which samples had a clip cut at 30 s."""
        limit = self.feature_extractor.n_samples
        heard = tuple(sum(min(len(clip), limit) for clip in prompt.clips) / self.sampling_rate for prompt in prompts)
        truncated = tuple(any(len(clip) > limit for clip in prompt.clips) for prompt in prompts)
        return replace(super().prepare(prompts), truncated=truncated, heard_seconds=heard)

    def windowed(self, prompt: Prompt) -> Prompt:
        """Return the prompt with only the first 30 s of each clip, as one window."""
        limit = self.feature_extractor.n_samples
        return super().windowed(replace(prompt, clips=tuple(clip[:limit] for clip in prompt.clips)))
