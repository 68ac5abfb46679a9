"""A tiny random Llama with a chat template: the text LLM of a cascade."""

from __future__ import annotations

from pathlib import Path

from tiny_base import LLM, byte_tokenizer, random_model
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
    sizes = LLM | {"num_hidden_layers": 2, "max_position_embeddings": positions}
    ends = {"pad_token_id": end, "bos_token_id": None, "eos_token_id": end}
    model = random_model(LlamaForCausalLM, LlamaConfig(vocab_size=len(tokenizer), **sizes, **ends), seed)
    model.generation_config = GenerationConfig(eos_token_id=end, pad_token_id=end, do_sample=True, temperature=5.0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
