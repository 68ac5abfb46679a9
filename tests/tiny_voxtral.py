"""A tiny random Voxtral in the hub's layout, and the family's documented usage."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mistral_common
import numpy as np
import soundfile
import torch
from safetensors.torch import save_file
from tiny_base import LLM, WINDOW, random_model, write_json
from transformers import AutoProcessor, VoxtralConfig, VoxtralForConditionalGeneration, WhisperFeatureExtractor

from audiomarathon.models.prompt import Prompt

_WORDS = 400  # entries of the vocabulary: the 256 bytes and the first merges
_FILLED = 36  # control tokens, named or not; the published file has 1000
_NAMED = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]",
    "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
)  # fmt: skip
_AT = {24: "[AUDIO]", 25: "[BEGIN_AUDIO]", 34: "[TRANSCRIBE]"}
AUDIO_TOKEN = 24


def tekken() -> dict[str, Any]:
    """Return a tokenizer of mistral-common cut to a few hundred entries, with Voxtral's control tokens."""
    content = json.loads((Path(mistral_common.__file__).parent / "data" / "tekken_240911.json").read_text())
    names = [_AT.get(i, _NAMED[i] if i < len(_NAMED) else f"<SPECIAL_{i}>") for i in range(_FILLED)]
    return {
        "config": content["config"]
        | {"default_vocab_size": _FILLED + _WORDS, "default_num_special_tokens": _FILLED, "version": "v7"},
        "vocab": content["vocab"][:_WORDS],
        "special_tokens": [{"rank": i, "token_str": name, "is_control": True} for i, name in enumerate(names)],
        "audio": {
            "sampling_rate": 16000,
            "frame_rate": 12.5,
            "audio_encoding_config": {"num_mel_bins": 128, "hop_length": 160, "window_size": 400},
            "chunk_length_s": 30.0,
        },
    }


def config(*, layers: int = 4) -> VoxtralConfig:
    """Return a Voxtral config of under 0.1 M parameters with the published windows and audio tokens per second.

    As in the published models, heads × head_dim (64) is not the hidden size (32).
    """
    return VoxtralConfig(
        audio_config={
            "hidden_size": 8, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1,
            "num_mel_bins": 128, "max_source_positions": 1500, "vocab_size": 99,
        },
        text_config=LLM | {
            "model_type": "llama", "vocab_size": _FILLED + _WORDS, "num_hidden_layers": layers, "head_dim": 16,
        },
        audio_token_id=AUDIO_TOKEN,
    )  # fmt: skip


def hub_name(name: str) -> str:
    """Name a tensor as the published checkpoints do."""
    if name.startswith("lm_head."):
        return f"language_model.{name}"
    return name.removeprefix("model.").replace("language_model.", "language_model.model.", 1)


def checkpoint(folder: Path, *, layers: int = 4, seed: int = 0) -> Path:
    """Save a random Voxtral in the hub's layout, with Mistral's format beside that of transformers."""
    model = random_model(VoxtralForConditionalGeneration, config(layers=layers), seed)
    folder.mkdir(parents=True, exist_ok=True)
    model.config.architectures = ["VoxtralForConditionalGeneration"]
    model.config.save_pretrained(folder)
    weights = {hub_name(name): tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    save_file({"tok_embeddings.weight": torch.ones(64, 64)}, folder / "consolidated.safetensors")
    write_json(folder / "params.json", dim=32, n_layers=layers)
    write_json(folder / "tekken.json", **tekken())
    write_json(folder / "generation_config.json", bos_token_id=1, eos_token_id=2, pad_token_id=11)
    WhisperFeatureExtractor(feature_size=128, processor_class="VoxtralProcessor").save_pretrained(folder)
    return folder


def wav(clip: np.ndarray) -> bytes:
    """Encode as WAV of 32-bit floats, so that nothing is rounded."""
    stream = io.BytesIO()
    soundfile.write(stream, clip, 16000, format="WAV", subtype="FLOAT")
    return stream.getvalue()


def documented(folder: Path, prompt: Prompt) -> tuple[Mapping[str, torch.Tensor], Any]:
    """Prepare and load as the model card does. Audio is passed as float WAV in base64."""
    processor = AutoProcessor.from_pretrained(folder)
    model = VoxtralForConditionalGeneration.from_pretrained(folder).eval()
    audio = [{"type": "audio", "base64": base64.b64encode(wav(clip)).decode()} for clip in prompt.clips]
    content = [*audio, {"type": "text", "text": prompt.text}]
    return processor.apply_chat_template([{"role": "user", "content": content}]), model


def audio_tokens(samples: int) -> int:
    """Return the audio tokens of a clip: 375 for each window of 30 s, the last one padded."""
    return 375 * -(-samples // WINDOW)
