"""A tiny random Audio Flamingo 3 in the hub's layout, and the family's documented usage."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tiny_base import LLM, byte_tokenizer, halved_twice, random_model, worded, write_json
from transformers import (
    AudioFlamingo3Config,
    AudioFlamingo3ForConditionalGeneration,
    AudioFlamingo3Processor,
    PreTrainedTokenizerFast,
    WhisperFeatureExtractor,
)

from audiomarathon.models.prompt import Prompt

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<sound>")
# The hub's chat_template.jinja, for text and audio only: one placeholder for audio of any amount.
TEMPLATE = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] | selectattr('type', 'equalto', 'audio') | list %}<sound>{% endif %}"
    "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] }}{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tiny_config(tokenizer: PreTrainedTokenizerFast) -> AudioFlamingo3Config:
    """About 0.05 M parameters."""
    return AudioFlamingo3Config(
        audio_config={
            "hidden_size": 16, "num_attention_heads": 1, "intermediate_size": 16, "num_hidden_layers": 1,
            "num_mel_bins": 128, "max_source_positions": 1500,
        },
        text_config=LLM | {"model_type": "qwen2", "vocab_size": len(tokenizer)},
        audio_token_id=tokenizer.convert_tokens_to_ids("<sound>"),
    )  # fmt: skip


def checkpoint(folder: Path, *, seed: int = 0) -> Path:
    """Save a random Audio Flamingo 3 under the hub's names: `language_model.*`, `audio_tower.*`, and the projector."""
    tokenizer = byte_tokenizer(SPECIAL, end="<|im_end|>", pad="<|endoftext|>")
    random_model(AudioFlamingo3ForConditionalGeneration, tiny_config(tokenizer), seed).save_pretrained(folder)
    extractor = WhisperFeatureExtractor(feature_size=128, return_attention_mask=True)
    AudioFlamingo3Processor(extractor, tokenizer, chat_template=TEMPLATE).save_pretrained(folder)
    # The hub's file sets sampling and a repetition penalty.
    settings = {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.05}
    write_json(folder / "generation_config.json", **settings)
    return folder


def documented(folder: Path, prompt: Prompt) -> tuple[Mapping[str, torch.Tensor], Any]:
    """Prepare and load as the model card does. Several clips, which the processor refuses, go one after another."""
    processor = AudioFlamingo3Processor.from_pretrained(folder)
    text = worded(processor, 1, prompt.text)
    head, rest = text.split("<sound>")
    tokens = [processor(text="<sound>", audio=clip)["input_ids"].shape[1] for clip in prompt.clips]
    inputs = processor(text=text, audio=prompt.clips[0])
    if len(tokens) > 1:
        several = head + "\n".join("<sound>" * count for count in tokens) + rest
        inputs["input_ids"] = processor.tokenizer(several, return_tensors="pt")["input_ids"]
    model = AudioFlamingo3ForConditionalGeneration.from_pretrained(folder).eval()
    model.generation_config.repetition_penalty = None
    return inputs, model


audio_tokens = halved_twice  # over all windows
