"""Captured attention of a trained LLM: a Qwen2-Audio made of Whisper's encoder and SmolLM2, on real speech."""

from __future__ import annotations

import numpy as np
import pytest
import real_recordings
import torch
from real_weights import real_qwen2_audio

from audiomarathon.audio.decode import decode
from audiomarathon.compression.registry import get_method
from audiomarathon.engine.attention_capture import capture
from audiomarathon.engine.engine import open_local
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.prompt import Prompt
from audiomarathon.runs.attention import ROWS
from audiomarathon.settings import own_settings

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> AudioLM:
    folder = real_qwen2_audio(tmp_path_factory.mktemp("real") / "qwen2-audio")
    return open_local("qwen2-audio", own_settings(model_path=str(folder), attn_implementation="eager")).lm


@pytest.fixture(scope="module")
def prompt(lm: AudioLM) -> Prompt:
    longest = max(real_recordings.recordings("speech"), key=lambda file: file.stat().st_size)
    return Prompt("What does the voice say?", (decode(longest, lm.sampling_rate),))


def test_attention_maps_equal_those_of_transformers_and_show_the_first_token_as_a_sink(
    lm: AudioLM, prompt: Prompt
) -> None:
    inputs = lm.prepare([prompt])
    length = inputs.audio_mask.shape[1]
    maps = np.zeros((30, length, length), np.float32)
    attention = capture(lm, inputs, get_method("base"), prompt, max_new_tokens=8, full=maps)
    with torch.inference_mode():
        done = lm.model.generate(
            **inputs.tensors, max_new_tokens=1, do_sample=False, output_attentions=True, return_dict_in_generate=True
        )
    true = np.stack([layer[0].mean(0).numpy() for layer in done.attentions[0]])
    assert np.abs(maps - true).max() < 1e-5
    sink = attention.mass[ROWS.index("question"), :, :, attention.meta["groups"].index("first token")].mean(1)
    assert sink[:2].max() < 0.3
    assert np.median(sink[15:]) > 0.5
    assert np.abs(np.nansum(attention.mass, -1) - 1).max() < 1e-5


@pytest.mark.parametrize("method", ["fast_v:0.5", "dart:0.7", "snapkv:0.5", "frame:0.5+snapkv:0.5"])
def test_capture_of_attention_leaves_the_replies_of_methods_unchanged(lm: AudioLM, prompt: Prompt, method: str) -> None:
    inputs, chosen = lm.prepare([prompt]), get_method(method)
    attention = capture(lm, inputs, chosen, prompt, max_new_tokens=8)
    assert attention.meta["reply"] == chosen.generate(lm, inputs, max_new_tokens=8).replies[0].text
    assert np.abs(attention.mass.sum(-1) - 1).max() < 1e-5
