"""A tiny random Gemma 3n in the hub's layout, and the family's documented usage."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import tiny_base as tiny
import torch
from transformers import (
    Gemma3nAudioFeatureExtractor,
    Gemma3nConfig,
    Gemma3nForConditionalGeneration,
    Gemma3nProcessor,
    Gemma3nVisionConfig,
    PreTrainedTokenizerFast,
)
from transformers.models.gemma3n import modeling_gemma3n

from audiomarathon.models.prompt import Prompt

# The hub's chat_template.jinja, cut to a conversation of text and audio without a system prompt.
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<start_of_turn>{{ message['role'] }}\n"
    "{% for item in message['content'] %}{% if item['type'] == 'audio' %}<audio_soft_token>"
    "{% elif item['type'] == 'text' %}{{ item['text'] | trim }}{% endif %}{% endfor %}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)

# In the hub's order: what only text uses, then the tokens that the vision and audio parts embed themselves.
SPECIAL = (
    "<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<start_of_audio>",
    "<end_of_image>", "<image_soft_token>",
    "<end_of_audio>", "<audio_soft_token>",
)  # fmt: skip

NAMED = {
    "image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>",
    "audio_token": "<audio_soft_token>", "boa_token": "<start_of_audio>", "eoa_token": "<end_of_audio>",
}  # fmt: skip

TOKENS = 188
BANDS = 32  # mel bands; the hub has 128
LAYER_TYPES = ["sliding", "full", "sliding", "full", "sliding", "full"]
SHARED = 2  # the last layers, which use the keys and values of layers 2 and 3
SLIDING_WINDOW = 270


def tokenizer() -> PreTrainedTokenizerFast:
    return tiny.byte_tokenizer(
        SPECIAL, end="<eos>", pad="<pad>", template=TEMPLATE, listed=False, bos_token="<bos>", **NAMED
    )


def tiny_config(tokenizer: PreTrainedTokenizerFast) -> Gemma3nConfig:
    """About 0.1 M parameters."""
    token = tokenizer.convert_tokens_to_ids
    vision, audio = token("<end_of_image>"), token("<end_of_audio>")
    layers = len(LAYER_TYPES)
    return Gemma3nConfig(
        text_config={
            "vocab_size": audio + 4, "vocab_size_per_layer_input": vision, "hidden_size": 32, "intermediate_size": 48,
            "hidden_size_per_layer_input": 8, "num_hidden_layers": layers, "num_attention_heads": 4, "head_dim": 8,
            "num_key_value_heads": 2, "sliding_window": SLIDING_WINDOW, "num_kv_shared_layers": SHARED,
            "layer_types": [f"{kind}_attention" for kind in LAYER_TYPES], "laurel_rank": 4, "altup_num_inputs": 2,
            "activation_sparsity_pattern": [0.95] + [0.0] * (layers - 1), "max_position_embeddings": 32768,
            "pad_token_id": token("<pad>"), "eos_token_id": token("<eos>"), "bos_token_id": token("<bos>"),
        },
        audio_config={
            "vocab_size": 4, "vocab_offset": audio, "hidden_size": 16, "input_feat_size": BANDS,
            "conf_num_attention_heads": 2, "conf_num_hidden_layers": 1, "sscp_conv_channel_size": [2, 2],
        },
        vision_config=Gemma3nVisionConfig(hidden_size=16, vocab_size=audio - vision, vocab_offset=vision),
        audio_soft_tokens_per_image=TOKENS,
        **{f"{name}_id": token(text) for name, text in NAMED.items()},
    )  # fmt: skip


def native(build: Any) -> Any:
    """Build the native class without its vision tower, which comes from timm and would require torchvision."""
    whole = modeling_gemma3n.AutoModel.from_config

    def part(config: Any, **kwargs: Any) -> torch.nn.Module:
        return torch.nn.Identity() if config.model_type == "gemma3n_vision" else whole(config, **kwargs)

    with mock.patch.object(modeling_gemma3n.AutoModel, "from_config", part):
        return build()


def checkpoint(folder: Path, *, seed: int = 0) -> Path:
    """Save a random Gemma 3n in the hub's layout, with a vision tower and the unused weights of sharing layers."""
    words = tokenizer()
    config = tiny_config(words)
    tiny.random_model(
        lambda config: native(lambda: Gemma3nForConditionalGeneration(config)), config, seed
    ).save_pretrained(folder)
    unused = {"model.vision_tower.timm_model.conv_stem.conv.weight": torch.ones(2, 3, 3, 3)}
    for layer in range(len(LAYER_TYPES) - SHARED, len(LAYER_TYPES)):
        attention = f"model.language_model.layers.{layer}.self_attn"
        unused |= {f"{attention}.{name}_proj.weight": torch.ones(16, 32) for name in "kv"}
        unused[f"{attention}.k_norm.weight"] = torch.ones(8)
    tiny.rewrite_weights(folder, lambda weights: weights | unused)
    words.save_pretrained(folder)
    # The hub's file enables sampling.
    ends = [words.eos_token_id, words.convert_tokens_to_ids("<end_of_turn>")]
    tiny.write_json(folder / "generation_config.json", do_sample=True, top_k=64, top_p=0.95, eos_token_id=ends)
    Gemma3nAudioFeatureExtractor(feature_size=BANDS).save_pretrained(folder)
    return folder


def with_window(folder: Path, place: Path, window: int) -> Path:
    """Copy a checkpoint, and give its attention a sliding window of so many tokens."""
    return tiny.changed_copy(folder, place, config=lambda facts: facts["text_config"].update(sliding_window=window))


def documented(folder: Path, prompt: Prompt) -> tuple[Mapping[str, torch.Tensor], Any]:
    """Prepare and load as the model card does. A long clip becomes several audios, each padded to 30 s."""
    more = {"image_processor": None, "audio_seq_length": TOKENS}
    processor = tiny.processor_of(Gemma3nProcessor, folder, TEMPLATE, Gemma3nAudioFeatureExtractor, **more)
    audios = tiny.windows_of(prompt.clips)
    text = tiny.worded(processor, len(audios), prompt.text)
    inputs = processor(
        text=text,
        audio=audios,
        text_kwargs={"add_special_tokens": False},
        audio_kwargs={"padding": "max_length"},
        return_tensors="pt",
    )
    model = native(lambda: Gemma3nForConditionalGeneration.from_pretrained(folder))
    return inputs, model.eval()


def audio_tokens(samples: int) -> int:
    """Return the audio tokens of a clip: always those of whole windows."""
    return TOKENS * -(-samples // tiny.WINDOW)
