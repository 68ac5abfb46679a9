"""Builders on real recordings at the lengths that users get."""

from __future__ import annotations

from pathlib import Path

import pytest
import soundfile
from raw_corpora import left_out, manifest
from real_recordings import PROMPT_PACKAGES, librispeech_text, prompts, recordings

from audiomarathon.audio.decode import decode
from audiomarathon.benchmarks import get_task
from audiomarathon.cli.segment import door


def built(task: str, raw: Path, folder: Path) -> Path:
    with pytest.raises(SystemExit) as ended:
        door(task, [str(raw), "-o", str(folder)])
    assert ended.value.code == 0
    return folder


def test_a_corpus_built_of_real_ambience_loads_as_a_clip_of_its_task(tmp_path: Path) -> None:
    """44.1 kHz stereo; the recordings are of no urban scene, so the label means nothing."""
    (tmp_path / "raw" / "audio").mkdir(parents=True)
    lines = ["filename\tscene_label\tidentifier\tsource_label"]
    for number, recording in enumerate(recordings("ambience")):
        name = f"audio/park-lisbon-1-{number:05d}-a.ogg"
        (tmp_path / "raw" / name).symlink_to(recording)
        lines.append(f"{name}\tpark\tlisbon-1\ta")
    (tmp_path / "raw" / "meta.csv").write_text("\n".join(lines) + "\n")
    folder = built("tau", tmp_path / "raw", tmp_path / "data" / "TAU")
    (clip,) = manifest(folder)
    assert 90 <= clip["seconds"] <= 210
    loaded = get_task("tau").load(folder)
    (sample,) = loaded.samples
    assert (loaded.bad_rows, sample.cluster) == ((), "park-lisbon-1")
    assert len(decode(sample.clips[0], 16_000)) == pytest.approx(16_000 * clip["seconds"])


def test_real_speech_clips_are_joined_to_long_clips_with_joined_transcripts(tmp_path: Path) -> None:
    if not prompts():
        pytest.skip(f"no voice prompts: apt-get install {PROMPT_PACKAGES}")
    chapter = tmp_path / "LibriSpeech" / "dev-clean" / "1" / "10"
    chapter.mkdir(parents=True)
    lines = []
    for number, (prompt, text) in enumerate(list(prompts().items())[:60]):
        samples, rate = soundfile.read(prompt, dtype="int16")
        soundfile.write(chapter / f"1-10-{number:04d}.flac", samples, rate)
        lines.append(f"1-10-{number:04d} {librispeech_text(text)}")
    (chapter / "1-10.trans.txt").write_text("\n".join(lines) + "\n")
    folder = built("librispeech", tmp_path / "LibriSpeech", tmp_path / "built")
    loaded = get_task("librispeech").load(folder)
    assert loaded.bad_rows == ()
    assert all(60 <= row["seconds"] <= 240 for row in manifest(folder))
    used = [line.partition(" ")[2] for line in lines if not any(line[:9] in path for path in left_out(folder))]
    assert " ".join(sample.answer for sample in loaded.samples) == " ".join(used)
