"""Our presses keep the same KV-cache entries as NVIDIA's kvpress 0.5.5, with the whole prompt as candidates."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from plain_qwen2 import BY_HEAD, PRESSES, PROMPT, RATIOS, plain_qwen2, prompt_ids
from transformers import DynamicCache

from audiomarathon.compression.registry import get_method
from audiomarathon.models.prompt import Inputs, Prompt
from audiomarathon.models.text_llm import TextLLM

GOLDEN = Path(__file__).parent / "data/presses/kvpress-0.5.5.npz"
CASES = [name for name in np.load(GOLDEN).files if name != "logits"]


class TextLM(TextLLM):
    """A text LLM whose every prompt is the golden file's."""

    def prepare(self, prompts: Sequence[Prompt]) -> Inputs:
        ids = prompt_ids()
        tensors = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        return Inputs(tensors, torch.zeros_like(ids, dtype=torch.bool), (0,))


@pytest.fixture(scope="module")
def text_lm() -> TextLM:
    tokenizer = SimpleNamespace(eos_token_id=0, pad_token_id=0, decode=lambda *_args, **_kwargs: "")
    return TextLM(plain_qwen2(), tokenizer)


@pytest.fixture(scope="module")
def full(text_lm: TextLM) -> DynamicCache:
    """Return the complete cache, and check that the golden file was made with this model."""
    cache = DynamicCache()
    with torch.inference_mode():
        logits = text_lm.model(prompt_ids(), past_key_values=cache).logits[0, -1]
    torch.testing.assert_close(logits, torch.from_numpy(np.load(GOLDEN)["logits"]), atol=1e-4, rtol=1e-4)
    return cache


def test_the_stored_results_of_nvidia_kvpress_cover_every_press_and_ratio() -> None:
    assert {case.rpartition("-")[0] for case in CASES} == {*PRESSES, *BY_HEAD}
    assert len(CASES) == (len(PRESSES) - 1) * len(RATIOS) + 1 + 2 + 3
    assert GOLDEN.stat().st_size < 300_000


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("case", CASES)
def test_presses_keep_the_same_cache_entries_as_nvidia_kvpress(
    text_lm: TextLM, full: DynamicCache, case: str, attention: str
) -> None:
    name, _, k = case.rpartition("-")
    press = get_method(name, RATIOS[int(k)], scope="all")
    if name == "pyramidkv":
        press = dataclasses.replace(press, window=PRESSES[name][1]["window_size"])
    caught: list[DynamicCache] = []
    handle = text_lm.decoder.register_forward_pre_hook(
        lambda _module, _args, kwargs: caught.append(kwargs["past_key_values"]), with_kwargs=True
    )
    text_lm.model.set_attn_implementation(attention)
    try:
        press.generate(text_lm, text_lm.prepare([]), max_new_tokens=1)
    finally:
        handle.remove()
        text_lm.model.set_attn_implementation("sdpa")
    golden = np.load(GOLDEN)[case]
    for layer, (before, after) in enumerate(zip(full.layers, caught[0].layers, strict=True)):
        if name in BY_HEAD:
            kept = torch.from_numpy(golden[layer])
            assert after.real[0].sum(-1).tolist() == kept.sum(-1).tolist()
            torch.testing.assert_close(after.keys[0].flatten(0, 1), before.keys[0][kept], atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(after.values[0].flatten(0, 1), before.values[0][kept], atol=1e-4, rtol=1e-4)
            continue
        for head in range(2):
            nearest = torch.cdist(after.keys[0, head], before.keys[0, head]).argmin(-1)  # eager rounds differently
            assert nearest.tolist() == np.flatnonzero(golden[layer, head]).tolist(), f"layer {layer}, head {head}"
            torch.testing.assert_close(after.values[0, head], before.values[0, head, nearest], atol=1e-4, rtol=1e-4)
    assert golden.shape == (4, 2, PROMPT)
    assert golden.sum() == 4 * 2 * int(k)
