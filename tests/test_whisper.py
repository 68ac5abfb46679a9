"""Whisper: an encoder-decoder, whose methods drop or merge the encoder's states."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import task_folders
import tiny_whisper
import torch
from builders import records_in
from conftest import call, noise
from tiny_base import changed_copy, read_json, write_json
from torch.utils.flop_counter import FlopCounterMode
from transformers import WhisperFeatureExtractor

from audiomarathon.certify.bench import Bench
from audiomarathon.certify.certificate import certify
from audiomarathon.certify.method_checks import dropping
from audiomarathon.certify.oracles import Hidden
from audiomarathon.compression.external import Foreign
from audiomarathon.compression.method import Base, Method, kept_count
from audiomarathon.compression.pruners.frame import Frame
from audiomarathon.compression.registry import get_method
from audiomarathon.compression.states import StateDrop, budgets_of
from audiomarathon.costs.config_facts import model_facts
from audiomarathon.costs.cost import Drops, flops_of
from audiomarathon.costs.flops import count_cost
from audiomarathon.engine.engine import open_local
from audiomarathon.engine.run import run
from audiomarathon.engine.sweep_plan import Calls, Todo, from_flops
from audiomarathon.errors import MethodError, ModelError, SettingsError
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.generation import Generation
from audiomarathon.models.prompt import Prompt
from audiomarathon.models.registry import get_model
from audiomarathon.models.whisper import Whisper
from audiomarathon.records import Record
from audiomarathon.report.explain import shares_kept
from audiomarathon.settings import RunSettings
from audiomarathon.wings.encoders.registry import load_encoder

NAMES = ("random", "frame", "merge_adjacent", "merge_frame")
WINDOW = 8  # seconds in a window of the tiny model; 30 s in published models and in `published`
STATES = 50 * WINDOW
#: Prompts of one and of three windows.
SHORT, LONG = Prompt("", (noise(4.1, 1),), seed=3), Prompt("", (noise(14.3, 2),), seed=4)


def load(folder: Path, attention: str = "sdpa") -> Whisper:
    return Whisper.load(folder, device="cpu", dtype="float32", attn_implementation=attention)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_whisper.checkpoint(tmp_path_factory.mktemp("whisper") / "tiny-whisper", window=WINDOW)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with windows of 30 s."""
    return tiny_whisper.checkpoint(tmp_path_factory.mktemp("whisper") / "published")


@pytest.fixture(scope="module", params=["sdpa", "eager"])
def either(request: pytest.FixtureRequest, folder: Path) -> Whisper:
    return load(folder, request.param)


@pytest.fixture(scope="module")
def lm(folder: Path) -> Whisper:
    return load(folder)


def reply(lm: AudioLM, method: Method, *prompts: Prompt, steps: int = 4) -> Generation:
    return method.generate(lm, lm.prepare(prompts), max_new_tokens=steps, ignore_end=True, keep_logits=True)


def at_input(name: str, ratio: float) -> Method:
    return get_method(name, ratio, at="input")


class TestWindows:
    def test_a_long_clip_is_cut_at_the_quietest_moment_without_loss(self, published: Path) -> None:
        clip = noise(64.0)
        clip[27 * 16000 : 27 * 16000 + 8000] = 0  # half a second of silence
        windows = load(published).cut(clip)
        assert np.array_equal(np.concatenate(windows), clip)
        assert 27.0 <= len(windows[0]) / 16000 <= 27.5
        assert max(map(len, windows)) <= 30 * 16000

    @pytest.mark.parametrize(("seconds", "count"), [(0.02, 1), (30.0, 1), (30.01, 2), (59.0, 2), (300.0, 11)])
    def test_a_clip_is_cut_into_at_most_one_window_more_than_necessary(
        self, published: Path, seconds: float, count: int
    ) -> None:
        """Cuts are at most five seconds early, so five minutes need eleven or twelve windows."""
        assert len(load(published).cut(noise(seconds))) in (count, count + 1)

    def test_the_reply_to_a_long_clip_joins_the_replies_to_its_windows(self, lm: Whisper) -> None:
        (together,) = reply(lm, Base(), LONG).replies
        windows = lm.cut(LONG.clips[0])
        alone = [reply(lm, Base(), Prompt("", (window,))).replies[0] for window in windows]
        assert len(windows) == 3
        assert together.token_ids == sum((single.token_ids for single in alone), ())
        assert together.text == " ".join(single.text.strip() for single in alone if single.text.strip())
        assert together.new_tokens == 4  # steps, since windows are decoded side by side

    def test_encoder_states_are_counted_without_padding(self, lm: Whisper) -> None:
        inputs = lm.prepare([SHORT, LONG])
        assert [len(window) for window in inputs.states] == [1, 3]
        assert inputs.audio_tokens == [205, sum(inputs.states[1])]
        assert inputs.prompt_tokens == [STATES + 4, 3 * (STATES + 4)]
        assert sum(inputs.states[1]) == pytest.approx(14.3 * 50, abs=3)

    @pytest.mark.parametrize("clips", [(), (np.zeros(0, np.float32),)])
    def test_a_prompt_without_a_clip_or_with_an_empty_clip_is_refused(self, lm: Whisper, clips: Any) -> None:
        with pytest.raises(ModelError, match="no clip, or an empty one"):
            lm.prepare([Prompt("", clips)])


