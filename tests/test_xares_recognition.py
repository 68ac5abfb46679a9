"""Speech recognition: CTC on letters played as tones, X-ARES' adapter to a causal LM, and both ways to count words."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import jiwer
import numpy as np
import pytest
import torch
from test_probing_runs import RATE, results_of, write
from tiny_base import byte_tokenizer, spread
from transformers import LlamaConfig, LlamaForCausalLM

from audiomarathon.errors import ModelError
from audiomarathon.models.checkpoint import find_checkpoint
from audiomarathon.models.loading import causal_lm
from audiomarathon.records import Record, Verdict
from audiomarathon.runs.read import Run
from audiomarathon.wings.encoders.encoder import from_module
from audiomarathon.wings.encoders.probing import recognition
from audiomarathon.wings.encoders.probing.probe_input import PUBLISHED
from audiomarathon.wings.encoders.probing.recognition import Writer, adapted, ctc, read_off, spelled
from audiomarathon.wings.encoders.results.scores import task_scores
from audiomarathon.wings.encoders.scoring.recognised import Recognised
from audiomarathon.wings.encoders.xares.spoken import SpokenTask
from audiomarathon.wings.encoders.xares.task import Recipe
from audiomarathon.wings.encoders.xares.tasks import config_of, equipped, named
from audiomarathon.wings.encoders.xares_commands import XaresTask

LETTERS = "abcdefgh "
PITCHES = {letter: 40 + 45 * place for place, letter in enumerate(LETTERS)}


class PitchEncoder(torch.nn.Module):
    """Return the spectra of both halves of each frame of 80 ms, since a frame contains two letters."""

    sampling_rate, output_dim, hop_size_in_ms = RATE, 82, 80

    def forward(self, audio: torch.Tensor) -> torch.Tensor:
        frames = torch.nn.functional.pad(audio, (0, -audio.shape[1] % 80)).unfold(1, 80, 80)
        halves = torch.fft.rfft(frames.unflatten(-1, (2, 40)), n=80).abs()
        return (10 * halves).log1p().flatten(-2)


def spoken(text: str, seed: int) -> np.ndarray:
    """Return 40 ms of a tone for each letter, with noise."""
    time, rng = np.arange(40) / RATE, np.random.default_rng(seed)
    sounds = [np.sin(2 * np.pi * PITCHES[letter] * time) for letter in text]
    return (0.5 * np.concatenate(sounds) + 0.01 * rng.standard_normal(40 * len(text))).astype(np.float32)


def write_speech(root: Path, many: int = 60) -> Path:
    rng = np.random.default_rng(1)
    for part, count in (("train-clean-100", many), ("dev-clean", 8), ("test-clean", 10)):
        clips = []
        for place in range(count):
            words = ["".join(rng.choice([*LETTERS[:-1]], 2, replace=False)) for _ in range(rng.integers(1, 4))]
            text = " ".join(words)
            clips.append((f"{count}{place % 4}-{place}", {"trans": text.upper()}, spoken(text, place)))
        write(root / "librispeech", f"{part}-0", clips)
    return root


def task_of(llm: str = "", **recipe: Any) -> SpokenTask:
    (task,) = named(["librispeech"])
    spoken_task = equipped(task, llm=llm)
    assert isinstance(spoken_task, SpokenTask)
    return replace(spoken_task, recipe=replace(spoken_task.recipe, **recipe))


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a random causal LM over bytes."""
    folder = tmp_path_factory.mktemp("llm")
    tokenizer = byte_tokenizer(("<end>", "<|vision_end|>"), end="<end>", pad="<end>")
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, eos_token_id=tokenizer.eos_token_id, bos_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    spread(model)
    model.save_pretrained(folder)
    return str(folder)


def test_a_text_encoded_as_ctc_letters_is_decoded_without_loss() -> None:
    assert spelled("It's A-B!") == [11, 22, 2, 21, 1, 3, 1, 4]
    assert read_off([0, 3, 3, 0, 3, 1, 1, 4, 0, 0, 1, 0]) == "aa b"
    assert read_off([]) == read_off([0, 0, 1]) == ""
    for text in ("hello there", "aabb cc"):
        assert read_off([number_class for number in spelled(text) for number_class in (number, number, 0)]) == text


def test_the_ctc_probe_learns_to_read_letters_from_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recognition, "STEPS", 40)
    task, said = task_of(), list[str]()
    root, encoder = write_speech(tmp_path), from_module(PitchEncoder())
    results = results_of(root, tmp_path / "results", encoder, task, say=said.append)
    assert [*results] == ["linear"]
    assert any("--llm" in line for line in said)
    summary = results["linear"].summary
    assert summary["score"] == pytest.approx(1 - summary["wer"])
    assert summary["n"] == 10
    assert summary["score"] > 0.7
    assert 0 <= summary["cer"] <= summary["wer"]
    (score,) = task_scores([Run.read(results["linear"].folder)])
    assert score.by_probe["linear"].value == summary["score"]
    monkeypatch.setattr(recognition, "STEPS", 2)
    lines = []
    for name in ("one", "other"):
        torch.rand(1)  # results do not depend on torch's random state
        again = results_of(root, tmp_path / name, encoder, task)
        lines.append((again["linear"].folder / "samples.jsonl").read_text())
    assert lines[0] == lines[1]


