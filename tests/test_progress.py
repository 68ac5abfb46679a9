"""Live progress while samples run, and the `status` command in another shell."""

from __future__ import annotations

import datetime
import fcntl
import io
import json
import re
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from builders import a_failed_record, a_record, a_verdict, typed
from conftest import call

from audiomarathon.benchmarks import Sample, get_task
from audiomarathon.compression.registry import get_method
from audiomarathon.engine import progress_view as live
from audiomarathon.engine.batches import Plan
from audiomarathon.lock import is_held
from audiomarathon.records import Record
from audiomarathon.results.status import read_status
from audiomarathon.runs.folder import Job, RunFolder
from audiomarathon.runs.scored import judged
from audiomarathon.scoring.choice import Choice
from audiomarathon.scoring.scorer import figures_of
from audiomarathon.text import plain

LABELS = ("bus", "tram")
NOON = datetime.datetime(2026, 3, 1, 12, 0)


def a_choice(id_: str, right: bool = True, answer: str = "A", **more: Any) -> Record:
    return typed(a_record(id_, **a_verdict(answer, LABELS, right=right)) | more)


@pytest.fixture
def job(tmp_path: Path):
    with RunFolder(tmp_path / "base-0", {"method": "base"}) as folder:
        folder.write_run({"task": "tau"})
        yield Job(get_method("base"), folder)


def a_plan(ids: Sequence[str], **more: Any) -> Plan:
    samples = tuple(Sample(id_, (Path("x.wav"),), "Which?", "A", id_, LABELS, LABELS) for id_ in ids)
    return Plan(get_task("tau"), samples, 8, **more)


class Clock:
    """A clock that the test moves forward."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def progress(task: str, records: Sequence[Record], expected: int, seed: int = 1) -> live.Progress:
    """Return the progress of records, judged as for the live display."""
    scorer = get_task(task).scorer
    return live.progress_of(scorer, records, judged(scorer, records), expected, seed=seed)


class TestProgress:
    def test_live_progress_shows_the_same_score_and_interval_as_the_summary(self) -> None:
        rng = np.random.default_rng(0)
        records = [
            a_choice(str(n), bool(rng.random() < 0.7), answer="AB"[n % 2], cluster=str(n // 3)) for n in range(300)
        ]
        scorer = get_task("tau").scorer
        whole = figures_of(scorer, list(judged(scorer, records).values()), seed=1)
        state = progress("tau", records, 300)
        assert state.score == whole["score"]
        assert state.interval == tuple(whole["intervals"]["score"])
        other = progress("tau", records, 300, seed=2)
        assert other.score == state.score
        assert other.interval == pytest.approx(state.interval, abs=0.02)

    def test_progress_of_a_finished_run_shows_the_score_and_interval_of_its_summary(self) -> None:
        summary = {"score": 0.25, "intervals": {"score": [0.1, 0.4]}, "unparsed": 1}
        state = live.progress_of(get_task("tau").scorer, [a_choice("a")], {}, 1, seed=1, summary=summary)
        assert (state.score, state.interval, state.unparsed, state.complete) == (0.25, (0.1, 0.4), 1, True)

    def test_progress_counts_errors_and_unparsed_or_cut_replies(self) -> None:
        records = [a_choice("a"), a_choice("b", reply="no idea", finish="length"), typed(a_failed_record("c"))]
        state = progress("tau", records, 5)
        assert (state.answered, state.errors, state.unparsed, state.cut, state.complete) == (2, 1, 1, 1, False)

    def test_progress_of_a_task_that_is_not_installed_shows_counts_but_no_score(self) -> None:
        state = live.progress_of(None, [a_choice("a"), typed(a_failed_record("c"))], {}, 5, seed=1)
        assert (state.answered, state.errors, state.score, state.interval) == (1, 1, None, None)

    def test_progress_shows_no_score_for_malformed_records(self) -> None:
        spoilt = [*({"reference": odd} for odd in (None, {}, {"labels": 1})), {"parsed": "Z"}, {"parsed": 7}]
        states = [progress("tau", [a_choice("a", **change)], 1) for change in spoilt]
        assert [(state.answered, state.score) for state in states] == [(1, None)] * 3 + [(1, 1.0)] * 2


def test_a_notebook_shows_one_progress_line_that_is_overwritten(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook's stderr is not a terminal, and `evaluate` once printed nothing there for minutes."""
    stream = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(live, "TABLE_EVERY_S", 0.0)
    with live.watching(a_plan("ab"), [job], lambda _line: None) as watch:
        for id_ in "ab":
            job.folder.append(a_choice(id_))
            watch.update()
    first, second = stream.getvalue().strip("\r\n").split("\r")
    assert first.startswith("tau: 1 of 2 samples")
    assert second.startswith("tau: 2 of 2 samples")
    assert len(first) == len(second.rstrip("\n"))  # nothing of a longer line is left


