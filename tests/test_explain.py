"""The picture of kept audio tokens: shares are counted correctly and drawn at the right time of the clip."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile
import task_folders
import torch
from conftest import Family, call, noise, succeed

from audiomarathon.compression.method import Base
from audiomarathon.compression.registry import get_method
from audiomarathon.engine.occlusion import log_probability, losses_when_hidden
from audiomarathon.errors import ModelError
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.prompt import Inputs, Prompt, by_clip
from audiomarathon.report import explain
from audiomarathon.report import styles as series
from audiomarathon.report.explain import Clip, Strip, event_share, evidence_strip, shares_kept

PRESSES = """
from contextlib import ExitStack, contextmanager

class Half:
    shift = 0

    def __init__(self, compression_ratio):
        pass

    @contextmanager
    def __call__(self, model):
        with ExitStack() as stack:
            for layer in model.model.language_model.layers:
                stack.enter_context(layer.self_attn.register_forward_hook(self.cut, with_kwargs=True))
            yield

    def cut(self, module, _args, kwargs, _output):
        if kwargs["hidden_states"].shape[1] > 1:
            layer = kwargs["past_key_values"].layers[module.layer_idx]
            layer.keys, layer.values = layer.keys[:, :, ::2] + self.shift, layer.values[:, :, ::2]

class Shift(Half):
    shift = 1
