"""A checkpoint of another model than the named model is refused in one line, before any model is built."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch import nn

from audiomarathon.errors import ModelError
from audiomarathon.models.registry import ModelSpec, all_models

LOCAL = [spec for spec in all_models() if not spec.remote]
OWN = {
    "Qwen2_5Omni": "qwen2_5_omni", "Phi4MM": "phi4_multimodal", "Voxtral": "voxtral", "Aero": "aero",
    "Qwen2Audio": "qwen2_audio", "Qwen2AudioFirst30": "qwen2_audio", "Gemma3n": "gemma3n",
    "Qwen3Omni": "qwen3_omni_moe", "AudioFlamingo3": "audioflamingo3", "Whisper": "whisper",
}  # fmt: skip


@pytest.mark.parametrize("spec", LOCAL, ids=lambda spec: spec.key)
def test_a_checkpoint_config_of_another_model_family_is_refused_before_a_model_is_built(
    spec: ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a full-size model would be built from that config, and the user asked whether to run its code."""
    family = spec.load_family()
    checkpoint_kind = OWN[family.__name__]
    monkeypatch.setattr(nn.Module, "__init__", lambda *_a, **_k: pytest.fail("a model was built"))
    monkeypatch.setattr("builtins.input", lambda *_words: pytest.fail("asked"))
    for kind in {*OWN.values(), "phi4mm", "qwen2"} - {checkpoint_kind}:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
        with pytest.raises(ModelError, match=f"^[^\\n]*'{kind}', not '{checkpoint_kind}'[^\\n]*$"):
            family.load(tmp_path, device="cpu", dtype="float32", attn_implementation="sdpa")
