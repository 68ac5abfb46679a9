"""Decode many bad audio files: each gives an error with a reason or a clean decode, never a crash, hang or silence."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import bad_clips
import numpy as np
import pytest
import soundfile
import task_folders
from conftest import call
from fake_lm import FakeLM, IdTask, evaluate
from hanging import no_hang

from audiomarathon.audio import decode as audio
from audiomarathon.benchmarks import Sample
from audiomarathon.benchmarks.fingerprint import clip_hashes
from audiomarathon.compression.registry import get_method
from audiomarathon.engine.batches import Plan
from audiomarathon.errors import AudioError
from audiomarathon.models.prompt import Inputs, Prompt
from audiomarathon.runs.folder import Job, RunFolder

#: Kinds of bad files that may decode to silence. All other kinds contain a tone.
_MAY_BE_SILENT = {"not audio", "1 Hz", "absurd fields"}


def fate(path: Path, kind: str) -> str:
    """Probe and decode a file; return the outcome, or fail if it is wrong."""
    reason = ""
    try:
        with no_hang():
            wave = audio.decode(path, 16_000)
    except AudioError as error:
        reason = error.reason
    if reason:
        assert "\n" not in reason
        assert len(reason) < 500
        return "error with its reason"
    assert wave.dtype == np.float32
    assert len(wave)
    assert np.isfinite(wave).all()
    assert wave.any() or kind in _MAY_BE_SILENT, f"{path.name} ({kind}) is silently silent"
    with no_hang():
        info = audio.probe(path)
    padding = 0.3 if info.format == "MP3" else 0.001
    if info.format == "MP3" and info.seconds - len(wave) / 16_000 > padding:
        return "MP3 decoded short"  # the header's length field is damaged too: docs/reliability.md, "not covered"
    assert abs(info.seconds - len(wave) / 16_000) <= padding, f"{path.name} ({kind}): {info}, decoded {len(wave)}"
    return "clean decode"


def test_decoding_and_probing_bad_clips_neither_hangs_nor_crashes(tmp_path: Path, times, tell) -> None:
    fates = Counter()
    for kind, path in [*bad_clips.write_all(tmp_path / "a", times(500, 20_000)), *bad_clips.write_odd(tmp_path / "b")]:
        fates[kind, fate(path, kind)] += 1
        with no_hang(), suppress(AudioError):
            audio.probe(path)
    assert all(fates[kind, "clean decode"] == 0 for kind in ("NaN or infinity", "1 Hz", "0 s", "header of 3 h", "pipe"))
    assert fates["8 channels", "error with its reason"] == 0
    totals = Counter({what: sum(n for (_, outcome), n in fates.items() if outcome == what) for _, what in fates})
    tell(f"{sum(totals.values())} files: " + ", ".join(f"{n} {what}" for what, n in totals.most_common()))


def test_a_run_over_bad_clips_writes_one_record_or_error_record_per_sample(tmp_path: Path, times, tell) -> None:
    clips = [path for _, path in bad_clips.write_all(tmp_path / "clips", times(300, 5000), seed=1)]
    labels = ("bus", "tram")
    samples = tuple(Sample(path.name, (path,), "Which?", "A", path.name, labels, labels) for path in clips)
    with RunFolder(tmp_path / "run", {}) as folder:
        with no_hang(300):
            evaluate(FakeLM(), Plan(IdTask(), samples, 8), [Job(get_method("base"), folder)])
        lines = [json.loads(line) for line in folder.samples_file.read_text().splitlines()]
    assert [line["id"] for line in lines] == [sample.id for sample in samples]
    failed = [line["error"] for line in lines if line["error"]]
    assert all(reason.startswith("AudioError: ") for reason in failed)
    tell(f"{len(lines)} samples: {len(lines) - len(failed)} answered, {len(failed)} error records, none missing")


def test_a_clip_replaced_during_a_run_is_never_recorded_under_its_old_hash(tmp_path: Path, times, tell) -> None:
    """Each clip and its replacement have a constant level, which shows whether a sample heard the recorded clip."""
    draw, labels, heard = np.random.default_rng(0), ("bus", "tram"), {}

    def write(path: Path, level: float) -> Path:
        soundfile.write(path, np.full(16_000, level), 16_000, subtype="PCM_16")
        return path

    clips = [write(tmp_path / f"{number}.wav", 0.25) for number in range(times(40, 1000))]
    samples = tuple(Sample(clip.name, (clip,), "Which?", "A", clip.name, labels, labels) for clip in clips)
    plan = Plan(IdTask(), samples, 8, batch_size=2, clips=clip_hashes(samples))
    begun, over = threading.Event(), threading.Event()

    def replace() -> None:
        last, *others = range(len(clips) - 1, -1, -1)
        for number in (last, *draw.permutation(others)[: len(clips) // 2]):
            clip, facts = clips[number], clips[number].stat()
            if number % 3:  # atomically, instead of in place
                write(tmp_path / "new.wav", 0.5).replace(clip)
            else:
                write(clip, 0.5)
            if number % 2:
                os.utime(clip, ns=(facts.st_atime_ns, facts.st_mtime_ns))
            begun.set()
            if over.wait(0.001):
                return

    class Listening(FakeLM):
        def prepare(self, prompts: Sequence[Prompt]) -> Inputs:
            for prompt in prompts:
                heard[prompt.text] = {round(float(level), 2) for level in np.unique(prompt.clips[0])}
            return super().prepare(prompts)

    thread = threading.Thread(target=replace)
    with RunFolder(tmp_path / "run", {}) as folder:
        thread.start()
        begun.wait()
        evaluate(Listening(), plan, [Job(get_method("base"), folder)])
        over.set()
        thread.join()
        records = folder.records
    failed = [record.error for record in records.values() if not record.answered]
    assert len(records) == len(samples)
    assert failed
    assert all(record.error or heard[id_] == {0.25} for id_, record in records.items())
    tell(f"{len(records)} samples: {len(records) - len(failed)} heard the clip on record, {len(failed)} error records")


@pytest.mark.parametrize("deep", [False, True])
def test_data_verify_reports_a_problem_for_every_bad_clip(tmp_path: Path, deep: bool, times, tell) -> None:
    folder = task_folders.build_tau(tmp_path / "TAU")
    file = folder / "acoustic_scene_task_meta.json"
    (row, *_), rows, clean = json.loads(file.read_text()), [], 0
    for kind, path in bad_clips.write_all(folder / "concatenated_resampled", times(120, 3000), seed=2):
        rows.append({**row, "path": path.name})
        if deep:
            clean += fate(path, kind) == "clean decode"
    file.write_text(json.dumps(rows))
    command = ("data", "verify", "tau", "--data", tmp_path, "--json", tmp_path / "found.json")
    with no_hang(300):
        assert call(*command, *["--deep"] * deep)[0] == 1
    (report,) = json.loads((tmp_path / "found.json").read_text())["tasks"]
    kinds = Counter(problem["kind"] for problem in report["problems"])
    assert report["clips"] == len(rows)
    if deep:
        assert kinds["clip"] == len(rows) - clean
    assert kinds["clip"] + kinds["duration"] == len(rows)  # no clip has the expected length
    tell(f"{len(rows)} clips{', decoded' * deep}: {dict(kinds)}")