class TestReplies:
    def test_replies_equal_those_of_generate_in_transformers(self, lm: Whisper) -> None:
        inputs = lm.prepare([LONG])
        generation = reply(lm, Base(), LONG)
        tokens, logits = lm.plainly(inputs.tensors, 4)
        assert generation.replies[0].token_ids == tuple(tokens.tolist())
        assert torch.allclose(generation.logits[:, 0], logits, atol=1e-5)  # type: ignore[index]

    def test_replies_contain_no_suppressed_token(self, lm: Whisper, monkeypatch: pytest.MonkeyPatch) -> None:
        def said(begin: list[int], ever: list[int]) -> tuple[int, ...]:
            monkeypatch.setattr(lm.published, "begin_suppress_tokens", begin)
            monkeypatch.setattr(lm.published, "suppress_tokens", ever)
            return reply(lm, Base(), SHORT, steps=8).replies[0].token_ids

        first = said([], [])[0]
        assert said([first], [])[0] != first
        assert first not in said([], [first])

    def test_replies_stop_after_half_as_many_tokens_as_the_decoder_has_positions(self, lm: Whisper) -> None:
        (only,) = reply(lm, Base(), SHORT, steps=500).replies
        assert (only.new_tokens, only.finish) == (32, "length")  # half of its 64 positions

    def test_a_sample_gets_the_same_reply_in_a_batch_as_alone(self, either: Whisper) -> None:
        for method in (Base(), at_input("merge_frame", 0.5)):
            both = reply(either, method, SHORT, LONG)
            for row, prompt in enumerate((SHORT, LONG)):
                alone = reply(either, method, prompt)
                assert both.replies[row] == alone.replies[0]
                count = len(alone.logits)  # type: ignore[arg-type]
                assert torch.allclose(both.logits[:count, row], alone.logits[:, 0], atol=1e-4)  # type: ignore[index]

    @pytest.mark.parametrize("language", ["en", "de"])
    def test_the_decoder_prompt_begins_with_the_token_of_the_language(self, lm: Whisper, language: str) -> None:
        (forced,) = lm.prepare([replace(SHORT, language=language)]).tensors["decoder_input_ids"].tolist()
        assert lm.tokenizer.convert_ids_to_tokens(forced)[1] == f"<|{language}|>"
        assert len(forced) == 4

    def test_an_english_only_checkpoint_replies_and_refuses_other_languages(self, tmp_path: Path) -> None:
        only = load(tiny_whisper.checkpoint(tmp_path / "en", english_only=True, window=WINDOW))
        assert only.prepare([SHORT]).tensors["decoder_input_ids"].shape == (1, 2)
        assert reply(only, Base(), SHORT).replies[0].new_tokens == 4
        with pytest.raises(ModelError, match="English only"):
            only.forced("de")


