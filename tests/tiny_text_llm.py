"""A tiny random Llama with a chat template: the text LLM of a cascade."""

from __future__ import annotations

from pathlib import Path

import torch
from tiny_tokenizer import byte_tokenizer, spread
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

SPECIAL = ("<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def checkpoint(folder: Path, *, seed: int = 0, positions: int = 4096, template: str | None = TEMPLATE) -> Path:
    """Save a random Llama of two layers; about 0.02 M parameters."""
    tokenizer = byte_tokenizer(SPECIAL, end="<|im_end|>", pad="<|im_end|>", template=template)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=positions, pad_token_id=end,
            bos_token_id=None, eos_token_id=end,
        )
    )  # fmt: skip
    spread(model)
    model.generation_config = GenerationConfig(eos_token_id=end, pad_token_id=end, do_sample=True, temperature=5.0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
