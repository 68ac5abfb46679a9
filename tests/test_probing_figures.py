"""Metrics of probes: verdicts, tables, charts, and X-ARES' stored embeddings."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from archive_makers import npy, npy_header
from test_probing_runs import RATE, FramesEncoder, made, results_of, task_of, wav, wave
from xares_tars import write_tar

from audiomarathon.audio.member import Member
from audiomarathon.errors import DataError
from audiomarathon.metrics.statistics import Estimate
from audiomarathon.records import Record, Verdict
from audiomarathon.report.render import cells
from audiomarathon.runs.read import Run
from audiomarathon.wings.encoders.encoder import from_module
from audiomarathon.wings.encoders.probing import imported
from audiomarathon.wings.encoders.probing import published_probes as published
from audiomarathon.wings.encoders.probing.clips import Split
from audiomarathon.wings.encoders.probing.encode import encode_own, hear
from audiomarathon.wings.encoders.probing.probe_input import PUBLISHED, published_splits
from audiomarathon.wings.encoders.probing.store import Store
from audiomarathon.wings.encoders.report.encoder_sections import confusions, radars, surest_mistakes
from audiomarathon.wings.encoders.report.encoder_tables import beside_published, by_task, encoder_scores
from audiomarathon.wings.encoders.results.scores import Score, mean_scores, task_scores
from audiomarathon.wings.encoders.scoring.probe import Classified, Tagged, scores_to_reply
from audiomarathon.wings.encoders.xares.published import ENCODERS, STATED, published_mean, weight
from audiomarathon.wings.encoders.xares.task import Clip, Recipe


def record(id_: str, answer: str, reply: str, **groups: str) -> Record:
    return Record(id_, id_, reply=reply, reference={"answer": answer, "classes": 4}, groups=groups or None)


def run_of(*records: Record, checkpoint: str = "E") -> Run:
    return Run(
        {"task": "own/tones", "method": "linear", "checkpoint_name": checkpoint},
        {answered.id: answered for answered in records},
    )


MISTAKEN = run_of(
    record("a", "dog", "dog\t0.9"), record("b", "dog", "cat\t0.6"), record("c", "dog", "cat\t0.8"),
    record("d", "cat", "cat\t0.7"), record("e", "cow", "dog\t0.7"),
)  # fmt: skip


def test_the_published_probe_score_averages_over_split_parts_and_then_over_seeds() -> None:
    scorer = Classified()
    seeds = record("a", "dog", "dog\t0.9\tcat\ncat\t0.8\tdog\ndog\t0.7\tdog", protocol="xares-0.1.3", part="1")
    other = record("b", "cat", "dog\t0.9\tdog\ndog\t0.8\tcat\ndog\t0.7\tcat", protocol="xares-0.1.3", part="2")
    third = record("c", "cat", "cat\t0.9\tcat\ncat\t0.8\tcat\ncat\t0.7\tcat", protocol="xares-0.1.3", part="2")
    verdicts = [Verdict(reply_record, scorer.judge(reply_record)) for reply_record in (seeds, other, third)]
    assert verdicts[0].values == {"right": [True, False, True], "last": [False, True, True]}
    summary = scorer.summary(verdicts)
    assert summary["seeds"] == [0.75, 0.25, 0.75]  # means over parts, not over clips
    assert summary["sd"] == pytest.approx(np.std([0.75, 0.25, 0.75], ddof=1))
    assert summary["last_epoch"] == pytest.approx((2 / 3 + (2 / 3 + 1) / 2) / 2)
    assert summary["majority"] == pytest.approx(2 / 3)
    assert scorer.chance(verdicts) == 0.25
    assert [scorer.right(verdict) for verdict in verdicts] == [None] * 3
    assert "published tables only" in scorer.notes(verdicts)[0]
    plain = Verdict(wrong := record("a", "dog", "cat\t0.6"), scorer.judge(wrong))
    assert (scorer.right(plain), scorer.shown(plain), scorer.notes([plain])) == (False, "cat (0.6), not dog", [])


@pytest.mark.parametrize(("groups", "of_all"), [({}, 1.0), ({"protocol": "xares-0.1.3"}, 2 / 3)])
def test_a_label_without_clips_counts_as_0_only_in_the_published_mean_average_precision(
    groups: dict[str, str], of_all: float
) -> None:
    """Both clips rank their label first; a third label has no clip."""
    scorer = Tagged()
    replies = [[0.9, 0.2, 0.1], [0.1, 0.8, 0.3]]
    verdicts = []
    for place, scores in enumerate(replies):
        told = {"answer": "", "positives": [place], "classes": 3}
        ranked = Record(f"{place}", reply=scores_to_reply(np.array([scores])), groups=groups or None, reference=told)
        verdicts.append(Verdict(ranked, scorer.judge(ranked)))
    assert scorer.sums(verdicts).figures["map"] == 1.0
    assert scorer.summary(verdicts)["seeds"] == [pytest.approx(of_all)]
    if groups:
        assert scorer.published(verdicts).figures["map"] == pytest.approx(of_all)  # type: ignore[union-attr]


def test_confusion_chart_and_most_confident_mistakes_equal_values_by_hand() -> None:
    ((name, (chart,)),) = confusions([MISTAKEN]).items()
    assert name == "tones, E"
    shares = {(cell["label"], cell["taken"]): (cell["clips"], round(cell["share"], 3)) for cell in chart.data["cells"]}
    assert shares == {
        ("dog", "dog"): (1, 0.333), ("dog", "cat"): (2, 0.667), ("cat", "cat"): (1, 1.0), ("cow", "dog"): (1, 1.0),
    }  # fmt: skip
    rows = surest_mistakes([MISTAKEN]).frame
    assert list(zip(rows["clip"], rows["label"], rows["taken_for"], rows["probability"], strict=True)) == [
        ("c", "dog", "cat", 0.8), ("e", "cow", "dog", 0.7), ("b", "dog", "cat", 0.6),
    ]  # fmt: skip


def test_class_numbers_are_shown_as_class_names_in_the_confusion_chart() -> None:
    known = run_of(record("a", "0", "49\t0.9"), record("b", "49", "49\t0.6"))
    known = replace(known, facts={**known.facts, "task": "xares/esc50"})
    ((chart,),) = confusions([known]).values()
    shown = {(cell["label"], cell["taken"]) for cell in chart.data["cells"]}
    assert shown == {("dog", "hand saw"), ("hand saw", "hand saw")}
    assert [*surest_mistakes([known]).frame["taken_for"]] == ["hand saw"]


def score(encoder: str, task: str, linear: float, n: int = 10, data: str = "same", **more: float) -> Score:
    names = dict(zip(("mlp", "knn"), PUBLISHED, strict=True))
    by_probe = {"linear": linear} | {names[name]: number for name, number in more.items()}
    ends = {name: Estimate(figure, (figure - 0.1, figure + 0.1)) for name, figure in by_probe.items()}
    return Score(encoder, task, "music", ends, n, 0.01, 0.25, data)


def text_of(table: object) -> list[list[str]]:
    return [[cell.text for cell in row] for row in cells(table)]  # type: ignore[arg-type]


def test_the_encoder_table_notes_tasks_in_which_encoders_were_scored_on_different_clips() -> None:
    scores = [
        score("A", "esc50", 0.5, mlp=0.857, knn=0.5), score("A", "cremad", 0.7, data="some"), score("B", "esc50", 0.6),
        score("B", "cremad", 0.4),
    ]  # fmt: skip
    table = encoder_scores(scores)
    assert text_of(table)[0] == [
        "A", "esc50", "0.500 [0.400, 0.600]", "0.857 (± 0.010)", "0.500", "0.250", "10",
    ]  # fmt: skip
    assert [note for note in table.notes if note.startswith("cremad: rows use different clips")]
    assert not [note for note in encoder_scores(scores[:1]).notes if "different clips" in note]
    assert text_of(by_task(scores)) == [
        ["esc50", "0.500 [0.400, 0.600]", "0.600 [0.500, 0.700]"],
        ["cremad", "0.700 [0.600, 0.800]", "0.400 [0.300, 0.500]"],
    ]
    assert [[cell.mark for cell in row] for row in cells(by_task(scores))] == [["", "", "best"], ["", "best", ""]]
    rows = beside_published(scores[:1], "dasheng", "readme").frame
    assert (rows["theirs"].tolist(), rows["inside"].tolist()) == ([0.857, 0.618], ["yes", "no"])
    assert rows["apart"].tolist() == pytest.approx([0.0, 0.5 - 0.618])
    pair = [score("A", "esc50", 0.5, mlp=0.8), score("A", "cremad", 0.5, mlp=0.7)]
    several = beside_published(pair, "dasheng", "readme").frame.set_index("task")
    mean, weighed = several.loc["mean of these 2"], several.loc["weighted mean of these 2"]
    assert (mean["probe"], mean["theirs"]) == ("MLP", pytest.approx((0.857 + 0.767) / 2))
    expected = [(400 * esc50 + 1116 * cremad) / 1516 for esc50, cremad in ((0.857, 0.767), (0.8, 0.7))]
    assert [weighed["theirs"], weighed["ours"]] == pytest.approx(expected)


def test_the_weighted_mean_of_a_probe_needs_its_score_on_every_task_that_x_ares_probes() -> None:
    known = [score("A", "esc50", 0.5, mlp=0.8, knn=0.4), score("A", "librispeech", 0.2, mlp=0.1)]
    named = "weighted, public: 2"
    (whole,) = (mean for mean in mean_scores(known) if mean.task == named)
    assert whole.by_probe[PUBLISHED[0]].value == pytest.approx((400 * 0.8 + 10_000 * 0.1) / 10_400)
    assert whole.by_probe[PUBLISHED[1]].value == pytest.approx(0.4)  # X-ARES has no kNN of transcripts
    (part,) = (mean for mean in mean_scores([known[0], score("A", "librispeech", 0.2)]) if mean.task == named)
    assert {*part.by_probe} == {"linear", PUBLISHED[1]}
    other_domain = replace(score("A", "clotho", 0.9), domain="own")
    assert not [mean for mean in mean_scores([known[0], other_domain]) if mean.task == named]


def test_means_computed_from_rows_of_the_published_tables_equal_the_published_means() -> None:
    expected = dict(STATED, readme=([0.694, 0.484, 0.626, 0.593], [0.504, 0.262, 0.299, 0.387]))  # .699 .490 .632 .598
    for table, stated in expected.items():
        for probe, values in enumerate(stated):
            means = dict(zip(ENCODERS, values, strict=True)) | (
                {"wav2vec2": 0.213} if (table, probe) == ("first", 1) else {}
            )
            ours = {encoder: published_mean(table, encoder, probe) for encoder in ENCODERS}
            assert ours == pytest.approx(means, abs=6e-4 if table == "readme" else 4e-3)
    alike = [published_mean("readme", encoder, 0, weighted=False) for encoder in ENCODERS]
    assert alike == pytest.approx([0.697, 0.475, 0.540, 0.450], abs=5e-4)
    assert weight("readme", "librispeech") == 10_000
    assert weight("first", "esc50") == 13


def test_the_radar_chart_has_a_corner_for_each_of_three_tasks() -> None:
    scores = [score("A", task, linear) for task, linear in (("one", 0.5), ("two", 0.7), ("three", 0.9))]
    (chart,) = radars(scores)
    lines = chart.data["lines"]
    assert [corner["task"] for corner in lines] == ["one", "two", "three", "one"]
    for vertex in lines:
        assert np.hypot(vertex["x"], vertex["y"]) == pytest.approx(vertex["score"])
    assert radars(scores[:2]) == []


def test_clip_lengths_are_counted_at_the_sampling_rate_of_the_encoder(tmp_path: Path) -> None:
    content = wav(wave(601, 0.2, 0), 2 * RATE)
    tar = write_tar(tmp_path / "one.tar", [("a.wav", content)])
    clip = Clip("test/a", "test", Member(tar, "a.wav", 512, len(content)), ("a",), "a")
    (heard,) = hear([clip], RATE)
    assert heard.samples == 301
    encoder = from_module(FramesEncoder())
    encode_own(encoder, [heard], Store(tmp_path, {}))
    assert encoder.module.calls[-1] == (1, 301)  # type: ignore[index,union-attr]


def test_published_splits_validate_on_the_test_fold_as_x_ares_does() -> None:
    turns = [(["2", "3"], "1"), (["1", "3"], "2"), (["1", "2"], "3")]
    assert published_splits(task_of()) == [Split(tuple(train), fold, fold) for train, fold in turns]
    globs = {"train": "a.tar", "valid": "b.tar", "test": "b.tar"}
    assert published_splits(task_of(folds=False, globs=globs)) == [Split(("train",), "test", "test")]


@pytest.mark.parametrize(
    ("kind", "content", "reason"),
    [
        ("npy", npy_header((10**12, 2)), "promises"),
        ("npy", b"not an array", "not an array of NumPy"),
        ("npy", npy(np.ones((2, 2), complex)), "an array of complex128"),
        ("npy", npy(np.ones(2)), "allowed: .frames, dim., equal dim"),
        ("npy", npy(np.full((2, 2), np.nan)), "holds NaN or infinity"),
        ("json", b'{"tone": "a", "tone": "b"}', "duplicate field 'tone'"),
        ("json", b"[" * 100_000, "nested too deeply"),
    ],
)  # fmt: skip
def test_damaged_or_malicious_stored_embeddings_are_bad_rows(
    tmp_path: Path, kind: str, content: bytes, reason: str
) -> None:
    folder = tmp_path / "tones" / "embeddings" / "Theirs"
    for fold in "123":
        stored(folder, fold, [(f"s{fold}-{label}0", label, number) for number, label in enumerate("abc")])
    good = {"npy": npy(np.ones((2, 2), np.float32)), "json": b'{"tone": "a"}'}
    bad = [(f"odd0.{name}", part) for name, part in (good | {kind: content}).items()]
    write_tar(folder / "tones-wds-encoded-fold-3-000001.tar", bad)
    task = task_of(recipe=Recipe(encode_batch=16, epochs=1))
    (row,) = imported._stored(task, "Theirs", folder).data.bad_rows
    assert re.search(reason, str(row)), row
    with pytest.raises(DataError, match=r"1 bad row of 10.* --allow-bad-rows"):
        list(imported.probe_stored(tmp_path, "Theirs", [task], tmp_path / "results", say=print)[0])
    assert not (tmp_path / "results").exists()


def test_the_last_field_of_a_published_probe_reply_is_the_label_after_the_last_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained(clips: object, splits: object, **_how: object) -> published.PublishedScores:
        return published.PublishedScores(np.array([3]), np.array([[[9.0, 0, 0]]]), np.array([[[0, 0, 9.0]]]))

    monkeypatch.setattr(published, "linear_probe", trained)
    results = results_of(made(tmp_path), tmp_path / "results", from_module(FramesEncoder()), task_of())
    (record,) = Run.read(results[PUBLISHED[0]].folder).records.values()
    assert record.text == "a\t1.000\tc"


def stored(folder: Path, part: str, items: Sequence[tuple[str, str, float]]) -> None:
    """Write embeddings in X-ARES' format: key with its batch number, label, and a value that fills two frames."""
    members = []
    for key, label, value in items:
        meta = json.dumps({"tone": label}).encode()
        frames = npy(np.array([[value, 1.0], [value + 2, 1.0]], np.float32))
        members += [(f"{key}.npy", frames), (f"{key}.json", meta)]
    write_tar(folder / f"tones-wds-encoded-fold-{part}-000000.tar", members)


