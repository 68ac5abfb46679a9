"""A tiny random Phi-4-multimodal in the layout of the hub's converted revision, and the family's documented usage."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tiny_base import LLM, byte_tokenizer, processor_of, random_model, worded, write_json
from torch import nn
from transformers import (
    Phi4MultimodalConfig,
    Phi4MultimodalFeatureExtractor,
    Phi4MultimodalForCausalLM,
    Phi4MultimodalProcessor,
    PreTrainedTokenizerFast,
)

from audiomarathon.models.prompt import Prompt

# The converted revision's chat format: no newlines, clips before the text.
TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' }}"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for content in message['content'] %}"
    "{% if content['type'] == 'audio' %}<|audio|>{% elif content['type'] == 'image' %}<|image|>"
    "{% else %}{{ content['text'] }}{% endif %}{% endfor %}{% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% else %}{{ eos_token }}{% endif %}"
)

SPECIAL = ("<|endoftext|>", "<|image|>", "<|audio|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
ADAPTED = ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")


def tiny_config(tokenizer: PreTrainedTokenizerFast, *, layers: int = 4, switch: int = 4096) -> Phi4MultimodalConfig:
    """A model of about 0.1 M parameters whose rotary factors change when a sequence grows past `switch`."""
    token = tokenizer.convert_tokens_to_ids
    return Phi4MultimodalConfig(
        **LLM | {"num_hidden_layers": layers, "max_position_embeddings": 131072}, vocab_size=len(tokenizer),
        tie_word_embeddings=True, sliding_window=262144, original_max_position_embeddings=switch,
        partial_rotary_factor=0.75,
        rope_parameters={
            "rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75,
            "short_factor": [1.0, 1.0, 1.0], "long_factor": [1.0, 4.0, 32.0],  # a head has 8 numbers, 6 are rotated
            "original_max_position_embeddings": switch,
        },
        bos_token_id=token("<|endoftext|>"), pad_token_id=token("<|endoftext|>"),
        eos_token_id=[token("<|endoftext|>"), token("<|end|>")],
        audio_config={
            "hidden_size": 16, "num_blocks": 1, "num_attention_heads": 2, "intermediate_size": 16,
            "nemo_conv_channels": 8, "ext_pw_out_channel": 16, "depthwise_separable_out_channel": 16,
            "bias_max_distance": 500, "audio_token_id": token("<|audio|>"),
        },
        vision_config={
            "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
            "image_size": 28, "patch_size": 14, "crop_size": 28, "image_token_id": token("<|image|>"),
        },
    )  # fmt: skip


def save_adapter(folder: Path, layers: nn.ModuleList, rank: int) -> None:
    """Write a LoRA over every decoder layer as the hub has it, random and strong enough to change replies."""
    weights = {}
    for index, layer in enumerate(layers):
        for name in ADAPTED:
            inner = f"base_model.model.model.layers.{index}.{name}"
            full = layer.get_submodule(name)
            weights[f"{inner}.lora_A.weight"] = 0.15 * torch.randn(rank, full.in_features)
            weights[f"{inner}.lora_B.weight"] = 0.15 * torch.randn(full.out_features, rank)
    folder.mkdir()
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    target = r"model\.layers\.\d+\.((self_attn\.(qkv|o)_proj)|(mlp\.(gate_up|down)_proj))"
    write_json(
        folder / "adapter_config.json", peft_type="LORA", task_type="CAUSAL_LM", base_model_name_or_path="TBA",
        inference_mode=True, r=rank, lora_alpha=2 * rank, lora_dropout=0.01, bias="none", target_modules=target,
    )  # fmt: skip


def checkpoint(folder: Path, *, layers: int = 4, seed: int = 0, switch: int = 4096) -> Path:
    """Save a random Phi-4-multimodal: native keys, a tied LM head, and both adapters in separate folders."""
    tokenizer = byte_tokenizer(
        SPECIAL, end="<|endoftext|>", pad="<|endoftext|>", image_token="<|image|>", audio_token="<|audio|>"
    )
    model = random_model(Phi4MultimodalForCausalLM, tiny_config(tokenizer, layers=layers, switch=switch), seed)
    model.generation_config.eos_token_id = model.config.eos_token_id
    model.save_pretrained(folder)
    save_adapter(folder / "speech-lora", model.model.layers, rank=4)
    save_adapter(folder / "vision-lora", model.model.layers, rank=2)
    tokenizer.padding_side = "left"
    tokenizer.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    Phi4MultimodalFeatureExtractor().save_pretrained(folder)
    return folder


def documented(folder: Path, prompt: Prompt) -> tuple[Mapping[str, torch.Tensor], Any]:
    """Prepare and load as transformers' page of the model does."""
    more = {"extractor_name": "audio_processor", "image_processor": None}
    processor = processor_of(Phi4MultimodalProcessor, folder, TEMPLATE, Phi4MultimodalFeatureExtractor, **more)
    text = worded(processor, len(prompt.clips), prompt.text)
    inputs = processor(text=text, audio=list(prompt.clips), sampling_rate=16000, return_tensors="pt")
    model = Phi4MultimodalForCausalLM.from_pretrained(folder)
    model.load_adapter(str(folder), adapter_name="speech", adapter_kwargs={"subfolder": "speech-lora"})
    model.set_adapter("speech")
    return inputs, model.eval()


def audio_tokens(samples: int) -> int:
    """Return the audio tokens of a clip: whole frames of 25 ms every 10 ms, eight a token, the last may have fewer."""
    frames = (samples - 400) // 160 + 1
    return -(-frames // 8)
