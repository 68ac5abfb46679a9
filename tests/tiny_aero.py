"""A tiny random Aero-1 in the hub's layout, and its processor's steps reimplemented.

The family's processor and model are code in its hub repository, which is not run here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tiny_base as tiny
import torch
from safetensors.torch import load_file
from tiny_qwen2_audio import audio_tokens, tiny_config
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2AudioConfig,
    Qwen2AudioForConditionalGeneration,
    WhisperFeatureExtractor,
)

from audiomarathon.models.prompt import Prompt

__all__ = ["audio_tokens", "checkpoint", "documented"]

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>", "<video>", "<|AUDIO|>")

# The built-in template of AeroProcessor, which writes it to chat_template.json.
TEMPLATE = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}<|im_start|>system\n"
    "You are a helpful assistant.<|im_end|>\n{% endif %}<|im_start|>{{ message['role'] }}\n"
    "{% for content in message['content'] %}{% if 'audio' in content or 'audio_url' in content %}<|AUDIO|>\n"
    "{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

BARE_LLM_TEMPLATE = "{% for message in messages %}{{ '<|im_start|>' + message.content + '<|im_end|>\n' }}{% endfor %}"


def checkpoint(folder: Path, *, tied: bool = True, seed: int = 0) -> Path:
    """Save a random Aero in the hub's layout: `audio_modal_projector.*`, and no head if the LLM ties it."""
    tokenizer = tiny.byte_tokenizer(SPECIAL, end="<|im_end|>", pad="<|endoftext|>")
    config = tiny_config(tokenizer, tie_word_embeddings=tied)
    tiny.random_model(Qwen2AudioForConditionalGeneration, config, seed).save_pretrained(folder)
    tiny.rewrite_weights(
        folder,
        lambda weights: {
            name.replace("multi_modal_projector", "audio_modal_projector"): tensor
            for name, tensor in weights.items()
            if not (tied and name == "language_model.lm_head.weight")
        },
    )
    # Written as in older transformers. The named code does not exist here, so it cannot be run.
    parts = tiny.read_json(folder / "config.json")
    text = {
        name: value for name, value in parts["text_config"].items() if name not in ("layer_types", "rope_parameters")
    }
    hub = {
        "model_type": "aero", "architectures": ["AeroForConditionalGeneration"], "tie_word_embeddings": False,
        "auto_map": {
            "AutoConfig": "configuration_aero.AeroConfig",
            "AutoModelForCausalLM": "modeling_aero.AeroForConditionalGeneration",
        },
        "audio_config": parts["audio_config"], "audio_token_index": parts["audio_token_index"],
        "text_config": text | {"rope_theta": 1000000.0, "rope_scaling": None, "sliding_window": 4096},
    }  # fmt: skip
    tiny.write_json(folder / "config.json", **hub)
    tokenizer.save_pretrained(folder)
    processor = {"processor_class": "AeroProcessor", "auto_map": {"AutoProcessor": "processing_aero.AeroProcessor"}}
    tiny.write_json(folder / "chat_template.json", chat_template=TEMPLATE)
    tiny.write_json(folder / "processor_config.json", **processor, audio_token="<|AUDIO|>")
    tiny.save_whisper_extractor(folder)
    for name, more in (
        ("tokenizer_config.json", {"chat_template": BARE_LLM_TEMPLATE}),
        ("preprocessor_config.json", {}),
    ):
        tiny.write_json(folder / name, **tiny.read_json(folder / name) | processor | more)
    return folder


def documented(folder: Path, prompt: Prompt) -> tuple[Mapping[str, torch.Tensor], Any]:
    """Prepare and load step by step as the published example and processor do, without code of the engine."""
    audios = tiny.windows_of(prompt.clips)
    features = WhisperFeatureExtractor.from_pretrained(folder)(
        audios, sampling_rate=16000, return_attention_mask=True, padding="max_length", return_tensors="pt"
    )
    text = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
    for mask in features["attention_mask"]:
        convolved = (int(mask.sum()) - 1) // 2 + 1
        text += "<|AUDIO|>" * ((convolved - 2) // 2 + 1) + "\n"
    text += f"{prompt.text}<|im_end|>\n<|im_start|>assistant\n"
    inputs = PreTrainedTokenizerFast.from_pretrained(folder)(text, return_tensors="pt")
    inputs = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    inputs |= {"input_features": features["input_features"], "feature_attention_mask": features["attention_mask"]}
    return inputs, native(folder)


def native(folder: Path) -> Qwen2AudioForConditionalGeneration:
    """Load the checkpoint's weights into transformers' class, each renamed by hand."""
    facts = tiny.read_json(folder / "config.json")
    config = Qwen2AudioConfig(**{name: facts[name] for name in ("audio_config", "text_config", "audio_token_index")})
    model = Qwen2AudioForConditionalGeneration(config)
    weights = load_file(folder / "model.safetensors")
    weights.setdefault("language_model.lm_head.weight", weights["language_model.model.embed_tokens.weight"])
    for ours, theirs in (
        ("lm_head.", "language_model.lm_head."),
        ("model.language_model.", "language_model.model."),
        ("model.multi_modal_projector.", "audio_modal_projector."),
        ("model.audio_tower.", "audio_tower."),
    ):
        for name in [name for name in weights if name.startswith(theirs)]:
            weights[ours + name.removeprefix(theirs)] = weights.pop(name)
    model.load_state_dict(weights)
    return model.eval()
