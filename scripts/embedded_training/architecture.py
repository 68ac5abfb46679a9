"""The embedded model's sizes, and how it is saved in the layout of the hub's Qwen2.5-Omni checkpoints."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen2_5OmniThinkerConfig,
    Qwen2_5OmniThinkerForConditionalGeneration,
    WhisperFeatureExtractor,
)

WIDTH = 128
LAYERS = 5
WINDOW_TOKENS = 50  # the audio encoder attends within two seconds: 200 mel frames, 50 tokens
EMBEDDING_STD = 0.1


def build_model(tokenizer: PreTrainedTokenizerFast) -> Qwen2_5OmniThinkerForConditionalGeneration:
    """Build the embedded model with untrained weights."""
    token = {text: tokenizer.convert_tokens_to_ids(text) for text in tokenizer.all_special_tokens}
    config = Qwen2_5OmniThinkerConfig(
        audio_config={
            "num_mel_bins": 128,
            "d_model": WIDTH,
            "encoder_layers": 2,
            "encoder_attention_heads": 4,
            "encoder_ffn_dim": 2 * WIDTH,
            "output_dim": WIDTH,
            "max_source_positions": 1500,
            "n_window": 100,
        },
        # Never used, but part of the class: as small as possible.
        vision_config={
            "depth": 1,
            "hidden_size": 32,
            "num_heads": 2,
            "intermediate_size": 32,
            "out_hidden_size": WIDTH,
            "fullatt_block_indexes": [0],
        },
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": WIDTH,
            "intermediate_size": 2 * WIDTH,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 32768,
            # A larger base than Qwen's: more of the few dimensions must match content at any distance.
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e10, "mrope_section": [4, 6, 6]},
            "initializer_range": 0.05,
            "tie_word_embeddings": True,
            "pad_token_id": None,
        },
        tie_word_embeddings=True,
        audio_token_index=token["<|AUDIO|>"],
        audio_start_token_id=token["<|audio_bos|>"],
        audio_end_token_id=token["<|audio_eos|>"],
        image_token_index=token["<|IMAGE|>"],
        video_token_index=token["<|VIDEO|>"],
        vision_start_token_id=token["<|vision_bos|>"],
        vision_end_token_id=token["<|vision_eos|>"],
        position_id_per_seconds=25,
    )
    model = Qwen2_5OmniThinkerForConditionalGeneration(config)
    torch.nn.init.normal_(model.get_input_embeddings().weight, std=EMBEDDING_STD)
    model.tie_weights()
    return model


def save_checkpoint(
    model: Qwen2_5OmniThinkerForConditionalGeneration, tokenizer: PreTrainedTokenizerFast, folder: Path
) -> None:
    """Save the weights (bfloat16, named `thinker.*`), config, tokenizer and feature extractor in the hub's layout."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    state = {
        f"thinker.{name}": tensor.detach().to(torch.bfloat16).contiguous()
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"  # tied to the embedding
    }
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    thinker = model.config.to_dict() | {
        "dtype": "bfloat16",
        "architectures": ["Qwen2OmniNaViTThinkerForConditionalGeneration"],
    }
    config = {
        "architectures": ["Qwen2_5OmniModel"],
        "model_type": "qwen2_5_omni",
        "enable_audio_output": False,
        "dtype": "bfloat16",
        "thinker_config": thinker,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    end, pad = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    GenerationConfig(do_sample=False, eos_token_id=end, pad_token_id=pad).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=128, chunk_length=300).save_pretrained(folder)
