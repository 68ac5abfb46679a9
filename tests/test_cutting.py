"""Cutting long recordings at silences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_corpora import manifest
from task_folders import tree

from audiomarathon.cli.segment import cut_door as door
from audiomarathon.segment.cutting import Cutting, stretches

RATE = 16_000


def recording(path: Path, *spans: tuple[str, float]) -> np.ndarray:
    """Write noise and near-silence of some seconds each; return the samples."""
    rng = np.random.default_rng(0)
    loudness = {"noise": 8_000, "quiet": 20}
    parts = [rng.uniform(-1, 1, round(seconds * RATE)) * loudness[kind] for kind, seconds in spans]
    samples = np.concatenate(parts).astype(np.int16)
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, samples, RATE)
    return samples


def run(*arguments: object, code: int = 0) -> None:
    with pytest.raises(SystemExit) as ended:
        door([str(argument) for argument in arguments])
    assert ended.value.code == code


def test_a_recording_is_cut_in_its_longest_silences_without_losing_a_sample(tmp_path: Path) -> None:
    spans = zip(["noise", "quiet"] * 4, (3.2, 0.2, 1.0, 0.6, 4.5, 0.4, 3.0), strict=False)
    samples = recording(tmp_path / "raw" / "talk.wav", *spans)
    run(tmp_path / "raw", "-o", tmp_path / "cut", "--min", 3, "--max", 6)
    first, second, third = manifest(tmp_path / "cut")
    assert [row["ends_at"] for row in (first, second, third)] == ["silence", "silence", "end"]
    assert first["seconds"] == pytest.approx(4.7, abs=0.02)
    assert second["start"] / RATE + second["seconds"] == pytest.approx(9.7, abs=0.02)
    written = [soundfile.read(tmp_path / "cut" / row["path"], dtype="int16")[0] for row in (first, second, third)]
    np.testing.assert_array_equal(np.concatenate(written), samples)


def test_a_missing_input_path_is_refused_before_any_cut(tmp_path: Path, capsys: Any) -> None:
    recording(tmp_path / "talk.wav", ("noise", 5))
    run(tmp_path / "talk.wav", tmp_path / "nosuch.wav", "-o", tmp_path / "cut", "--min", 2, "--max", 3, code=2)
    assert "nosuch.wav is not a folder" in capsys.readouterr().err
    assert not (tmp_path / "cut" / "manifest.jsonl").exists()


def test_without_silence_clips_are_cut_at_the_maximum_length(tmp_path: Path) -> None:
    recording(tmp_path / "talk.wav", ("noise", 13))
    run(tmp_path / "talk.wav", "-o", tmp_path / "cut", "--min", 2, "--max", 5)
    clips = [(row["seconds"], row["ends_at"]) for row in manifest(tmp_path / "cut")]
    assert clips == [(5.0, "length"), (5.0, "length"), (3.0, "end")]


def test_a_rest_of_a_recording_shorter_than_the_minimum_length_is_left_out_and_counted(
    tmp_path: Path, capsys: Any
) -> None:
    recording(tmp_path / "a.wav", ("noise", 7.9))
    recording(tmp_path / "b.wav", ("noise", 2))
    run(tmp_path / "a.wav", tmp_path / "b.wav", "-o", tmp_path / "cut", "--min", 4, "--max", 5)
    assert [row["source"] for row in manifest(tmp_path / "cut")] == ["a.wav"]
    assert "left out: 2 x a tail too short for a clip" in capsys.readouterr().out


def test_a_folder_with_a_broken_recording_is_cut_and_can_be_resumed(tmp_path: Path) -> None:
    for number in range(3):
        recording(tmp_path / "raw" / "talks" / f"{number}.wav", ("noise", 5 + number))
    (tmp_path / "raw" / "talks" / "1.wav").write_text("no audio")
    command = (tmp_path / "raw", "-o", tmp_path / "cut", "--min", 2, "--max", 3)
    run(*command)
    whole = tree(tmp_path / "cut")
    assert {row["source"] for row in manifest(tmp_path / "cut")} == {"talks/0.wav", "talks/2.wav"}
    (tmp_path / "cut" / manifest(tmp_path / "cut")[1]["path"]).unlink()
    run(*command)
    assert tree(tmp_path / "cut") == whole
    run(*command[:-1], 4, code=2)


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 300)), min_size=1, max_size=30),
    st.integers(1, 4),
    st.integers(0, 4),
)
def test_cut_clips_are_contiguous_and_within_the_length_range(
    runs: list[tuple[bool, int]], low: int, more: int
) -> None:
    level = np.concatenate([np.full(length, 1000.0 if loud else 1.0) for loud, length in runs])
    frames, cutting = len(level) * 160, Cutting(low, low + more)
    clips = stretches(level, frames, cutting)
    assert [stretch.start for stretch in clips] == [0, *(stretch.stop for stretch in clips)][: len(clips)]
    assert all(low * RATE <= stretch.stop - stretch.start <= (low + more) * RATE for stretch in clips)
    assert frames - (clips[-1].stop if clips else 0) < low * RATE


@pytest.mark.parametrize(
    ("seconds", "stops"),
    [(310, [220, 310]), (379, [289, 379]), (400, [300, 400]), (179, [179]), (320 + 280, [300, 600])],
)
def test_a_cut_leaves_enough_audio_for_another_clip_where_possible(seconds: int, stops: list[int]) -> None:
    clips = stretches(np.full(100 * seconds, 1000.0), seconds * 1000, Cutting(90, 300, rate=1000))
    assert [stretch.stop / 1000 for stretch in clips] == stops


def test_the_silence_threshold_is_relative_to_the_loud_passages_of_a_recording() -> None:
    level = np.full(12 * 100, 2.0)
    level[::10] = 1000.0  # a tenth of it is loud
    level[450:480] = 2.0
    (first, *_) = stretches(level, 12 * 1000, Cutting(4, 6, rate=1000))
    assert (first.ends_at, first.stop) == ("silence", pytest.approx(4650, abs=100))


@pytest.mark.parametrize("change", [("--min", "0"), ("--max", "1"), ("--rate", "10"), ("--silence", "-3")])
def test_impossible_cutting_settings_are_refused(change: tuple[str, str], tmp_path: Path, capsys: Any) -> None:
    recording(tmp_path / "talk.wav", ("noise", 5))
    run(tmp_path / "talk.wav", "-o", tmp_path / "cut", *change, code=2)
    assert change[0] in capsys.readouterr().err
