"""Clotho and AudioCaps: their tables, the corpus for the word weights, and the caption scorer."""

from __future__ import annotations

import json
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from caption_folders import CAPTIONS, clotho_folder, table
from conftest import call, content_of, succeed
from task_folders import write_clip

from audiomarathon.audio.decode import probe
from audiomarathon.benchmarks import get_task
from audiomarathon.benchmarks.manifest import read_manifest
from audiomarathon.benchmarks.task import Filters, Loaded, Part
from audiomarathon.data.controls import build_controls
from audiomarathon.errors import DataError, SettingsError
from audiomarathon.metrics.captions.cider_d import Frequencies, cider_d
from audiomarathon.records import Corpus, Record, Verdict
from audiomarathon.runs.folder import read_records
from audiomarathon.scoring import caption_models
from audiomarathon.scoring.caption import Caption
from audiomarathon.scoring.scorer import figures_of

REFERENCES = tuple(CAPTIONS.values())
CORPUS = Corpus(REFERENCES)
REPLIES = ("Rain falls on a metal roof.", "", "A dog barks and a car drives by.")


def load(root: Path, key: str = "lalm/clotho", **filters: Any) -> Loaded:
    return get_task(key).load(get_task(key).find(root), Filters(**filters))


def records(replies: tuple[str, ...] = REPLIES, corpus: Corpus = CORPUS) -> list[Record]:
    return [
        Record(str(n), str(n), reply=reply, reference={"references": list(texts)}, corpus=corpus)
        for n, (reply, texts) in enumerate(zip(replies, REFERENCES, strict=False))
    ]


def verdicts(given: list[Record] | None = None) -> list[Verdict]:
    return list(Caption().verdicts(given or records()))


class Encoder:
    """A bag-of-words encoder: equal texts get equal vectors."""

    name, hash, window = "bag", "1a", 128

    def encode(self, texts: list[str]) -> np.ndarray:
        return np.array([[text.lower().split().count(word) for word in ("rain", "a", "dog", "of")] for text in texts])

    def count_pieces(self, texts: list[str]) -> list[int]:
        return [len(text.split()) + 60 for text in texts]


class Checker:
    """Flag texts without a period."""

    sha256 = "checked"

    def error(self, texts: list[str]) -> np.ndarray:
        return np.array([0.0 if text.endswith(".") else 0.95 for text in texts])


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> Encoder:
    encoder = Encoder()
    monkeypatch.setattr(caption_models, "text_encoder", lambda _default="": encoder)
    monkeypatch.setattr(caption_models, "fluency_checker", Checker)
    return encoder


def test_clotho_splits_are_read_from_every_folder_layout_and_unicode_form(tmp_path: Path) -> None:
    decomposed = {unicodedata.normalize("NFD", name): texts for name, texts in CAPTIONS.items()}
    clotho_folder(tmp_path / "clotho", decomposed)
    clotho_folder(tmp_path / "clotho", {"x.wav": REFERENCES[0]}, split="validation", place="clotho_audio_{split}")
    deep = "clotho_audio_{split}/{split}"
    clotho_folder(tmp_path / "clotho", {"y.wav": REFERENCES[1]}, split="development", place=deep)
    composed = tmp_path / "clotho" / "clotho_captions_evaluation.csv"
    composed.write_text(unicodedata.normalize("NFC", composed.read_text(encoding="utf-8")), encoding="utf-8")
    loaded = load(tmp_path)
    assert {sample.id for sample in loaded.samples} == set(CAPTIONS)
    assert not loaded.bad_rows
    assert all(sample.clips[0].is_file() and sample.cluster == sample.id for sample in loaded.samples)
    assert {sample.id: sample.meta["references"] for sample in loaded.samples} == CAPTIONS
    assert [sample.id for sample in load(tmp_path, split="validation").samples] == ["x.wav"]
    assert [sample.id for sample in load(tmp_path, split="development").samples] == ["y.wav"]