def test_the_standard_probe_uses_only_the_first_stored_embedding_of_each_clip_key(tmp_path: Path) -> None:
    folder = tmp_path / "tones" / "embeddings" / "Theirs"
    for fold in "123":
        stored(folder, fold, [
            (f"s{fold}-a0", "a", 0.0), (f"s{fold}-a0", "a", 50.0),
            (f"s{fold}-b1", "b", 10.0), (f"s{fold}-a1", "a", 90.0),
            ("t-12", "c", 20.0), ("u-1", "c", 30.0),
        ])  # fmt: skip
    task = task_of(recipe=Recipe(encode_batch=2, epochs=1), cluster=r"^(\w+)-\w+$")
    (probed,) = imported.probe_stored(tmp_path, "Theirs", [task], tmp_path / "results", say=print)
    by_method = {result.method: result for result in probed}
    unique, released = (Run.read(by_method[name].folder).records for name in ("linear", PUBLISHED[1]))
    assert sorted(id_ for id_ in unique if id_[0] == "1") == ["1/s1-a", "1/s1-b", "1/t-1", "1/u-1"]
    assert sorted(id_ for id_ in released if id_[0] == "1") == ["1/s1-a", "1/s1-a#2", "1/s1-b", "1/t-1", "1/u-1"]
    assert {answered.cluster for answered in unique.values()} == {"s1", "s2", "s3", "t", "u"}
    embedded = imported._stored(task, "Theirs", folder)
    assert [(clip.id, row.tolist()) for clip, row in zip(*embedded.per_clip(), strict=True)][:3] == [
        ("1/s1-a", [1, 1]), ("1/s1-b", [11, 1]), ("1/t-1", [21, 1]),
    ]  # fmt: skip
    assert embedded.released()[1][:3].tolist() == [[1, 1], [11, 1], [91, 1]]
    (score_,) = task_scores([Run.read(by_method["linear"].folder)])
    assert (score_.encoder, score_.n) == ("Theirs (imported)", 12)
    (damaged,) = folder.glob("*fold-2*")
    damaged.write_bytes(b"no tar")
    for allowed, said in ((False, "fold-2-000000.tar: cut off, .*--allow-bad-rows"), (True, "no clips in 2")):
        with pytest.raises(DataError, match=said):
            list(imported.probe_stored(tmp_path, "Theirs", [task], tmp_path / "other", bad=allowed, say=print)[0])
