"""Qwen2-Audio's own behaviour: audio windows, and its published practice of using only 30 s."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import task_folders
from builders import records_in
from conftest import noise, succeed
from families import assert_equal_tensors
from tiny_base import changed_copy
from transformers import Qwen2AudioProcessor

from audiomarathon.benchmarks import Sample
from audiomarathon.compression.method import Base
from audiomarathon.costs.memory_plan import plan_memory
from audiomarathon.engine.sweep_plan import what_is_left
from audiomarathon.errors import ModelError
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.prompt import Prompt
from audiomarathon.models.qwen2_audio import Qwen2Audio, Qwen2AudioFirst30
from audiomarathon.models.registry import get_model
from audiomarathon.report.page_data import PageData
from audiomarathon.results.systems import read_systems
from audiomarathon.settings import RunSettings


@pytest.fixture(scope="module")
def folder(family_checkpoint: Callable[[str], Path]) -> Path:
    return family_checkpoint("qwen2-audio")


def load(family: type[Qwen2Audio], folder: Path) -> AudioLM:
    return family.load(folder, device="cpu", dtype="float32", attn_implementation="sdpa")


@pytest.fixture(scope="module")
def whole(folder: Path) -> AudioLM:
    return load(Qwen2Audio, folder)


class TestWindows:
    def test_input_tensors_equal_those_of_the_code_documented_for_qwen2_audio(
        self, whole: AudioLM, folder: Path
    ) -> None:
        prompt = Prompt("Who?", (noise(31.0), noise(2.0)))
        ours, theirs = whole.prepare([prompt]).tensors, whole.documented_inputs(folder, prompt)
        assert_equal_tensors(ours, theirs)

    def test_a_last_window_too_short_for_a_token_adds_no_token_and_no_nan(self, whole: AudioLM) -> None:
        inputs = whole.prepare([Prompt("?", (noise(30.01),))])
        assert inputs.audio_tokens == [750]
        assert Base().generate(whole, inputs, max_new_tokens=2, keep_logits=True).logits.isfinite().all()

    @pytest.mark.parametrize("seconds", [(1.0, 0.02), (0.06,), (0.06, 0.05)], ids=str)
    def test_clips_too_short_for_two_adjacent_audio_tokens_are_refused(
        self, whole: AudioLM, seconds: tuple[float, ...]
    ) -> None:
        """Without two adjacent audio tokens, the class takes each token for a placeholder to be repeated, and fails."""
        with pytest.raises(ModelError, match="too short"):
            whole.prepare([Prompt("?", tuple(noise(length) for length in seconds))])

    @pytest.mark.parametrize(("seconds", "tokens"), [((0.0601,), 2), ((0.0601, 0.0201), 3)], ids=str)
    def test_the_shortest_accepted_audio_has_two_adjacent_tokens(
        self, whole: AudioLM, seconds: tuple[float, ...], tokens: int
    ) -> None:
        inputs = whole.prepare([Prompt("?", tuple(noise(length) for length in seconds))])
        assert inputs.audio_tokens == [tokens]
        assert Base().generate(whole, inputs, max_new_tokens=2, keep_logits=True).logits.isfinite().all()

    def test_a_config_with_a_disabled_sliding_window_gives_full_attention_in_every_layer(self, whole: AudioLM) -> None:
        assert whole.decoder.config.max_window_layers == 1
        assert set(whole.decoder.config.layer_types) == {"full_attention"}


class TestFirst30Seconds:
    def test_the_model_gets_only_the_first_30_seconds_of_a_longer_clip(self, whole: AudioLM, folder: Path) -> None:
        long, short = noise(31.0), noise(4.0)
        inputs = load(Qwen2AudioFirst30, folder).prepare([Prompt("?", (long,)), Prompt("?", (short,))])
        assert inputs.truncated == (True, False)
        assert inputs.heard_seconds == (30.0, 4.0)
        first = whole.prepare([Prompt("?", (long[:480000],)), Prompt("?", (short,))])
        assert first.truncated == ()
        assert_equal_tensors(inputs.tensors, first.tensors)

    def test_a_sample_counts_as_truncated_if_any_of_its_clips_is_longer_than_30_seconds(self, folder: Path) -> None:
        long, exact = noise(30.01), noise(30.0)
        inputs = load(Qwen2AudioFirst30, folder).prepare([Prompt("?", (exact, long)), Prompt("?", (exact,))])
        assert inputs.truncated == (True, False)

    def test_input_tensors_equal_those_of_the_processor_that_truncates_to_30_seconds(self, folder: Path) -> None:
        """The processor gets whole clips, as in the published practice, and cuts them."""
        lm, clips = load(Qwen2AudioFirst30, folder), [noise(31.0), noise(4.0)]
        processor = Qwen2AudioProcessor(lm.feature_extractor, lm.tokenizer)
        content = [*({"type": "audio", "audio": ""} for _ in clips), {"type": "text", "text": "Who?"}]
        text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
        theirs = processor(text=text, audio=clips, sampling_rate=16000, return_tensors="pt")
        assert_equal_tensors(lm.prepare([Prompt("Who?", tuple(clips))]).tensors, theirs)

    def test_runs_truncated_to_30_seconds_are_stored_in_another_folder_than_whole_clip_runs(
        self, folder: Path, tmp_path: Path, no_env, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        task_folders.build_tau(tmp_path / "data" / "TAU")
        for clip in (tmp_path / "data" / "TAU").rglob("*.wav"):
            task_folders.write_clip(clip, seconds=30.5)
        monkeypatch.setenv("COLUMNS", "250")
        where = ("--data", tmp_path / "data", "--model-path", folder, "--results", tmp_path, "--max-new-tokens", 2)
        seen = {}
        for model, name in (("qwen2-audio", folder.name), ("qwen2-audio-30s", f"{folder.name}-30s")):
            said = succeed("run", "tau", "--model", model, *where, "--limit", 1)
            (record,) = records_in(tmp_path / "tau" / name / "base-0")
            assert (record["error"], "1 truncated" in said) == (None, record["truncated"])
            seen[name] = record["truncated"], record["audio_tokens"], record["clip_seconds"]
        assert seen == {folder.name: (False, 762, 30.5), f"{folder.name}-30s": (True, 750, 30.0)}
        sides = read_systems([tmp_path / "tau"])
        assert [side.checkpoint for side in sides] == [*seen]
        assert "-30s base-0 1 (1 unparsed, 1 cut, 1 truncated" in " ".join(succeed("compare", tmp_path / "tau").split())
        assert [row["truncated"] for row in PageData(sides).figures.values()] == [0, 1]


@pytest.mark.parametrize(("key", "seconds"), [("qwen2-audio", 44.0), ("qwen2-audio-30s", 34.0)])
def test_the_estimate_of_remaining_work_counts_only_audio_that_the_model_gets(
    tmp_path: Path, key: str, seconds: float
) -> None:
    clips = tuple(task_folders.write_clip(tmp_path / f"{length}.wav", seconds=length) for length in (40.0, 4.0))
    todo = what_is_left([Sample("one", clips, "?", "A", "here")], [(Base(), None)], get_model(key).heard_seconds)
    assert (todo.seconds, todo.heard) == (seconds, (seconds,))


def test_memory_plan_of_the_doctor_counts_only_audio_that_the_model_gets(folder: Path) -> None:
    settings = RunSettings.read({}, model_path=str(folder), dtype="float32")
    whole, first = (plan_memory(get_model(key), settings) for key in ("qwen2-audio", "qwen2-audio-30s"))
    assert first.need(300) == first.need(30) == whole.need(30)
    assert first.longest(1e15) == 30
    (limit,) = first.limits
    assert limit.startswith("qwen2-audio-30s hears the first 30 s")


def test_a_checkpoint_without_an_lm_head_or_tied_weights_is_refused(folder: Path, tmp_path: Path) -> None:
    headless = changed_copy(folder, tmp_path, weights=lambda tensors: tensors.pop("language_model.lm_head.weight"))
    with pytest.raises(ModelError, match=r"missing keys.*lm_head"):
        load(Qwen2Audio, headless)
