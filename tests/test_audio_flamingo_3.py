"""Audio Flamingo 3's own behaviour: one run of tokens for all windows, and ten minutes at most."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import task_folders
from builders import records_in
from conftest import noise
from families import FAMILIES, assert_equal_tensors

from audiomarathon.compression.method import Base
from audiomarathon.costs.memory_plan import plan_memory
from audiomarathon.engine.run import run, score
from audiomarathon.errors import ModelError, SettingsError
from audiomarathon.metrics.wer import transcript_errors
from audiomarathon.models import audio_flamingo_3
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.chat import with_audio_tokens
from audiomarathon.models.generation import Reply
from audiomarathon.models.prompt import Prompt
from audiomarathon.models.registry import get_model
from audiomarathon.settings import RunSettings

KEY = "audio-flamingo-3"


@pytest.fixture(scope="module")
def folder(family_checkpoint: Callable[[str], Path]) -> Path:
    return family_checkpoint(KEY)


@pytest.fixture(scope="module")
def lm(folder: Path) -> AudioLM:
    return FAMILIES[KEY].load(folder)


class TestPrompt:
    def test_each_of_several_clips_is_on_a_separate_line_of_the_prompt(self, lm: AudioLM, folder: Path) -> None:
        prompt = Prompt("Who?", (noise(1.0), noise(2.0)))
        text = lm.tokenizer.decode(lm.prepare([prompt]).tensors["input_ids"][0])
        assert "user\n" + "<sound>" * 25 + "\n" + "<sound>" * 50 + "Who?" in text
        assert lm.documented_inputs(folder, prompt) is None

    @pytest.mark.parametrize("samples", [321, 16001, 480641])
    def test_the_prompt_equals_that_of_the_processor_at_any_clip_length(
        self, lm: AudioLM, folder: Path, samples: int
    ) -> None:
        prompt = Prompt("Who?", (noise(31.0)[:samples],))
        ours, theirs = lm.prepare([prompt]).tensors, lm.documented_inputs(folder, prompt)
        assert_equal_tensors(ours, theirs)

    def test_an_audio_placeholder_inside_a_question_is_refused(self) -> None:
        with pytest.raises(ModelError, match=r"<sound>.*control token"):
            with_audio_tokens("<sound>What is <sound>?", "<sound>", [25])


class TestLength:
    def test_a_last_window_too_short_for_an_audio_token_adds_no_token_and_no_nan_logits(self, lm: AudioLM) -> None:
        inputs = lm.prepare([Prompt("?", (noise(30.01),))])
        assert inputs.audio_tokens == [750]
        assert Base().generate(lm, inputs, max_new_tokens=2, keep_logits=True).logits.isfinite().all()

    def test_a_clip_over_ten_minutes_is_refused_rather_than_cut(self, lm: AudioLM) -> None:
        with pytest.raises(ModelError, match=r"601\.0 s: .*600 s at most"):
            lm.prepare([Prompt("?", (noise(4.0), noise(601.0)))])

    def test_with_the_beyond_limits_option_a_clip_over_ten_minutes_fails_only_its_sample(
        self, folder: Path, tmp_path: Path, no_env
    ) -> None:
        task_folders.build_tau(tmp_path / "data" / "TAU")
        first, *_ = sorted((tmp_path / "data" / "TAU").rglob("*.wav"))
        task_folders.write_clip(first, seconds=600.5)
        flags = {"data": str(tmp_path / "data"), "model_path": str(folder), "results": tmp_path, "max_new_tokens": 2}
        with pytest.raises(SettingsError, match=r"tau: 1 of 10 samples .*over 600 s.*--beyond-limits"):
            list(run(["tau"], KEY, RunSettings.read({}, **flags), None, progress=False))
        with pytest.warns(UserWarning, match="over 600 s") as warned:
            (result,) = run(["tau"], KEY, RunSettings.read({}, **flags, beyond_limits=True), None, progress=False)
        (warning,) = {str(caught.message) for caught in warned if "over 600 s" in str(caught.message)}
        plan = plan_memory(get_model(KEY), RunSettings.read({}, **flags))
        assert plan.limits[0].startswith(KEY)
        assert "600 s" in plan.limits[0]
        assert plan.limits[1:] == (warning,)
        assert plan.longest(1e15) == get_model(KEY).most_seconds == audio_flamingo_3._MOST_SECONDS
        records = records_in(result.folder)
        (error,) = [record["error"] for record in records if record["error"]]
        assert "\n" not in error
        assert "a clip of 600.5 s" in error
        assert len(records) > 1


class TestTranscripts:
    @pytest.mark.parametrize(
        ("text", "transcript"),
        [('The spoken content of the audio is "so it was".', "so it was"), ("so it was", None)],
    )
    def test_a_transcript_is_extracted_from_the_sentence_that_the_model_puts_around_it(
        self, lm: AudioLM, text: str, transcript: str | None
    ) -> None:
        reply = lm._reply([*lm.tokenizer(text)["input_ids"], lm.tokenizer.eos_token_id], ignore_end=False)
        assert (reply.text, reply.transcript) == (text, transcript)

    def test_only_the_transcript_inside_a_reply_is_scored_and_the_record_keeps_the_whole_reply(
        self, folder: Path, tmp_path: Path, no_env, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        task_folders.build_librispeech(tmp_path / "data" / "librispeech-long")
        whole = 'The spoken content of the audio is "so it was".'
        monkeypatch.setattr(AudioLM, "_reply", lambda *_: Reply(whole, "stop", 9, (1,), "so it was"))
        flags = {"data": str(tmp_path / "data"), "model_path": str(folder), "results": tmp_path, "limit": 1}
        (result,) = run(["librispeech"], KEY, RunSettings.read({}, **flags, max_new_tokens=2), None, progress=False)
        (record,) = records_in(result.folder)
        assert (record["reply"], record["transcript"]) == (whole, "so it was")
        reference = record["reference"]["answer"]
        assert record["errors"] == transcript_errors(reference, "so it was").errors
        assert record["errors"] < transcript_errors(reference, whole).errors
        assert score(result.folder).summary["wer"] == result.summary["wer"]
