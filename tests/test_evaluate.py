"""The evaluation loop from samples to records: recording, resuming, sharing work, and surviving errors."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import soundfile
import task_folders
import torch
from builders import counting_opens, lines_of, one_load, records_in, rendered_here, steady, write_records  # noqa: F401 (a fixture)

from audiomarathon import files
from audiomarathon.benchmarks import fingerprint, get_task
from audiomarathon.benchmarks.clip_limits import too_short
from audiomarathon.benchmarks.fingerprint import clip_hashes
from audiomarathon.benchmarks.task import Sample
from audiomarathon.compression.registry import get_method
from audiomarathon.engine.run import Result, run, score
from audiomarathon.errors import DataError, SettingsError
from audiomarathon.models import templates
from audiomarathon.report.page_data import PageData
from audiomarathon.report.tables import sweep
from audiomarathon.results.compare import compare_with
from audiomarathon.results.pairs import Pairs, throughput
from audiomarathon.results.sweep_summary import read_outcome
from audiomarathon.results.systems import read_systems
from audiomarathon.runs.read import read_runs
from audiomarathon.runs.record_line import unpack
from audiomarathon.settings import RunSettings

pytestmark = pytest.mark.usefixtures("one_load", "no_env")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root with a TAU, a LibriSpeech and a HAD folder of one-second clips."""
    root = tmp_path_factory.mktemp("data")
    task_folders.build_tau(root / "TAU")
    task_folders.build_librispeech(root / "LibriSpeech")
    task_folders.build_had(root / "HAD")
    return root


@pytest.fixture(scope="module")
def run_tiny(tiny_checkpoint: Path, data: Path) -> Callable[..., list[Result]]:
    """Run tasks on the tiny checkpoint and return the results."""

    def call(*tasks: str, methods=None, **flags) -> list[Result]:
        flags = {"data": str(data), "model_path": str(tiny_checkpoint), "max_new_tokens": 3, **flags}
        return list(run(tasks, "qwen2.5-omni", RunSettings.read({}, **flags), methods, progress=False))

    return call


@pytest.fixture
def go(run_tiny: Callable[..., list[Result]], tmp_path: Path) -> Callable[..., list[Result]]:
    """Run tasks; the results lie in this test's folder unless another is given."""
    return lambda *tasks, **flags: run_tiny(*tasks, **{"results": tmp_path / "out", **flags})


