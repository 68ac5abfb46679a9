"""A tiny random Qwen2-Audio in the hub's layout, and the family's documented usage."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tiny_tokenizer import byte_tokenizer, spread, worded
from transformers import (
    AutoTokenizer,
    PreTrainedTokenizerFast,
    Qwen2AudioConfig,
    Qwen2AudioForConditionalGeneration,
    Qwen2AudioProcessor,
    WhisperFeatureExtractor,
)

from audiomarathon.models.prompt import Prompt

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>")
WINDOW = 480000  # 30 s


def tiny_config(tokenizer: PreTrainedTokenizerFast, **text: Any) -> Qwen2AudioConfig:
    """About 0.05 M parameters. As in the hub's configs, a window is named that is not in use."""
    return Qwen2AudioConfig(
        audio_config={
            "model_type": "qwen2_audio_encoder", "d_model": 16, "encoder_attention_heads": 1, "encoder_ffn_dim": 16,
            "encoder_layers": 1, "num_mel_bins": 128, "max_source_positions": 1500,
        },
        text_config={
            "model_type": "qwen2", "vocab_size": len(tokenizer), "hidden_size": 32, "intermediate_size": 64,
            "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 8192,
            "use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 1,
        } | text,
        audio_token_index=tokenizer.convert_tokens_to_ids("<|AUDIO|>"),
    )  # fmt: skip


def tiny_model(config: Qwen2AudioConfig, seed: int) -> Qwen2AudioForConditionalGeneration:
    torch.manual_seed(seed)
    model = Qwen2AudioForConditionalGeneration(config)
    spread(model)
    return model


def checkpoint(folder: Path, *, seed: int = 0) -> Path:
    """Save a random Qwen2-Audio as the hub has it, chat template left to the processor."""
    tokenizer = byte_tokenizer(SPECIAL, end="<|im_end|>", pad="<|endoftext|>")
    tiny_model(tiny_config(tokenizer), seed).save_pretrained(folder)  # under the hub's names: `language_model.…`
    tokenizer.save_pretrained(folder)
    # The hub's tokenizer has the bare LLM's template, which knows no audio; the processor has another built in.
    words = json.loads((folder / "tokenizer_config.json").read_text())
    words["chat_template"] = "{% for one in messages %}<|im_start|>{{ one['content'] }}<|im_end|>\n{% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps(words))
    # The hub's file samples, and penalises repetition.
    settings = {"do_sample": True, "temperature": 0.7, "top_k": 20, "repetition_penalty": 1.1}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    WhisperFeatureExtractor(feature_size=128, return_attention_mask=True).save_pretrained(folder)
    return folder


def documented(folder: Path, prompt: Prompt) -> tuple[Mapping[str, torch.Tensor], Any]:
    """Prepare and load as the model card does, a long clip as several audios: the processor takes 30 s of each."""
    processor = Qwen2AudioProcessor(
        WhisperFeatureExtractor.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    )
    audios = [clip[start : start + WINDOW] for clip in prompt.clips for start in range(0, len(clip), WINDOW)]
    text = worded(processor, len(audios), prompt.text, "audio_url")
    inputs = processor(text=text, audio=audios, sampling_rate=16000, return_tensors="pt", padding=True)
    model = Qwen2AudioForConditionalGeneration.from_pretrained(folder).eval()
    model.generation_config.repetition_penalty = None
    return inputs, model


def audio_tokens(samples: int) -> int:
    """Return the audio tokens of a clip: those of each window, whose mel frames of 10 ms are halved twice."""
    frames = [-(-min(WINDOW, samples - start) // 160) for start in range(0, samples, WINDOW)]
    return sum(((n - 1) // 2 + 1 - 2) // 2 + 1 for n in frames)
