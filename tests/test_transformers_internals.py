"""The internals of transformers that hooks rely on. When one moves, the failing test's message names it.

For this reason pyproject.toml allows few versions of transformers. Widen the range only if these tests pass.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

from audiomarathon.compression.method import Base
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.prompt import Prompt


@pytest.fixture
def layer_calls(lm: AudioLM, prompts: list[Prompt]) -> list[dict[str, Any]]:
    """Return the named arguments of each call of decoder layer 1: prefill, then two decode steps."""
    layer, calls = lm.decoder_layers[1], []
    signature = inspect.signature(layer.forward)

    def look(_module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        bound = signature.bind(*args, **kwargs).arguments
        bound.update(bound.pop("kwargs", {}))
        cache = bound["past_key_values"]
        calls.append({**bound, "cached": cache.get_seq_length(1)})

    handle = layer.register_forward_pre_hook(look, with_kwargs=True)
    try:
        Base().generate(lm, lm.prepare(prompts[:1]), max_new_tokens=3, ignore_end=True)
    finally:
        handle.remove()
    return calls


def test_transformers_keeps_the_submodules_of_qwen_2_5_omni_where_our_code_expects_them(lm: AudioLM) -> None:
    assert hasattr(lm.model.model, "rope_deltas"), "thinker.model.rope_deltas moved (a canary)"
    assert len(lm.decoder_layers) == 4, "thinker.model.language_model.layers moved (Qwen2_5Omni.decoder)"
    assert isinstance(lm.lm_head, torch.nn.Linear), "thinker.lm_head moved (Qwen2_5Omni.lm_head)"
    assert hasattr(lm.audio_tower, "conv1"), "thinker.model.audio_tower moved (Qwen2_5Omni.audio_tower)"


def test_transformers_calls_decoder_layers_with_the_arguments_that_hooks_use(layer_calls: list[dict[str, Any]]) -> None:
    prefill, *_, last = layer_calls
    for name in ("hidden_states", "attention_mask", "position_ids", "position_embeddings", "past_key_values"):
        assert all(name in call for call in layer_calls), f"decoder layers no longer take {name!r} (token_pruner hooks)"
    batch, length, _width = prefill["hidden_states"].shape
    cos, sin = prefill["position_embeddings"]
    assert cos.shape[:-1] == sin.shape[:-1] == (batch, length), "position_embeddings are no longer (B, S, D)"
    assert prefill["position_ids"].shape == (batch, length), "position_ids are no longer (B, S)"
    assert prefill["attention_mask"] is None, "sdpa at batch 1 no longer goes without a mask"
    seen = [call["cached"] for call in layer_calls]
    assert seen == [0, length, length + 1], "Cache.get_seq_length(layer) no longer counts that layer's keys"
    cached = last["past_key_values"].layers[1]
    assert torch.is_tensor(cached.keys), "cache.layers[i].keys moved (CacheProbe)"
    assert torch.is_tensor(cached.values), "cache.layers[i].values moved (CacheProbe)"


def test_transformers_calls_each_logits_processor_once_per_token_after_the_lm_head(
    lm: AudioLM, prompts: list[Prompt]
) -> None:
    events: list[str] = []
    handle = lm.lm_head.register_forward_hook(lambda *_: events.append("head"))
    inputs = lm.prepare(prompts[:1])
    try:
        processors = [lambda _ids, scores: events.append("processor") or scores]
        told = {"max_new_tokens": 2, "do_sample": False, "eos_token_id": None, "logits_processor": processors}
        lm.model.generate(**inputs.tensors, **told)
    finally:
        handle.remove()
    assert events == ["head", "processor"] * 2, "generate no longer calls processors right after the head (StageTimer)"