def test_a_caption_prompt_may_be_a_preset_name_or_free_text(tmp_path: Path) -> None:
    clotho_folder(tmp_path)
    task = get_task("clotho")

    def asked(prompt: str) -> set[str]:
        return {task.prompt(sample) for sample in load(tmp_path, prompt=prompt).samples}

    assert asked("") == asked("detail") == {"Describe the sound in detail."}
    assert asked("short") == {"Describe the sound in one sentence of 8 to 20 words."}
    assert asked("Say what you hear.") == {"Say what you hear."}
    with pytest.raises(SettingsError, match=r"TASK_PROMPT=shrt: allowed for lalm/clotho: detail, short"):
        asked("shrt")
    with pytest.raises(SettingsError, match=r"TASK_SPLIT=test: allowed for lalm/clotho: evaluation, validation"):
        load(tmp_path, split="test")
    told = "has no clotho_captions_validation.csv; it has clotho_captions_evaluation.csv; next: .* --split valid"
    with pytest.raises(DataError, match=told):
        load(tmp_path, split="validation")


def test_captions_of_bad_rows_still_count_in_the_cider_word_weights(tmp_path: Path) -> None:
    many = {**CAPTIONS, "gone.wav": ("Nothing.",) * 5, "mute.wav": ("", " ", "", "", "")}
    many["list.wav"] = ("['Rain.', 'Wind.']", "", "", "", "")
    folder = clotho_folder(tmp_path, many)
    (folder / "evaluation" / "gone.wav").unlink()
    loaded = load(tmp_path)
    gone = "clip 'gone.wav' is missing in evaluation/, clotho_audio_evaluation/, clotho_audio_evaluation/evaluation/"
    *bad, listed = loaded.bad_rows
    assert [(row.row, row.reason) for row in bad] == [(4, gone), (5, "'mute.wav' has no caption")]
    assert "looks like a list" in listed.reason
    corpus = get_task("clotho").corpus(loaded)
    assert [*map(tuple, corpus)] == [*REFERENCES, ("Nothing.",) * 5, many["list.wav"][:1]]


def test_audiocaps_is_read_with_one_caption_a_row(tmp_path: Path) -> None:
    rows = [
        (str(number), video, start, f"{text} {video}")
        for video, start in (("a_b-c", "30"), ("zz", "0"), ("q", "5"), ("lost", "1"))
        for number, text in enumerate(("Rain on", "A dog by"))
    ]
    table(tmp_path / "sub" / "test.csv", get_task("audiocaps").columns, rows)
    (tmp_path / "test.csv").write_text("audiocap_id,what\n1,2\n")  # another table of that name, nearer
    for clip in ("a_b-c_30.wav", "audio/Yzz.flac", "test/q.wav"):
        write_clip(tmp_path / "sub" / clip)
    (tmp_path / "sub" / "lost_1.wav").mkdir()
    (tmp_path / "sub" / "lost_1.txt").touch()
    write_clip(tmp_path / "sub" / "audio" / "._lost_1.wav")  # macOS leaves such files beside real ones
    loaded = load(tmp_path, "audiocaps")
    assert [(sample.id, sample.meta["references"]) for sample in loaded.samples] == [
        ("a_b-c_30", ("Rain on a_b-c", "A dog by a_b-c")),
        ("q_5", ("Rain on q", "A dog by q")),
        ("zz_0", ("Rain on zz", "A dog by zz")),
    ]
    (bad,) = loaded.bad_rows
    assert bad.reason.startswith("clip 'lost_1' is missing (also under the names lost, Ylost, 0) in ./, test/, audio/")


def captions_folder(root: Path, key: str) -> Path:
    """Write REFERENCES as the captions of three clips, in the form of a task."""
    if key == "lalm/clotho":
        return clotho_folder(root, dict(zip(("a.wav", "b.wav", "c.wav"), REFERENCES, strict=True)))
    rows = [(f"{name}{k}", name, "0", text) for name, texts in zip("abc", REFERENCES, strict=True)
            for k, text in enumerate(texts)]  # fmt: skip
    table(root / "test.csv", get_task(key).columns, rows)
    for name in "abc":
        write_clip(root / f"{name}.wav")
    return root


