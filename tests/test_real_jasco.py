"""JASCO on an audio LLM whose encoder and LLM are real, and whose projector is not trained."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from builders import records_in
from conftest import succeed
from real_recordings import build_jasco
from real_weights import real_qwen2_audio

pytestmark = pytest.mark.real


def test_a_jasco_sweep_halves_the_tokens_and_the_survival_table_needs_a_judge(
    no_env: Callable[[str, str], None], tmp_path: Path
) -> None:
    for name, value in {"MAX_NEW_TOKENS": "8", "BATCH_SIZE": "8", "TIMING": "false"}.items():
        no_env(name, value)
    checkpoint, clone, out = (
        real_qwen2_audio(tmp_path / "real-155m"),
        build_jasco(tmp_path / "clone", 8),
        tmp_path / "o",
    )
    place = ("--model", "qwen2-audio", "--model-path", checkpoint, "--data", clone, "--results", out)
    succeed("sweep", "jasco", *place, "--methods", "random,fast_v", "--ratios", 0.5)
    labels = ("base-0", "random-0.5-layer2", "fast_v-0.5-layer2")
    base, *pruned = (records_in(out / "jasco" / "real-155m" / label) for label in labels)
    assert [len(records) for records in (base, *pruned)] == [64] * 3
    assert len({record["reply"] for record in base}) > 8  # it does hear: replies differ by clip as well as by prompt
    for records in pruned:
        for record, whole in zip(records, base, strict=True):
            assert record["kept_audio_tokens"] == pytest.approx(whole["audio_tokens"] / 2, abs=1)
    for label in labels:
        summary = json.loads((out / "jasco" / "real-155m" / label / "summary.json").read_text())
        assert (summary["complete"], summary["errors"], summary["score"]) == (True, 0, None)
    output = succeed("jasco", "survival", out)
    assert "not measurable" in output