class TestMethods:
    @pytest.mark.parametrize(
        ("name", "ratio"), [*(("frame", ratio) for ratio in (0.0, 0.3, 0.9)), *((name, 0.5) for name in NAMES)]
    )
    def test_the_number_of_kept_encoder_states_follows_the_ratio(self, lm: Whisper, name: str, ratio: float) -> None:
        inputs = lm.prepare([SHORT, LONG])
        generation = reply(lm, at_input(name, ratio), SHORT, LONG)
        budgets = tuple(kept_count(total, ratio) for total in inputs.audio_tokens)
        assert generation.kept_audio_tokens == budgets
        assert generation.kv_lengths[:3] == (4, 4, 4)
        for row, positions in enumerate(generation.kept_positions or ()):
            stays = torch.zeros(inputs.audio_mask.shape[1], dtype=torch.bool)
            stays[positions] = True
            audio, there = inputs.audio_mask[row], inputs.attention_mask[row].bool()
            assert (stays & audio).sum() == budgets[row]
            padding = [STATES - count for count in inputs.states[row]]
            left = sum(kept_count(count, ratio) for count in padding) + 4 * len(padding)  # with the forced tokens
            assert (stays & there & ~audio).sum() == left
            assert not (stays & ~there).any()

    def test_logits_at_ratio_0_equal_those_of_base_bit_for_bit(self, either: Whisper) -> None:
        base = reply(either, Base(), SHORT, LONG).logits
        for name in ("frame", "merge_frame"):
            assert torch.equal(reply(either, at_input(name, 0.0), SHORT, LONG).logits, base)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("name", "prompt"),
        [("frame", SHORT), *((name, LONG) for name in NAMES)],
        ids=lambda parameter: getattr(parameter, "seed", parameter),
    )
    def test_dropping_encoder_states_equals_hiding_them_from_cross_attention(
        self, either: Whisper, name: str, prompt: Prompt
    ) -> None:
        generation = reply(either, at_input(name, 0.7), prompt)
        (kept,), (merge,) = generation.kept_positions or (None,), generation.merges or (None,)
        hidden = reply(either, Hidden(kept=kept, merge=merge), prompt)
        assert generation.replies == hidden.replies
        assert torch.allclose(generation.logits, hidden.logits, atol=1e-5)  # type: ignore[arg-type]
        assert not torch.allclose(generation.logits, reply(either, Base(), prompt).logits, atol=1e-3)  # type: ignore[arg-type]

    def test_token_budgets_of_the_windows_add_up_to_the_budget_of_the_clip(self) -> None:
        for states in ((1500, 1432, 17), (3,), (1, 1, 1), (1500,) * 11):
            for ratio in (0.0, 0.1, 0.5, 0.77, 0.9):
                budgets = budgets_of(states, ratio)
                assert all(1 <= budget <= count for budget, count in zip(budgets, states, strict=True))
                assert sum(budgets) == max(kept_count(sum(states), ratio), len(states))

    def test_the_random_method_draws_different_positions_in_each_window_of_a_clip(self, lm: Whisper) -> None:
        clip = np.tile(noise(5.0), 3)
        (kept,) = reply(lm, at_input("random", 0.5), Prompt("", (clip,), seed=1)).kept_positions or (None,)
        states = [divmod(position, STATES) for position in kept.tolist()]  # type: ignore[union-attr]
        first, second = ([place for window, place in states if window == number and place < 150] for number in (0, 1))
        assert first != second

    def test_the_explain_command_computes_how_much_of_each_encoder_state_was_kept(self, lm: Whisper) -> None:
        inputs = lm.prepare([LONG])
        for name in NAMES:
            shares = shares_kept(inputs, at_input(name, 0.5).generate(lm, inputs, max_new_tokens=2, keep_entries=True))
            assert shares.shape == (inputs.audio_tokens[0],)
            assert 0 < shares.mean() <= 1

    @pytest.mark.parametrize(
        ("name", "at", "said"),
        [
            ("frame:0.5", "layer", "cross-attention, so its layers hold no audio tokens; allowed here: random, frame"),
            ("snapkv:0.5", "layer", "allowed here: random, frame, .*, at the input"),
            ("fast_v:0.5", "layer", "cross-attention"),
            ("frame:0.5+snapkv:0.5", "layer", "cross-attention"),
            *((name, "input", "no audio tokens to rank; allowed here: random, frame") for name in ("fast_v", "dart")),
        ],
    )
    def test_methods_that_whisper_does_not_support_are_refused_with_the_reason(
        self, lm: Whisper, name: str, at: str, said: str
    ) -> None:
        with pytest.raises(MethodError, match=said):
            get_method(name, None if ":" in name else 0.5, at=at).check(lm)


