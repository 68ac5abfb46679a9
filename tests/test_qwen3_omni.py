"""Qwen3-Omni's own behaviour: experts that are joined on loading, and audio without padding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import noise
from families import FAMILIES, assert_equal_tensors
from safetensors.torch import load_file
from tiny_base import changed_copy

from audiomarathon.costs.config_facts import model_facts
from audiomarathon.costs.flops import active_parameters, count_cost
from audiomarathon.errors import ModelError
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.prompt import Prompt

EXPERTS = "thinker.model.layers.1.mlp.experts"
MISMATCHED = r"mismatched keys.*layers\.1\.mlp\.experts\.down_proj"


@pytest.fixture(scope="module")
def folder(family_checkpoint: Callable[[str], Path]) -> Path:
    return family_checkpoint("qwen3-omni")


@pytest.fixture(scope="module")
def lm(folder: Path) -> AudioLM:
    return FAMILIES["qwen3-omni"].load(folder)


class TestExperts:
    def test_fused_expert_weights_equal_the_separate_weights_of_the_hub_layout(self, lm: AudioLM, folder: Path) -> None:
        stored, joined = load_file(folder / "model.safetensors"), lm.decoder_layers[1].mlp.experts
        assert {name.split(".")[0] for name in stored} == {"thinker", "talker", "code2wav"}
        for number in range(4):
            gate, up, down = (stored[f"{EXPERTS}.{number}.{part}_proj.weight"] for part in ("gate", "up", "down"))
            assert torch.equal(joined.gate_up_proj[number], torch.cat([gate, up]))
            assert torch.equal(joined.down_proj[number], down)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda w: w.pop(f"{EXPERTS}.2.down_proj.weight"), MISMATCHED),
            (lambda w: w.pop(f"{EXPERTS}.2.gate_proj.weight"), "cannot be loaded as Qwen3-Omni"),
            (lambda w: w.update({f"{EXPERTS}.4.down_proj.weight": torch.ones(32, 16)}), MISMATCHED),
        ],
        ids=["missing", "half of one", "one too many"],
    )
    def test_expert_weights_that_do_not_fit_are_refused(
        self, folder: Path, tmp_path: Path, change: Any, message: str
    ) -> None:
        with pytest.raises(ModelError, match=message):
            FAMILIES["qwen3-omni"].load(changed_copy(folder, tmp_path, weights=change))

    def test_active_parameters_count_only_the_experts_a_token_uses(self, lm: AudioLM, folder: Path) -> None:
        layer = lm.decoder_layers[1]
        every, experts = (sum(p.numel() for p in part.parameters()) for part in (layer, layer.mlp.experts))
        assert active_parameters(layer, lm.decoder.config) == every - experts // 2

    def test_flops_and_weight_bytes_computed_from_the_config_agree_with_the_loaded_model(
        self, lm: AudioLM, folder: Path
    ) -> None:
        """The FLOPs omit norms and the encoder's attention. The parts that make speech are not loaded."""
        counted, facts = count_cost(lm), model_facts(folder, 4)
        told = facts.cost
        assert told.flops_per_token_per_layer == pytest.approx(counted.flops_per_token_per_layer, rel=0.02)
        assert facts.weight_bytes == 4 * sum(parameter.numel() for parameter in lm.model.parameters())
        assert 0.8 < told.encoder_flops_per_second / counted.encoder_flops_per_second < 1


class TestAudio:
    @pytest.mark.parametrize("samples", [12840, 16000, 30001])
    def test_input_tensors_equal_those_of_the_processor_at_any_clip_length(
        self, lm: AudioLM, folder: Path, samples: int
    ) -> None:
        """12,840 samples are 80.25 frames: the processor cuts the last one, and a token with it."""
        prompt = Prompt("Who?", (noise(2.0)[:samples],))
        ours, theirs = lm.prepare([prompt]).tensors, lm.documented_inputs(folder, prompt)
        assert_equal_tensors(ours, theirs)

    def test_features_of_a_clip_batched_with_a_longer_clip_equal_those_alone(self, lm: AudioLM) -> None:
        prompt = Prompt("Who?", (noise(1.0)[:12840],))
        alone, beside = lm.prepare([prompt]), lm.prepare([prompt, Prompt("Who?", (noise(3.0),))])
        assert alone.audio_tokens[0] == beside.audio_tokens[0] == 10
        features = alone.tensors["input_features"][0]
        assert torch.equal(beside.tensors["input_features"][0, :, : features.shape[1]], features)
