"""`doctor --model`: the memory that long audio needs, and whether it fits."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import task_folders
import torch
from conftest import call
from safetensors.torch import load_file
from tiny_base import changed_copy, read_json, write_json

from audiomarathon.compression.registry import get_method
from audiomarathon.costs.config_facts import published_config
from audiomarathon.costs.limits import limits_of
from audiomarathon.costs.memory_plan import MemoryPlan, plan_memory
from audiomarathon.engine.run import run
from audiomarathon.errors import ModelError, SettingsError
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.registry import get_model
from audiomarathon.results.pairs import Pairs
from audiomarathon.runs.read import read_runs
from audiomarathon.settings import RunSettings

ROOT = Path(__file__).parent.parent
GB = 10**9
SIZES = ("7B", "3B")
#: The published config of Qwen2.5-Omni, which needs no download.
CONFIG = {size: published_config(f"Qwen/Qwen2.5-Omni-{size}") for size in SIZES}


def plan_of(folder: Path | None = CONFIG["7B"], key: str = "qwen2.5-omni", **flags: Any) -> MemoryPlan:
    """Plan a model's memory: by default, that of the published Qwen2.5-Omni 7B."""
    return plan_memory(get_model(key), RunSettings.read({}, model_path=str(folder or ""), **flags))


@pytest.fixture(scope="module")
def plans() -> dict[str, MemoryPlan]:
    """The plan of each published size."""
    return {size: plan_of(folder) for size, folder in CONFIG.items()}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Pretend that there are GPUs with a given number of free bytes."""

    def pretend(free: float, count: int = 1) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _index: (int(free), int(free)))
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _index: "a GPU of the test's")

    return pretend


@pytest.fixture
def not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Find no checkpoint, as if nothing had been downloaded."""

    def refuse(*_args: object, **_kwargs: object) -> None:
        raise ModelError("not in the cache")

    monkeypatch.setattr("audiomarathon.costs.memory_plan.find_checkpoint", refuse)


def test_the_memory_a_model_needs_equals_values_computed_by_hand(plans: dict[str, MemoryPlan]) -> None:
    tokens, parts = plans["7B"].need(90)
    assert tokens == 2250 + 250
    assert parts["KV cache"] == 2 * 28 * 4 * 128 * 2 * 2500
    assert parts["activations"] == (6 * 3584 + 3 * 18944) * 2 * 2500
    assert parts["LM head"] == 4 * 152064
    assert parts["weights"] == pytest.approx(17.9 * GB, rel=0.005)


@pytest.mark.parametrize(
    ("row", "part"), [("weights", "weights"), ("KV cache", "KV cache"), ("activations", "activations"), ("sum", "")]
)
def test_the_memory_table_in_the_readme_equals_the_computed_memory(
    plans: dict[str, MemoryPlan], row: str, part: str
) -> None:
    lines = (ROOT / "Qwen_2.5_Omni" / "README.md").read_text(encoding="utf-8").splitlines()
    line = next(line for line in lines if line.startswith(f"| {row}"))
    said = [cell.removeprefix("about ") for cell in re.findall(r"\| ((?:about )?[\d.]+) GB", line)]
    needs = [plans[size].need(seconds)[1] for size in SIZES for seconds in (90, 300)]
    sizes = [need[part] if part else sum(need.values()) for need in needs]
    assert said == [f"{size / GB:.{len(text.partition('.')[2])}f}" for size, text in zip(sizes, said, strict=True)]


@pytest.mark.parametrize(
    ("free", "code", "fits"), [(24, 0, ["yes"] * 3), (19.5, 1, ["yes", "yes", "no"]), (8, 1, ["no"] * 3)]
)
def test_doctor_says_which_clip_lengths_fit_into_the_free_gpu_memory(
    no_env: Any, gpu: Callable[..., None], free: float, code: int, fits: list[str]
) -> None:
    gpu(free * GB)
    exit_code, out = call("doctor", "--model", "qwen2.5-omni", "--model-path", CONFIG["7B"])
    assert exit_code == code
    assert re.findall(r"\b(yes|no) *$", out, re.MULTILINE) == fits
    assert f"{free:.1f} GB free" in out


def test_the_longest_clip_duration_of_a_memory_plan_just_fits_into_gpu_memory(gpu: Callable[..., None]) -> None:
    gpu(19.3 * GB)
    plan = plan_of()
    longest = plan.longest(plan.room)
    assert 90 < longest < 300
    assert (plan.fits(longest), plan.fits(longest + 1)) == (True, False)


def test_the_longest_clip_duration_is_limited_by_the_position_count_of_the_model(plans: dict[str, MemoryPlan]) -> None:
    assert plans["7B"].longest(1e15) == (32768 - 250) // 25
    assert plans["7B"].longest(8 * GB) == 0


def test_the_memory_of_several_gpus_is_added_up_only_with_device_map_auto(gpu: Callable[..., None]) -> None:
    gpu(12 * GB, count=2)
    assert [plan_of(device_map=device_map).fits(90) for device_map in ("", "auto")] == [False, True]


