"""Control data sets: clips of one length, silence, noise and mismatched audio."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
from builders import records_in
from conftest import call, succeed
from task_folders import BUILDERS, COUNTS, build_all, edit_rows, tree, write_json

import audiomarathon
from audiomarathon.audio.decode import decode, probe
from audiomarathon.audio.noise import background, noise_like
from audiomarathon.benchmarks import get_task
from audiomarathon.benchmarks.manifest import read_manifest
from audiomarathon.data.controls import _partner, _Variant, window
from audiomarathon.embedded.mini_benchmark import generate
from audiomarathon.errors import RecordError
from audiomarathon.report.controls import control_runs


@pytest.mark.parametrize(
    ("length", "seconds", "events", "start"),
    [
        (90, 30, [], 0),
        (90, 30, [(0, 2)], 0),  # an event at the start stays at the start
        (90, 30, [(88, 90)], 60),  # likewise at the end
        (90, 30, [(44, 46)], 30),
        (90, 120, [(44, 46)], -15),  # background before and after
        (90, 30, [(30, 32), (45, 47)], 60 * 30 / 73),  # all events
        (90, 30, [(10, 12), (70, 72)], None),
    ],
)
def test_a_control_window_of_a_clip_contains_all_its_sound_events_if_they_fit(
    length: float, seconds: float, events: list, start: float | None
) -> None:
    begin = window(length, seconds, events)
    assert begin == (None if start is None else pytest.approx(start))
    if begin is not None and events:
        assert begin <= events[0][0]
        assert events[-1][1] <= begin + seconds


def test_generated_background_noise_has_the_level_and_spectrum_of_the_quiet_parts_of_a_clip() -> None:
    rng = np.random.default_rng(0)
    hum = 0.01 * np.sin(2 * np.pi * 1000 * np.arange(160000) / 16000)
    loud = np.where(np.arange(160000) > 80000, 0.5, 0.0) * rng.standard_normal(160000)
    made = background((hum + loud).astype(np.float32), 32000, 16000, rng)
    spectrum = np.abs(np.fft.rfft(made)) ** 2
    near = spectrum[1900:2101].sum()  # 950 to 1050 Hz
    assert made.shape == (32000,)
    assert np.sqrt((made**2).mean()) == pytest.approx(0.01 / np.sqrt(2), rel=0.02)
    assert near > 0.95 * spectrum.sum()
    assert not background(np.zeros(16000, np.float32), 100, 16000, rng).any()
    assert np.sqrt((noise_like(made, 50000, rng) ** 2).mean()) == pytest.approx(0.01 / np.sqrt(2), rel=0.02)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    build_all(tmp_path / "root")
    entries = {key: {"count": count, "min_seconds": 1, "max_seconds": 1} for key, count in COUNTS.items()}
    write_json(tmp_path / "root" / "audiomarathon.json", {"name": "test", "licence": "CC0-1.0", "tasks": entries})
    return tmp_path / "root"


def test_padding_a_clip_with_background_noise_in_a_control_shifts_its_event_onset(root: Path, tmp_path: Path) -> None:
    source = decode(root / "DESED" / "audio" / "0.wav", 16000)
    assert call("data", "controls", "desed", "--durations", "1", "--data", root, "-o", tmp_path / "same")[0] == 0
    assert np.array_equal(decode(tmp_path / "same" / "1s" / "desed" / "audio" / "0.wav", 16000), source)
    edit_rows(root / "DESED" / "desed_sound_event_detection_task.json", lambda rows: rows[0].update(event_seconds=0.1))
    succeed("data", "controls", "desed", "--durations", "2", "--data", root, "-o", tmp_path / "out")
    made = decode(tmp_path / "out" / "2s" / "desed" / "audio" / "0.wav", 16000)
    sample = get_task("desed").load(tmp_path / "out" / "2s" / "desed").samples[0]
    row = json.loads((tmp_path / "out" / "2s" / "controls.jsonl").read_text().splitlines()[0])
    before = round(row["background_before_s"] * 16000)
    assert len(made) == 32000
    assert np.array_equal(made[before : before + 16000], source)
    assert sample.meta["event_onset"] == pytest.approx(0.25 + before / 16000, abs=1e-4)
    assert row["background_before_s"] + row["background_after_s"] == 1


@pytest.mark.parametrize("control", ["silence", "noise", "mismatched"])
def test_every_task_loads_from_data_whose_audio_is_replaced_by_a_control(
    control: str, root: Path, tmp_path: Path
) -> None:
    succeed("data", "controls", "all", "--control", control, "--data", root, "-o", tmp_path / "out")
    assert call("data", "verify", "all", "--data", tmp_path / "out" / control)[0] == 0
    for key in BUILDERS:
        task = get_task(key)
        old, new = (task.load(task.find(place)) for place in (root, tmp_path / "out" / control))
        assert [(s.id, s.answer, s.labels) for s in new.samples] == [(s.id, s.answer, s.labels) for s in old.samples]
        for sample, other in zip(old.samples, new.samples, strict=True):
            heard, replaced = decode(sample.clips[0], 16000), decode(other.clips[0], 16000)
            assert len(heard) == len(replaced)
            if key != "had":  # its real and fake clips are the same tones here
                assert not np.array_equal(heard, replaced)
            assert replaced.any() == (control != "silence")
    manifest = read_manifest(tmp_path / "out" / control)
    assert dict(manifest.control or {}) == {"kind": control, "seconds": None, "seed": 42}


def test_generating_the_same_control_audio_twice_writes_the_same_bytes(root: Path, tmp_path: Path) -> None:
    for place in ("first", "second"):
        arguments = ["--control", "noise,mismatched", "--durations", "2", "--data", root, "-o", tmp_path / place]
        assert call("data", "controls", "tau", *arguments)[0] == 0
    assert tree(tmp_path / "first") == tree(tmp_path / "second") != {}


def test_the_mismatched_control_uses_a_clip_of_another_class_and_speaker_for_every_seed(root: Path) -> None:
    task = get_task("vesus")
    loaded = task.load(task.find(root))
    by_clip = {sample.clips[0]: sample for sample in loaded.samples}
    for sample in loaded.samples:
        for seed in range(8):
            partner = by_clip[_partner(task, loaded, sample, sample.clips[0], _Variant("mismatched", None, seed))]
            assert partner.stratum != sample.stratum
            assert partner.cluster != sample.cluster


def test_the_noise_control_differs_from_clip_to_clip(root: Path, tmp_path: Path) -> None:
    """All source clips are the same tone."""
    first, *others = sorted((root / "HAD").rglob("*.wav"))
    for clip in others:
        clip.write_bytes(first.read_bytes())
    assert call("data", "controls", "had", "--control", "noise", "--data", root, "-o", tmp_path / "out")[0] == 0
    made = [clip.read_bytes() for clip in (tmp_path / "out" / "noise" / "had").rglob("*.wav")]
    assert len({*made}) == len(made) == len(others) + 1


def lengthened(clip: Path, seconds: int) -> np.ndarray:
    """Replace a clip by noise of some seconds; return its decoded samples."""
    soundfile.write(clip, np.random.default_rng(0).uniform(-0.1, 0.1, 16000 * seconds), 16000)
    return decode(clip, 16000)


def test_questions_about_events_too_far_apart_for_one_control_window_get_separate_clips(
    root: Path, tmp_path: Path
) -> None:
    whole = lengthened(root / "RACE" / "high" / "p1.wav", 20)
    edit_rows(
        root / "RACE" / "race_benchmark.json",
        lambda rows: [row.update(event_onset=15 * row["question_idx"], event_seconds=1) for row in rows[:2]],
    )
    call("data", "controls", "race", "--durations", "4", "--data", root, "-o", tmp_path)
    samples = get_task("race").load(tmp_path / "4s" / "race").samples
    assert len({sample.clips[0] for sample in samples}) == 3
    onset = round(samples[1].meta["event_onset"] * 16000)
    heard = decode(samples[1].clips[0], 16000)[onset : onset + 16000]
    assert np.array_equal(heard, whole[15 * 16000 : 16 * 16000])


def test_an_event_longer_than_the_control_window_is_cut_from_its_onset(root: Path, tmp_path: Path) -> None:
    whole = lengthened(root / "DESED" / "audio" / "0.wav", 6)
    event = {"event_onset": 2.0, "event_seconds": 3.0}
    edit_rows(root / "DESED" / "desed_sound_event_detection_task.json", lambda rows: rows[0].update(event))
    call("data", "controls", "desed", "--durations", "1", "--data", root, "-o", tmp_path)
    assert np.array_equal(decode(tmp_path / "1s" / "desed" / "audio" / "0.wav", 16000), whole[32000:48000])
    assert json.loads((tmp_path / "1s" / "controls.jsonl").read_text().splitlines()[0])["deciding_part"] == "cut"


def test_a_clip_longer_than_the_control_duration_is_left_out_of_a_transcription_task(
    root: Path, tmp_path: Path
) -> None:
    succeed("data", "controls", "librispeech", "--durations", "1", "--data", root, "-o", tmp_path)
    first = next((root / "LIBRISPEECH").rglob("84-*.flac"))
    soundfile.write(first, np.ones(32000) * 0.1, 16000)
    _code, output = call("data", "controls", "librispeech", "--durations", "1", "--data", root, "-o", tmp_path / "new")
    assert "librispeech: 1 sample left out" in output
    assert len(get_task("librispeech").load(tmp_path / "new" / "1s" / "librispeech").samples) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("tau --durations x", "--durations=x: not allowed"),
        ("tau --durations 0.5", "seconds from 1 to 3600"),
        ("tau --control text-both", "'text-both' is not allowed for tau; allowed, joined by commas: audio, silence, n"),
        ("tau", "--durations"),
        ("jasco --control silence,music", "mismatched; jasco also text-both, text-sound, text-speech, speech-"),
        ("jasco --control silence,speech-first --durations 5", "not allowed with --control speech-first"),
    ],
)
def test_a_wrong_controls_option_is_refused_with_the_allowed_values(
    arguments: str, message: str, root: Path, tmp_path: Path
) -> None:
    code, output = call("data", "controls", *arguments.split(), "--data", root, "-o", tmp_path / "out")
    assert (code, message in output, (tmp_path / "out").exists()) == (2, True, False), output


def test_an_existing_control_folder_is_not_overwritten(root: Path, tmp_path: Path) -> None:
    noise = ("data", "controls", "had", "--control", "noise", "--data", root, "-o", tmp_path / "out")
    succeed(*noise)
    code, output = call(*noise)
    assert code == 2
    assert "already exists" in output
    assert [entry.name for entry in (tmp_path / "out").iterdir()] == ["noise"]  # and no lock
    (root / "HAD" / "real" / "HAD_8.wav").write_bytes(b"RIFF")
    assert call("data", "controls", "had", "--control", "silence", "--data", root, "-o", tmp_path / "out")[0] == 2
    assert not (tmp_path / "out" / "silence").exists()


def test_the_embedded_model_scores_high_on_clips_cropped_to_the_event_and_low_on_silence(tmp_path: Path) -> None:
    """On clips cut to 10 s around the event the score stays. On silence it falls to chance or below."""
    root = generate(tmp_path / "mini", tasks=["desed"], progress=False, limit=4)
    arguments = ["--durations", "10", "--control", "audio,silence", "--data", root, "-o", tmp_path / "controls"]
    assert call("data", "controls", "desed", *arguments)[0] == 0
    scores = {}
    for name in ("10s", "10s-silence"):
        results = tmp_path / "results" / name
        run = {"data": str(tmp_path / "controls" / name), "results": results, "timing": False, "device": "cpu"}
        (result,) = audiomarathon.evaluate("desed", model="embedded", **run)
        scores[name] = result.summary["accuracy"]
        facts = json.loads((result.folder / "run.json").read_text())
        kinds = {*(row["control"] for row in records_in(result.folder)), facts["control"]["kind"]}
        assert kinds == {result.summary["control"]["kind"]} == {"silence" if name.endswith("silence") else "audio"}
    assert scores["10s"] >= 0.7
    assert scores["10s-silence"] <= 0.3
    with pytest.raises(RecordError, match=r"another run .*control"):
        audiomarathon.evaluate("desed", model="embedded", **{**run, "data": str(tmp_path / "controls" / "10s")})
    runs = control_runs([tmp_path / "results"]).frame
    heard = [*zip(runs["heard"], runs["seconds"], runs["chance"], strict=True)]
    assert heard == [("audio", 10, 0.25), ("silence", 10, 0.25)]
    succeed("data", "plot-controls", tmp_path / "results", "-o", tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert probe(next((tmp_path / "controls" / "10s").rglob("*.wav"))).seconds == 10


def test_a_control_folder_that_another_process_is_writing_is_refused(root: Path, tmp_path: Path) -> None:
    with (tmp_path / ".silence.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, output = call("data", "controls", "had", "--control", "silence", "--data", root, "-o", tmp_path)
        assert code == 2
        assert "another process" in output
