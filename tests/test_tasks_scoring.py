"""From replies to the metrics of a summary, through each task's scorer, on records computed by hand."""

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
    """Return verdicts on replies as read from JSON, one for each of the task's samples."""
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
    """HAD has fake, fake, real, real, real. Replies are right, unparsed, right (not strictly), right, wrong."""
    build_all(tmp_path, ["had"])
    summary = summarise(tmp_path, "had", ["B", "hmm", "It is real.", "Real", "B"])
    # fake: 1 hit of 2, predicted twice: F1 1/2; real: 2 hits of 3, predicted twice: F1 4/5
    macro_f1 = (1 / 2 + 4 / 5) / 2
    expected = {"n": 5, "unparsed": 1, "accuracy": 3 / 5, "strict_accuracy": 2 / 5}
    expected |= {"macro_f1": macro_f1, "score": macro_f1}
    assert {name: summary[name] for name in expected} == pytest.approx(expected)
    assert (set(summary["per_class"]), summary["as_published"]["n"]) == ({"real", "fake"}, 4)
    low, high = summary["intervals"]["score"]
    assert 0 <= low <= summary["score"] <= high <= 1


def test_choice_scores_average_over_class_labels_or_else_over_answer_letters(tmp_path: Path) -> None:
    """TAU rotates its options: ten right answers have only four letters, but ten classes."""
    build_all(tmp_path, ["tau", "race"])
    task = get_task("tau")
    summary = summarise(tmp_path, "tau", [sample.answer for sample in task.load(task.find(tmp_path)).samples])
    assert (len(summary["per_class"]), summary["score"]) == (10, 1)
    summary = summarise(tmp_path, "race", ["A", "B", "C"])
    assert set(summary["per_class"]) == {"A", "B", "D"}
    assert summary["accuracy"] == pytest.approx(2 / 3)


def test_the_summary_of_a_transcription_task_equals_values_by_hand(tmp_path: Path) -> None:
    """GO ON; WHAT A PITY; THE NEW YEAR: one word substituted, one deleted, of eight."""
    build_all(tmp_path, ["librispeech"])
    replies = ["Go on!", "what a city", "new year"]
    scored = [verdict.values for verdict in verdicts(tmp_path, "librispeech", replies)]
    counts = ("errors", "words", "substitutions", "deletions")
    assert [[errors[name] for name in counts] for errors in scored] == [[0, 2, 0, 0], [1, 3, 1, 0], [1, 3, 0, 1]]
    summary = summarise(tmp_path, "librispeech", replies)
    expected = {"n": 3, "wer": 2 / 8, "mean_wer": (0 + 1 / 3 + 1 / 3) / 3, "score": 6 / 8}
    assert {name: summary[name] for name in expected} == pytest.approx(expected)


def test_the_scorer_refuses_records_whose_reference_lacks_the_answer_or_options() -> None:
    """A run sets such records aside."""
    choice, transcript = get_task("tau").scorer, get_task("librispeech").scorer
    for reference in ({}, {"answer": "A"}, {"answer": "A", "options": None}):
        assert not choice.fits(Record("a", reply="A", reference=reference))
    assert not transcript.fits(Record("a", reply="words", reference={}))
    assert transcript.fits(Record("a", reply="words", reference={"answer": "words"}))
    assert transcript.fits(Record("a", error="AudioError: no sound"))  # errors are not judged


def test_the_summary_notes_if_all_samples_are_of_one_class() -> None:
    for answers, words in (("aaaa", "one class (a)"), ("aabb", ""), ("abcd", "")):
        notes = summarise_choices([*answers], [*answers], [True] * 4, list("wxyz"), seed=1)["notes"]
        assert words in "".join(notes)
        assert bool(notes) == bool(words)


def test_chance_is_the_mean_over_questions_of_one_divided_by_the_option_count() -> None:
    """Two options, then four: (1/2 + 1/4) / 2."""
    records = [Record(str(count), reference={"options": ["x"] * count}) for count in (2, 4)]
    assert Choice().chance([Verdict(record, {}) for record in records]) == pytest.approx(0.375)


def test_the_score_of_a_single_transcript_equals_values_by_hand() -> None:
    for (words, errors), score in {(4, 1): 0.75, (2, 3): 0.0, (0, 0): 1.0, (0, 2): 0.0}.items():
        assert Transcript().own_score(Verdict(Record("a"), {"words": words, "errors": errors})) == score
