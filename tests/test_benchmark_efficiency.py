"""The efficiency benchmark runs from end to end on a toy, and what it counts is right; no time is asserted."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts" / "measure"))

import benchmark_efficiency
from efficiency.random_models import SIZES, random_model

from audiomarathon.costs.flops import count_cost
from audiomarathon.models.audio_lm import AudioLM


@pytest.fixture(scope="module")
def toy() -> AudioLM:
    return random_model("tiny", "cpu", "float32")


def test_the_efficiency_script_measures_base_a_pruner_and_a_press(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    benchmark_efficiency.main(
        ["--config", "tiny", "--durations", "4", "--methods", "fast_v,snapkv", "--ratios", "0.5", "--repeats", "1",
         "--decode-tokens", "3", "--cpu-time", "-o", str(out)]
    )  # fmt: skip
    report = json.loads(out.read_text())
    base, pruned, pressed = report["rows"]
    assert [row["setting"] for row in report["rows"]] == ["base-0", "fast_v-0.5-layer2", "snapkv-0.5"]
    assert [row["kept"] for row in report["rows"]] == [100, 50, 50]
    assert base["prefill_speed_up"] == base["prefill_ideal"] == base["first_token_ideal"] == 1
    assert pressed["prefill_ideal"] == 1
    assert pressed["kv_bytes"] < pruned["kv_bytes"] < base["kv_bytes"]
    assert pruned["scoring_share"] > 0
    assert 1 < pruned["first_token_ideal"] < pruned["prefill_ideal"]
    assert pruned["prefill_control"] is not None
    for name in ("fast_v", "snapkv"):
        assert report["overhead"]["choosing_and_gathering_share_of_base_prefill"][name] > 0
        decode = report["overhead"]["decode_against_control"][name]
        assert decode["lowest"] <= decode["median"] <= decode["highest"]
        assert len(decode["each"]) == 5
    assert report["time"] == "CPU seconds"
    printed = capsys.readouterr().out
    assert "50 of 100" in printed
    assert "decode a token ÷ control's: " in printed


def test_flops_per_token_equal_values_counted_by_hand(toy: AudioLM) -> None:
    cost = count_cost(toy)
    size = SIZES["tiny"]
    head = size.width // size.heads
    attention = 2 * size.width * size.width + 2 * size.width * size.kv_heads * head  # q and o, then k and v
    biases = size.width + 2 * size.kv_heads * head
    per_layer = attention + biases + 3 * size.width * size.ffn + 2 * size.width
    assert cost.flops_per_token_per_layer == (2.0 * per_layer,) * size.layers
    assert cost.attention_flops_coefficient == (2.0 * size.width,) * size.layers


@pytest.mark.parametrize(
    ("name", "billions", "encoder_millions"), [("qwen2.5-omni-7b", 7.6, 640), ("qwen2.5-omni-3b", 3.4, 640)]
)
def test_random_models_of_real_size_have_the_parameter_count_of_the_real_models(
    name: str, billions: float, encoder_millions: float
) -> None:
    lm = random_model(name, "meta", "bfloat16")
    text = sum(p.numel() for part in (lm.decoder, lm.lm_head) for p in part.parameters())
    assert text / 1e9 == pytest.approx(billions, abs=0.06)
    assert sum(p.numel() for p in lm.audio_tower.parameters()) / 1e6 == pytest.approx(encoder_millions, abs=8)
    assert next(lm.model.parameters()).dtype == torch.bfloat16