@pytest.mark.parametrize("key", ["lalm/clotho", "lalm/audiocaps"])
def test_a_partial_copy_of_a_caption_task_keeps_the_captions_of_all_items_for_word_weights(
    tmp_path: Path, key: str
) -> None:
    task, whole = get_task(key), load(captions_folder(tmp_path / "all", key), key)
    chosen = whole.samples[1]
    place = chosen.clips[0].relative_to(whole.folder)
    part, taken = whole, [chosen]
    for name in ("part", "again"):  # and a part of a part
        task.write_rows(Part(part, taken), tmp_path / name)
        write_clip(tmp_path / name / place)
        part = load(tmp_path / name, key)
        (sample,) = taken = part.samples
        assert (sample.id, sample.meta["references"]) == (chosen.id, chosen.meta["references"])
        assert task.corpus(part) == task.corpus(whole) == [*map(list, REFERENCES)]


def test_the_split_named_all_joins_all_clotho_splits(tmp_path: Path) -> None:
    clotho_folder(tmp_path / "all")
    clotho_folder(tmp_path / "all", {"x.wav": REFERENCES[0], "y.wav": REFERENCES[1]}, split="development")
    task, whole = get_task("clotho"), load(tmp_path / "all", split="all")
    splits = dict.fromkeys(CAPTIONS, "evaluation") | dict.fromkeys(("x.wav", "y.wav"), "development")
    assert {sample.id: sample.meta["split"] for sample in whole.samples} == splits
    assert task.corpus(whole) == [*map(list, (*REFERENCES[:2], *REFERENCES))]
    task.write_rows(Part(whole, whole.samples[-1:]), tmp_path / "part")
    write_clip(tmp_path / "part" / "development" / "y.wav")
    part = load(tmp_path / "part", split="all")
    assert ([sample.id for sample in part.samples], task.corpus(part)) == (["y.wav"], task.corpus(whole))


@pytest.mark.parametrize("key", ["lalm/clotho", "lalm/audiocaps"])
def test_control_data_keeps_every_sample_with_a_control_of_its_own_clip(tmp_path: Path, key: str) -> None:
    """Clip names have another Unicode form or suffix than in the table, or are the number of a row."""
    task, seconds = get_task(key), {"a": 1.0, "b": 1.5, "c": 2.0}
    if key == "lalm/clotho":
        names = (unicodedata.normalize("NFD", "Café.wav"), "x.wav", "y.wav")
        clotho_folder(tmp_path / "data", dict(zip(names, REFERENCES, strict=True)))
        place = tmp_path / "data" / "evaluation"
        for old, new, length in zip(names, ("Café.wav", "x.ogg", "y.wav"), seconds.values(), strict=True):
            (place / old).unlink()
            write_clip(place / new, seconds=length)
    else:
        names = ("c_1", "b_1", "a_1")
        named = [*enumerate(zip(names, REFERENCES, strict=True))]
        rows = [(str(3 * n + k), name[0], "1", texts[k]) for n, (name, texts) in named for k in range(3)]
        table(tmp_path / "data" / "test.csv", task.columns, rows)
        for n, length in enumerate(seconds.values()):
            write_clip(tmp_path / "data" / f"{3 * n}.wav", seconds=length)
    whole = load(tmp_path / "data", key)
    assert (len(whole.samples), whole.bad_rows) == (3, ())
    folder, _ = build_controls([(task, whole)], tmp_path / "out", seconds=None, kind="noise")
    made = load(folder, key)
    assert not made.bad_rows
    facts, expected = (
        [(sample.id, sample.meta["references"], probe(sample.clips[0]).seconds) for sample in data.samples]
        for data in (made, whole)
    )
    assert facts == expected
    assert sorted(task.corpus(made)) == sorted(task.corpus(whole))
    assert Corpus(REFERENCES[::-1]).hash == CORPUS.hash != Corpus(REFERENCES[1:]).hash


