"""JASCO's own controls: texts in place of the audio, and clips rotated so that the speech comes first or last."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from builders import records_in
from conftest import call, succeed
from jasco_folders import TEXTS, build_jasco, edit

from audiomarathon.audio import voice_activity
from audiomarathon.audio.decode import decode
from audiomarathon.audio.voice_activity import find_speech
from audiomarathon.benchmarks import Loaded, get_task
from audiomarathon.benchmarks.manifest import read_manifest
from audiomarathon.errors import SettingsError
from audiomarathon.wings.jasco.speech import FIRST, LAST, read_speech, rotate, turn_clip, turned
from audiomarathon.wings.jasco.task import INSTRUCTIONS

TASK = get_task("jasco")
RATE = 16_000
FADE = RATE // 50
SPEECH = (3.0, 4.5)  # the seconds of a 6 s clip with a burst of noise over a quiet hum


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return build_jasco(tmp_path / "clone")


def varied(root: Path, control: str) -> Loaded:
    """Return the task's samples under a control."""
    out = root.parent / "controls"
    succeed("data", "controls", "jasco", "--control", control, "--data", root, "-o", out)
    return TASK.load(TASK.find(out / control))


def write_speech(root: Path, *lines: str) -> Path:
    file = root / "dataset" / "v0" / "speech.csv"
    file.write_text("\n".join(["id,start,end", *lines]) + "\n", encoding="utf-8")
    return file


def bursts(*spans: tuple[float, float]) -> np.ndarray:
    rng, time = np.random.default_rng(0), np.arange(6 * RATE) / RATE
    loud = np.zeros(len(time))
    for start, end in spans:
        loud[round(start * RATE) : round(end * RATE)] = 0.3
    return (0.01 * np.sin(2 * np.pi * 200.3 * time) + loud * rng.standard_normal(len(time))).astype(np.float32)


