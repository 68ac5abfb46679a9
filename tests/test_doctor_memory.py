"""`doctor --model`: what long audio takes, and whether it fits."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from audiomarathon.cli.app import main
from audiomarathon.costs.memory_plan import MemoryPlan, plan_memory
from audiomarathon.errors import ModelError
from audiomarathon.models.registry import get_model
from audiomarathon.settings import RunSettings

README = Path(__file__).parent.parent / "Qwen_2.5_Omni" / "README.md"
GB = 10**9

# Sizes as the hub's config.json of each checkpoint gives them.
PUBLISHED = {
    "7B": {
        "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
        "num_key_value_heads": 4, "vocab_size": 152064,
    },
    "3B": {
        "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36, "num_attention_heads": 16,
        "num_key_value_heads": 2, "vocab_size": 151936,
    },
}  # fmt: skip


def config_only(folder: Path, size: str) -> Path:
    """A folder with nothing but the published config."""
    text = PUBLISHED[size]
    rope = {"mrope_section": [16, 24, 24], "rope_type": "default", "rope_theta": 1000000.0}
    thinker = {
        "model_type": "qwen2_5_omni_thinker",
        "text_config": {**text, "max_position_embeddings": 32768, "rope_parameters": rope},
        "audio_config": {
            "d_model": 1280, "encoder_attention_heads": 20, "encoder_ffn_dim": 5120, "encoder_layers": 32,
            "num_mel_bins": 128, "output_dim": text["hidden_size"],
        },
        "vision_config": {
            "depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "patch_size": 14,
            "out_hidden_size": text["hidden_size"],
        },
    }  # fmt: skip
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2_5_omni", "thinker_config": thinker}))
    return folder


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, MemoryPlan]:
    """The plan of each published size."""
    root = tmp_path_factory.mktemp("configs")
    spec = get_model("qwen2.5-omni-7b")
    return {
        size: plan_memory(spec, RunSettings.read({}, model_path=str(config_only(root / size, size))))
        for size in PUBLISHED
    }


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Pretend that there is a GPU with so many bytes free."""

    def pretend(free: float, count: int = 1) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _index: (int(free), int(free)))
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _index: "a GPU of the test's")

    return pretend


def doctor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, *arguments: object) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["audiomarathon", "doctor", *map(str, arguments)])
    code = 0
    try:
        main()
    except SystemExit as ended:
        code = int(ended.code or 0)
    return code, *capsys.readouterr()


def test_by_hand(plans: dict[str, MemoryPlan]) -> None:
    tokens, parts = plans["7B"].need(90)
    assert tokens == 2250 + 250
    assert parts["KV cache"] == 2 * 28 * 4 * 128 * 2 * 2500
    assert parts["activations"] == (6 * 3584 + 3 * 18944) * 2 * 2500
    assert parts["LM head"] == 4 * 152064
    assert parts["weights"] == pytest.approx(17.9 * GB, rel=0.005)


@pytest.mark.parametrize(
    ("row", "part"), [("weights", "weights"), ("KV cache", "KV cache"), ("activations", "activations"), ("sum", "")]
)
def test_the_folders_readme_says_the_same(plans: dict[str, MemoryPlan], row: str, part: str) -> None:
    line = next(line for line in README.read_text(encoding="utf-8").splitlines() if line.startswith(f"| {row}"))
    said = [cell.removeprefix("about ") for cell in re.findall(r"\| ((?:about )?[\d.]+) GB", line)]
    needs = [plans[size].need(seconds)[1] for size in PUBLISHED for seconds in (90, 300)]
    sizes = [need[part] if part else sum(need.values()) for need in needs]
    assert said == [f"{size / GB:.{len(text.partition('.')[2])}f}" for size, text in zip(sizes, said, strict=True)]


class TestFits:
    @pytest.mark.parametrize(
        ("free", "code", "fits"), [(24, 0, ["yes"] * 3), (19.5, 1, ["yes", "yes", "no"]), (8, 1, ["no"] * 3)]
    )
    def test_the_gpu_at_hand(
        self,
        monkeypatch: pytest.MonkeyPatch,
        capsys: Any,
        no_env: Any,
        gpu: Any,
        tmp_path: Path,
        free: float,
        code: int,
        fits: list[str],
    ) -> None:
        folder = config_only(tmp_path / "7B", "7B")
        gpu(free * GB)
        found, out, _err = doctor(monkeypatch, capsys, "--model", "qwen2.5-omni", "--model-path", folder)
        assert found == code
        assert re.findall(r"\b(yes|no) *$", out, re.MULTILINE) == fits
        assert f"{free:.1f} GB free" in out

    def test_the_longest_is_the_longest(self, gpu: Any, tmp_path: Path) -> None:
        gpu(19.3 * GB)
        plan = plan_memory(
            get_model("qwen2.5-omni"), RunSettings.read({}, model_path=str(config_only(tmp_path / "7B", "7B")))
        )
        longest = plan.longest(plan.room)
        assert 90 < longest < 300
        assert plan.fits(longest)
        assert not plan.fits(longest + 1)

    def test_no_longer_than_the_model_has_positions_for(self, plans: dict[str, MemoryPlan]) -> None:
        assert plans["7B"].longest(1e15) == (32768 - 250) // 25
        assert plans["7B"].longest(8 * GB) == 0

    def test_many_gpus_are_taken_together_only_when_asked(self, gpu: Any, tmp_path: Path) -> None:
        gpu(12 * GB, count=2)
        folder = str(config_only(tmp_path / "7B", "7B"))
        one, both = (
            plan_memory(get_model("qwen2.5-omni"), RunSettings.read({}, model_path=folder, device_map=device_map))
            for device_map in ("", "auto")
        )
        assert (one.fits(90), both.fits(90)) == (False, True)