def test_without_a_gpu_the_doctor_names_a_gpu_size_that_would_fit(monkeypatch: pytest.MonkeyPatch, no_env: Any) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, out = call("doctor", "--model", "qwen2.5-omni", "--model-path", CONFIG["7B"])
    assert code == 0
    assert out.count("24 GB") >= 3
    assert "No GPU here" in out
    assert "no weights there" in out


def test_the_memory_plan_counts_the_weight_bytes_of_a_checkpoint_on_disk_exactly(tiny_checkpoint: Path) -> None:
    tensors = load_file(tiny_checkpoint / "model.safetensors").items()
    counted = 4 * sum(tensor.numel() for name, tensor in tensors if name.startswith("thinker."))
    assert plan_of(tiny_checkpoint, dtype="float32").facts.weight_bytes == counted


@pytest.mark.usefixtures("not_there")
def test_a_missing_checkpoint_is_reported_with_the_download_command(no_env: Any) -> None:
    code, err = call("doctor", "--model", "gemma3n")
    assert code == 2
    assert "audiomarathon models download gemma3n" in err
    assert "--model-path" in err


@pytest.mark.parametrize(
    ("key", "gigabytes"),
    [("qwen2.5-omni-7b", 17.9), ("qwen2.5-omni-3b", 9.4), ("phi4mm", 10.4), ("aero-1", 4.4), ("voxtral", 9.4)],
)
@pytest.mark.usefixtures("not_there")
def test_the_weight_size_of_a_model_is_counted_from_its_config_before_download(
    no_env: Any, key: str, gigabytes: float
) -> None:
    plan = plan_of(None, key)
    assert plan.need(90)[1]["weights"] == pytest.approx(gigabytes * GB, rel=0.05)
    assert "counted from the config" in plan.source


def test_the_model_path_option_without_the_model_option_is_refused(no_env: Any) -> None:
    code, err = call("doctor", "--model-path", "/nowhere")
    assert code == 2
    assert "--model" in err


@pytest.mark.parametrize(("key", "readme", "at_300_s"), [("phi4mm", "Phi4MM", 14), ("aero-1", "Aero-1", 6)])
def test_memory_needs_computed_from_a_published_config_equal_those_in_the_readme(
    key: str, readme: str, at_300_s: int
) -> None:
    need = plan_of(published_config(get_model(key).checkpoint), key).need(300)[1]
    text = (ROOT / readme / "README.md").read_text()
    assert f"| {need['weights'] / 1e9:.1f} GB |" in text
    assert round(sum(need.values()) / 1e9) == at_300_s
    assert f"| about {at_300_s} GB |" in text


@pytest.mark.parametrize(
    ("flags", "told", "share"),
    [({}, "bfloat16 (auto)", 1), ({"device": "cpu"}, "float32 (auto)", 2), ({"dtype": "float16"}, "float16", 1)],
)
def test_the_memory_plan_uses_the_precision_set_for_the_run(
    plans: dict[str, MemoryPlan], flags: dict[str, str], told: str, share: int
) -> None:
    plan = plan_of(**flags)
    assert (plan.dtype, plan.facts.weight_bytes) == (told, share * plans["7B"].facts.weight_bytes)


