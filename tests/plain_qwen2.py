"""A plain tiny Qwen2 that every version of transformers and numpy builds alike, for golden files made elsewhere."""

from __future__ import annotations

import numpy as np
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

PROMPT = 400  # tokens
# For each press (`press-k` in the golden file): NVIDIA's class, and its settings besides the ratio. pyramidkv has a
# small window because NVIDIA's class falls back to snapkv if the last layer's budget, k / 20, is below the window.
PRESSES = {
    "knorm": ("KnormPress", {}),
    "keydiff": ("KeyDiffPress", {}),
    "streaming_llm": ("StreamingLLMPress", {}),
    "tova": ("TOVAPress", {}),
    "snapkv": ("SnapKVPress", {}),
    "expected_attention": ("ExpectedAttentionPress", {}),
    "pyramidkv": ("PyramidKVPress", {"window_size": 8}),
}
# For NVIDIA's AdaKVPress: the class whose scores divide a layer's budget among the heads, and the values of k at which
# no scores of different heads nearly tie.
BY_HEAD = {
    "ada_snapkv": ("SnapKVPress", (340, 320)),
    "ada_expected_attention": ("ExpectedAttentionPress", (340, 180, 100)),
}
RATIOS = {340: 0.15, 320: 0.2, 180: 0.55, 100: 0.75}  # by k; PROMPT · ratio is a whole number


def plain_qwen2(seed: int = 0) -> Qwen2ForCausalLM:
    """Return a float32 Qwen2 of four layers with two KV heads, weights from numpy's frozen legacy generator."""
    config = Qwen2Config(
        vocab_size=512, hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=4096, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, attn_implementation="sdpa",
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config).float().eval()
    numbers = np.random.RandomState(seed)  # its streams never change, unlike default_rng's
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            drawn = torch.from_numpy(numbers.standard_normal(tuple(parameter.shape)).astype(np.float32))
            parameter.copy_(1 + 0.1 * drawn if "norm" in name else 0.15 * drawn)
    return model


def prompt_ids(seed: int = 0) -> torch.Tensor:
    """Return a prompt of distinct tokens, shape (1, PROMPT): equal tokens would have equal key norms in layer 0."""
    return torch.from_numpy(np.random.RandomState(seed).permutation(512)[None, :PROMPT].copy())


def places_in(full: torch.Tensor, part: torch.Tensor) -> list[int]:
    """Return the index in `full` of each row of `part`, both (entries, d). The rows of `full` must be distinct."""
    same = (part[:, None] == full[None]).all(-1)
    assert (same.sum(-1) == 1).all(), "an entry that is not in the full cache, or is there twice"
    return same.float().argmax(-1).tolist()