def loud_parts(samples: np.ndarray) -> list[tuple[float, float]]:
    """Return the start and end of each loud part, in steps of 10 ms."""
    step = RATE // 100
    loud = np.sqrt((samples[: len(samples) // step * step].reshape(-1, step) ** 2).mean(axis=1)) > 0.1
    edges = np.flatnonzero(np.diff(np.concatenate([[False], loud, [False]])))
    return [(float(start) / 100, float(end) / 100) for start, end in edges.reshape(-1, 2)]


class TestTexts:
    SOUND = "The audio sound is: Waves crashing,seagulls 2."
    SPOKEN = 'The spoken text is: "Let’s build a castle over there. 2"'

    @pytest.mark.parametrize(
        ("control", "told"),
        [("text-both", f"{SOUND} {SPOKEN}\n"), ("text-sound", f"{SOUND}\n"), ("text-speech", f"{SPOKEN}\n")],
    )
    def test_text_controls_replace_the_audio_by_a_text_before_the_instruction(
        self, root: Path, control: str, told: str
    ) -> None:
        plain, loaded = TASK.load(TASK.find(root)), varied(root, control)
        questions = [sample for sample in loaded.samples if sample.cluster == "2"]
        assert [TASK.prompt(sample) for sample in questions] == [told + question for question in INSTRUCTIONS]
        assert list(map(TASK.reference, loaded.samples)) == list(map(TASK.reference, plain.samples))
        assert (len(loaded.samples), loaded.bad_rows, {sample.clips for sample in loaded.samples}) == (24, (), {()})
        assert dict(read_manifest(loaded.folder).control) == {"kind": control, "seconds": None, "seed": 42}

    def test_the_prompt_of_a_text_control_holds_the_sound_description_exactly_as_in_the_table(self, root: Path) -> None:
        odd = 'a {bit}\n"of" %s\\n é'
        edit(root, lambda rows: rows[1].__setitem__(1, odd))
        first = varied(root, "text-sound").samples[0]
        assert TASK.prompt(first) == f"The audio sound is: {odd}.\n{INSTRUCTIONS[0]}"

    def test_text_controls_can_be_run_verified_and_reported(self, root: Path, tmp_path: Path, no_env: object) -> None:
        data, out = varied(root, "text-both").folder.parent, tmp_path / "out"
        succeed("data", "verify", "jasco", "--data", data)
        place = ("--model", "embedded", "--data", data, "--results", out)
        succeed("run", "jasco", *place, "--max-new-tokens", 2, "--limit", 9)
        folder = out / "jasco" / "embedded" / "base-0"
        facts = ("control", "clip_seconds", "audio_tokens", "error")
        assert {tuple(record[name] for name in facts) for record in records_in(folder)} == {("text-both", 0, 0, None)}
        summary = json.loads((folder / "summary.json").read_text())
        assert (summary["n"], summary["control"]["kind"]) == (16, "text-both")
        succeed("report", out, "-o", tmp_path / "report.html")
        assert f"The audio sound is: {TEXTS['audio_sound']}" in (tmp_path / "report.html").read_text()
        for command in (("durations", "jasco"), ("card", "jasco", "-o", tmp_path / "card")):
            succeed("data", *command, "--data", data)
        succeed("status", out)
        for refused in (("jasco", "example"), ("explain", "jasco:1-p1", "--model", "embedded")):
            code, output = call(*refused, "--data", data, "-o", tmp_path / "none.png")
            assert code == 2
            assert "has no clip" in output

    def test_a_limited_download_of_text_control_data_keeps_the_control_prompts(
        self, root: Path, tmp_path: Path
    ) -> None:
        data = varied(root, "text-sound").folder.parent
        assert call("data", "download", "jasco", "--from", data, "--limit", 8, "--data", tmp_path / "part")[0] == 0
        part = TASK.load(TASK.find(tmp_path / "part"))
        assert [TASK.prompt(sample).count("The audio sound is: ") for sample in part.samples] == [1] * 8


class TestRotation:
    @pytest.mark.parametrize("shift", [1, 7, FADE, 3 * RATE, 6 * RATE - 1])
    def test_rotating_a_clip_changes_audio_samples_only_around_the_seam(self, shift: int) -> None:
        samples = bursts(SPEECH)
        made, seam = rotate(samples, shift, FADE), len(samples) - shift
        same = made == np.roll(samples, -shift)
        assert (made.dtype, len(made)) == (samples.dtype, len(samples))
        assert same[: max(0, seam - FADE // 2)].all()
        assert same[seam + FADE // 2 :].all()
        assert np.array_equal(np.roll(samples, 1), rotate(samples, -1, 0))

    def test_rotating_a_clip_by_zero_or_its_whole_length_leaves_it_unchanged(self) -> None:
        for shift in (0, 6 * RATE):
            assert np.array_equal(rotate(bursts(SPEECH), shift, FADE), bursts(SPEECH))

    def test_rotating_a_clip_makes_no_click_at_the_seam_and_keeps_the_level(self) -> None:
        rising = np.linspace(-0.5, 0.5, RATE).astype(np.float32)  # its end is 1.0 above its start
        made = rotate(rising, RATE // 2, FADE)
        assert np.abs(np.diff(made)).max() < 1.2 / FADE
        assert np.abs(made).max() <= 0.5
        assert np.allclose(rotate(np.full(RATE, 0.25, np.float32), 100, FADE), 0.25)

    @pytest.mark.parametrize("spans", [[SPEECH], [(1.0, 1.5), (3.0, 4.5)], [(0.0, 1.0)], [(5.0, 6.0)]])
    def test_rotating_a_clip_brings_the_speech_to_its_start_or_its_end(self, spans: list[tuple[float, float]]) -> None:
        for control in (FIRST, LAST):
            heard = loud_parts(turn_clip(bursts(*spans), RATE, spans, control))
            assert (heard[0][0] if control == FIRST else 6 - heard[-1][1]) == pytest.approx(0, abs=0.011)
            assert np.array(heard) == pytest.approx(np.array(turned(spans, 6.0, control)), abs=0.011)

    def test_clips_without_speech_are_not_rotated_in_the_control_data(self, root: Path) -> None:
        clip = root / "dataset" / "v0" / "2.wav"
        soundfile.write(clip, bursts(SPEECH), RATE, subtype="PCM_16")
        write_speech(root, "2,3.000,4.500")
        assert call("data", "verify", "jasco", "--data", root)[1].count("v0.csv") == 0
        plain = TASK.load(TASK.find(root)).samples
        for control in (FIRST, LAST):
            samples = varied(root, control).samples
            assert [TASK.prompt(sample) for sample in samples] == [TASK.prompt(sample) for sample in plain]
            (heard,) = loud_parts(decode(samples[8].clips[0], RATE))
            assert heard == pytest.approx((0.0, 1.5) if control == FIRST else (4.5, 6.0), abs=0.011)
            for old, new in ((plain[0], samples[0]), (plain[16], samples[16])):
                assert np.array_equal(decode(old.clips[0], RATE), decode(new.clips[0], RATE))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (None, "speech.csv: is missing; next: audiomarathon jasco speech --data "),
        (["1,0.5,1", "2,x,1"], "speech.csv, line 3: start and end must be seconds"),
        (["1,0.5,0.5"], "speech.csv, line 2: start and end must be seconds"),
        (["1,0.5,1", "99,0.5,1"], "speech.csv: v0.csv has no clip '99'"),
        (["1,500,1000"], "speech.csv has speech from 500 s on in a clip of 2.00 s"),
    ],
)
def test_missing_or_invalid_speech_times_for_a_rotation_control_give_a_one_line_error(
    root: Path, tmp_path: Path, lines: Any, message: str
) -> None:
    if lines is not None:
        write_speech(root, *lines)
    code, output = call("data", "controls", "jasco", "--control", FIRST, "--data", root, "-o", tmp_path / "out")
    assert (code, message in output) == (2, True), output
    assert not (tmp_path / "out" / FIRST).exists()


class TestFinding:
    def test_the_speech_command_writes_a_file_of_speech_times_that_the_jasco_task_can_read(
        self, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lengths = {"1": ((0.25, 0.5), (1.0, 1.25)), "2": (), "10": ((0.0, 2.0),)}
        told = iter(lengths.values())
        monkeypatch.setattr(voice_activity, "find_speech", lambda samples, rate: next(told))
        code, output = call("jasco", "speech", "--data", root)
        assert (code, "speech in 41.7% of the audio; clips without speech: 2" in output) == (0, True), output
        file = root / "dataset" / "v0" / "speech.csv"
        assert file.read_text() == "id,start,end\n1,0.250,0.500\n1,1.000,1.250\n10,0.000,2.000\n"
        assert read_speech(file) == {id_: spans for id_, spans in lengths.items() if spans}
        assert "contains no clips" in call("jasco", "speech", "--data", varied(root, "text-both").folder)[1]

    def test_the_speech_command_without_the_vad_package_names_the_pip_command(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "silero_vad", None)
        voice_activity._detector.cache_clear()
        with pytest.raises(SettingsError, match=r"pip install 'audiomarathon\[vad\]'"):
            find_speech(np.zeros(RATE, np.float32), RATE)