def test_the_ctc_probe_settings_are_chosen_on_the_valid_part_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transcripts of test clips change nothing; transcripts of valid clips may."""
    rng = np.random.default_rng(0)
    frames = [rng.standard_normal((12, 6)).astype(np.float32) for _ in range(12)]
    texts, rows = ["ab", "ba", "a", "b"] * 3, ([*range(6)], [6, 7, 8], [9, 10, 11])
    monkeypatch.setattr(recognition, "STEPS", 1)
    monkeypatch.setattr(recognition, "RATES", (0.1, 0.3))
    transcripts = ctc(frames, texts, rows, 40)
    other = [text if row < 9 else "zz zz" for row, text in enumerate(texts)]
    assert ctc(frames, other, rows, 40) == transcripts
    assert {*transcripts} == {9, 10, 11}
    assert any(transcripts.values())
    other = [text if row not in (6, 7, 8) else "b b b b" for row, text in enumerate(texts)]
    assert ctc(frames, other, rows, 40) != transcripts


def test_the_recognition_llm_gets_audio_then_separator_then_text_then_end_token(llm: str) -> None:
    model, tokenizer = causal_lm(Path(llm), dtype="float32")
    writer, audio, counts = Writer(model, tokenizer), torch.randn(2, 3, 32), torch.tensor([3, 2])
    end, separator = tokenizer.eos_token_id, tokenizer.get_vocab()["<|vision_end|>"]
    ids = [[separator, *tokenizer("hi").input_ids, end], [separator, *tokenizer("a").input_ids, end]]
    inputs = writer.joined(audio, counts, ["hi", "a"])
    assert inputs["labels"].tolist() == [[-100] * 3 + ids[0], [-100] * 3 + ids[1] + [-100]]
    assert inputs["attention_mask"].tolist() == [[1] * 7, [1, 1, 0, 1, 1, 1, 0]]
    words = model.get_input_embeddings()
    torch.testing.assert_close(inputs["inputs_embeds"][1, 3:6], words(torch.tensor(ids[1])))
    torch.testing.assert_close(inputs["inputs_embeds"][:, :3], audio)
    alone = writer.joined(audio, counts, [None, None])
    assert alone["labels"][:, 3:].tolist() == [[separator], [separator]]
    tokenizer.get_vocab = dict
    assert writer.joined(audio, counts, [None, None])["labels"][0, 3] == end


def test_only_the_adapter_is_trained_and_the_language_model_stays_frozen(llm: str) -> None:
    """Two clips that differ in their frames get the texts they were trained with; the model's weights stay."""
    model, tokenizer = causal_lm(Path(llm), dtype="float32")
    model.requires_grad_(False)
    before = {name: parameter.clone() for name, parameter in model.state_dict().items()}
    rng = np.random.default_rng(0)
    frames = [rng.standard_normal((4, 6)).astype(np.float32) for _ in range(2)]
    texts, recipe = ["a", "b"], Recipe(batch=2, epochs=25, lr=3e-2)
    rows = ([0, 1], [0, 1], [0, 1])
    transcripts = adapted(frames, texts, rows, Writer(model, tokenizer), recipe, 42)
    assert [transcripts[row][:1] for row in (0, 1)] == texts
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0)


def test_only_the_published_recognition_probe_has_the_llm_in_its_run_identity(tmp_path: Path, llm: str) -> None:
    task, root, encoder = task_of(llm, epochs=1, batch=16), write_speech(tmp_path, 16), from_module(PitchEncoder())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recognition, "STEPS", 1)
        results = results_of(root, tmp_path / "results", encoder, task)
    assert [*results] == ["linear", PUBLISHED[0]]
    run, linear = (Run.read(results[name].folder) for name in (PUBLISHED[0], "linear"))
    assert (run.identity["llm"], run.identity["seeds"]) == (find_checkpoint(llm).fingerprint(), [42])
    assert "llm" not in linear.identity
    assert {(record.groups or {})["protocol"] for record in run.records.values()} == {"xares-0.1.3"}
    with pytest.raises(ModelError, match=r"librispeech: .* \(the causal LM: --llm, XARES_LLM\)"):
        results_of(root, tmp_path / "other", encoder, task_of(str(tmp_path / "none")))
    assert not (tmp_path / "other").exists()  # refused before hours of encoding and fitting


def test_the_run_method_of_xares_task_returns_nan_for_a_probe_that_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XARES_LLM", "")
    monkeypatch.setattr(recognition, "STEPS", 1)
    config = config_of("librispeech", PitchEncoder())
    config.env_root = write_speech(tmp_path, 16)
    (mlp, weight), knn = XaresTask(config, tmp_path / "results").run()
    assert math.isnan(mlp)
    assert (weight, knn) == (0, (0, 0))  # X-ARES has 0 for kNN of transcripts
    assert "X-ARES' probes are left out: its probe trains an adapter" in capsys.readouterr().err


def test_word_errors_are_counted_as_published_and_with_normalised_words() -> None:
    scorer, groups = Recognised(), {"protocol": "xares-0.1.3", "part": "test"}
    pairs = [("HE'S GOT TWENTY DOGS", "he is got 20 dog"), ("COLOUR", "color")]

    def judged(text: str, said: str) -> Verdict:
        record = Record(text, text, reply=said, reference={"answer": text}, groups=groups)
        return Verdict(record, scorer.judge(record))

    verdicts = [judged(*pair) for pair in pairs]
    released = scorer.published(verdicts)
    assert released is not None
    value = released.statistic(released.columns.sum(axis=0, keepdims=True))[0, 0]
    lower = [[text.lower() for text in each] for each in zip(*pairs, strict=True)]
    assert value == pytest.approx(max(0.0, 1 - jiwer.wer(*lower)))
    more = scorer.published([judged("A", "b c d")])
    assert more is not None
    assert more.statistic(more.columns)[0, 0] == 0
    values = verdicts[1].values
    assert (values["errors"], values["letters"], values["released"]["errors"]) == (0, [1, 6], 1)
    assert "faults included" in scorer.notes(verdicts)[0]
    plain = [Verdict(replace(verdict.record, groups=None), verdict.values) for verdict in verdicts]
    assert scorer.published(plain) is None