class TestCosts:
    def test_prefill_flops_equal_those_counted_by_pytorch_in_the_decoder(self, folder: Path) -> None:
        """The decoder runs on 700 states and the forced tokens; PyTorch counts no operations for softmax and norms."""
        lm = load(folder, "eager")
        cost, inputs = count_cost(lm), lm.prepare([SHORT])
        states = torch.zeros(1, 700, 16)
        with torch.inference_mode(), FlopCounterMode(display=False) as counter:
            hidden = lm.decoder(
                input_ids=inputs.tensors["decoder_input_ids"], encoder_hidden_states=states
            ).last_hidden_state
            lm.lm_head(hidden[:, -1:])
        record = Record("a", prompt_tokens=704, audio_tokens=600)
        window = flops_of(replace(cost, window_tokens=704, window_states=700), Drops(), record)
        assert window == pytest.approx(counter.get_total_flops(), rel=0.03)  # biases count as weights

    def test_weight_bytes_of_a_decode_step_leave_out_key_value_weights_of_cross_attention(self, lm: Whisper) -> None:
        read = {
            name: p
            for name, p in lm.model.named_parameters()
            if name.startswith("model.decoder.l") and not re.search(r"encoder_attn\.[kv]_proj", name)
        }
        head = lm.model.proj_out.weight.numel()
        assert count_cost(lm).weight_bytes == 4 * (sum(p.numel() for p in read.values()) + head)

    @pytest.mark.parametrize(("seconds", "windows"), [(0.1, 1), (30.0, 1), (31.0, 2)])
    def test_the_plan_of_a_sweep_counts_a_partly_filled_window_as_a_whole_one(
        self, published: Path, seconds: float, windows: int
    ) -> None:
        facts, method = model_facts(published, 4, Whisper), at_input("frame", 0.5)
        inputs = load(published).prepare([Prompt("", (noise(seconds),))])
        assert facts.cost.prompt(seconds, 50)[0] == inputs.prompt_tokens[0] == windows * 1504
        todo = Todo(1, seconds, (seconds,), ((method, (seconds,)),), 0)
        planned = from_flops(facts, get_model("whisper-base"), todo, (1e-12, 1e9), 0, Calls((), 1))  # 1 FLOP/s
        record = Record("a", prompt_tokens=inputs.prompt_tokens[0], audio_tokens=inputs.audio_tokens[0],
                        clip_seconds=seconds)  # fmt: skip
        assert planned == pytest.approx(flops_of(facts.cost, Drops(0, 0.5), record, encoder=True), rel=0.001)

    def test_flops_and_weight_bytes_computed_from_the_config_agree_with_the_loaded_model(self, published: Path) -> None:
        facts, cost = model_facts(published, 4, Whisper), count_cost(load(published))
        record = Record("a", prompt_tokens=3 * 1504, audio_tokens=4000)
        for drops in (Drops(), Drops(0, 0.5)):
            assert flops_of(facts.cost, drops, record) == pytest.approx(flops_of(cost, drops, record), rel=0.05)
        assert facts.kv_bytes == 2 * 16 * 3 * 4


@pytest.fixture
def go(folder: Path, tmp_path: Path, no_env: Any) -> Callable[..., list[Any]]:
    task_folders.build_librispeech(tmp_path / "data" / "LibriSpeech")
    task_folders.build_tau(tmp_path / "data" / "TAU")

    def call_(task: str = "librispeech", methods: Any = None, **flags: Any) -> list[Any]:
        given = {"data": str(tmp_path / "data"), "model_path": str(folder), "results": tmp_path / "out", "limit": 2}
        settings = RunSettings.read({}, **{**given, "max_new_tokens": 6, **flags})
        return list(run([task], "whisper-base", settings, methods, progress=False))

    return call_


