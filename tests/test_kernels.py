"""Allowed SDPA kernels: cuDNN only if named. The choice applies during each call and is undone after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import task_folders
import torch
from conftest import HOME, noise
from torch import nn

from audiomarathon.benchmarks import get_task
from audiomarathon.compression.method import Base
from audiomarathon.engine.engine import open_local
from audiomarathon.engine.identity import run_folders
from audiomarathon.engine.run import load_task
from audiomarathon.engine.setup import Hardware, find_setup
from audiomarathon.engine.stamp import about
from audiomarathon.errors import SettingsError
from audiomarathon.models import kernels
from audiomarathon.models.prompt import Prompt
from audiomarathon.settings import SDPA_BACKENDS, RunSettings
from audiomarathon.wings.encoders.encoder import from_module
from audiomarathon.wings.encoders.registry import load_encoder


def allowed() -> dict[str, bool]:
    cuda = torch.backends.cuda
    efficient, cudnn = cuda.mem_efficient_sdp_enabled(), cuda.cudnn_sdp_enabled()
    return {"flash": cuda.flash_sdp_enabled(), "efficient": efficient, "math": cuda.math_sdp_enabled(), "cudnn": cudnn}


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "kernels_for", lambda _device, names: names)


@pytest.mark.parametrize(
    ("setting", "names"),
    [(None, {"flash", "efficient", "math"}), (" cuDNN, flash", {"cudnn", "flash"})],
)
def test_llm_and_audio_tower_use_only_the_sdpa_kernels_named_in_the_setting(
    tiny_checkpoint: Path, setting: str | None, names: set[str], as_on_a_gpu: None
) -> None:
    settings = RunSettings.read({}, model_path=str(tiny_checkpoint), sdpa_backends=setting)
    lm, before, seen = open_local(HOME, settings).lm, allowed(), list[dict[str, bool]]()
    with (
        lm.audio_tower.register_forward_pre_hook(lambda *_: seen.append(allowed())),
        lm.lm_head.register_forward_pre_hook(lambda *_: seen.append(allowed())),
    ):
        Base().generate(lm, lm.prepare([Prompt("Which?", (noise(1.0),))]), max_new_tokens=3, ignore_end=True)
    assert [{name for name, on in backends.items() if on} for backends in seen] == [names] * 4
    assert allowed() == before


@pytest.mark.parametrize("setting", ["cudnn", "math"])
def test_on_a_cpu_the_sdpa_backends_setting_is_ignored(
    tiny_checkpoint: Path, setting: str, no_env: Callable[[str, str], None]
) -> None:
    """The setting is for GPUs. On a CPU it would leave no kernel or another one, and CPU runs do not record it."""
    no_env("SDPA_BACKENDS", setting)
    settings = RunSettings.read(model_path=str(tiny_checkpoint))
    tower = load_encoder(f"tower:{HOME}", {"checkpoint": str(tiny_checkpoint)}, "cpu")
    tower.encode(torch.zeros(1, 16000))
    assert open_local(HOME, settings).lm.sdpa_backends == SDPA_BACKENDS


def test_an_encoder_runs_with_the_sdpa_kernels_that_the_setting_names(
    no_env: Callable[[str, str], None], as_on_a_gpu: None
) -> None:
    class LoudEncoder(nn.Module):
        sampling_rate, output_dim, hop_size_in_ms = 16000, 1, 10
        seen: dict[str, bool]

        def forward(self, audio: torch.Tensor) -> torch.Tensor:
            self.seen = allowed()
            return audio.unfold(-1, 160, 160).abs().mean(-1, keepdim=True)

    for setting, cudnn in ((None, False), ("math,cudnn", True)):
        if setting:
            no_env("SDPA_BACKENDS", setting)
        encoder = from_module(LoudEncoder())
        encoder.encode(torch.ones(1, 16000))
        assert encoder.module.seen["cudnn"] is cudnn


@pytest.mark.parametrize("text", ["fast", "flash;math", "flash,,math", ",", "all"])
def test_unknown_sdpa_backends_are_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=r"SDPA_BACKENDS=.* allowed: flash, efficient, math, cudnn"):
        RunSettings.read({"SDPA_BACKENDS": text})


class TestIdentity:
    """On a GPU, settings that affect times are part of a run's identity. On a CPU nothing is added."""

    @pytest.fixture
    def identity(self, tiny_checkpoint: Path, tmp_path: Path, no_env: object) -> Callable[..., dict[str, Any]]:
        task_folders.build_tau(tmp_path / "data" / "TAU")

        def of(device: str, **flags: str) -> dict[str, Any]:
            settings = RunSettings.read(
                {}, data=str(tmp_path / "data"), model_path=str(tiny_checkpoint), results=tmp_path, **flags
            )
            found_setup = find_setup(HOME, replace(settings, device_map=""), [Base()])
            setup = replace(found_setup, settings=settings, hardware=Hardware(device, "bfloat16", "H"))
            task = get_task("tau")
            ((_base, folder),) = run_folders(setup, task, load_task(task, settings, lambda _line: None))
            with folder:
                folder.write_run({})
                (folder.samples_file).write_text("")
            return {**folder.identity, "certificate": about(setup)}

        return of

    @pytest.mark.parametrize(
        ("device", "flags", "kernels", "timing", "decode"),
        [
            ("cuda:0", {}, "flash,efficient,math", "warm", "graph"),
            ("cuda", {"timing": "cold", "sdpa_backends": "math"}, "math", "cold", "graph"),
            ("cuda", {"timing": "0"}, None, None, "graph"),
            ("cuda", {"decode": "eager"}, "flash,efficient,math", "warm", None),
            ("cuda", {"device_map": "auto"}, "flash,efficient,math", "warm", None),
            ("cpu", {}, None, None, None),
            ("cpu", {"timing": "cold", "decode": "graph"}, None, None, "graph"),
        ],
    )
    def test_the_identity_of_a_run_includes_kernels_and_timing_on_a_gpu_and_graph_decode_anywhere(
        self, identity: Callable[..., dict[str, Any]], device, flags, kernels, timing, decode
    ) -> None:
        """Eager decode is left out so that folders of older versions, which decoded eagerly, can be resumed."""
        facts = identity(device, **flags)
        assert [facts.get(name) for name in ("sdpa_backends", "timing", "decode")] == [kernels, timing, decode]
        certified = kernels or ("flash,efficient,math" if device == "cuda" else None)
        assert [facts["certificate"].get(name) for name in ("sdpa_backends", "decode")] == [certified, decode]