def test_without_a_gpu_it_says_which_would_do(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, no_env: Any, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    folder = config_only(tmp_path / "7B", "7B")
    code, out, _err = doctor(monkeypatch, capsys, "--model", "qwen2.5-omni", "--model-path", folder)
    assert code == 0
    assert out.count("24 GB") >= 3
    assert "No GPU here" in out
    assert "no weights there" in out


def test_weights_on_disk_are_counted(tiny_checkpoint: Path) -> None:
    plan = plan_memory(
        get_model("qwen2.5-omni"), RunSettings.read({}, model_path=str(tiny_checkpoint), dtype="float32")
    )
    from safetensors.torch import load_file

    tensors = load_file(tiny_checkpoint / "model.safetensors").items()
    assert plan.facts.weight_bytes == 4 * sum(t.numel() for name, t in tensors if name.startswith("thinker."))


def test_a_checkpoint_that_is_not_there_is_said_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, no_env: Any, tmp_path: Path
) -> None:
    def not_there(*_args: object, **_kwargs: object) -> None:
        raise ModelError("not in the cache")

    monkeypatch.setattr("audiomarathon.costs.memory_plan.find_checkpoint", not_there)
    code, _out, err = doctor(monkeypatch, capsys, "--model", "gemma3n")
    assert code == 2
    assert "audiomarathon models download gemma3n" in err
    assert "--model-path" in err


@pytest.mark.parametrize(
    ("key", "gigabytes"),
    [("qwen2.5-omni-7b", 17.9), ("qwen2.5-omni-3b", 9.4), ("phi4mm", 10.4), ("aero-1", 4.4), ("voxtral", 9.4)],
)
def test_sizes_are_known_before_the_download(
    monkeypatch: pytest.MonkeyPatch, no_env: Any, key: str, gigabytes: float
) -> None:
    def not_there(*_args: object, **_kwargs: object) -> None:
        raise ModelError("not in the cache")

    monkeypatch.setattr("audiomarathon.costs.memory_plan.find_checkpoint", not_there)
    plan = plan_memory(get_model(key), RunSettings.read({}))
    assert plan.need(90)[1]["weights"] == pytest.approx(gigabytes * GB, rel=0.05)
    assert "counted from the config" in plan.source


def test_a_path_without_a_model_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: Any, no_env: Any) -> None:
    code, _out, err = doctor(monkeypatch, capsys, "--model-path", "/nowhere")
    assert code == 2
    assert "--model" in err


def phi4mm_config() -> Any:
    from transformers import Phi4MultimodalConfig

    sizes = {"num_hidden_layers": 32, "num_attention_heads": 24, "num_key_value_heads": 8, "hidden_size": 3072}
    return Phi4MultimodalConfig(**sizes, intermediate_size=8192, vocab_size=200064, tie_word_embeddings=True)


def aero_config() -> Any:
    from transformers import Qwen2AudioConfig

    sizes = {"num_hidden_layers": 28, "num_attention_heads": 12, "num_key_value_heads": 2, "hidden_size": 1536}
    text = {**sizes, "intermediate_size": 8960, "vocab_size": 151936, "tie_word_embeddings": True}
    return Qwen2AudioConfig(text_config={"model_type": "qwen2", **text})


@pytest.mark.parametrize(
    ("key", "config", "readme", "at_300_s"),
    [("phi4mm", phi4mm_config, "Phi4MM", 14), ("aero-1", aero_config, "Aero-1", 6)],
)
def test_a_config_alone_gives_the_readmes_figures(
    tmp_path: Path, key: str, config: Any, readme: str, at_300_s: int
) -> None:
    config().save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(file.read_text().replace('"qwen2_audio"', '"aero"'))
    need = plan_memory(get_model(key), RunSettings.read({}, model_path=str(tmp_path))).need(300)[1]
    text = (README.parent.parent / readme / "README.md").read_text()
    assert f"| {need['weights'] / 1e9:.1f} GB |" in text
    assert round(sum(need.values()) / 1e9) == at_300_s
    assert f"| about {at_300_s} GB |" in text


@pytest.mark.parametrize(
    ("flags", "told", "share"),
    [({}, "bfloat16 (auto)", 1), ({"device": "cpu"}, "float32 (auto)", 2), ({"dtype": "float16"}, "float16", 1)],
)
def test_the_precision_is_the_runs(
    tmp_path: Path, plans: dict[str, MemoryPlan], flags: dict[str, str], told: str, share: int
) -> None:
    plan = plan_memory(
        get_model("qwen2.5-omni"), RunSettings.read({}, model_path=str(config_only(tmp_path / "7B", "7B")), **flags)
    )
    assert plan.dtype == told
    assert plan.facts.weight_bytes == share * plans["7B"].facts.weight_bytes