class TestRuns:
    def test_a_run_records_the_number_of_kept_encoder_states_and_the_kv_cache_size(
        self, go: Callable[..., list[Any]]
    ) -> None:
        base, frame = go(methods=[Base(), at_input("frame", 0.5)])
        for base_record, other in zip(records_in(base.folder), records_in(frame.folder), strict=True):
            assert other["kept_audio_tokens"] == kept_count(base_record["audio_tokens"], 0.5)
            assert len(base_record["kv_lengths"]) == 6
            assert other["kv_bytes"] < base_record["kv_bytes"]
            assert base_record["time"]["encoder"] == other["time"]["encoder"] > 0
        assert read_json(base.folder / "run.json")["cost"]["window_tokens"] == STATES + 4

    def test_batched_runs_give_the_same_replies_as_single_samples(
        self, go: Callable[..., list[Any]], tmp_path: Path
    ) -> None:
        (alone,) = go(methods=[at_input("frame", 0.5)])
        (batched,) = go(methods=[at_input("frame", 0.5)], timing=False, batch_size=2, results=tmp_path / "batched")
        replies = [[row["reply"] for row in records_in(result.folder)] for result in (alone, batched)]
        assert replies[0] == replies[1]

    def test_unsupported_tasks_languages_and_options_are_refused_before_loading(
        self, go: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Whisper, "load", None)
        with pytest.raises(SettingsError, match="tau: whisper-base can only transcribe; allowed: tasks that ask"):
            go("tau")
        with pytest.raises(ModelError, match=r"LANGUAGE=fr: .* allowed: de, en, zh"):
            go(language="fr")
        with pytest.raises(SettingsError, match="SAVE_ATTN=1: whisper-base hears by cross-attention"):
            go(save_attn=True)

    @pytest.mark.parametrize("lacking", ["lang_to_id", "task_to_id", "no_timestamps_token_id", ""])
    def test_a_checkpoint_without_generation_defaults_is_refused_before_loading(
        self, go: Callable[..., list[Any]], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacking: str
    ) -> None:
        file = changed_copy(folder, tmp_path) / "generation_config.json"
        known = read_json(file)
        file.unlink()
        if lacking:
            write_json(file, **{name: value for name, value in known.items() if name != lacking})
        monkeypatch.setattr(Whisper, "load", None)
        with pytest.raises(ModelError, match=rf"generation_config.json: .*{lacking or 'no such file'}.* copy the file"):
            go(model_path=str(file.parent))

    def test_features_with_another_number_of_mel_bands_are_refused_on_loading(
        self, folder: Path, tmp_path: Path
    ) -> None:
        copy = changed_copy(folder, tmp_path)
        WhisperFeatureExtractor(feature_size=128).save_pretrained(copy)
        with pytest.raises(ModelError, match="makes 128 mel bands, but the model hears 80"):
            load(copy)

    def test_forced_decode_has_the_length_asked_for_or_is_refused_if_too_long(
        self, go: Callable[..., list[Any]], tmp_path: Path
    ) -> None:
        (result,) = go(decode_tokens=32)  # half of its 64 positions
        assert {row["forced_decode"]["tokens"] for row in records_in(result.folder)} == {32}
        with pytest.raises(SettingsError, match=r"DECODE_TOKENS=33: .* after 32 tokens; allowed: 0, 2–32"):
            go(decode_tokens=33, results=tmp_path / "longer")

    def test_the_language_is_part_of_the_run_identity(self, go: Callable[..., list[Any]]) -> None:
        (english,) = go()
        assert "language" not in read_json(english.folder / "run.json")["identity"]
        (german,) = go(language="de", results=english.folder.parents[2] / "de")
        assert read_json(german.folder / "run.json")["identity"]["language"] == "de"


def test_the_language_setting_has_no_effect_on_a_model_without_languages(tmp_path: Path, no_env: Any) -> None:
    task_folders.build_librispeech(tmp_path / "data" / "LibriSpeech")
    given = {"data": str(tmp_path / "data"), "results": tmp_path / "out", "limit": 1, "max_new_tokens": 2}
    said: list[str] = []
    for language in ("de", ""):  # the second resumes the first
        settings = RunSettings.read({}, **given, language=language or None)
        (result,) = run(["librispeech"], "embedded", settings, progress=False, say=said.append)
    assert "language" not in read_json(result.folder / "run.json")["identity"]
    assert sum("LANGUAGE=de has no effect" in line for line in said) == 1


LOCALES = ["", "C", "POSIX", "C.UTF-8", "en_US:en", "de_DE.UTF-8", "de:en", "de:", ":de", "nn::nb", "EN_us", "sr@latin"]


@pytest.mark.parametrize(("text", "language"), [("de", "de"), ("YUE", "yue"), *((locale, "") for locale in LOCALES)])
def test_a_desktop_locale_in_the_language_variable_is_ignored(text: str, language: str) -> None:
    assert RunSettings.read({"LANGUAGE": text}).language == language


def test_a_desktop_locale_does_not_override_the_language_of_a_config_file() -> None:
    assert RunSettings.read({"LANGUAGE": "en_US:en"}, file={"language": "de"}).language == "de"