class TestLimits:
    """A model's limits on audio length and their sources: `doctor --seconds`, and refused runs."""

    @pytest.mark.parametrize(
        ("stated", "rope", "positions"),
        [
            (40960, {}, 40960),
            (1000, {"rope_type": "yarn", "factor": 4.0}, 4000),
            (4000, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1000}, 4000),
            (0, {}, None),
            (-1, {}, None),
            *((32768, {"rope_type": "yarn", "factor": factor}, 32768) for factor in ("4", math.inf, math.nan)),
        ],
    )
    def test_the_position_limit_of_a_model_is_read_from_its_text_config_and_rope_scaling(
        self, tmp_path: Path, stated: int, rope: dict[str, Any], positions: int | None
    ) -> None:
        content = read_json(CONFIG["3B"] / "config.json")
        text = content["thinker_config"]["text_config"]
        text |= {"max_position_embeddings": stated, "rope_parameters": text["rope_parameters"] | rope}
        write_json(tmp_path / "config.json", **content)
        limits = limits_of(get_model("qwen2.5-omni-3b"), tmp_path)
        assert limits.positions == positions
        if positions:
            assert limits.source.startswith("config.json: thinker_config.text_config.max_position_embeddings")

    def test_one_long_clip_that_the_model_truncates_is_allowed_beyond_the_length_limit(self) -> None:
        limits = limits_of(replace(get_model("qwen2.5-omni-7b"), heard_seconds=30), CONFIG["7B"])
        assert limits.beyond(50 * 30, 256)  # fifty clips
        assert not limits.refused(50 * 30, 256)  # one clip, of which the model hears only the start

    def test_a_position_limit_missing_in_the_config_json_is_taken_from_transformers_and_marked(self) -> None:
        spec = get_model("voxtral")
        limits = limits_of(spec, published_config(spec.checkpoint))
        assert limits.positions == 131072
        assert "config.json states none" in limits.source

    def test_whisper_has_no_position_limit(self) -> None:
        spec = get_model("whisper-base")
        limits = limits_of(spec, published_config(spec.checkpoint))
        assert (limits.positions, limits.longest(256), limits.beyond(1e6, 256)) == (None, math.inf, "")

    def test_pruning_at_the_input_allows_longer_clips_within_the_position_limit(self) -> None:
        limits = limits_of(get_model("qwen2.5-omni-7b"), CONFIG["7B"])
        assert limits.longest(768) == (32768 - 768 - 250) / 25 == 1270
        assert not limits.beyond(1270, 768)
        assert "1,270 s" in limits.beyond(1271, 768)
        assert limits.beyond(1271, 768, get_method("frame:0.5"))  # kept tokens keep their positions
        assert not limits.beyond(2540, 768, get_method("frame:0.5", at="input"))  # kept tokens are renumbered
        assert not limits.beyond(2540, 768, get_method("frame:0.5+snapkv:0.5", at="input"))
        assert limits.beyond(2541, 768, get_method("frame:0.5", at="input"))

    def test_the_doctor_command_reports_each_limit_with_its_source(self, no_env: Any) -> None:
        flags = ("--model", "qwen2.5-omni", "--model-path", CONFIG["7B"])
        code, out = call("doctor", *flags, "--seconds", 3000)
        assert code == 1
        assert "positions: 32,768, from config.json: thinker_config.text_config.max_position_embeddings" in out
        assert "windows of 2 s" in out
        assert "3,000 s of audio take about 75,250 tokens" in out
        assert call("doctor", *flags, "--seconds", 1200)[0] == 0

    def test_an_endpoint_has_no_known_length_limit(self, no_env: Any) -> None:
        assert "no limit" in call("doctor", "--model", "openai", "--seconds", 3000)[1]

    def test_the_prefill_chunk_option_is_refused_for_a_model_that_does_not_support_it(self, no_env: Any) -> None:
        code, err = call("doctor", "--model", "whisper-base", "--prefill-chunk", 20)
        assert (code, err.count("\n")) == (2, 1)
        assert "PREFILL_CHUNK=20: whisper-base: " in err

    def test_prefill_in_chunks_shrinks_only_the_estimated_memory_of_activations(
        self, plans: dict[str, MemoryPlan]
    ) -> None:
        facts = plans["7B"].facts
        whole, parts, few = facts.memory(32768), facts.memory(32768, chunk=2048), facts.memory(100, chunk=2048)
        assert parts["activations"] < whole["activations"] / 3
        assert {name: size for name, size in parts.items() if name != "activations"}.items() <= whole.items()
        assert few == facts.memory(100)
        weights_and_cache = parts["weights"] + parts["KV cache"]
        assert sum(parts.values()) <= 1.2 * (weights_and_cache + facts.activation_bytes * 2048)

    def test_a_run_beyond_the_length_limit_is_refused_before_loading_unless_allowed(
        self, tiny_checkpoint: Path, tmp_path: Path, no_env: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        task_folders.build_tau(tmp_path / "data" / "TAU")
        for clip in (tmp_path / "data").rglob("*.wav"):
            task_folders.write_clip(clip, seconds=2.0)
        shorten = {"max_position_embeddings": 260}
        folder = changed_copy(
            tiny_checkpoint, tmp_path, config=lambda facts: facts["thinker_config"]["text_config"].update(shorten)
        )
        flags: dict[str, Any] = {"data": str(tmp_path / "data"), "model_path": str(folder), "results": tmp_path}
        flags |= {"limit": 2, "timing": False, "max_new_tokens": 2}
        methods = [get_method("base"), get_method("frame:0.9", at="input")]
        with monkeypatch.context() as patch:
            patch.setattr(AudioLM, "load", classmethod(lambda *_args, **_more: pytest.fail("loaded")))
            with pytest.raises(
                SettingsError, match=r"tau: .*base-0 \(not for frame-0.9-input\).*260 pos.*--no-base.*BEYOND_LIMITS=1"
            ):
                list(run(["tau"], "qwen2.5-omni-7b", RunSettings.read({}, **flags), methods, progress=False))
            forced = RunSettings.read({}, **flags | {"timing": True, "decode_tokens": 10})
            with pytest.raises(SettingsError, match=r"the reply up to 10;"):
                list(run(["tau"], "qwen2.5-omni-7b", forced, methods[1:], progress=False))
        beyond = RunSettings.read({}, **flags, beyond_limits=True)
        with pytest.warns(UserWarning, match="260 positions"):
            done = list(run(["tau"], "qwen2.5-omni-7b", beyond, methods, progress=False))
        identities = [json.loads((result.folder / "run.json").read_text())["identity"] for result in done]
        assert [identity.get("beyond_limits") for identity in identities] == [True, None]
        base, pruned = read_runs([result.folder for result in done])
        (note,) = [note for note in Pairs.of(pruned, base).notes if "BEYOND_LIMITS" in note]
        assert note.startswith("the reference")
