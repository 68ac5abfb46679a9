"""The efficiency benchmark runs from end to end on a toy model with right counts; no time is asserted."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts" / "measure"))

import benchmark_efficiency


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
