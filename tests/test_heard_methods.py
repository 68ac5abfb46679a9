"""Methods that select by the waveform (keep_loud, keep_speech), and the part of the clip behind each audio token."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_whisper
import torch
from conftest import Family, noise

from audiomarathon.audio import voice_activity
from audiomarathon.compression.heard import heard_by_state, heard_by_token
from audiomarathon.compression.pruners.keep_loud import KeepLoud
from audiomarathon.compression.pruners.keep_speech import KeepSpeech
from audiomarathon.compression.registry import get_method
from audiomarathon.compression.token_pruner import Evidence
from audiomarathon.errors import MethodError
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.prompt import Prompt
from audiomarathon.models.whisper import Whisper

RATE = 16000


def loud_from(start: float, end: float, seconds: float) -> np.ndarray:
    """A quiet clip that is loud from `start` to `end`, in seconds."""
    clip = noise(seconds, 3) * 0.01
    clip[round(start * RATE) : round(end * RATE)] *= 100
    return clip


def test_each_audio_token_is_assigned_to_its_part_of_the_clip(family: Family, family_lm: AudioLM) -> None:
    """The joined parts of all tokens equal the clips, in a batch of prompts with one and two clips."""
    clips = [(loud_from(0, 1, 4.0),), (loud_from(1, 2, 2.5), noise(3.3, 5))]
    inputs = family_lm.prepare([Prompt("Which?", clip_list) for clip_list in clips])
    for prompt_clips, parts, tokens in zip(clips, heard_by_token(family_lm, inputs), inputs.audio_tokens, strict=True):
        assert len(parts) == tokens
        assert np.array_equal(np.concatenate(parts), np.concatenate(prompt_clips))


def test_keep_loud_keeps_the_tokens_of_the_only_loud_second(family: Family, family_lm: AudioLM) -> None:
    """A tenth of the clip is loud, a tenth of the real tokens is kept: those over the loud second, give or take one."""
    inputs = family_lm.prepare([Prompt("Which?", (loud_from(6.0, 7.0, 10.0),))])
    real = inputs.audio_tokens[0] - (inputs.window_padding[0] if inputs.window_padding else 0)
    method = KeepLoud(1 - real / 10 / inputs.audio_tokens[0])
    result = method.generate(family_lm, inputs, max_new_tokens=1)
    audio = inputs.audio_mask[0].nonzero().flatten()
    kept = torch.isin(audio, result.kept_positions[0]).nonzero().flatten().double() / real
    assert 0.6 - 1.5 / real <= kept.min() <= kept.max() <= 0.7 + 1 / real


def test_each_whisper_encoder_state_is_assigned_to_its_part_of_the_clip(tmp_path: Path) -> None:
    folder = tiny_whisper.checkpoint(tmp_path / "tiny-whisper")
    lm = Whisper.load(folder, device="cpu", dtype="float32", attn_implementation="sdpa")
    inputs = lm.prepare([Prompt("", (loud_from(6.0, 7.0, 10.0),), transcription=True)])
    (parts,) = heard_by_state(lm, inputs)
    assert len(parts) == inputs.states[0][0]
    assert np.concatenate(parts).size == 10 * RATE
    result = get_method("keep_loud", 0.9, at="input").generate(lm, inputs, max_new_tokens=1)
    kept = result.kept_positions[0][: round(inputs.states[0][0] / 10)].double() / inputs.states[0][0]
    assert 0.58 < kept.min() < kept.max() < 0.72


def test_keep_speech_keeps_speech_first_and_then_the_louder_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    spoken = [(1.0, 2.0)]
    monkeypatch.setattr(voice_activity, "find_speech", lambda *_: spoken)
    parts = [np.full(RATE // 2, level, np.float32) for level in (0.9, 0.1, 0.2, 0.3, 0.5, 0.4)]
    evidence = Evidence(torch.arange(6), 4, 0, heard=parts)
    assert KeepSpeech(0.5).select(evidence).tolist() == [3, 2, 0, 4]


def test_keep_speech_without_its_package_is_refused_with_the_pip_command(
    monkeypatch: pytest.MonkeyPatch, lm: AudioLM
) -> None:
    monkeypatch.setitem(sys.modules, "silero_vad", None)
    voice_activity._detector.cache_clear()
    with pytest.raises(MethodError, match=r"pip install 'audiomarathon\[vad\]'"):
        KeepSpeech(0.5).check(lm)


def test_keep_loud_is_refused_for_inputs_without_waveforms(lm: AudioLM) -> None:
    inputs = replace(lm.prepare([Prompt("Which?", (noise(2.0, 1),))]), clips=())
    with pytest.raises(MethodError, match="hold no waveforms"):
        KeepLoud(0.5).generate(lm, inputs, max_new_tokens=1)
