"""The efficiency benchmark runs from end to end on a toy model with right counts; no time is asserted."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from test_timing import FakeMemory

from audiomarathon.compression.method import Base
from audiomarathon.compression.registry import get_method
from audiomarathon.costs.flops import count_cost

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts" / "measure"))

import benchmark_efficiency
from efficiency.random_models import random_model
from efficiency.stages import measure


def test_the_efficiency_script_measures_the_base_run_a_pruner_and_a_press(
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


@pytest.mark.parametrize(("tower", "llm", "peak"), [(50, 20, 50), (50, 80, 80)])
def test_peak_memory_of_every_method_includes_the_audio_tower(
    tower: int, llm: int, peak: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm, clock = random_model("tiny", "cpu", "float32"), FakeMemory()
    monkeypatch.setattr(lm, "clock", clock)
    lm.audio_tower.conv1.register_forward_hook(lambda *_: clock.rise(tower))
    lm.decoder_layers[0].register_forward_hook(lambda *_: clock.rise(llm))
    methods = [Base(), get_method("frame", 0.5)]
    rows = measure(lm, count_cost(lm), 1.0, methods, repeats=2, decode_tokens=2, control=False)
    assert [row.peak_memory_bytes for row in rows] == [peak, peak]


@pytest.mark.parametrize(("name", "billions"), [("qwen2.5-omni-7b", 7.6), ("qwen2.5-omni-3b", 3.4)])
def test_random_models_of_real_size_have_the_parameter_count_of_the_real_models(name: str, billions: float) -> None:
    lm = random_model(name, "meta", "bfloat16")
    assert sum(p.numel() for part in (lm.decoder, lm.lm_head) for p in part.parameters()) / 1e9 == pytest.approx(
        billions, abs=0.06
    )
    assert sum(p.numel() for p in lm.audio_tower.parameters()) / 1e6 == pytest.approx(640, abs=8)
    assert next(lm.model.parameters()).dtype == torch.bfloat16
