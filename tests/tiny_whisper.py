"""A tiny random Whisper in the hub's layout: three languages, and suppressed tokens."""

from __future__ import annotations

from pathlib import Path

from tiny_base import byte_tokenizer, random_model
from transformers import GenerationConfig, WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

SPECIAL = (
    "<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|zh|>", "<|transcribe|>", "<|translate|>",
    "<|startofprev|>", "<|notimestamps|>",
)  # fmt: skip
LANGUAGES = ("en", "de", "zh")


def checkpoint(folder: Path, *, seed: int = 0, english_only: bool = False, window: int = 30) -> Path:
    """Save a random Whisper of two and three layers as the hub has it; about 0.1 M parameters.

    Published models hear windows of 30 s. A `window` of fewer seconds shows the same behaviour in less time.
    """
    tokenizer = byte_tokenizer(SPECIAL, end="<|endoftext|>", pad="<|endoftext|>")
    token = tokenizer.convert_tokens_to_ids
    end, start = token("<|endoftext|>"), token("<|startoftranscript|>")
    config = WhisperConfig(
        vocab_size=len(tokenizer), d_model=16, encoder_layers=2, decoder_layers=3, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=24, num_mel_bins=80,
        max_source_positions=50 * window, max_target_positions=64, pad_token_id=end, bos_token_id=end, eos_token_id=end,
        decoder_start_token_id=start,
    )  # fmt: skip
    model = random_model(WhisperForConditionalGeneration, config, seed)
    known = {} if english_only else {f"<|{name}|>": token(f"<|{name}|>") for name in LANGUAGES}
    model.generation_config = GenerationConfig(
        decoder_start_token_id=start, eos_token_id=end, pad_token_id=end, bos_token_id=end, max_length=64,
        suppress_tokens=[*map(token, SPECIAL[1:]), 5], begin_suppress_tokens=[end, 7],
        no_timestamps_token_id=token("<|notimestamps|>"), is_multilingual=not english_only, lang_to_id=known,
        task_to_id={"transcribe": token("<|transcribe|>"), "translate": token("<|translate|>")},
        prev_sot_token_id=token("<|startofprev|>"),
    )  # fmt: skip
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=80, chunk_length=window).save_pretrained(folder)
    return folder
