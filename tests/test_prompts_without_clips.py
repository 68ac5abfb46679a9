"""Text-only prompts: every family formats and answers them, also in a batch with prompts that have clips."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import task_folders
import torch
from builders import lines_of
from conftest import noise
from families import FAMILIES, Family

from audiomarathon.audio import decode as audio
from audiomarathon.benchmarks import Filters, Loaded, Sample, get_task
from audiomarathon.compression.method import Base, Method, kept_count
from audiomarathon.compression.pruners.frame import Frame
from audiomarathon.compression.registry import all_methods, get_method
from audiomarathon.engine.remote import messages_of
from audiomarathon.engine.run import Result, run
from audiomarathon.engine.sweep import sweep
from audiomarathon.errors import ModelError, SettingsError
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.prompt import Prompt
from audiomarathon.models.qwen2_5_omni import Qwen2_5Omni
from audiomarathon.models.qwen2_audio import Qwen2AudioFirst30
from audiomarathon.models.voxtral import Voxtral
from audiomarathon.runs.record_line import damage_of
from audiomarathon.settings import RunSettings

QUESTION = "Which is it?\n\nA. cat\nB. dog"
TEXT = Prompt(QUESTION, (), seed=3)
HEARD = Prompt("And now?", (noise(2.0),), seed=4)
NEW = 5

_QWEN = f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n"
_HELPFUL = f"<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{_QWEN}"
#: A text prompt in each family's published chat template, written by hand.
WORDED = {
    **dict.fromkeys(("qwen2.5-omni-7b", "aero-1", "qwen2-audio", "audio-flamingo-3"), _HELPFUL),
    "qwen3-omni": _QWEN,
    "phi4mm": f"<|user|>{QUESTION}<|end|><|assistant|>",
    "voxtral": f"<s>[INST]{QUESTION}[/INST]",
    "gemma3n": f"<bos><start_of_turn>user\n{QUESTION}<end_of_turn>\n<start_of_turn>model\n",
}


def replies(lm: AudioLM, method: Method, *prompts: Prompt) -> list[tuple[int, ...]]:
    done = method.generate(lm, lm.prepare(prompts), max_new_tokens=NEW, ignore_end=True)
    return [reply.token_ids for reply in done.replies]


class TestFamilies:
    def test_a_prompt_without_clips_is_one_user_turn_in_the_chat_template(
        self, family: Family, family_lm: AudioLM
    ) -> None:
        inputs, tokenizer = family_lm.prepare([TEXT]), family_lm.tokenizer
        assert tokenizer.decode(inputs.tensors["input_ids"][0].tolist()) == WORDED[family.key]
        turn = [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]
        options = {} if isinstance(family_lm, Voxtral) else {"add_generation_prompt": True}
        assert inputs.tensors["input_ids"][0].tolist() == tokenizer.apply_chat_template(turn, **options)["input_ids"]
        assert (inputs.audio_tokens, sum(inputs.window_padding)) == ([0], 0)
        assert {*inputs.tensors} == {"input_ids", "attention_mask"}

    def test_replies_to_prompts_without_clips_equal_those_of_generate_in_transformers(self, family_lm: AudioLM) -> None:
        inputs = family_lm.prepare([TEXT])
        with torch.no_grad():
            plain = family_lm.model.generate(**inputs.tensors, max_new_tokens=NEW, eos_token_id=None, pad_token_id=1)
        done = Base().generate(family_lm, inputs, max_new_tokens=NEW, ignore_end=True)
        assert [*done.replies[0].token_ids] == plain[0, inputs.prompt_tokens[0] :].tolist()
        assert (done.stages.encoder, done.kept_audio_tokens, done.kept_positions) == (0, (0,), None)

    @pytest.mark.parametrize(
        "method",
        [*(pytest.param(method, marks=pytest.mark.long) for method in (Base(), Frame(0.5))), get_method("fast_v", 0.5)],
        ids=lambda method: method.label,
    )
    def test_replies_in_a_batch_of_prompts_with_and_without_clips_equal_single_prompts(
        self, family_lm: AudioLM, method: Method
    ) -> None:
        prompts = (TEXT, HEARD, Prompt("Yes?", ()))
        assert replies(family_lm, method, *prompts) == [replies(family_lm, method, prompt)[0] for prompt in prompts]

    def test_audio_token_names_in_a_question_insert_no_audio_tokens(self, family_lm: AudioLM) -> None:
        special = family_lm.tokenizer.decode([family_lm.audio_token])
        for batch in ([Prompt(f"Is {special} it?", ())], [HEARD, Prompt(f"Is {special} it?", ())]):
            try:
                assert family_lm.prepare(batch).audio_tokens[-1] == 0
            except ModelError as error:
                assert "reads as a control token" in str(error)  # noqa: PT017 - voxtral reads it as text

    def test_a_prompt_without_clips_has_0_seconds_of_audio_and_is_not_truncated(self, family_checkpoint: Any) -> None:
        folder = family_checkpoint("qwen2-audio")
        lm = Qwen2AudioFirst30.load(folder, device="cpu", dtype="float32", attn_implementation="sdpa")
        inputs = lm.prepare([TEXT])
        assert (inputs.heard_seconds, inputs.truncated) == ((0.0,), (False,))

    def test_voxtral_treats_a_transcription_without_clips_as_a_question(self, family_checkpoint: Any) -> None:
        lm = FAMILIES["voxtral"].load(family_checkpoint("voxtral"))
        asked = lm.prepare([replace(TEXT, transcription=True)]).tensors["input_ids"]
        assert torch.equal(asked, lm.prepare([TEXT]).tensors["input_ids"])


@pytest.mark.parametrize("key", [method.key for method in all_methods()] + ["frame:0.5+snapkv:0.5"])
def test_no_method_changes_the_reply_to_a_prompt_without_audio(lm: AudioLM, key: str) -> None:
    inputs = lm.prepare([TEXT])
    method = Base() if key == "base" else get_method(key, None if "+" in key else 0.5)
    base, done = (each.generate(lm, inputs, max_new_tokens=2, ignore_end=True) for each in (Base(), method))
    assert (done.kept_audio_tokens, {*done.kv_lengths}) == ((0,), {inputs.prompt_tokens[0]})
    assert done.replies == base.replies


def test_a_press_with_scope_all_removes_text_cache_entries_of_a_prompt_without_audio(lm: AudioLM) -> None:
    inputs = lm.prepare([TEXT])
    done = get_method("snapkv", 0.5, scope="all").generate(lm, inputs, max_new_tokens=2)
    assert (done.kept_audio_tokens, {*done.kv_lengths}) == ((None,), {kept_count(inputs.prompt_tokens[0], 0.5)})


class Control(type(get_task("tau"))):  # type: ignore[misc]
    """TAU with two samples without clips and one with a clip."""

    key = "control"

    def find(self, root: Path) -> Path:
        return root

    def load(self, folder: Path, filters: Filters = Filters()) -> Loaded:
        clip, labels = folder / "a.wav", ("bus", "tram")
        clips = {"a": (), "b": (clip,), "c": ()}
        samples = [
            Sample(id_, sample_clips, f"Which, {id_}?", "A", id_, labels, labels) for id_, sample_clips in clips.items()
        ]
        return Loaded(folder, tuple(samples))


class TestRuns:
    @pytest.fixture
    def ran(self, tmp_path: Path, no_env: Any) -> Any:
        """Run the task, and return each setting's result."""
        task_folders.write_clip(tmp_path / "data" / "a.wav", seconds=3.0)

        def run_it(*methods: str, model: str = "embedded", **settings: Any) -> list[Result]:
            run_settings = RunSettings(
                data=str(tmp_path / "data"), results=tmp_path / str(settings), device="cpu", **settings
            )
            return list(run([Control()], model, run_settings, [get_method(name) for name in methods], progress=False))

        return run_it

    def test_records_of_samples_without_clips_are_valid(self, ran: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        decoded, decode = [], audio.decode
        monkeypatch.setattr(audio, "decode", lambda path, rate: decoded.append(path.name) or decode(path, rate))
        results = ran("base", "frame:0.5", "fast_v:0.5", "pyramidkv:0.5", timing=True)
        assert {*decoded} == {"a.wav"}
        for result in results:
            lines = {line["id"]: line for line in lines_of(result.folder / "samples.jsonl")}
            assert (result.summary["errors"], result.summary["n"], {*lines}) == (0, 3, {"a", "b", "c"})
            assert not any(damage_of({name: line[name] for name in line if name != "crc"}) for line in lines.values())
            assert lines["b"]["audio_tokens"] == 75
            for line in (lines["a"], lines["c"]):
                names = ("clip_seconds", "audio_tokens", "kept_audio_tokens", "kept_audio_bits", "truncated")
                assert [line[name] for name in names] == [0.0, 0, 0, None, False]
                assert (line["time"]["encoder"], {*line["kv_lengths"]}) == (0, {line["prompt_tokens"]})
                assert line["clips"] == lines["a"]["clips"] != lines["b"]["clips"]

    def test_replies_to_samples_without_clips_are_the_same_in_batches_and_alone(self, ran: Any) -> None:
        names = ("base", "frame:0.5")
        together = ran(*names, timing=False, batch_size=3)
        for alone, batch in zip(ran(*names, timing=False, batch_size=1), together, strict=True):
            said, seen = (
                [(line["id"], line["reply"], line["kept_audio_tokens"]) for line in lines_of(folder / "samples.jsonl")]
                for folder in (alone.folder, batch.folder)
            )
            assert said == seen

    def test_a_model_family_that_needs_audio_refuses_samples_without_clips_before_loading(
        self, ran: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Qwen2_5Omni, "text_only", False)
        monkeypatch.setattr(AudioLM, "load", lambda *_args, **_options: pytest.fail("loaded"))
        refusal = "control: 2 of 3 samples have no clips, and embedded needs audio"
        with pytest.raises(SettingsError, match=f"^{refusal}"):
            ran("base")
        settings = RunSettings(data=str(tmp_path / "data"), results=tmp_path, device="cpu")
        failures = sweep([Control()], "embedded", settings, [Base()]).failures
        assert failures["control"].startswith(refusal)


def test_an_endpoint_gets_a_user_turn_with_only_text() -> None:
    assert messages_of(TEXT) == [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]
