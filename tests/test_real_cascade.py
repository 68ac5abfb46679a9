"""Whisper base and SmolLM2-135M as one system, on questions about real speech and on JASCO-shaped clips."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import real_recordings
from builders import lines_of
from conftest import call, succeed
from real_weights import real_weights

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts" / "real"))

import cascade
import speech

pytestmark = pytest.mark.real


def cascaded(data: Path, results: Path, *tasks: object) -> list[Path]:
    """Transcribe two samples per task with all encoder states and with a fifth, and answer; return the runs."""
    where = ("--data", data, "--results", results, "--limit", 2, "--max-new-tokens", 16)
    whisper = ("--model", "whisper-base", "--model-path", real_weights("whisper-base"), "--at", "input")
    assert call("transcribe", *tasks, *whisper, "--methods", "frame:0.8", *where[:-2])[0] == 0
    succeed("cascade", results / "transcripts", *tasks, "--with", real_weights("smollm2-135m-instruct"), *where)
    return sorted(results.glob("**/whisper-base+smollm2-135m-instruct/*"))


@pytest.mark.skipif(not speech.prompts(), reason=f"apt-get install {speech.packages('en')}")
def test_the_cascade_answers_questions_about_speech_from_its_transcript(tmp_path: Path) -> None:
    tasks = cascade.write(tmp_path / "data")
    said = {clip.name: " ".join(clip.texts).lower() for clip in cascade.clips()}
    runs = cascaded(tmp_path / "data", tmp_path / "results", *tasks)
    assert [run.name for run in runs] == ["base-0", "frame-0.8-input"] * 4
    for run in runs:
        for record in lines_of(run / "samples.jsonl"):
            heard = set(record["transcripts_read"][0].lower().replace(".", " ").replace(",", " ").split())
            words = set(said[record["id"].rpartition("-")[0]].replace(".", " ").replace(",", " ").split())
            assert len(heard & words) > 0.6 * len(words)
            assert record["time"]["prefill"] > record["time"]["encoder"] > 0.1
    assert {json.loads((run / "summary.json").read_text())["n"] for run in runs} == {2}


def test_the_cascade_records_a_reply_to_every_jasco_sample(tmp_path: Path) -> None:
    real_recordings.build_jasco(tmp_path / "data")
    runs = cascaded(tmp_path / "data", tmp_path / "results", "jasco")
    assert [len(lines_of(run / "samples.jsonl")) for run in runs] == [8, 8]
