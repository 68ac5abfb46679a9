"""The towers of Qwen2.5-Omni and Qwen3-Omni attend once per layer and give the same output as transformers' loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from conftest import noise
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from audiomarathon.compression.method import Base
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.prompt import Inputs, Prompt

#: Clip lengths in seconds: part of a window, an uneven batch, whole windows. A window lasts 2 s or 8 s.
CLIPS = [(0.05,), (8.1, 2.0, 2.0, 9.99), (24.0,)]


@pytest.fixture(params=["qwen2.5-omni-7b", "qwen3-omni"])
def tower_lm(request: pytest.FixtureRequest, loaded: Callable[[str, str], AudioLM]) -> Callable[[str], AudioLM]:
    return lambda attention: loaded(request.param, attention)


def heard(lm: AudioLM, seconds: Sequence[float]) -> Inputs:
    return lm.prepare([Prompt("Which?", (noise(length, seed),)) for seed, length in enumerate(seconds)])


def states(lm: AudioLM, inputs: Inputs) -> torch.Tensor:
    """Return the tower's output."""
    seen: list[torch.Tensor] = []
    with lm.audio_tower.register_forward_hook(lambda _m, _a, output: seen.append(output.last_hidden_state)):
        Base().generate(lm, inputs, max_new_tokens=1)
    return seen[0]


@pytest.mark.parametrize("seconds", CLIPS, ids=str)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_attention_called_once_per_window_size_equals_the_loop_of_transformers(
    tower_lm: Callable[[str], AudioLM], attention: str, seconds: Sequence[float]
) -> None:
    lm = tower_lm(attention)
    inputs = heard(lm, seconds)
    windowed, expected = states(lm, inputs), states(lm, replace(inputs, windows=None))
    torch.testing.assert_close(windowed, expected, rtol=0, atol=0 if attention == "sdpa" else 1e-6)


def test_consecutive_equal_windows_take_one_attention_call_per_layer(
    tower_lm: Callable[[str], AudioLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    lm, counts = tower_lm("sdpa"), Counter[str]()
    attend = torch.nn.functional.scaled_dot_product_attention

    def counted(query: torch.Tensor, *args: object, **options: object) -> torch.Tensor:
        counts[name] += 1
        return attend(query, *args, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted)
    inputs = heard(lm, [25.0])
    for name, given in (("windows", inputs), ("loop", replace(inputs, windows=None))):  # noqa: B007 - `counted` uses it
        states(lm, given)
    layers = len(lm.tower_layers)
    assert counts["loop"] - counts["windows"] == layers * (len(inputs.windows.lengths) - 2)  # type: ignore[union-attr]


def test_window_attention_leaves_the_model_unchanged(tower_lm: Callable[[str], AudioLM]) -> None:
    lm = tower_lm("sdpa")
    states(lm, heard(lm, [1.0]))
    assert lm.audio_tower.config._attn_implementation == "sdpa"  # type: ignore[union-attr]
    assert "get_audio_features" not in vars(lm.model.model)


def test_flash_attention_gets_the_window_lengths_in_one_call(
    tower_lm: Callable[[str], AudioLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    lm, calls = tower_lm("sdpa"), list[dict[str, object]]()
    inputs, config = heard(lm, [5.0]), lm.audio_tower.config

    def flash(_module: object, query: torch.Tensor, *_args: object, **options: object) -> tuple[torch.Tensor, None]:
        calls.append(options)
        return query.transpose(1, 2), None

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, "some_flash", flash)
    monkeypatch.setattr(config, "_attn_implementation_internal", "some_flash")
    states(lm, inputs)
    assert [call["max_length_q"] for call in calls] == [max(inputs.windows.lengths)] * len(lm.tower_layers)  # type: ignore[union-attr]
