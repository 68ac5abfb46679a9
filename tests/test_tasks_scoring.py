"""From replies to the metric part of a summary, through the tasks: the wiring, on records worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from task_folders import build_all

from audiomarathon.errors import DataError
from audiomarathon.tasks import get_task


def records(root: Path, key: str, replies: list[str]) -> list[dict[str, Any]]:
    """Return records as a run stores them, scored, one for each of the task's samples."""
    task = get_task(key)
    samples = task.load(task.find(root)).samples
    stored: list[dict[str, Any]] = []
    for sample, reply in zip(samples, replies, strict=True):
        reference: Mapping[str, Any] = task.reference(sample)
        stored.append(
            {"id": sample.id, "cluster": sample.cluster, "reply": reply, "reference": reference}
            | task.score(reply, reference)
        )
    return json.loads(json.dumps(stored))  # type: ignore[no-any-return]


def test_choice_summary(tmp_path: Path) -> None:
    """HAD: fake, fake, real, real, real; right, unparsed, right (not strictly), right, wrong."""
    build_all(tmp_path, ["had"])
    summary = get_task("had").summarise(records(tmp_path, "had", ["B", "hmm", "It is real.", "Real", "B"]), seed=1)
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


def test_choices_are_averaged_by_label_not_by_letter(tmp_path: Path) -> None:
    """TAU rotates its options: ten right answers stand under four letters, but are ten classes."""
    build_all(tmp_path, ["tau"])
    task = get_task("tau")
    answers = [sample.answer for sample in task.load(task.find(tmp_path)).samples]
    summary = task.summarise(records(tmp_path, "tau", answers))
    assert len(summary["per_class"]) == 10
    assert summary["score"] == 1


def test_reading_comprehension_is_averaged_by_letter(tmp_path: Path) -> None:
    build_all(tmp_path, ["race"])
    summary = get_task("race").summarise(records(tmp_path, "race", ["A", "B", "C"]))
    assert set(summary["per_class"]) == {"A", "B", "D"}
    assert summary["accuracy"] == pytest.approx(2 / 3)


def test_transcription_summary(tmp_path: Path) -> None:
    """GO ON; WHAT A PITY; THE NEW YEAR: one word substituted, one deleted, of eight."""
    build_all(tmp_path, ["librispeech"])
    scored = records(tmp_path, "librispeech", ["Go on!", "what a city", "new year"])
    assert [record["errors"] for record in scored] == [0, 1, 1]
    assert [record["words"] for record in scored] == [2, 3, 3]
    assert (scored[1]["substitutions"], scored[2]["deletions"]) == (1, 1)
    summary = get_task("librispeech").summarise(scored)
    assert summary["wer"] == pytest.approx(2 / 8)
    assert summary["mean_wer"] == pytest.approx((0 + 1 / 3 + 1 / 3) / 3)
    assert summary["score"] == pytest.approx(6 / 8)
    assert summary["n"] == 3


@pytest.mark.parametrize("reference", [{}, {"answer": "A"}, {"answer": "A", "options": None}])
def test_a_record_without_its_reference_is_a_data_error(reference: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"tau: .*reference lacks"):
        get_task("tau").score("A", reference)


def test_a_transcription_record_without_its_reference_is_a_data_error() -> None:
    with pytest.raises(DataError, match=r"librispeech: .*reference lacks"):
        get_task("librispeech").score("words", {})
