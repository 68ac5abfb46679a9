"""A tiny random Qwen2-Audio in the hub's layout, and the family's documented usage."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tiny_base as tiny
import torch
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


def tiny_config(tokenizer: PreTrainedTokenizerFast, **text: Any) -> Qwen2AudioConfig:
    """Return a config of about 0.05 M parameters. As in the hub's configs, the sliding window is not used."""
    return Qwen2AudioConfig(
        audio_config=tiny.TOWER | {"model_type": "qwen2_audio_encoder"},
        text_config=tiny.LLM | {
            "model_type": "qwen2", "vocab_size": len(tokenizer), "max_position_embeddings": 8192,
            "use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 1,
        } | text,
        audio_token_index=tokenizer.convert_tokens_to_ids("<|AUDIO|>"),
    )  # fmt: skip


def checkpoint(folder: Path, *, seed: int = 0) -> Path:
    """Save a random Qwen2-Audio in the hub's layout. The chat template is in the processor."""
    tokenizer = tiny.byte_tokenizer(SPECIAL, end="<|im_end|>", pad="<|endoftext|>")
    model = tiny.random_model(Qwen2AudioForConditionalGeneration, tiny_config(tokenizer), seed)
    model.save_pretrained(folder)  # under the hub's names: `language_model.…`
    tokenizer.save_pretrained(folder)
    # The hub's tokenizer has the LLM's template, which supports no audio. The processor has its own template.
    bare = "{% for turn in messages %}<|im_start|>{{ turn['content'] }}<|im_end|>\n{% endfor %}"
    file = folder / "tokenizer_config.json"
    tiny.write_json(file, **tiny.read_json(file) | {"chat_template": bare})
    # The hub's file enables sampling and penalises repetition.
    tiny.write_json(
        folder / "generation_config.json", do_sample=True, temperature=0.7, top_k=20, repetition_penalty=1.1
    )
    tiny.save_whisper_extractor(folder)
    return folder


def documented(folder: Path, prompt: Prompt) -> tuple[Mapping[str, torch.Tensor], Any]:
    """Prepare and load as the model card does. A long clip becomes several audios: the processor uses 30 s of each."""
    processor = Qwen2AudioProcessor(
        WhisperFeatureExtractor.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    )
    audios = tiny.windows_of(prompt.clips)
    text = tiny.worded(processor, len(audios), prompt.text, "audio_url")
    inputs = processor(text=text, audio=audios, sampling_rate=16000, return_tensors="pt", padding=True)
    model = Qwen2AudioForConditionalGeneration.from_pretrained(folder).eval()
    model.generation_config.repetition_penalty = None
    return inputs, model


def audio_tokens(samples: int) -> int:
    """Return the audio tokens of a clip: those of its windows."""
    return sum(tiny.halved_twice(min(tiny.WINDOW, samples - start)) for start in range(0, samples, tiny.WINDOW))
