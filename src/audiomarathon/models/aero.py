"""Aero-1-Audio (github.com/EvolvingLMMs-Lab/Aero-1): Qwen2-Audio's encoder and the LLM Qwen2.5-1.5B.

The code in the checkpoint builds the same parts as Qwen2-Audio, under other names. So we load the checkpoint into
transformers' Qwen2-Audio class, and never run that code. In the prompt, each window of 30 s has a placeholder and a
line break.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import torch

from audiomarathon.models.prompt import Prompt
from audiomarathon.models.qwen2_audio import Qwen2Audio


class Aero(Qwen2Audio):
    """Aero-1-Audio: how its weights are loaded into Qwen2-Audio's class, and how its prompt looks."""

    title: ClassVar[str] = "Aero-1"
    model_types: ClassVar[tuple[str, ...]] = ("aero",)
    renamed: ClassVar[Mapping[str, str]] = {
        "^audio_modal_projector": "model.multi_modal_projector",
        "^audio_tower": "model.audio_tower",
        "^language_model.lm_head": "lm_head",
        "^language_model.model": "model.language_model",
    }
    template: ClassVar[str | None] = (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
        "{% for part in messages[0]['content'] %}{% if part['type'] == 'audio' %}<|AUDIO|>\n"
        "{% else %}{{ part['text'] }}{% endif %}{% endfor %}<|im_end|>\n"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )

    def documented_inputs(self, path: Path, prompt: Prompt) -> Mapping[str, torch.Tensor] | None:  # noqa: ARG002
        """Return None: no inputs to compare with, since the processor is code in the checkpoint, which is never run."""
        return None