"""


def shares(lm: AudioLM, prompts: list[Prompt], method: str) -> tuple[Inputs, np.ndarray]:
    inputs = lm.prepare(prompts[:1])
    generation = get_method(method).generate(lm, inputs, max_new_tokens=2, keep_entries=True)
    return inputs, shares_kept(inputs, generation)


def test_explain_draws_a_kept_share_of_1_exactly_for_the_tokens_that_a_pruner_keeps(
    lm: AudioLM, prompts: list[Prompt]
) -> None:
    inputs, kept = shares(lm, prompts, "frame:0.75")
    total = inputs.audio_tokens[0]
    budget = int(kept.sum())
    assert np.flatnonzero(kept).tolist() == [index * total // budget for index in range(budget)]


def test_explain_draws_for_stepwise_pruning_the_share_of_layers_that_keep_each_token(
    lm: AudioLM, prompts: list[Prompt]
) -> None:
    inputs, method = lm.prepare(prompts[:1]), get_method("frame:0.75", schedule="1:0.5,3:0.75")
    done = method.generate(lm, inputs, max_new_tokens=2, keep_entries=True)
    audio = inputs.audio_mask[0].nonzero().flatten()
    half, quarter = (torch.isin(audio, kept).numpy() for _first, (kept,) in done.kept_steps)
    expected = np.where(quarter, 1, np.where(half, 2 / 3, 0))  # in layers 1 to 3
    np.testing.assert_allclose(shares_kept(inputs, done), expected)


def test_kept_shares_of_audio_tokens_sum_to_the_mean_number_of_audio_entries_in_the_kv_cache(
    lm: AudioLM, prompts: list[Prompt]
) -> None:
    inputs, method = lm.prepare(prompts[:1]), get_method("frame:0.75+snapkv:0.5", schedule="1:0.5,3:0.75")
    done = method.generate(lm, inputs, max_new_tokens=1, keep_entries=True)
    text = inputs.prompt_tokens[0] - inputs.audio_tokens[0]
    assert shares_kept(inputs, done).sum() == pytest.approx(np.mean(done.kv_lengths) - text)


@pytest.mark.parametrize("press", ["snapkv", "knorm", "pyramidkv"])
def test_kept_shares_of_audio_tokens_under_a_press_sum_to_its_kept_audio_token_count(
    lm: AudioLM, prompts: list[Prompt], press: str
) -> None:
    inputs, kept = shares(lm, prompts, f"{press}:0.75")
    assert kept.sum() == pytest.approx(get_method(f"{press}:0.75").generate(lm, inputs, max_new_tokens=1)
                                       .kept_audio_tokens[0])  # fmt: skip
    assert kept.min() >= 0
    assert kept.max() <= 1


def test_a_press_that_chooses_by_position_keeps_a_token_in_all_layers_and_heads_or_in_none(
    lm: AudioLM, prompts: list[Prompt]
) -> None:
    _inputs, kept = shares(lm, prompts, "streaming_llm:0.5")
    budget = int(kept.sum())
    assert kept[:4].tolist() == [1.0] * 4
    assert kept[-(budget - 4) :].tolist() == [1.0] * (budget - 4)
    assert set(kept.tolist()) == {0.0, 1.0}


@pytest.mark.parametrize(
    ("seconds", "tokens"),
    [([10.0, 5.0], [4, 2]), ([31.0, 5.0], [4, 2]), ([5.0, 31.0], [2, 4]), ([80.0], [6])],
)
def test_a_clip_longer_than_30_s_gets_all_of_its_several_audio_token_spans(
    seconds: list[float], tokens: list[int]
) -> None:
    """A clip longer than a window of 30 s has several spans."""
    mask = torch.tensor([[1, 1, 0, 1, 1, 0, 1, 1]], dtype=torch.bool)
    inputs = Inputs({"attention_mask": torch.ones(1, 8)}, mask, (0,))
    parts = by_clip(np.arange(6.0), inputs, seconds)
    assert [len(part) for part in parts] == tokens
    assert np.concatenate(parts).tolist() == [*range(6)]


def test_the_kept_share_of_a_sound_event_is_the_mean_kept_share_of_its_audio_tokens() -> None:
    clip = Clip("a.wav", noise(4.0), 16000, events=((1.0, 2.0),))
    kept = np.zeros(8)  # two tokens a second: the event covers tokens 2–5
    kept[[1, 2, 6]] = 1
    strip = Strip("frame", "frame", (kept,), "A")
    assert event_share([clip], strip, 2.0) == 0.25
    assert event_share([Clip("a.wav", noise(4.0), 16000)], strip, 2.0) is None


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """Collect the arguments of each call of `draw`, which still draws."""
    calls: list[tuple] = []
    draw = explain.draw
    monkeypatch.setattr(explain, "draw", lambda *given: calls.append(given) or draw(*given))
    return calls


def test_explain_draws_audio_files_given_by_path_side_by_side(
    no_env, tiny_checkpoint: Path, tmp_path: Path, drawn: list[tuple]
) -> None:
    for name, seconds in (("a.wav", 2.0), ("b.wav", 1.0)):
        soundfile.write(tmp_path / name, noise(seconds), 16000)
    code, err = call(
        "explain", tmp_path / "a.wav", tmp_path / "b.wav", "--prompt", "Which is louder?", "--methods",
        "fast_v:0.5,fast_v:0.5+knorm:0.5", "--model-path", tiny_checkpoint, "--max-new-tokens", 2, "-o",
        tmp_path / "new" / "out.png", "--occlude", 1,
    )  # fmt: skip
    assert code == 0, err
    assert (tmp_path / "new" / "out.png").read_bytes().startswith(b"\x89PNG")
    ((title, clips, strips, rate, _path),) = drawn
    assert title == "a.wav, b.wav\nWhich is louder?"
    assert ([clip.name for clip in clips], rate) == (["a.wav", "b.wav"], 25)
    assert [strip.method for strip in strips] == ["evidence", "base", "fast_v", "fast_v+knorm"]
    assert [*map(len, strips[0].shares)] == [*map(len, strips[1].shares)]
    assert {strip.right for strip in strips} == {None}


def test_explain_draws_a_custom_press_only_if_its_kept_cache_entries_are_known(
    no_env, tiny_checkpoint: Path, tmp_path: Path, drawn: list[tuple], monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "theirs.py").write_text(PRESSES)
    soundfile.write(tmp_path / "a.wav", noise(2.0), 16000)
    no_env("MODEL_PATH", str(tiny_checkpoint))
    asked = ["explain", "a.wav", "--prompt", "?", "--max-new-tokens", "2", "--methods"]
    succeed(*asked, "theirs.py:Half:0.5")
    strip = drawn[0][2][1]
    assert strip.label == "Half-0.5"
    assert set(strip.shares[0].tolist()) == {0.0, 1.0}
    code, said = call(*asked, "theirs.py:Shift:0.5")
    assert code == 2
    assert "the entries that Shift-0.5 keeps are unknown" in said


def test_explain_draws_a_sample_of_a_task_with_question_and_right_answer(
    no_env, tiny_checkpoint: Path, tmp_path: Path, drawn: list[tuple]
) -> None:
    root = task_folders.build_tau(tmp_path / "data" / "TAU")
    from audiomarathon.benchmarks import get_task

    sample = get_task("tau").load(get_task("tau").find(root)).samples[0]
    where = ("--data", root, "--model-path", tiny_checkpoint, "-o", tmp_path / "out.png")
    code, err = call("explain", f"tau:{sample.id}", *where, "--methods", "random:0.5")
    assert code == 0, err
    ((title, _clips, strips, _rate, _path),) = drawn
    assert title.startswith(f"tau:{sample.id}\n{sample.question}\nright answer: {sample.answer}. ")
    assert [strip.right for strip in strips] == [False, False]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.wav", "--prompt", "?"], "nowhere.wav: no such file; to name a sample of a task"),
        ([__file__], "--prompt"),
        ([__file__, "--prompt", "?"], "is not audio that can be decoded"),
        (["tau:x", "--methods", "frame"], "add a ratio, such as frame:0.5"),
        (["tau:x", "--methods", "frame:0.5", "--data", "nowhere"], "nowhere is not a folder"),
        ([__file__, "--prompt", "?", "--methods", "framed:0.5"], "unknown method 'framed'"),
        (["a", "b", "--task", "tau"], "one sample; found 2 names"),
        (["desed:mini_desed_03", "--occlude", "-1"], "--occlude -1: allowed"),
        (["desed:mini_desed_03", "--occlude", "1e-05"], "--occlude 1e-05: allowed"),  # holds no sample
    ],
)
def test_wrong_arguments_of_explain_give_a_one_line_error(
    no_env, tmp_path: Path, monkeypatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, err = call("explain", *arguments)
    assert code == 2
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert message in line


def test_no_two_methods_are_drawn_with_the_same_colour_or_line_style() -> None:
    from audiomarathon.compression.registry import all_methods

    keys = [method.key for method in all_methods() if method.key != "base"]
    assert len({series.colour(key) for key in keys}) == len(keys)
    assert len({(tuple(series.dash(key)), series.mark(key)) for key in keys}) == len(keys)


def test_log_probability_of_a_given_reply_equals_that_measured_during_its_generation(
    family: Family, family_lm: AudioLM
) -> None:
    prompt = Prompt("Which?", (noise(3.0, 1), noise(2.0, 2)))
    done = Base().generate(family_lm, family_lm.prepare([prompt]), max_new_tokens=4, ignore_end=True, keep_logits=True)
    tokens = done.replies[0].token_ids
    told = done.logits[:, 0].double().log_softmax(-1).gather(-1, torch.tensor(tokens)[:, None]).sum()
    assert log_probability(family_lm, prompt, tokens) == pytest.approx(float(told), abs=1e-3)


def test_the_evidence_of_a_clip_moment_is_the_reply_log_probability_lost_by_silencing_it(lm: AudioLM) -> None:
    """There are two clips, each with a shorter last moment."""
    clips = noise(2.5, 1), noise(1.2, 2)
    prompt, tokens, steps = Prompt("Which?", clips), [5, 9], list[int]()
    losses = losses_when_hidden(lm, prompt, tokens, 1.0, steps.append)
    assert ([len(loss) for loss in losses], steps) == ([3, 2], [1] * 5)
    whole = log_probability(lm, prompt, tokens)
    for clip, moment in ((0, 1), (1, 1)):
        quiet = [clip.copy() for clip in clips]
        quiet[clip][16000 * moment : 16000 * (moment + 1)] = 0
        left = log_probability(lm, Prompt("Which?", tuple(quiet)), tokens)
        assert losses[clip][moment] == pytest.approx(whole - left)


def test_the_evidence_a_method_keeps_is_summed_over_the_moments_of_its_kept_tokens() -> None:
    """Four tokens, two moments: the first supports the reply, the second speaks against it."""
    strips = [Strip("base", "base", (np.ones(4),), ""), Strip("frame", "frame", (np.array([1.0, 0, 1, 0]),), "")]
    evidence, told = evidence_strip([np.array([0.5, -2.0])], 1.0, strips)
    assert evidence.shares[0].tolist() == [1, 1, 0, 0]
    assert [strip.facts for strip in told] == ["evidence 100%", "evidence 50%"]


def test_clip_moments_that_hardly_change_the_reply_probability_are_not_drawn_as_evidence() -> None:
    strips = [Strip("base", "base", (np.ones(4),), "")]
    evidence, told = evidence_strip([np.array([0.0001, 0.009])], 1.0, strips)
    assert (evidence.shares[0].tolist(), evidence.reply) == ([0] * 4, "depends on no single moment")
    assert told[0].facts == ""


def test_computing_audio_evidence_for_an_empty_reply_is_refused(lm: AudioLM) -> None:
    with pytest.raises(ModelError, match="reply is empty"):
        losses_when_hidden(lm, Prompt("Which?", (noise(1.0, 1),)), [], 1.0)
