"""Settings beside base: paired differences of scores, on made-up records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from builders import (
    STAGES,
    a_failed_record,
    a_record,
    a_verdict,
    changed,
    changed_records,
    records_in,
    write_records,
    write_run,
)
from rich.console import Console

from audiomarathon.report.sweep_report import print_outcome, write_outcome
from audiomarathon.results.sweep_summary import Finished, read_outcome

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "that", "lazy", "old", "dog"]


def choice(id_: str, right: bool) -> dict[str, Any]:
    """The verdict on a sample; the true answer is B in every third one."""
    return a_verdict("B" if int(id_[1:]) % 3 == 0 else "A", ["A", "B"], right=right)


def transcript(_id: str, right: bool) -> dict[str, Any]:
    """Ten words, of which a wrong reply lacks five."""
    return {"reference": {"answer": " ".join(WORDS)}, "reply": " ".join(WORDS if right else WORDS[5:])}


def ran(root: Path, task: str, label: str, right: str, *, make: Any = choice, **identity: Any) -> None:
    """A run whose n-th sample is right (1), wrong (0) or failed (-); two samples a cluster."""
    sizes = {"audio_tokens": 10, "kept_audio_tokens": 5, "kv_lengths": [9], "kv_bytes": 90}
    records = [
        a_failed_record(f"s{n}", cluster=f"c{n // 2}")
        if mark == "-"
        else a_record(f"s{n}", cluster=f"c{n // 2}", **sizes) | make(f"s{n}", mark == "1")
        for n, mark in enumerate(right)
    ]
    method, ratio = label.split("-")[:2]
    run_identity = {"method": method, "ratio": float(ratio), "seed": 42, "device": "gpu"} | identity
    facts = {"schema_version": 2, "task": task, "method": label, "checkpoint": "/m/toy", "identity": run_identity}
    summary = {
        "task": task, "complete": True, "errors": right.count("-"), "n": len(right) - right.count("-"), "score": 0.5,
        "expected": len(right), "timing": {}, "audio_tokens": 10, "kept_audio_tokens": 5, "kv_bytes": 90,
    }  # fmt: skip
    write_run(root / task / "toy" / label, facts, records, summary)


def group(root: Path, task: str = "tau", seed: int = 42) -> list[Finished]:
    """The finished settings of a task, base first."""
    return read_outcome(root, seed=seed).groups["toy", task]


class TestAgainstBase:
    def test_the_accuracy_difference_and_interval_equal_values_computed_by_hand(self, tmp_path: Path) -> None:
        ran(tmp_path, "tau", "base-0", "11110000")
        ran(tmp_path, "tau", "frame-0.5", "11111100")
        base, frame = group(tmp_path)
        assert frame.against_base is not None
        assert frame.against_base["samples"] == 8
        assert frame.against_base["accuracy"]["difference"] == 0.25
        low, high = frame.against_base["accuracy"]["interval"]
        assert (low, high) == (0.0, pytest.approx(1.0, abs=0.3))  # one cluster of four was mended
        assert frame.against_base["score"] == frame.against_base["macro_f1"]
        assert base.against_base is not None
        assert base.against_base["score"] == {"difference": 0.0, "interval": [0.0, 0.0]}

    def test_score_of_transcripts_falls_as_wer_rises(self, tmp_path: Path) -> None:
        ran(tmp_path, "librispeech", "base-0", "1111", make=transcript)
        ran(tmp_path, "librispeech", "frame-0.5", "1100", make=transcript)
        _base, frame = group(tmp_path, "librispeech")
        assert frame.against_base is not None
        assert frame.against_base["wer"]["difference"] == pytest.approx(0.25)
        assert frame.against_base["score"]["difference"] == pytest.approx(-0.25)
        assert "accuracy" not in frame.against_base

    def test_the_number_of_samples_with_compared_times_is_shown_in_the_table(self, tmp_path: Path) -> None:
        for label in ("base-0", "frame-0.5"):
            ran(tmp_path, "tau", label, "1100")
            folder = changed_records(tmp_path / "tau" / "toy" / label, session="now", time=STAGES)
            first, *rest = records_in(folder)  # resumed: the two sides of one sample were not timed together
            write_records(folder, [first | {"session": label}, *rest])
        console = Console(width=200, record=True)
        print_outcome(read_outcome(tmp_path, seed=42), console)
        base, frame = console.export_text().splitlines()[-3:-1]
        assert ("n 3" in base, "n 3" in frame) == (False, True)


def test_differences_from_base_are_printed_and_written(tmp_path: Path) -> None:
    for task, base, frame in (("tau", "1100", "1111"), ("gtzan", "11", "00")):
        ran(tmp_path, task, "base-0", base)
        ran(tmp_path, task, "frame-0.5", frame)
    outcome, console = read_outcome(tmp_path, seed=42), Console(width=200, record=True)
    print_outcome(outcome, console)
    shown = console.export_text()
    for words in ("score − base [95 %]", "+0.500 [", "-1.000 [–]"):
        assert words in shown
    write_outcome(outcome, tmp_path, "toy-model")
    results = json.loads((tmp_path / "summary.json").read_text())["results"]
    assert {(result["task"], result["setting"]): result["against_base"]["samples"] for result in results} == {
        ("tau", "base-0"): 4, ("tau", "frame-0.5"): 4, ("gtzan", "base-0"): 2, ("gtzan", "frame-0.5"): 2,
    }  # fmt: skip


def test_each_model_checkpoint_has_separate_tables(tmp_path: Path) -> None:
    ran(tmp_path, "tau", "base-0", "11")
    (tmp_path / "tau" / "toy").rename(tmp_path / "tau" / "other")
    changed(tmp_path / "tau" / "other" / "base-0", checkpoint="/m/other")
    ran(tmp_path, "tau", "frame-0.5", "11")
    outcome = read_outcome(tmp_path, seed=42)
    console = Console(width=200, record=True)
    print_outcome(outcome, console)
    shown = console.export_text()
    assert "Scores and times (medians), other" in shown
    assert "Scores and times (medians), toy" in shown
    assert outcome.groups["toy", "tau"][0].against_base is None