class TestWatch:
    def test_live_progress_shows_the_sample_counts_and_the_seconds_left(self, job: Job) -> None:
        clock, shown = Clock(), []
        job.folder.append(a_choice("a"))
        watch = live.Watch(a_plan("abcde"), [job], shown.append, 10, clock)
        clock.now = 60.0
        for id_ in "bc":
            job.folder.append(a_choice(id_, right=id_ == "b"))
        watch.update(2)
        (look,) = shown
        assert (look.done, look.expected, look.left_s) == (3, 5, 60.0)
        assert look.heading(NOON) == ("tau: 3 of 5 samples, 2 samples/min, 3 s of audio/s, ends in 1 min 0 s (12:01)")
        assert "base-0 0.8" in look.line(NOON)

    def test_live_progress_counts_a_failed_or_changed_sample_as_done_only_after_its_repetition(self, job: Job) -> None:
        job.folder.append(typed(a_failed_record("a")))
        job.folder.append(a_choice("b", clips="old"))
        watch = live.Watch(a_plan("ab", clips={"a": "new", "b": "new"}), [job], lambda _look: None, 10, Clock())
        assert watch.look().settings["base-0"].answered == watch.look().settings["base-0"].errors == 0
        job.folder.append(a_choice("a", clips="new"))
        assert watch.look().settings["base-0"].answered == 1

    def test_live_progress_judges_each_reply_only_once(self, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[str] = []
        judge = Choice.judge
        monkeypatch.setattr(Choice, "judge", lambda self, record: asked.append(record.id) or judge(self, record))
        watch = live.Watch(a_plan("abc"), [job], lambda _look: None, 10, Clock())
        for id_ in "abc":
            job.folder.append(a_choice(id_))
            watch.look()
        assert asked == ["a", "b", "c"]
        job.folder.append(a_choice("b", right=False))  # done again
        assert watch.look().settings["base-0"].score == pytest.approx(0.8)
        assert asked == ["a", "b", "c", "b"]

    def test_live_progress_does_not_call_a_slow_scorer_while_samples_run(
        self, job: Job, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Choice, "instant", False)
        monkeypatch.setattr(Choice, "judge", lambda *_: pytest.fail("was asked"))
        job.folder.append(a_choice("a"))
        state = live.Watch(a_plan("abc"), [job], lambda _look: None, 10, Clock()).look().settings["base-0"]
        assert (state.answered, state.score) == (1, None)

    def test_live_progress_refreshes_seldom_enough_to_cost_under_a_millisecond_per_sample(self, job: Job) -> None:
        clock, shown = Clock(), []

        def slow(look: object) -> None:
            shown.append(look)
            clock.now += 0.1

        watch = live.Watch(a_plan("ab"), [job], slow, 0, clock)
        for _ in range(1000):
            clock.now += 0.01
            watch.update(1)
        assert 0.1 * len(shown) / 1000 <= 1.1 * live.COST_A_SAMPLE_S + 0.1 / 1000
        assert len(shown) > 3

    def test_live_progress_works_though_the_clock_goes_backwards(self, job: Job) -> None:
        for back in (3600.0, 1e9):
            clock, shown = Clock(), []
            watch = live.Watch(a_plan("ab"), [job], shown.append, 0, clock)
            clock.now = -back
            watch.update(1)
            watch.show()
            assert "tau: 1 of 2 samples" in shown[-1].heading(NOON)

    def test_the_progress_line_in_a_log_stays_short_for_any_number_of_settings(self) -> None:
        done = live.Progress(1145, 600, 2, 1, score=0.833, interval=(0.5, 1.0))
        settings = {f"segment_fast_v-0.{n}-layer2": done for n in range(1, 10)}
        line = live.Look("librispeech", 600, 1145, 600, 36_000.0, 108_000.0, settings).line(NOON)
        assert line.startswith("librispeech: 600 of 1,145 samples, 1 samples/min, ends in 9 h 5 min")
        assert "18 errors" in line
        assert len(line) < 100

    def test_live_progress_prints_a_last_line_if_any_sample_was_run(
        self, job: Job, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for every_s, progress, samples, expected in [
            (0, None, 1, 1),
            (30, None, 1, 1),
            (30, False, 1, 0),
            (30, None, 0, 0),
        ]:
            said: list[str] = []
            monkeypatch.setattr(live, "LINE_EVERY_S", every_s)
            with live.watching(a_plan("a"), [job], said.append, progress=progress) as watch:
                watch.update(samples)
            assert len(said) == expected

    def test_durations_and_the_expected_end_are_written_in_seconds_minutes_or_hours(self) -> None:
        told = {0: "0 s", 59.6: "1 min 0 s", 3661: "1 h 1 min", -5: "0 s", 90_000: "25 h 0 min"}
        assert {seconds: live.span(seconds) for seconds in told} == told
        assert live.ending(86_400, NOON) == "ends in 24 h 0 min (2026-03-02 12:00)"
        assert live.ending(1e12, NOON) == "time left unknown"


@pytest.fixture
def a_run(tmp_path: Path) -> Callable[..., Path]:
    """Write runs of four samples with a given number of records."""

    def write(name: str, records: int, errors: int = 0, **facts: Any) -> Path:
        path = tmp_path / "results" / "tau" / "tiny" / name
        with RunFolder(path, {"method": name}) as folder:
            started = datetime.datetime.fromtimestamp(time.time() - 60, datetime.UTC).isoformat()
            told = {"task": "tau", "checkpoint": "/x/tiny", "method": name, "samples": list("abcd")}
            folder.write_run({**told, "sessions": [{"started": started}], **facts})
            for id_ in "abcd"[:records]:
                folder.append(a_choice(id_))
            for id_ in "abcd"[records : records + errors]:
                folder.append(typed(a_failed_record(id_)))
        return path

    return write


class TestStatus:
    def test_status_shows_counts_rate_and_state(self, a_run) -> None:
        (run_status,) = read_status([a_run("base-0", 2, errors=1)])
        assert (run_status.progress.answered, run_status.progress.errors, run_status.progress.expected) == (2, 1, 4)
        assert (run_status.state, run_status.setting, run_status.checkpoint) == ("stopped", "base-0", "tiny")
        assert run_status.samples_per_minute == pytest.approx(2, rel=0.2)
        assert run_status.audio_s_per_s == pytest.approx(3, rel=0.2)
        (ahead,) = read_status([a_run("base-1", 2, sessions=[{"started": "2099-01-01T00:00:00+00:00"}])])
        assert (ahead.samples_per_minute, ahead.progress.answered) == (None, 2)

    @pytest.mark.parametrize(("session", "left"), [("earlier", 2 / 2), ("this", 1 / 3)])
    def test_samples_that_failed_in_an_earlier_session_count_as_still_to_do(self, a_run, session, left) -> None:
        """Of four samples, two were answered in a minute and one failed. `left` is the time left in minutes."""
        path = a_run("base-0", 2, errors=1)
        started = json.loads((path / "run.json").read_text())["sessions"][-1]["started"]
        failed = a_failed_record("c", session=f"{started} 71" if session == "this" else "earlier")
        with RunFolder(path, {"method": "base-0"}) as folder:
            folder.append(typed(failed))
            (run_status,) = read_status([path])
        assert run_status.left_s == pytest.approx(60 * left, rel=0.2)

    def test_status_shows_a_control_run_with_only_failed_samples_left_as_done_but_for_errors(self, a_run) -> None:
        (run_status,) = read_status([a_run("base-0", 3, errors=1, control={"kind": "silence", "seconds": 30.0})])
        shown = (run_status.state, run_status.setting, run_status.complete)
        assert shown == ("done, but for errors", "base-0 [30s silence]", False)

    def test_status_shows_a_run_whose_lock_is_held_as_running(self, a_run) -> None:
        path = a_run("base-0", 2)
        with (path / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (run_status,) = read_status([path])
            assert (run_status.alive, run_status.state) == (True, "running")
            assert run_status.left_s == pytest.approx(60, rel=0.2)
        assert is_held(path / ".lock") is False
        with RunFolder(path, {"method": "base-0"}):
            pass

    def test_running_settings_of_a_task_share_one_line_with_the_expected_end(self, a_run, monkeypatch) -> None:
        monkeypatch.setenv("COLUMNS", "100")
        a_run("random-0.5-layer2", 4)
        with ExitStack() as held:
            for path in (a_run("base-0", 2), a_run("frame-0.5-layer2", 3)):
                fcntl.flock(held.enter_context((path / ".lock").open("w")), fcntl.LOCK_EX)
            _, text = call("status", path.parent)
        (place,) = [place for place, line in enumerate(text.splitlines()) if line.split()[:2] == ["running", "answers"]]
        table = text.splitlines()[:place]
        (line,) = [line for line in text.splitlines()[place + 2 :] if line.strip()]
        assert line.split()[:4] == ["tau", "5", "of", "8"]
        assert re.search(r" [23](\.\d+)? .*\d+ s ago +ends in (1 min \d+|5\d|60) s \(\d\d:\d\d\)", line)
        assert [line.split()[-1] for line in table if line.startswith("  tau")] == ["running", "running", "complete"]

    def test_a_command_that_is_still_loading_its_model_is_shown_as_starting(self, tmp_path: Path) -> None:
        """A sweep has logs or a lock before its first run. `status` once reported this as an error."""
        log = tmp_path / "results" / "logs" / "tau.log"
        log.parent.mkdir(parents=True)
        log.write_text("=== begun\n")
        code, text = call("status", tmp_path / "results")
        assert (code, text) == (1, f"{tmp_path / 'results'}: starting; it has no records yet\n")
        log.write_text("=== begun\nerror: no such model\n")
        assert call("status", tmp_path / "results")[0] == 2
        with (tmp_path / "results" / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (run_status,) = read_status([tmp_path / "results"])
        assert (run_status.state, run_status.complete) == ("starting", False)

    def test_the_exit_code_of_status_says_whether_all_runs_are_complete(self, a_run, tmp_path: Path) -> None:
        code, text = call("status", tmp_path)
        assert code == 2
        assert "no run there" in text
        whole, stopped, *broken = (a_run(name, n) for name, n in (("a", 4), ("b", 3), ("c", 4), ("d", 4)))
        for folder, content in zip(broken, ("{", "{}"), strict=True):
            (folder / "run.json").write_text(content)
        for others, wanted, shown in ([], 0, ""), ([stopped], 1, "stopped"), (broken, 1, "unreadable:"):
            code, text = call("status", whole, *others)
            assert (code, "4 of 4" in text, shown in text) == (wanted, True, True)
            assert sum(text.count(word) for word in ("stopped", "unreadable:")) == len(others)

    def test_json_output_of_status_is_one_line_per_refresh(self, a_run, tmp_path: Path) -> None:
        a_run("base-0", 4)
        code, text = call("status", tmp_path, "--json", "--watch", "--every", "0.1")
        lines = [json.loads(line) for line in text.splitlines()]
        assert (code, len(lines)) == (0, 2)  # two refreshes without a live run end it
        assert (lines[0][0]["state"], lines[0][0]["progress"]["score"]) == ("complete", 1.0)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb\n", "a\tb\n"),
        ("\x1b[31m", "\\x1b[31m"),
        ("a\rb\x07\x9b", "a\\x0db\\x07\\x9b"),
        ("\u202egpj", "\\u202egpj"),
        ("\ud83d", "\\ud83d"),
    ],
)
def test_control_characters_in_printed_text_are_shown_escaped(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_a_scorer_that_raises_leaves_the_progress_without_a_score(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Choice, "sums", Mock(side_effect=ZeroDivisionError))
    state = progress("tau", [a_choice("a")], 2)
    assert (state.answered, state.score) == (1, None)
