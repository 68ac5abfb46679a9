"""A tiny random Qwen3-Omni in the hub's layout, and the family's documented usage."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tiny_base as tiny
import torch
from transformers import (
    PreTrainedTokenizerFast,
    Qwen3OmniMoeProcessor,
    Qwen3OmniMoeThinkerConfig,
    Qwen3OmniMoeThinkerForConditionalGeneration,
)

from audiomarathon.models.prompt import Prompt

# The hub's chat_template.json, for text and audio only: no system prompt unless one is given.
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'audio' %}<|audio_start|><|audio_pad|><|audio_end|>"
    "{% elif 'text' in part %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

NAMED = {
    "image_token": "<|image_pad|>", "audio_token": "<|audio_pad|>", "video_token": "<|video_pad|>",
    "vision_bos_token": "<|vision_start|>", "vision_eos_token": "<|vision_end|>",
    "audio_bos_token": "<|audio_start|>", "audio_eos_token": "<|audio_end|>",
}  # fmt: skip
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *NAMED.values())


def tiny_thinker_config(tokenizer: PreTrainedTokenizerFast) -> Qwen3OmniMoeThinkerConfig:
    """About 0.1 M parameters: four experts a layer, of which a token uses two."""
    token = tokenizer.convert_tokens_to_ids
    return Qwen3OmniMoeThinkerConfig(
        audio_config=tiny.TOWER | {
            "encoder_attention_heads": 2, "n_window": 50, "n_window_infer": 800, "output_dim": 32,
            "downsample_hidden_size": 4, "conv_chunksize": 500,
        },
        vision_config=tiny.VISION | {"deepstack_visual_indexes": [0], "num_position_embeddings": 16},
        text_config=tiny.LLM | {
            "vocab_size": len(tokenizer), "moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2,
            "head_dim": 8, "rope_parameters": {
                "mrope_section": [2, 1, 1], "mrope_interleaved": True, "rope_type": "default", "rope_theta": 10000.0,
            },
            "pad_token_id": token("<|endoftext|>"),
        },
        audio_token_id=token("<|audio_pad|>"),
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        audio_start_token_id=token("<|audio_start|>"),
        audio_end_token_id=token("<|audio_end|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
        position_id_per_seconds=13,
    )  # fmt: skip


def checkpoint(folder: Path, *, seed: int = 0) -> Path:
    """Save a random Qwen3-Omni as the hub has it: `thinker.*`, expert by expert, beside `talker.*` and `code2wav.*`."""
    tokenizer = tiny.byte_tokenizer(SPECIAL, end="<|im_end|>", pad="<|endoftext|>", **NAMED)
    thinker = tiny.random_model(Qwen3OmniMoeThinkerForConditionalGeneration, tiny_thinker_config(tokenizer), seed)
    for convolution in (module for module in thinker.modules() if isinstance(module, torch.nn.Conv2d)):
        convolution.weight.data *= 4  # otherwise the signal is so weak that all clips sound alike
    thinker.save_pretrained(folder)
    speech = {"talker.model.norm.weight": torch.ones(4), "code2wav.decoder.0.conv.weight": torch.ones(4, 4)}
    tiny.rewrite_weights(
        folder,
        lambda weights: (
            {f"thinker.{name.removeprefix('thinker.')}": weight for name, weight in weights.items()} | speech
        ),
    )
    hub = {"model_type": "qwen3_omni_moe", "architectures": ["Qwen3OmniMoeForConditionalGeneration"]}
    thinker_config = tiny.read_json(folder / "config.json")
    tiny.write_json(folder / "config.json", **hub, thinker_config=thinker_config, enable_audio_output=True)
    tiny.write_json(folder / "generation_config.json", do_sample=True, temperature=0.6, top_p=0.95)
    tokenizer.save_pretrained(folder)
    tiny.write_json(folder / "chat_template.json", chat_template=TEMPLATE)
    tiny.save_whisper_extractor(folder)
    return folder


def documented(folder: Path, prompt: Prompt) -> tuple[Mapping[str, torch.Tensor], Any]:
    """Prepare and load as the model card does, the parts for pictures and for making speech left out."""
    processor = tiny.processor_of(Qwen3OmniMoeProcessor, folder, TEMPLATE)
    text = tiny.worded(processor, len(prompt.clips), prompt.text)
    inputs = processor(text=text, audio=list(prompt.clips), return_tensors="pt", padding=True)
    return inputs, Qwen3OmniMoeThinkerForConditionalGeneration.from_pretrained(folder).eval()


def audio_tokens(samples: int) -> int:
    """Return the audio tokens of a clip: 13 for each whole second, and one for eight more mel frames, rounded up."""
    frames = samples // 160
    return 13 * (frames // 100) + -(-(frames % 100) // 8)
