"""Layers of a Qwen2-Audio with real weights (155 M; untrained projector), on recordings from Debian packages."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_encoder_tasks import build
from real_weights import real_qwen2_audio

from audiomarathon.runs.read import Run
from audiomarathon.wings.encoders.probing.towers import probe_layers
from audiomarathon.wings.encoders.registry import load_encoder

pytestmark = pytest.mark.real


def test_the_whisper_tower_separates_languages_better_than_the_language_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUDIOMARATHON_CACHE", str(tmp_path / "cache"))
    task = build(tmp_path / "env", "language")
    encoder = load_encoder("tower:qwen2-audio", {"checkpoint": str(real_qwen2_audio(tmp_path / "model"))})
    data = task.read(tmp_path / "env", limit=24)
    done = probe_layers(encoder, task, data, results=tmp_path / "results", say=lambda _line: None)
    scores = {run.facts["point"]: run.headline for run in (Run.read(result.folder) for result in done)}
    assert scores["tower"].low > 0.5  # chance is a fifth
    assert scores["tower"].value > scores["llm.29"].value  # it follows an untrained projector
    assert scores["best"].value > 0.85  # the first layers win: prompts of a language share voices and studios