def test_cider_d_takes_word_weights_from_the_whole_split_and_its_published_form_from_the_run() -> None:
    whole = verdicts()
    expected = cider_d(REPLIES, REFERENCES, Frequencies.of(REFERENCES))
    assert [verdict.values["cider_d"] for verdict in whole] == expected.tolist()
    figures = figures_of(Caption(), whole, seed=0)
    assert figures["cider_d"] == figures["score"] == pytest.approx(expected.mean())
    assert figures["cider_d_as_published"] == figures["cider_d"]
    part = [whole[0], whole[2]]
    figures = figures_of(Caption(), part, seed=0)
    assert figures["cider_d"] == pytest.approx(expected[[0, 2]].mean())
    texts = [REFERENCES[0], REFERENCES[2]]
    of_part = cider_d([REPLIES[0], REPLIES[2]], texts, Frequencies.of(texts))
    assert figures["cider_d_as_published"] == pytest.approx(of_part.mean())
    assert figures["cider_d_as_published"] != pytest.approx(figures["cider_d"])
    assert figures_of(Caption(), whole[:1], seed=0)["cider_d_as_published"] is None
    assert figures["corpus"] == {"items": 3, "hash": CORPUS.hash}
    low, high = figures["intervals"]["cider_d"]
    assert low < figures["cider_d"] < high
    assert Caption().own_score(whole[0]) == pytest.approx(expected[0] / 10)


def test_caption_replies_that_all_score_0_have_no_confidence_interval() -> None:
    summary = figures_of(Caption(), verdicts(records(("x", "y", "z"))), seed=0)
    assert (summary["cider_d"], summary["intervals"]["score"]) == (0, None)


def test_comparisons_of_caption_runs_use_the_same_metrics_whatever_the_text_encoder(models: Encoder) -> None:
    with_models = Caption().sums(verdicts()).names
    models.name = caption_models.ENCODER
    assert Caption().sums(verdicts()).names == with_models == ("cider_d", "words")


def test_each_human_caption_is_scored_against_the_other_captions_of_its_clip() -> None:
    frequencies = Frequencies.of(REFERENCES)
    left_out = [
        cider_d([text], [[*texts[:n], *texts[n + 1 :]]], frequencies)[0]
        for texts in REFERENCES
        for n, text in enumerate(texts)
    ]
    summary = Caption().summary(verdicts())
    assert summary["human"] == {"cider_d": pytest.approx(np.mean(left_out)), "fense": None}
    told = f"people (each reference scored against the others): cider_d {np.mean(left_out):.3f}"
    assert told in " ".join(Caption().notes(verdicts()))


def test_fense_is_missing_with_a_note_if_its_models_are_missing() -> None:
    whole = verdicts()
    figures = figures_of(Caption(), whole, seed=0)
    assert {figures[name] for name in ("sbert_sim", "fer", "fense", "fense_first_sentence")} == {None}
    (note,) = [note for note in figures["notes"] if "FENSE" in note]
    assert note.startswith("FENSE not computed: the sentence encoder and the fluency checker missing on this machine")
    assert all(map(Caption().sound, whole))


def test_fense_is_computed_if_its_models_are_there(models: Encoder) -> None:
    without_period = ("Rain falls on a metal roof", "", "A dog barks. and then")
    whole = verdicts(records(without_period))
    figures = figures_of(Caption(), whole, seed=0)
    similarity = [verdict.values["sbert_sim"] for verdict in whole]
    assert [verdict.values["fer"] for verdict in whole] == [1, 1, 1]
    assert figures["sbert_sim[bag]"] == pytest.approx(np.mean(similarity))
    assert figures["fense[bag]"] == pytest.approx(0.1 * np.mean(similarity))
    assert whole[2].values["fense_first_sentence"] > whole[2].values["fense"]  # "A dog barks." is fluent
    assert figures["fer"] == 1
    assert Caption().summary(whole)["human"]["fense"] > 0
    assert figures["lengths"]["beyond_64"] == pytest.approx(2 / 3)
    assert "67% of replies are longer than the 64 word pieces" in " ".join(figures["notes"])
    models.name = caption_models.ENCODER
    assert "fense" in figures_of(Caption(), verdicts(), seed=0)


