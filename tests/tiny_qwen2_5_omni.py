"""A tiny random Qwen2.5-Omni in the hub's layout, and the family's documented usage."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tiny_base as tiny
import torch
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2_5OmniProcessor,
    Qwen2_5OmniThinkerConfig,
    Qwen2_5OmniThinkerForConditionalGeneration,
)

from audiomarathon.models.prompt import Prompt

#: Seconds to which the processor pads. The hub's 300 would take most of the time of a test that uses it.
PADDED_S = 300 if os.environ.get("AUDIOMARATHON_TESTS") in ("all", "gpu") else 40  # the processor cuts longer audio

# As in the hub's chat_template.json of Qwen2.5-Omni, cut to text and audio.
QWEN_OMNI_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}<|im_start|>system\n"
    "You are a helpful assistant.<|im_end|>\n{% endif %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}<|im_end|>\n"
    "{% else %}{% for content in message['content'] %}"
    "{% if content['type'] == 'audio' %}<|audio_bos|><|AUDIO|><|audio_eos|>"
    "{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_bos|>", "<|vision_eos|>",
    "<|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>", "<|IMAGE|>", "<|VIDEO|>",
)  # fmt: skip

NAMED = {
    "image_token": "<|IMAGE|>", "audio_token": "<|AUDIO|>", "video_token": "<|VIDEO|>",
    "vision_bos_token": "<|vision_bos|>", "vision_eos_token": "<|vision_eos|>",
    "audio_bos_token": "<|audio_bos|>", "audio_eos_token": "<|audio_eos|>",
}  # fmt: skip


def tiny_thinker_config(tokenizer: PreTrainedTokenizerFast, *, layers: int = 4) -> Qwen2_5OmniThinkerConfig:
    """A thinker of about 0.1 M parameters whose token ids are the tokenizer's."""
    token = tokenizer.convert_tokens_to_ids
    rope = {"mrope_section": [1, 1, 2], "rope_type": "default", "rope_theta": 10000.0}
    return Qwen2_5OmniThinkerConfig(
        audio_config=tiny.TOWER | {
            "d_model": 32, "encoder_attention_heads": 4, "encoder_ffn_dim": 32, "n_window": 100, "output_dim": 32,
        },
        vision_config=tiny.VISION | {"fullatt_block_indexes": [0]},
        text_config=tiny.LLM | {
            "vocab_size": len(tokenizer), "num_hidden_layers": layers, "rope_parameters": rope,
            "pad_token_id": token("<|endoftext|>"),
        },
        audio_token_index=token("<|AUDIO|>"),
        image_token_index=token("<|IMAGE|>"),
        video_token_index=token("<|VIDEO|>"),
        audio_start_token_id=token("<|audio_bos|>"),
        audio_end_token_id=token("<|audio_eos|>"),
        vision_start_token_id=token("<|vision_bos|>"),
        vision_end_token_id=token("<|vision_eos|>"),
    )  # fmt: skip


def checkpoint(folder: Path, *, layers: int = 4, seed: int = 0) -> Path:
    """Save a random Qwen2.5-Omni as the hub has it: `thinker.*` beside `talker.*` and `token2wav.*`."""
    tokenizer = tiny.byte_tokenizer(SPECIAL, end="<|im_end|>", pad="<|endoftext|>", **NAMED)
    thinker = tiny.random_model(
        Qwen2_5OmniThinkerForConditionalGeneration, tiny_thinker_config(tokenizer, layers=layers), seed
    )
    thinker.save_pretrained(folder)
    speech = {"talker.model.norm.weight": torch.ones(4), "token2wav.dit.proj.weight": torch.ones(4, 4)}
    tiny.rewrite_weights(
        folder, lambda weights: {f"thinker.{name}": weight for name, weight in weights.items()} | speech
    )
    hub = {"model_type": "qwen2_5_omni", "architectures": ["Qwen2_5OmniModel"]}
    tiny.write_json(folder / "config.json", **hub, thinker_config=tiny.read_json(folder / "config.json"))
    # The hub's file enables sampling. If it were used, replies would differ from call to call.
    tiny.write_json(folder / "generation_config.json", do_sample=True, temperature=0.9, top_p=0.8)
    tokenizer.save_pretrained(folder)
    tiny.write_json(folder / "chat_template.json", chat_template=QWEN_OMNI_TEMPLATE)
    tiny.save_whisper_extractor(folder, chunk_length=PADDED_S)
    return folder


def documented(folder: Path, prompt: Prompt) -> tuple[Mapping[str, torch.Tensor], Any]:
    """Prepare inputs and load the model as the model card does, without the parts for images and for making speech."""
    processor = tiny.processor_of(Qwen2_5OmniProcessor, folder, QWEN_OMNI_TEMPLATE)
    text = tiny.worded(processor, len(prompt.clips), prompt.text)
    inputs = processor(text=text, audio=list(prompt.clips), return_tensors="pt", padding=True)
    return inputs, Qwen2_5OmniThinkerForConditionalGeneration.from_pretrained(folder).eval()


audio_tokens = tiny.halved_twice
