"""A tiny random Qwen2.5-Omni in the hub's layout, and the family's documented usage."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tiny_tokenizer import AudioOnly, byte_tokenizer, spread, worded
from transformers import (
    AutoTokenizer,
    PreTrainedTokenizerFast,
    Qwen2_5OmniProcessor,
    Qwen2_5OmniThinkerConfig,
    Qwen2_5OmniThinkerForConditionalGeneration,
    WhisperFeatureExtractor,
)

from audiomarathon.models.prompt import Prompt

#: Seconds that the processor pads to: 300 in the hub's, which takes most of the time of a test that asks it.
PADDED_S = 300 if os.environ.get("AUDIOMARATHON_TESTS") == "all" else 40

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
        audio_config={
            "d_model": 32, "encoder_attention_heads": 4, "encoder_ffn_dim": 32, "encoder_layers": 1, "num_mel_bins":
            128, "max_source_positions": 1500, "n_window": 100, "output_dim": 32,
        },
        vision_config={
            "depth": 1, "hidden_size": 32, "intermediate_size": 32, "out_hidden_size": 32, "num_heads": 4,
            "fullatt_block_indexes": [0],
        },
        text_config={
            "vocab_size": len(tokenizer), "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": layers,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32768,
            "rope_parameters": rope, "pad_token_id": token("<|endoftext|>"),
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
    tokenizer = byte_tokenizer(SPECIAL, end="<|im_end|>", pad="<|endoftext|>", **NAMED)
    torch.manual_seed(seed)
    thinker = Qwen2_5OmniThinkerForConditionalGeneration(tiny_thinker_config(tokenizer, layers=layers))
    spread(thinker)
    folder.mkdir(parents=True, exist_ok=True)
    thinker.save_pretrained(folder)
    weights = {f"thinker.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    weights |= {"talker.model.norm.weight": torch.ones(4), "token2wav.dit.proj.weight": torch.ones(4, 4)}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    hub_config = {"model_type": "qwen2_5_omni", "architectures": ["Qwen2_5OmniModel"], "thinker_config": config}
    (folder / "config.json").write_text(json.dumps(hub_config))
    # The hub's file samples; a run that heeded it would differ from one call to the next.
    (folder / "generation_config.json").write_text(json.dumps({"do_sample": True, "temperature": 0.9, "top_p": 0.8}))
    tokenizer.save_pretrained(folder)
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": QWEN_OMNI_TEMPLATE}))
    WhisperFeatureExtractor(feature_size=128, chunk_length=PADDED_S, return_attention_mask=True).save_pretrained(folder)
    return folder


class _Processor(AudioOnly, Qwen2_5OmniProcessor):
    """The family's processor for audio and text."""


def documented(folder: Path, prompt: Prompt) -> tuple[Mapping[str, torch.Tensor], Any]:
    """Prepare and load as the model card does, the parts for pictures and for making speech left out."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    processor = _Processor(
        feature_extractor=WhisperFeatureExtractor.from_pretrained(folder),
        tokenizer=tokenizer,
        chat_template=QWEN_OMNI_TEMPLATE,
    )
    text = worded(processor, len(prompt.clips), prompt.text)
    inputs = processor(text=text, audio=list(prompt.clips), return_tensors="pt", padding=True)
    return inputs, Qwen2_5OmniThinkerForConditionalGeneration.from_pretrained(folder).eval()


def audio_tokens(samples: int) -> int:
    """Return the audio tokens of a clip: mel frames of 10 ms, halved by a convolution and again by pooling."""
    frames = -(-samples // 160)
    return ((frames - 1) // 2 + 1 - 2) // 2 + 1
