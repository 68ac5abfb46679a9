"""Runs that stop when a margin is decided: the order of clusters, where a setting stops, what is on record."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from builders import a_failed_record, a_timed_choice, typed
from typer.testing import CliRunner

from audiomarathon.benchmarks import Sample, get_task
from audiomarathon.cli.app import app
from audiomarathon.compression.method import Method
from audiomarathon.compression.registry import get_method
from audiomarathon.engine.batches import Plan
from audiomarathon.engine.engine import Engine
from audiomarathon.engine.stopping import Margin, Stopping, stop_margin
from audiomarathon.errors import SettingsError
from audiomarathon.metrics.betting import fewest
from audiomarathon.runs.folder import Job, RunFolder
from audiomarathon.settings import RunSettings, env_names

TAU, BASE, DART, RANDOM = get_task("tau"), *map(get_method, ("base", "dart:0.5", "random:0.5"))
SAMPLES = tuple(
    Sample(f"clip{number}", (), "?", "A", f"place{number // 2}", ("x", "y"), ("x", "y")) for number in range(300)
)


@dataclass(frozen=True)
class Answers(Engine):
    """An engine that looks replies up, and makes those of a round in the reverse order."""

    rights: Callable[[str, Sample], bool | None]
    several: int = 1
    calls: list[tuple[str, str]] = field(default_factory=list)

    def at_once(self, plan: Plan) -> int:
        return self.several

    def answer(self, plan: Plan, pending: Mapping[str, Sequence[Method]], say: Any) -> Generator[Any]:
        for sample in reversed(plan.samples):
            for method in pending.get(sample.id, ()):
                self.calls.append((method.label, sample.id))
                right, number = self.rights(method.label, sample), int(sample.id[4:])
                record = a_timed_choice(number, right=bool(right), cluster=sample.cluster)
                failed = a_failed_record(sample.id, cluster=sample.cluster)
                yield method.label, typed(failed if right is None else record)


def stopping_of(margin: float = 0.1, tests: int = 1, seed: int = 42, samples: Sequence[Sample] = SAMPLES) -> Stopping:
    stopping = Margin({"": margin}, tests).stopping(TAU, samples, seed)
    assert stopping
    return stopping


def run(
    root: Path,
    rights: Callable[[str, Sample], bool | None],
    methods: Sequence[Method],
    stopping: Stopping,
    several: int = 1,
) -> tuple[Answers, dict[str, dict[str, Any]], list[str]]:
    """Run the samples; return the engine, what `run.json` says of each setting, and the lines for the user."""
    engine, lines = Answers(None, None, rights, several), list[str]()  # type: ignore[arg-type]
    with ExitStack() as stack:
        folders = [stack.enter_context(RunFolder(root / method.label, {"method": method.label})) for method in methods]
        jobs = [Job(method, folder) for method, folder in zip(methods, folders, strict=True)]
        engine.evaluate(Plan(TAU, SAMPLES, 8, stopping=stopping), jobs, say=lines.append, progress=False)
        for job in jobs:
            job.folder.write_run({})
        return engine, stopping.outcomes(jobs), lines


def all_right(_label: str, _sample: Sample) -> bool:
    return True


def dart_loses(label: str, _sample: Sample) -> bool:
    return not label.startswith("dart")


class TestOrder:
    def test_of_clusters_is_drawn_by_the_seed(self) -> None:
        first, again, other = (list(stopping_of(seed=seed).clusters) for seed in (1, 1, 2))
        assert first == again != other
        assert first != sorted(first)

    def test_of_clusters_does_not_depend_on_the_order_of_samples(self) -> None:
        assert list(stopping_of().clusters) == list(stopping_of(samples=SAMPLES[::-1]).clusters)

    def test_of_sample_completion_does_not_change_where_a_setting_stops(self, tmp_path: Path) -> None:
        """One loss in the first drawn cluster: whatever comes back first, the setting stops at the same place."""
        stopping = stopping_of()
        lost = next(iter(stopping.clusters.values()))[0].id
        stops = set()

        def rights(label: str, sample: Sample) -> bool:
            return label == BASE.label or sample.id != lost

        for several in (1, 7, 300):
            _, outcomes, _ = run(tmp_path / str(several), rights, [BASE, DART], stopping_of(), several)
            stops.add((outcomes[DART.label]["stopping"]["stopped_after"], tuple(outcomes[DART.label]["samples"])))
        assert len(stops) == 1


class TestStop:
    def test_a_setting_as_good_as_base_stops_after_the_fewest_possible_clusters(self, tmp_path: Path) -> None:
        engine, outcomes, lines = run(tmp_path, all_right, [BASE, DART], stopping_of())
        stop = outcomes[DART.label]["stopping"]
        assert (stop["verdict"], stop["stopped_after"]) == ("no worse", fewest(0.1))
        assert len(outcomes[DART.label]["samples"]) == len(engine.calls) / 2 == 2 * fewest(0.1)
        assert lines == [
            f"tau: dart-0.5-layer2: no worse by more than 0.1 after {fewest(0.1)} of 150 clusters (72 samples)"
        ]

    def test_a_worse_setting_stops_and_base_continues_for_the_other_settings(self, tmp_path: Path) -> None:
        engine, outcomes, _ = run(tmp_path, dart_loses, [BASE, DART, RANDOM], stopping_of())
        after = {label: outcome["stopping"]["stopped_after"] for label, outcome in outcomes.items()}
        assert outcomes[DART.label]["stopping"]["verdict"] == "worse"
        assert after[DART.label] < after[RANDOM.label] == after[BASE.label]
        counts = {label: sum(called == label for called, _ in engine.calls) for label in after}
        assert counts == {label: 2 * clusters for label, clusters in after.items()}

    def test_without_a_decision_on_the_margin_all_samples_run(self, tmp_path: Path) -> None:
        engine, outcomes, lines = run(tmp_path, all_right, [BASE, DART], stopping_of(margin=0.001))
        assert len(engine.calls) == 2 * len(SAMPLES)
        assert outcomes[DART.label]["stopping"]["verdict"] == "not decided"
        assert "not decided after 150 of 150 clusters" in lines[0]

    def test_a_setting_tested_among_many_needs_more_clusters_to_stop(self, tmp_path: Path) -> None:
        by_tests = [run(tmp_path / str(n), all_right, [BASE, DART], stopping_of(tests=n))[1] for n in (1, 20)]
        alone, of_20 = (outcomes[DART.label]["stopping"]["stopped_after"] for outcomes in by_tests)
        assert alone == fewest(0.1)
        assert of_20 == fewest(0.1, 0.05 / 20)

    def test_a_setting_with_many_failed_samples_stays_undecided(self, tmp_path: Path) -> None:
        def rights(label: str, sample: Sample) -> bool | None:
            return None if label == DART.label and int(sample.id[4:]) % 2 else True

        engine, outcomes, _ = run(tmp_path, rights, [BASE, DART], stopping_of())
        assert outcomes[DART.label]["stopping"]["verdict"] == "not decided"
        assert len(engine.calls) == 2 * len(SAMPLES)

    def test_a_resumed_run_stops_at_the_same_cluster_as_an_uninterrupted_one(self, tmp_path: Path) -> None:
        whole = run(tmp_path / "whole", all_right, [BASE, DART], stopping_of())[1]
        calls = 0

        def killed(_label: str, _sample: Sample) -> bool:
            nonlocal calls
            calls += 1
            if calls == 25:
                raise MemoryError
            return True

        with pytest.raises(MemoryError):
            run(tmp_path / "killed", killed, [BASE, DART], stopping_of())
        for folder in (tmp_path / "killed").iterdir():
            (folder / "run.json").write_text((tmp_path / "whole" / folder.name / "run.json").read_text())
        engine, resumed, _ = run(tmp_path / "killed", all_right, [BASE, DART], stopping_of())
        assert resumed == whole
        assert len(engine.calls) == 2 * 72 - 24
        assert not run(tmp_path / "killed", all_right, [BASE, DART], stopping_of())[0].calls

    def test_settings_take_turns_at_running_first_over_the_rounds(self, tmp_path: Path) -> None:
        turns = list[int]()

        class Turns(Answers):
            def answer(self, plan: Plan, pending: Mapping[str, Sequence[Method]], say: Any) -> Generator[Any]:
                turns.append(plan.turn)
                return super().answer(plan, pending, say)

        with ExitStack() as stack:
            jobs = [Job(method, stack.enter_context(RunFolder(tmp_path / method.label, {}))) for method in (BASE, DART)]
            plan = replace(Plan(TAU, SAMPLES, 8), stopping=stopping_of())
            Turns(None, None, all_right).evaluate(plan, jobs, progress=False)  # type: ignore[arg-type]
        assert turns[:4] == [0, 2, 4, 6]


def a_job(method: Method, root: Path, stopping: Mapping[str, Any] | None, answered: Sequence[Sample] = ()) -> Job:
    """Return a setting whose folder holds right replies, and a rule in `run.json`."""
    folder = RunFolder(root / method.label, {})
    folder.run = {"samples": [record.id for record in answered], **({"stopping": dict(stopping)} if stopping else {})}
    records = (typed(a_timed_choice(int(record.id[4:]), right=True, cluster=record.cluster)) for record in answered)
    folder.records = {record.id: record for record in records}
    return Job(method, folder)


class TestLooksThatWereTaken:
    """The first 100 samples were looked at; then the limit, the margin or the settings change."""

    def again(
        self,
        root: Path,
        margin: float = 0.1,
        tests: int = 1,
        samples: Sequence[Sample] = SAMPLES,
        answered: Sequence[Sample] = SAMPLES[:50],
        **changed: Any,
    ) -> Stopping:
        first = stopping_of(samples=SAMPLES[:100])
        rule = first.rule(Job(DART, RunFolder(root, {}))) | changed
        jobs = [a_job(BASE, root, None, answered), a_job(DART, root, rule, answered)]
        stopping = Margin({"": margin}, tests).stopping(TAU, samples, 42, SAMPLES, jobs)
        assert stopping
        return stopping

    def test_keep_their_clusters_first_under_a_larger_sample_limit(self, tmp_path: Path) -> None:
        before, after = list(stopping_of(samples=SAMPLES[:100]).clusters), list(self.again(tmp_path).clusters)
        assert after[:50] == before
        assert after[50:] == [name for name in stopping_of().clusters if name not in before]

    def test_add_no_more_samples_to_clusters_already_looked_at(self, tmp_path: Path) -> None:
        """Half of each cluster ran; the other half would change what was seen."""
        half = SAMPLES[:100:2]
        rule = stopping_of(samples=half).rule(Job(DART, RunFolder(tmp_path, {})))
        jobs = [a_job(BASE, tmp_path, None, half), a_job(DART, tmp_path, rule, half)]
        stopping = Margin({"": 0.1}, 1).stopping(TAU, SAMPLES, 42, SAMPLES, jobs)
        assert stopping
        sizes = [len(part) for part in stopping.clusters.values()]
        assert sizes == [1] * 50 + [2] * 100

    def test_make_a_smaller_sample_limit_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(SettingsError, match="tested with 100 samples, of which this run leaves out 40"):
            self.again(tmp_path, samples=SAMPLES[:60])

    @pytest.mark.parametrize(
        ("asked", "there", "now"),
        [
            ({"margin": 0.2}, "margin 0.1,", "margin 0.2,"),
            ({"tests": 3}, "1 test;", "3 tests;"),
            ({"alpha": 0.1}, "α 0.1 ", "α 0.05 "),
        ],
    )
    def test_make_a_changed_stopping_rule_an_error(
        self, asked: dict[str, Any], there: str, now: str, tmp_path: Path
    ) -> None:
        with pytest.raises(SettingsError, match=f"was already tested with .*{there}.* now it is .*{now}"):
            self.again(tmp_path, **asked)

    def test_without_any_reply_leave_the_margin_free_to_change(self, tmp_path: Path) -> None:
        assert self.again(tmp_path, margin=0.2, answered=()).margin == 0.2

    def test_in_different_cluster_orders_of_two_settings_are_an_error(self, tmp_path: Path) -> None:
        jobs = [a_job(BASE, tmp_path, None)]
        for method, seed in ((DART, 1), (RANDOM, 2)):
            rule = stopping_of(seed=seed).rule(Job(method, RunFolder(tmp_path, {})))
            jobs.append(a_job(method, tmp_path, rule, SAMPLES[:50]))
        with pytest.raises(SettingsError, match="in another order of clusters"):
            Margin({"": 0.1}, 1).stopping(TAU, SAMPLES, 42, SAMPLES, jobs)

    def test_the_largest_cluster_is_counted_over_the_whole_task(self) -> None:
        stopping = Margin({"": 0.1}, 1).stopping(TAU, SAMPLES[::2], 42, SAMPLES)
        assert stopping
        assert stopping.largest == 2


class TestResultsOnRecord:
    def test_of_all_samples_stay_in_the_outcome_of_a_stopped_setting(self, tmp_path: Path) -> None:
        jobs = [a_job(method, tmp_path, None, SAMPLES) for method in (BASE, DART)]
        stopping = Margin({"": 0.1}, 1).stopping(TAU, SAMPLES, 42, SAMPLES, jobs)
        assert stopping
        for outcome in stopping.outcomes(jobs).values():
            assert set(outcome["samples"]) == {sample.id for sample in SAMPLES}
            assert outcome["stopping"]["stopped_after"] == 150
        (line,) = stopping.lines(jobs)
        assert f"after {fewest(0.1)} of 150 clusters (300 samples); 228 samples beyond were on record already" in line

    def test_of_base_for_all_samples_are_kept_if_another_setting_stops_early(self, tmp_path: Path) -> None:
        jobs = [a_job(BASE, tmp_path, None, SAMPLES), a_job(DART, tmp_path, None)]
        stopping = Margin({"": 0.1}, 1).stopping(TAU, SAMPLES, 42, SAMPLES, jobs)
        assert stopping
        jobs[1] = a_job(DART, tmp_path, None, SAMPLES)
        outcomes = stopping.outcomes(jobs)
        assert len(outcomes[BASE.label]["samples"]) == 300
        assert len(outcomes[DART.label]["samples"]) == 2 * fewest(0.1)

    def test_of_an_unfinished_round_beyond_the_stop_are_not_counted(self, tmp_path: Path) -> None:
        """Records of samples that the first run did not select: it was killed, so only the rule says which it had."""
        rule = stopping_of().rule(Job(DART, RunFolder(tmp_path, {})))
        jobs = [a_job(method, tmp_path, rule, SAMPLES) for method in (BASE, DART)]
        stopping = Margin({"": 0.1}, 1).stopping(TAU, SAMPLES, 42, SAMPLES, jobs)
        assert stopping
        assert len(stopping.outcomes(jobs)[DART.label]["samples"]) == 2 * fewest(0.1)


class TestRefused:
    @pytest.mark.parametrize(
        ("margins", "methods", "message"),
        [
            ({"": 0.1}, [DART], "base and at least one method"),
            ({"": 0.1}, [BASE], "base and at least one method"),
            ({"race": 0.1}, [BASE, DART], "race is not run; allowed: tau"),
        ],
    )
    def test_bad_margins_and_methods_with_a_one_line_error(
        self, margins: dict[str, float], methods: list[Method], message: str
    ) -> None:
        with pytest.raises(SettingsError, match=message):
            stop_margin(margins, [TAU], methods, RunSettings())

    def test_a_task_that_is_scored_after_the_run(self) -> None:
        with pytest.raises(SettingsError, match="lalm/clotho is scored after the run"):
            stop_margin({"": 0.1}, [get_task("lalm/clotho")], [BASE, DART], RunSettings())

    def test_the_number_of_tests_is_tasks_with_a_margin_times_settings(self) -> None:
        tasks = [TAU, get_task("gtzan")]
        assert stop_margin({"tau": 0.1}, tasks, [BASE, DART, RANDOM], RunSettings()).tests == 2
        assert stop_margin({"": 0.1}, tasks, [BASE, DART, RANDOM], RunSettings()).tests == 4


COMMAND = ("sweep", "tau", "--model", "embedded", "--methods", "frame:0.1", "--limit", "4")
STOP = ("--margin", "0.9", "--stop-when-decided")


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The embedded model on its own benchmark, at a margin so wide that two clusters decide; and what was said."""
    folder = tmp_path_factory.mktemp("stopped")
    done = CliRunner().invoke(app, [*COMMAND, *STOP, "--results", str(folder)], env=dict.fromkeys(env_names()))
    assert done.exit_code == 0, done.output
    return folder, done.stderr