@pytest.mark.parametrize(
    ("source", "given"),
    [
        *(("LANGUAGE=", {"env": {"LANGUAGE": text}}) for text in ("german", "d", "1", "de en", "nan", "1_0")),
        *(("--language=", {"env": {}, "language": text}) for text in ("de_DE", "en-US", "de:en", "C")),
        ("grid.toml: language=", {"env": {"LANGUAGE": "en_US"}, "file": {"language": "de_DE"}, "where": "grid.toml"}),
    ],
)
def test_a_malformed_language_code_or_an_explicit_locale_is_refused(source: str, given: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=f"{source}.* a code such as en, de or yue"):
        RunSettings.read(**given)


def test_the_certify_command_passes_the_checks_that_apply_to_whisper(folder: Path, few_steps: None) -> None:
    certificate = certify(open_local("whisper-base", RunSettings.read({}, model_path=str(folder))), 7.0)
    verdicts = {check.name: finding.verdict for check, finding in certificate.rows}
    assert certificate.verdict == "pass", {c.name: f for c, f in certificate.rows if f.verdict == "fail"}
    assert {name for name, verdict in verdicts.items() if verdict == "pass"} >= {
        "documented", "greedy", "hears", "ratio 0", "batch", "timing", "shared encoder", "leftovers",
        *(f"dropping {name}" for name in NAMES),
    }  # fmt: skip
    assert verdicts["pressing snapkv"] == verdicts["dropping fast_v"] == verdicts["audio mask"] == "not applicable"


@pytest.mark.parametrize("method", NAMES)
def test_the_certify_command_checks_dropped_encoder_states_in_all_windows_of_a_clip(
    folder: Path, lm: Whisper, few_steps: None, method: str
) -> None:
    finding = dropping(Bench(lm, folder, 1.5 * WINDOW), get_method(method, 0.5))
    assert finding.verdict == "pass", finding.figure


def test_the_certify_command_fails_if_whisper_keeps_an_encoder_state_it_should_drop(
    folder: Path, lm: Whisper, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = StateDrop.kept
    monkeypatch.setattr(StateDrop, "kept", lambda drop, states: kept(drop, states.roll(1, 1)))
    assert dropping(Bench(lm, folder, 7.0), Frame()).verdict == "fail"


def test_probes_get_the_whisper_encoder_states_of_a_clip_without_padding(published: Path) -> None:
    encoder = load_encoder("tower:whisper-base", {"checkpoint": str(published)}, "cpu")
    (features,) = encoder.encode(torch.from_numpy(noise(2.0))[None])
    assert features.shape == (100, 16)
    assert encoder.output_dim == 16


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["a.wav", "--language", "de", "-o", "a.png"], 0, ""),
        (["a.wav", "--prompt", "Who speaks?"], 2, "--prompt: whisper-base can only transcribe"),
        (["a.wav", "--language", "fr"], 2, "LANGUAGE=fr: .* allowed: de, en, zh"),
        (["tau:concatenated_resampled/airport-lisbon-1000-0-a.wav", "--data", "."], 2, "whisper-base can only trans"),
    ],
)
def test_the_explain_command_refuses_whisper_settings_that_a_run_refuses(
    words: list[str], code: int, said: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undrawn: None
) -> None:
    monkeypatch.chdir(tmp_path)
    task_folders.write_clip(tmp_path / "a.wav", seconds=1.0)
    task_folders.build_tau(tmp_path / "TAU")
    flags = ("--model", "whisper-base", "--methods", "frame:0.5", "--at", "input", "--model-path", folder)
    exit_code, shown = call("explain", *flags, *words)
    assert exit_code == code, shown
    assert re.search(said, shown)


def test_a_plan_names_tasks_and_languages_that_a_run_would_refuse(folder: Path, tmp_path: Path, no_env: Any) -> None:
    task_folders.build_librispeech(tmp_path / "LibriSpeech")
    task_folders.build_tau(tmp_path / "TAU")
    given = ("--data", tmp_path, "--model", "whisper-base", "--model-path", folder, "--methods", "base", "--plan")
    code, said = call("sweep", "librispeech", "tau", *given, "--language", "fr")
    assert code != 0
    assert "tau: cannot be run: whisper-base can only transcribe" in said
    assert "librispeech: cannot be run: LANGUAGE=fr" in said


def test_a_third_party_press_warns_that_its_kept_cache_entries_are_unknown(lm: AudioLM) -> None:
    with pytest.warns(UserWarning, match="cross-attention"):
        done = reply(lm, Foreign(name="theirs"), Prompt("", (noise(3.0),)))
    assert done.kept_shares is None
