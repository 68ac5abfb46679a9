"""A sweep's summary: each setting's difference from base, printed and written. Metrics: test_consistent_numbers.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from builders import STAGES, a_run, changed_records, finished, records_in, write_records
from rich.console import Console

from audiomarathon.report.sweep_report import print_outcome, write_outcome
from audiomarathon.results.sweep_summary import Outcome, read_outcome


def ran(root: Path, label: str, right: str, **more: Any) -> Path:
    """Write a finished run whose n-th sample is right (1) or wrong (0); two samples a cluster."""
    sizes = {"complete": True, "timing": {}, "audio_tokens": 10, "kept_audio_tokens": 5, "kv_bytes": 90}
    folder = a_run(root, label, [mark == "1" for mark in right], **more)
    write_records(folder, [record | {"cluster": f"c{n // 2}"} for n, record in enumerate(records_in(folder))])
    return finished(folder, **sizes)


def shown(outcome: Outcome) -> str:
    print_outcome(outcome, console := Console(width=200, record=True))
    return console.export_text()


def test_a_rise_in_word_error_rate_lowers_the_score_difference_from_base_as_much(tmp_path: Path) -> None:
    words = ["the", "quick", "brown", "fox", "jumps", "over", "that", "lazy", "old", "dog"]
    for label, said in (("base-0", words), ("frame-0.5", words[5:])):
        folder = ran(tmp_path, label, "1111", task="librispeech")
        changed_records(folder, reply=" ".join(said), reference={"answer": " ".join(words)})
    _base, frame = read_outcome(tmp_path, seed=42).groups["M", "librispeech"]
    assert (frame.against_base["wer"]["difference"], frame.against_base["score"]["difference"]) == (0.5, -0.5)
    assert "accuracy" not in frame.against_base


def test_the_sweep_table_shows_the_number_of_samples_with_comparable_times(tmp_path: Path) -> None:
    for label in ("base-0", "frame-0.5"):
        folder = changed_records(ran(tmp_path, label, "1100"), session="now", time=STAGES)
        first, *rest = records_in(folder)  # as after a resume: base and frame timed this sample in different sessions
        write_records(folder, [first | {"session": label}, *rest])
    base, frame = shown(read_outcome(tmp_path, seed=42)).splitlines()[-3:-1]
    assert "n 3" not in base
    assert "n 3" in frame


def test_differences_from_base_are_printed_and_written_to_summary_json(tmp_path: Path) -> None:
    for task, base, frame in (("tau", "1100", "1111"), ("gtzan", "11", "00")):
        ran(tmp_path, "base-0", base, task=task)
        ran(tmp_path, "frame-0.5", frame, task=task)
    outcome = read_outcome(tmp_path, seed=42)
    assert all(words in shown(outcome) for words in ("score − base [95 %]", "+0.583 [", "-1.000 [–]"))
    write_outcome(outcome, tmp_path, "toy-model")
    results = json.loads((tmp_path / "summary.json").read_text())["results"]
    assert sorted((row["task"], row["setting"], row["against_base"]["samples"]) for row in results) == [
        ("gtzan", "base-0", 2), ("gtzan", "frame-0.5", 2), ("tau", "base-0", 4), ("tau", "frame-0.5", 4)
    ]  # fmt: skip


def test_each_model_checkpoint_has_separate_tables(tmp_path: Path) -> None:
    ran(tmp_path, "base-0", "11", checkpoint="other")
    ran(tmp_path, "frame-0.5", "11", checkpoint="toy")
    outcome = read_outcome(tmp_path, seed=42)
    assert all(f"Scores and times (medians), {name}" in shown(outcome) for name in ("other", "toy"))
    assert outcome.groups["toy", "tau"][0].against_base is None
