"""Shared parts of tiny checkpoints: sizes, a byte-level tokenizer, weights with an effect, files, and processors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast, WhisperFeatureExtractor

WINDOW = 480000  # samples of 30 s

#: Sizes of an LLM of four layers.
LLM = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 32768,
}  # fmt: skip
#: Sizes of an audio tower of Whisper's kind, of one layer.
TOWER = {
    "d_model": 16, "encoder_attention_heads": 1, "encoder_ffn_dim": 16, "encoder_layers": 1, "num_mel_bins": 128,
    "max_source_positions": 1500,
}  # fmt: skip
#: Sizes of a vision tower that no test uses, of the Qwen-Omni families.
VISION = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "out_hidden_size": 32, "num_heads": 4}


def byte_tokenizer(
    special: Sequence[str], *, end: str, pad: str, template: str | None = None, listed: bool = True, **named: str
) -> PreTrainedTokenizerFast:
    """Make a byte-level BPE without merges: every text round-trips, with one token per byte.

    `named` special tokens become attributes, such as `audio_token="<|AUDIO|>"`. Tokens that are not `listed` are marked
    as special only in their entries, like Gemma's `<start_of_turn>`, and are missing from `all_special_tokens`.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({symbol: i for i, symbol in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=end,
        pad_token=pad,
        additional_special_tokens=list(special) if listed else None,
        model_specific_special_tokens=named,
    )
    if template:
        fast.chat_template = template
    return fast


def random_model(native: Callable[[Any], Any], config: Any, seed: int) -> Any:
    """Build a model of random weights."""
    torch.manual_seed(seed)
    model = native(config)
    spread(model)
    return model


def spread(model: torch.nn.Module) -> None:
    """Draw the weights again with a larger spread: with the default initialisation all logits are almost equal.

    Change biases and scales too, whose zeros and ones hide their effect (Gemma 3n ignores its per-layer inputs while
    `correct_output_scale` is zero).
    """
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, 0, 0.15)
        else:
            parameter.data += 0.1 * torch.randn_like(parameter)


def rewrite_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    """Change a saved model's tensors by a function of their dict, for example to the names on the hub."""
    file = folder / "model.safetensors"
    save_file(change(load_file(file)), file, metadata={"format": "pt"})


def changed_copy(
    folder: Path,
    place: Path,
    *,
    weights: Callable[[dict[str, torch.Tensor]], Any] | None = None,
    config: Callable[[dict[str, Any]], Any] | None = None,
    file: str = "model.safetensors",
) -> Path:
    """Copy a checkpoint into `place`, and change its weights and its config by functions that work in place."""
    copy = Path(shutil.copytree(folder, place / "changed"))
    if config:
        config(facts := read_json(copy / "config.json"))
        write_json(copy / "config.json", **facts)
    if weights:
        weights(tensors := load_file(copy / file))
        save_file(tensors, copy / file, metadata={"format": "pt"})
    return copy


def write_json(file: Path, **content: Any) -> None:
    file.write_text(json.dumps(content))


def read_json(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text())


def save_whisper_extractor(folder: Path, **more: Any) -> None:
    WhisperFeatureExtractor(feature_size=128, return_attention_mask=True, **more).save_pretrained(folder)


class _AudioOnly:
    """Mix-in that builds a family's processor without its image parts, which need torchvision."""

    def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
        return argument if argument is None else super().check_argument_for_proper_class(argument_name, argument)


def processor_of(
    native: type, folder: Path, template: str, extractor: type = WhisperFeatureExtractor, **more: Any
) -> Any:
    """Return a family's processor for audio and text, from a checkpoint's folder."""
    name = more.pop("extractor_name", "feature_extractor")
    more |= {name: extractor.from_pretrained(folder), "tokenizer": AutoTokenizer.from_pretrained(folder)}
    return type("Processor", (_AudioOnly, native), {})(**more, chat_template=template)


def windows_of(clips: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Cut clips into windows of 30 s; the last of each is shorter."""
    return [clip[start : start + WINDOW] for clip in clips for start in range(0, len(clip), WINDOW)]


def worded(processor: Any, clips: int, text: str, key: str = "audio") -> str:
    """Return one user's turn, the clips and then the text, rendered by the processor's chat template."""
    content = [*({"type": "audio", key: "clip"} for _ in range(clips)), {"type": "text", "text": text}]
    conversation = [{"role": "user", "content": content}]
    return processor.apply_chat_template(conversation, add_generation_prompt=True, tokenize=False)


def halved_twice(samples: int) -> int:
    """Return the audio tokens of a clip: mel frames of 10 ms, halved by a convolution and again by pooling."""
    frames = -(-samples // 160)
    return ((frames - 1) // 2 + 1 - 2) // 2 + 1