def test_stored_caption_scores_are_outdated_if_a_scoring_model_changed_but_not_if_it_is_absent(
    models: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_models, none = verdicts(), dict.fromkeys(("encoder", "encoder_hash", "checker", "fense"))
    assert all(map(Caption().sound, with_models))
    assert not any(Caption().sound(replace(verdict, values={**verdict.values, **none})) for verdict in with_models)
    models.hash = "2b"  # another encoder of the same name
    assert not any(map(Caption().sound, with_models))
    monkeypatch.setattr(caption_models, "text_encoder", lambda _default="": None)
    monkeypatch.setattr(caption_models, "fluency_checker", lambda: None)
    assert all(map(Caption().sound, with_models))
    record = with_models[0].record
    assert Caption().stamp(replace(record, corpus=Corpus(REFERENCES[:2]))) != Caption().stamp(record)


def test_a_run_with_a_sample_limit_is_scored_with_the_word_weights_of_the_whole_split(tmp_path: Path) -> None:
    data, results = clotho_folder(tmp_path / "data"), tmp_path / "results"
    arguments = ("run", "clotho", "--model", "embedded", "--data", data, "--results", results, "--no-timing")
    assert "FENSE not computed" in succeed(*arguments, "--limit", 2, "--max-new-tokens", 4)
    folder = results / "lalm" / "clotho" / "embedded" / "base-0"
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["n"], summary["corpus"]["items"]) == (2, 3)
    assert {record.corpus.hash for record in read_records(folder).values() if record.corpus} == {CORPUS.hash}
    succeed("report", results, "-o", tmp_path / "page.html")
    shown = content_of((tmp_path / "page.html").read_text())["samples"]
    assert [sample["answer"] for sample in shown] == ["\n".join(CAPTIONS[sample["id"]]) for sample in shown]
    assert len(shown) == 2
    licences = [read_manifest(data).licence_of(get_task(key)) for key in ("clotho", "tau")]
    assert (licences[0].startswith("captions not for commercial use"), licences[1]) == (True, "CC-BY-NC-4.0")
    for content, why in (
        (None, "has no corpus.json"),
        ('{"hash": "", "references": [["a"], ["b"]]}', "its 'references' were changed after the run"),
        ('{"references": [["a"], [1]]}', "corpus.json: its 'references' must be a list of lists of texts"),
    ):
        (folder / "corpus.json").unlink(missing_ok=True)
        if content:
            (folder / "corpus.json").write_text(content)
        code, output = call("score", folder)
        assert code == 2
        assert why in output
    assert call(*arguments, "--max-new-tokens", 4)[0] == 0  # writes the corpus again
    assert json.loads((folder / "summary.json").read_text())["n"] == 3


def test_a_caption_task_of_only_one_item_is_refused_because_word_weights_need_two() -> None:
    with pytest.raises(DataError, match="at least 2 items"):
        verdicts(records(corpus=Corpus(REFERENCES[:1])))


def test_the_caption_table_has_a_row_per_setting_and_one_for_human_captions(models: Encoder) -> None:
    frame = Caption().frames({"base": verdicts(), "frame 0.5": verdicts()[:2]})["Captions"]
    assert [*frame["setting"]] == ["base", "frame 0.5", "people (one reference against the others)"]
    assert frame.loc[0, "cider_d_low"] <= frame.loc[0, "cider_d"] <= frame.loc[0, "cider_d_high"]
    assert frame.loc[2, "cider_d"] > 0