@pytest.fixture(scope="module")
def base_run(run_tiny: Callable[..., list[Result]], tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A finished run of base on three samples, with a forced decode of 9 tokens."""
    return run_tiny("tau", limit=3, decode_tokens=9, results=tmp_path_factory.mktemp("base"))[0]


def records(result: Result) -> list[dict]:
    return records_in(result.folder)


def answered_in_sessions(result: Result) -> list[tuple[int, int, float]]:
    """Return for each session the samples answered before it, and the replies and seconds of audio that it added."""
    sessions = json.loads((result.folder / "run.json").read_text())["sessions"]
    return [(session["answered_before"], session["samples"], session["audio_s"]) for session in sessions]


class TestRecords:
    def test_records_hold_token_counts_cache_lengths_and_stage_times(self, go) -> None:
        (result,) = go("tau", method="frame", ratio=0.5, limit=2)
        assert result.folder.parts[-3:] == ("tau", "tiny-omni", "frame-0.5-layer2")
        assert len(records(result)) == 2
        for record in records(result):
            assert record["error"] is None
            assert record["clip_seconds"] == pytest.approx(1.0)
            assert (record["audio_tokens"], record["kept_audio_tokens"]) == (25, 12)
            assert unpack(record["kept_audio_bits"], 25).sum() == 12
            length = record["prompt_tokens"]
            assert record["kv_lengths"] == [length, length, length - 13, length - 13]
            assert record["kv_bytes"] == sum(record["kv_lengths"]) * 128
            assert record["finish"] in ("stop", "length")
            assert record["new_tokens"] <= 3
            stages = record["time"]
            assert set(stages) == {"load", "preprocess", "encoder", "llm_prefill", "prefill", "decode", "scoring"}
            assert stages["prefill"] == stages["encoder"] + stages["llm_prefill"]
            assert stages.pop("scoring") == 0
            assert min(stages.values()) > 0

    def test_run_json_holds_identity_settings_environment_samples_and_sessions(self, base_run, tiny_checkpoint) -> None:
        facts = json.loads((base_run.folder / "run.json").read_text())
        assert facts["identity"]["method"] == "base"
        assert facts["settings"]["seed"] == 42
        assert facts["environment"]["packages"]["torch"] == torch.__version__
        assert facts["checkpoint"] == str(tiny_checkpoint)
        assert (len(facts["samples"]), facts["sessions"][0]["samples"]) == (3, 3)

    def test_the_scores_and_times_in_a_summary_equal_those_computed_from_its_records(self, base_run: Result) -> None:
        rows, summary = records(base_run), base_run.summary
        assert summary == json.loads((base_run.folder / "summary.json").read_text())
        assert (summary["n"], summary["complete"]) == (3, True)
        assert summary["accuracy"] == sum(row["correct"] for row in rows) / 3
        assert summary["unparsed"] == sum(row["parsed"] is None for row in rows)
        prefill = [row["time"]["prefill"] for row in rows]
        assert summary["timing"]["prefill_s"]["mean"] == pytest.approx(sum(prefill) / 3)

    def test_records_of_a_transcription_task_hold_a_word_count_and_are_scored_by_wer(self, go) -> None:
        (result,) = go("librispeech")
        assert result.summary["figure"]["title"] == "1 − WER"
        assert all(record["words"] > 0 for record in records(result))

    def test_records_hold_the_timing_of_the_forced_decode_separately_from_the_reply(self, base_run: Result) -> None:
        for record in records(base_run):
            assert record["forced_decode"]["tokens"] == 9
            assert record["new_tokens"] <= 3
            assert record["forced_decode"]["per_token"] == pytest.approx(record["forced_decode"]["seconds"] / 8)

    def test_settings_run_together_give_the_same_records_as_each_setting_run_alone(self, go, tmp_path: Path) -> None:
        methods = [get_method("base"), get_method("frame", 0.5)]
        together = go("tau", methods=methods, limit=2)
        for method, result in zip(methods, together, strict=True):
            (alone,) = go("tau", methods=[method], limit=2, results=tmp_path / "alone")
            for a, b in zip(records(result), records(alone), strict=True):
                assert a.pop("encoder_shared") is True
                assert b.pop("encoder_shared") is False
                assert steady(a) == steady(b)


class TestThroughputMode:
    def test_untimed_batched_runs_give_the_same_replies_as_timed_runs(self, go, tmp_path: Path) -> None:
        setting = {"method": "frame", "ratio": 0.5, "limit": 5}
        (timed,) = go("tau", **setting)
        for batch_size in (1, 3):
            results = tmp_path / str(batch_size)
            (batched,) = go("tau", timing=False, batch_size=batch_size, results=results, **setting)
            for a, b in zip(records(timed), records(batched), strict=True):
                assert b["time"] is None
                for name in ("id", "reply", "finish", "parsed", "correct", "kept_audio_tokens", "prompt_tokens"):
                    assert a[name] == b[name]
            rate = {"samples_per_second"} if batch_size > 1 else set()
            assert set(batched.summary["timing"]) == {"audio_seconds_per_second"} | rate
            assert batched.summary["timing"]["audio_seconds_per_second"] > 0

    def test_batches_of_automatic_size_give_the_same_replies_as_timed_single_samples(self, go, tmp_path: Path) -> None:
        methods = [get_method("base"), get_method("snapkv", 0.5)]
        timed = go("tau", methods=methods, limit=3)
        batched = go("tau", methods=methods, timing=False, batch_size="auto", limit=3, results=tmp_path / "auto")
        for result, other in zip(timed, batched, strict=True):
            assert [row["reply"] for row in records(result)] == [row["reply"] for row in records(other)]
            assert {row["batch"]["samples"] for row in records(other)} == {3}
        base, pressed = read_runs([tmp_path / "auto"])
        rates = throughput([Pairs.of(pressed, base)])
        assert rates["measured"] == pytest.approx(rates["samples_per_second"] / rates["base_samples_per_second"])
        assert (rates["batch"], rates["base_batch"]) == (3, 3)
        # The summary of a sweep, `compare` and the page show this number.
        systems = read_systems([tmp_path / "auto"])
        (group,) = read_outcome(tmp_path / "auto", seed=42).groups.values()
        assert "throughput_speedup" in sweep(group)[1].columns
        data = PageData(systems)
        (place,) = (place for place, setting in enumerate(data.settings) if setting.method == "snapkv")
        assert [
            data.figures["tau", place]["throughput_speedup"],
            *(side.savings["throughput"]["measured"] for side in group if side.result.method == pressed.method),
            *(row.throughput["measured"] for row in compare_with(systems, None).rows if row.side == pressed.method),
        ] == pytest.approx([rates["measured"]] * 3)

    def test_audio_throughput_is_reported_only_for_a_setting_that_ran_alone(self, go, tmp_path: Path) -> None:
        """A setting's wall time is known only if it ran alone, before or after another setting but not side by side."""
        flags = {"timing": False, "limit": 2, "max_new_tokens": 1}
        for result in go("tau", methods=[get_method("base"), get_method("frame", 0.5)], **flags):
            assert result.summary["timing"]["audio_seconds_per_second"] is None
        (later,) = go("tau", methods=[get_method("random", 0.5)], **flags)
        assert later.summary["timing"]["audio_seconds_per_second"] > 0

    def test_a_setting_named_twice_is_refused(self, go) -> None:
        with pytest.raises(SettingsError, match="same label"):
            go("tau", methods=[get_method("base"), get_method("base")])


def test_a_data_folder_with_only_some_samples_of_a_task_is_reported_with_both_counts(
    tiny_checkpoint: Path, data: Path, tmp_path: Path
) -> None:
    said: list[str] = []
    flags = {"data": str(data), "model_path": str(tiny_checkpoint), "results": tmp_path}
    settings = RunSettings.read({}, **flags, limit=1, max_new_tokens=1)
    (result,) = run(["tau"], "qwen2.5-omni", settings, say=said.append, progress=False)
    assert any("10 samples" in line and "the whole task has 1,145" in line for line in said)
    assert (result.summary["data_samples"], result.summary["data_expected"]) == (10, 1145)


def test_a_method_whose_hooks_do_not_fire_gives_error_records(go, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("audiomarathon.compression.dropping.Drop.attach", lambda *_args: [])
    (result,) = go("tau", method="frame", ratio=0.5, limit=2)
    assert all("cache" in record["error"] for record in records(result))


def test_a_press_that_also_prunes_text_records_no_count_of_kept_audio_tokens(go) -> None:
    (result,) = go("tau", method="knorm", ratio=0.5, scope="all", limit=1)
    (record,) = records(result)
    assert record["kept_audio_tokens"] is None
    assert sum(record["kv_lengths"]) == pytest.approx(2 * record["prompt_tokens"], abs=4)


class TestClips:
    @pytest.mark.parametrize("flags", [{}, {"timing": False, "batch_size": 2}], ids=["timed", "batches"])
    def test_a_new_run_opens_each_clip_twice(self, go, tmp_path: Path, flags: dict[str, Any], monkeypatch) -> None:
        """Once for length and hash, and once to decode it, in any format, and with tags at its end."""
        monkeypatch.setattr("audiomarathon.files._TICK_NS", 0)  # as if the clips were older
        clips = sorted((task_folders.build_tau(tmp_path / "TAU") / "concatenated_resampled").iterdir())
        for clip, kind in zip(clips, ("WAV", "FLAC", "MP3", "OGG", "AIFF", "AU"), strict=False):
            soundfile.write(clip, *soundfile.read(clip), format=kind)
        clips[2].write_bytes(clips[2].read_bytes() + b"TAG".ljust(128, b"\0"))
        with counting_opens() as opened:
            (result,) = go("tau", data=str(tmp_path), max_new_tokens=1, **flags)
        assert result.summary["complete"] is True
        assert {opened[str(clip)] for clip in clips} == {2}

    def test_repeating_a_finished_run_opens_each_clip_once(self, go, tmp_path: Path, monkeypatch) -> None:
        monkeypatch.setattr("audiomarathon.files._TICK_NS", 0)
        clips = task_folders.build_had(tmp_path / "HAD").rglob("*.wav")
        go("had", data=str(tmp_path), max_new_tokens=1)
        for known in (fingerprint._hashes, fingerprint._seconds):  # as in another process
            known.clear()
        with counting_opens() as opened:
            go("had", data=str(tmp_path), max_new_tokens=1)
        assert {opened[str(clip)] for clip in clips} == {1}

    def test_a_stored_hash_is_not_reused_for_a_clip_modified_too_recently_for_the_file_clock(self, monkeypatch) -> None:
        monkeypatch.setattr(files.time, "time_ns", lambda: 10_900_000_000)
        known = []
        for second in (10.5, 10, 8):
            facts = SimpleNamespace(st_dev=1, st_ino=1, st_size=1, st_mtime_ns=1, st_ctime_ns=int(second * 1e9))
            known.append(bool(files.state_of(SimpleNamespace(stat=lambda facts=facts: facts))))
        assert known == [True, False, True]

    @pytest.mark.parametrize("tick_ns", [0, files._TICK_NS], ids=["kept", "too new to keep"])
    def test_a_changed_clip_with_an_equal_modification_time_is_hashed_again(
        self, tmp_path: Path, tick_ns: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(files, "_TICK_NS", tick_ns)
        clip = tmp_path / "a.wav"
        hashes = []
        for content in (b"one", b"two"):
            clip.write_bytes(content)
            os.utime(clip, (0, 0))
            hashes.append(clip_hashes([Sample("a", (clip,), "?", "", "a")]))
            time.sleep(0.02 if tick_ns == 0 else 0)  # a file system's clock may have ticks of 10 ms
        assert hashes[0] != hashes[1]


class TestFailures:
    def test_a_damaged_clip_gives_an_error_record_and_is_retried_once_repaired(self, go, tmp_path: Path) -> None:
        root = task_folders.build_had(tmp_path / "data")
        (clip,) = (root / "fake").glob("*_8.wav")
        whole = clip.read_bytes()
        clip.write_bytes(b"")
        (result,) = go("had", data=str(root), max_new_tokens=1)
        (failed,) = [record for record in records(result) if record["error"]]
        assert "AudioError" in failed["error"]
        assert clip.name in failed["error"]
        assert (result.summary["n"], result.summary["errors"], result.summary["complete"]) == (4, 1, False)
        clip.write_bytes(whole)
        (result,) = go("had", data=str(root), max_new_tokens=1)
        assert (result.summary["n"], result.summary["complete"]) == (5, True)
        assert len(records(result)) == 6  # the error, four replies, and the reply that took the error's place
        assert answered_in_sessions(result) == [(0, 4, 4.0), (4, 1, 1.0)]

    def test_a_changed_clip_makes_only_its_sample_run_again(self, go, tmp_path: Path) -> None:
        root = task_folders.build_had(tmp_path / "data")
        (result,) = go("had", data=str(root), max_new_tokens=1)
        before = records(result)
        task_folders.write_clip(root / "fake" / "HAD_8.wav", seconds=2)
        (result,) = go("had", data=str(root), max_new_tokens=1)
        assert records(result)[:-1] == before
        assert records(result)[-1]["clip_seconds"] == 2
        assert result.summary["audio_seconds"] == 6
        assert answered_in_sessions(result) == [(0, 5, 5.0), (4, 1, 2.0)]

    def test_bad_rows_of_the_data_stop_a_run_unless_they_are_allowed(self, go, tmp_path: Path) -> None:
        root = task_folders.build_tau(tmp_path / "data")
        file = root / "acoustic_scene_task_meta.json"
        task_folders.edit_rows(file, lambda rows: rows[3].update(answer_gt="Z"))
        with pytest.raises(DataError, match=r"\b1 bad row.*acoustic_scene_task_meta\.json, row 4\b"):
            go("tau", data=str(root))
        (result,) = go("tau", data=str(root), allow_bad_rows=True, max_new_tokens=1)
        assert (result.summary["n"], result.summary["bad_rows"]) == (9, 1)


def test_scoring_a_run_again_corrects_a_wrong_recorded_verdict(base_run: Result, tmp_path: Path) -> None:
    folder = shutil.copytree(base_run.folder, tmp_path / base_run.folder.name)
    rows = lines_of(folder / "samples.jsonl")
    rows[0] |= {"reply": rows[0]["reference"]["answer"], "correct": False, "parsed": None}
    for row in rows:
        del row["crc"], row["schema"]  # as the first versions wrote them
    write_records(folder, rows)
    again = score(folder)
    assert records(again)[0]["correct"] is True
    assert again.summary["accuracy"] >= 1 / 3


def test_runs_killed_at_random_moments_resume_to_the_records_of_an_undisturbed_run(
    go, tmp_path: Path, times, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kill runs with SIGKILL at random moments; only times and memory may differ from an undisturbed run.

    Each run is a fork of this process, since Python takes seconds to start. Chat templates are rendered in the fork,
    since the usual child process takes seconds too, and every fork would start it again.
    """
    kills = times(4, 20)
    for index in range(2 * kills):
        label = ("real", "fake")[index % 2]
        task_folders.write_clip(tmp_path / "data" / label / f"{index}.wav", seconds=0.2, hertz=100 + 10 * index)
    monkeypatch.setattr(templates._CHILD, "ask", rendered_here)
    setting = {"data": str(tmp_path / "data"), "method": "random", "ratio": 0.5}
    (undisturbed,) = go("had", results=tmp_path / "whole", **setting)
    file = tmp_path / "killed" / undisturbed.folder.relative_to(tmp_path / "whole") / "samples.jsonl"
    killed = kill_often(lambda: go("had", results=tmp_path / "killed", **setting), kills, file)
    assert killed >= kills // 2  # on a busy machine a run may get far before it is killed
    survived = records_in(file.parent)
    assert [steady(record) for record in survived] == [steady(record) for record in records(undisturbed)]


def kill_often(work: Callable[[], object], kills: int, file: Path) -> int:
    """Run `work`, which writes lines to `file`, in forks that are killed at random until one ends; count the kills."""
    chance, killed = random.Random(0), 0

    def size() -> int:
        return file.stat().st_size if file.exists() else 0

    while True:
        if (child := os.fork()) == 0:
            with suppress(BaseException):
                work()
                os._exit(0)
            os._exit(1)
        if killed < kills:
            before, patience = size(), chance.choice([0.05, 0.3, 60])  # sometimes while it is still loading
            deadline = time.monotonic() + patience
            while size() <= before and time.monotonic() < deadline and not ended(child):
                time.sleep(0.001)
            time.sleep(0.03 * chance.random())  # somewhere between this record and the next
            os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code >= 0:
            assert code == 0
            return killed
        killed += 1


def ended(child: int) -> bool:
    """Return whether a child has ended, without reaping it."""
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def test_clips_much_shorter_than_the_length_stated_by_the_task_are_reported(data: Path, tmp_path: Path) -> None:
    tau = get_task("tau")
    loaded = tau.load(tau.find(data))
    said = too_short(tau, loaded, loaded.samples)
    assert "10 of 10 samples have clips far below the task's 90 s" in said
    task_folders.build_tau(tmp_path / "TAU")
    facts = {"count": 10, "min_seconds": 1, "max_seconds": 2}
    (tmp_path / "audiomarathon.json").write_text(json.dumps({"tasks": {"tau": facts}}))
    loaded = tau.load(tau.find(tmp_path))
    assert too_short(tau, loaded, loaded.samples) == ""  # the data says that its clips are short
