"""From replies to the metric part of a summary, through the tasks: the wiring, on records worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from builders import summarise_choices
from task_folders import build_all

from audiomarathon.benchmarks import get_task
from audiomarathon.records import Record, Verdict
from audiomarathon.scoring.choice import Choice
from audiomarathon.scoring.scorer import figures_of
from audiomarathon.scoring.transcript import Transcript


def verdicts(root: Path, key: str, replies: list[str]) -> list[Verdict]:
    """Return verdicts on replies as they are on record, one for each of the task's samples."""
    task = get_task(key)
    samples = task.load(task.find(root)).samples
    records = [
        Record(sample.id, sample.cluster, reply=reply, reference=task.reference(sample))
        for sample, reply in zip(samples, replies, strict=True)
    ]
    judged = task.scorer.verdicts([Record.from_json(json.loads(json.dumps(record.to_json()))) for record in records])
    return [Verdict(verdict.record, json.loads(json.dumps(verdict.values))) for verdict in judged]


def summarise(root: Path, key: str, replies: list[str]) -> dict[str, Any]:
    return figures_of(get_task(key).scorer, verdicts(root, key, replies), seed=1)


def test_the_summary_of_a_choice_task_equals_values_by_hand(tmp_path: Path) -> None:
    """HAD: fake, fake, real, real, real; right, unparsed, right (not strictly), right, wrong."""
    build_all(tmp_path, ["had"])
    summary = summarise(tmp_path, "had", ["B", "hmm", "It is real.", "Real", "B"])
    assert summary["n"] == 5
    assert summary["unparsed"] == 1
    assert summary["accuracy"] == pytest.approx(3 / 5)
    assert summary["strict_accuracy"] == pytest.approx(2 / 5)
    # fake: 1 hit of 2, predicted twice: F1 1/2; real: 2 hits of 3, predicted twice: F1 4/5
    assert summary["score"] == summary["macro_f1"] == pytest.approx((1 / 2 + 4 / 5) / 2)
    assert set(summary["per_class"]) == {"real", "fake"}
    assert summary["as_published"]["n"] == 4
    low, high = summary["intervals"]["score"]
    assert 0 <= low <= summary["score"] <= high <= 1


def test_choice_scores_are_averaged_by_label_not_by_letter(tmp_path: Path) -> None:
    """TAU rotates its options: ten right answers stand under four letters, but are ten classes."""
    build_all(tmp_path, ["tau"])
    task = get_task("tau")
    answers = [sample.answer for sample in task.load(task.find(tmp_path)).samples]
    summary = summarise(tmp_path, "tau", answers)
    assert len(summary["per_class"]) == 10
    assert summary["score"] == 1


def test_reading_comprehension_scores_are_averaged_by_letter(tmp_path: Path) -> None:
    build_all(tmp_path, ["race"])
    summary = summarise(tmp_path, "race", ["A", "B", "C"])
    assert set(summary["per_class"]) == {"A", "B", "D"}
    assert summary["accuracy"] == pytest.approx(2 / 3)


def test_the_summary_of_a_transcription_task_equals_values_by_hand(tmp_path: Path) -> None:
    """GO ON; WHAT A PITY; THE NEW YEAR: one word substituted, one deleted, of eight."""
    build_all(tmp_path, ["librispeech"])
    replies = ["Go on!", "what a city", "new year"]
    scored = [verdict.values for verdict in verdicts(tmp_path, "librispeech", replies)]
    assert [errors["errors"] for errors in scored] == [0, 1, 1]
    assert [errors["words"] for errors in scored] == [2, 3, 3]
    assert (scored[1]["substitutions"], scored[2]["deletions"]) == (1, 1)
    summary = summarise(tmp_path, "librispeech", replies)
    assert summary["wer"] == pytest.approx(2 / 8)
    assert summary["mean_wer"] == pytest.approx((0 + 1 / 3 + 1 / 3) / 3)
    assert summary["score"] == pytest.approx(6 / 8)
    assert summary["n"] == 3


@pytest.mark.parametrize("reference", [{}, {"answer": "A"}, {"answer": "A", "options": None}])
def test_a_choice_record_without_a_reference_is_refused_by_the_scorer(reference: dict[str, Any]) -> None:
    """A run sets it aside, as what it would be judged by is not on record."""
    assert not get_task("tau").scorer.fits(Record("a", reply="A", reference=reference))


def test_a_transcription_record_without_a_reference_is_refused_by_the_scorer() -> None:
    scorer = get_task("librispeech").scorer
    assert not scorer.fits(Record("a", reply="words", reference={}))
    assert scorer.fits(Record("a", reply="words", reference={"answer": "words"}))
    assert scorer.fits(Record("a", error="AudioError: no sound"))  # which is not judged


@pytest.mark.parametrize(("answers", "said"), [("AAAA", True), ("AABB", False), ("ABCD", False)])
def test_the_summary_notes_if_all_samples_are_of_one_class(answers: str, said: bool) -> None:
    truth = list(answers.lower())
    notes = summarise_choices(truth, truth, [True] * 4, list("wxyz"), seed=1)["notes"]
    assert bool(notes) is said
    assert all("one class (a)" in note for note in notes)


def test_chance_is_the_mean_over_questions_of_one_divided_by_the_option_count() -> None:
    """Two options, then four: (1/2 + 1/4) / 2."""
    records = [Record(str(count), reference={"options": ["x"] * count}) for count in (2, 4)]
    assert Choice().chance([Verdict(record, {}) for record in records]) == pytest.approx(0.375)


@pytest.mark.parametrize(("words", "errors", "score"), [(4, 1, 0.75), (2, 3, 0.0), (0, 0, 1.0), (0, 2, 0.0)])
def test_the_score_of_a_single_transcript_equals_values_by_hand(words: int, errors: int, score: float) -> None:
    assert Transcript().own_score(Verdict(Record("a"), {"words": words, "errors": errors})) == score
