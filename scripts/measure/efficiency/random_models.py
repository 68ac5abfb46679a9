"""Make Qwen2.5-Omni thinkers (the LLM with its audio encoder) of any size with random weights, to measure time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import (
    AutoTokenizer,
    Qwen2_5OmniThinkerConfig,
    Qwen2_5OmniThinkerForConditionalGeneration,
    WhisperFeatureExtractor,
)

from audiomarathon.models.checkpoint import embedded_checkpoint
from audiomarathon.models.qwen2_5_omni import Qwen2_5Omni


@dataclass(frozen=True)
class Size:
    """Dimensions of a thinker: those of the LLM, then those of the audio encoder."""

    layers: int
    width: int
    ffn: int
    heads: int
    kv_heads: int
    vocabulary: int
    encoder_layers: int = 32
    encoder_width: int = 1280
    encoder_ffn: int = 5120
    encoder_heads: int = 20


# 7B: the defaults of transformers' Qwen2_5OmniTextConfig and Qwen2_5OmniAudioEncoderConfig (5.23), which are that
# checkpoint's. 3B: thinker_config.text_config of the hub's Qwen/Qwen2.5-Omni-3B/config.json, as other projects quote it
# (the LLM is Qwen2.5-3B's shape); the audio encoder is the same. `scaled` keeps the proportions roughly, on a laptop;
# `attention` has the 7B's layers and heads at a quarter of its width.
SIZES = {
    "qwen2.5-omni-7b": Size(28, 3584, 18944, 28, 4, 152064),
    "qwen2.5-omni-3b": Size(36, 2048, 11008, 16, 2, 151936),
    "scaled": Size(12, 512, 1408, 8, 2, 4096, 8, 256, 1024, 4),
    "attention": Size(28, 896, 4736, 28, 4, 4096, 1, 256, 1024, 4),
    "tiny": Size(4, 64, 128, 4, 2, 4096, 1, 32, 64, 4),
}


def random_model(name: str, device: str, dtype: str, attn_implementation: str = "sdpa", seed: int = 0) -> Qwen2_5Omni:
    """Make a thinker of one of :data:`SIZES` with random weights, directly on the device.

    The vision tower never runs here, so it is tiny. The tokenizer is the embedded checkpoint's, since tokenization does
    not change the measured times.
    """
    size, tokenizer = SIZES[name], AutoTokenizer.from_pretrained(embedded_checkpoint())
    token = tokenizer.convert_tokens_to_ids
    half = size.width // size.heads // 2
    rope = {
        "rope_type": "default",
        "rope_theta": 1e6,
        "mrope_section": [half - 2 * (half * 3 // 8), *[half * 3 // 8] * 2],
    }
    config = Qwen2_5OmniThinkerConfig(
        audio_config={
            "d_model": size.encoder_width, "encoder_layers": size.encoder_layers, "encoder_ffn_dim": size.encoder_ffn,
            "encoder_attention_heads": size.encoder_heads, "output_dim": size.width, "num_mel_bins": 128,
        },
        vision_config={
            "depth": 1, "hidden_size": 32, "intermediate_size": 32, "out_hidden_size": size.width, "num_heads": 4,
            "fullatt_block_indexes": [0],
        },
        text_config={
            "vocab_size": size.vocabulary, "hidden_size": size.width, "intermediate_size": size.ffn,
            "num_hidden_layers": size.layers, "num_attention_heads": size.heads, "num_key_value_heads": size.kv_heads,
            "rope_parameters": rope, "pad_token_id": tokenizer.pad_token_id,
        },
        audio_token_index=token("<|AUDIO|>"),
        image_token_index=token("<|IMAGE|>"),
        video_token_index=token("<|VIDEO|>"),
        audio_start_token_id=token("<|audio_bos|>"),
        audio_end_token_id=token("<|audio_eos|>"),
        vision_start_token_id=token("<|vision_bos|>"),
        vision_end_token_id=token("<|vision_eos|>"),
    )  # fmt: skip
    torch.manual_seed(seed)
    with torch.device(device):
        model = Qwen2_5OmniThinkerForConditionalGeneration._from_config(
            config, dtype=getattr(torch, dtype), attn_implementation=attn_implementation
        )
    extractor = WhisperFeatureExtractor(feature_size=128, return_attention_mask=True)
    return Qwen2_5Omni(model, tokenizer, extractor)