@pytest.fixture
def stopped(first: tuple[Path, str], no_env: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Path, str]:
    """The same in `results` of the current folder: the `run.json` of the setting that stopped, and what was said."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(first[0], "results")
    return next(Path("results").rglob("frame-0.1*/run.json")), first[1]


def test_a_stopped_sweep_reports_the_stop_and_compare_uses_its_cluster_order(stopped: tuple[Path, str]) -> None:
    run_json, said = stopped
    stop = json.loads(run_json.read_text())["stopping"]
    assert stop["stopped_after"] < len(stop["order"])
    assert f"after {stop['stopped_after']} of" in said
    records = run_json.with_name("samples.jsonl").read_text()
    again = CliRunner().invoke(app, [*COMMAND, *STOP])
    assert again.exit_code == 0
    assert run_json.with_name("samples.jsonl").read_text() == records
    compared = CliRunner().invoke(app, ["compare", "results", "--margin", "0.9", "-o", "c.json"])
    assert f"frame-0.1-layer2 in tau: stopped when it was decided to be {stop['verdict']}" in compared.output
    (note,) = json.loads(run_json.with_name("summary.json").read_text())["notes"]
    assert "the bounds of compare --margin do" in note
    (row,) = json.loads(Path("c.json").read_text())["rows"]
    assert row["decision"]["each"] is True
    refused = CliRunner().invoke(app, [*COMMAND, "--margin", "0.9"])
    assert refused.exit_code == 2
    assert "go together" in refused.output


class TestRunJson:
    def test_holds_the_stopping_rule_before_the_first_reply_is_recorded(
        self, no_env: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.chdir(tmp_path)
        seen = list[dict[str, Any]]()

        def killed(_engine: object, _plan: object, jobs: Sequence[Job], **_: Any) -> None:
            seen.extend(json.loads((job.folder.path / "run.json").read_text())["stopping"] for job in jobs)
            raise MemoryError

        monkeypatch.setattr(Engine, "evaluate", killed)
        CliRunner().invoke(app, [*COMMAND, *STOP])
        assert len(seen) == 2
        for stop in seen:
            assert (stop["margin"], stop["alpha"], stop["stopped_after"]) == (0.9, 0.05, None)
            assert stop["order"]
            assert stop["largest"] >= 1

    def test_no_longer_says_stopped_after_a_later_run_of_all_samples(self, stopped: tuple[Path, str]) -> None:
        order = json.loads(stopped[0].read_text())["stopping"]["order"]
        assert CliRunner().invoke(app, COMMAND).exit_code == 0
        run = json.loads(stopped[0].read_text())
        assert (len(run["samples"]), run["stopping"]["order"]) == (len(order), order)
        compared = CliRunner().invoke(app, ["compare", "results", "--margin", "0.9"])
        assert "stopped when it was decided" not in compared.output
        back = CliRunner().invoke(app, [*COMMAND, *STOP])
        assert "beyond were on record already" in back.stderr
        assert len(json.loads(stopped[0].read_text())["samples"]) == len(order)
        assert "stopped when it was decided" not in CliRunner().invoke(app, ["compare", "results"]).output

    def test_of_a_stopped_setting_is_not_changed_by_a_refused_margin(self, stopped: tuple[Path, str]) -> None:
        before = stopped[0].read_text()
        refused = CliRunner().invoke(app, [*COMMAND, "--margin", "0.8", "--stop-when-decided"])
        assert refused.exit_code != 0
        assert "was already tested with margin 0.9" in refused.stderr
        assert "now it is margin 0.8" in refused.stderr
        assert stopped[0].read_text() == before


def test_the_plan_estimates_from_a_pilot_run_how_many_clusters_decide_the_margin(
    no_env: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, COMMAND).exit_code == 0
    planned = CliRunner().invoke(app, [*COMMAND[:-2], "--plan", "--margin", "0.05"]).output
    assert "tau: margin 0.05: at least 73 clusters even if no reply differs; here are 10 clusters" in planned
    assert "of 4 clusters on record differ from base" in planned
    assert "h with base) decide in 80% of cases" in planned
