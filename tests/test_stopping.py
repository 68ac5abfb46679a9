"""Runs that stop early when a margin is decided: the order of clusters, the stopping point, the records."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import task_folders
from builders import a_failed_record, a_timed_choice, typed
from conftest import call, succeed

from audiomarathon.benchmarks import Sample, get_task
from audiomarathon.compression.method import Method
from audiomarathon.compression.registry import get_method
from audiomarathon.engine.batches import Plan
from audiomarathon.engine.engine import Engine
from audiomarathon.engine.stopping import Margin, Stopping, stop_margin
from audiomarathon.errors import SettingsError
from audiomarathon.metrics.betting import fewest
from audiomarathon.runs.folder import Job, RunFolder
from audiomarathon.settings import RunSettings

TAU, BASE, DART, RANDOM = get_task("tau"), *map(get_method, ("base", "dart:0.5", "random:0.5"))
SAMPLES = tuple(
    Sample(f"clip{number}", (), "?", "A", f"place{number // 2}", ("x", "y"), ("x", "y")) for number in range(300)
)


@dataclass(frozen=True)
class Answers(Engine):
    """An engine with prepared replies, which answers the samples of a round in reverse order."""

    rights: Callable[[str, Sample], bool | None]
    several: int = 1
    calls: list[tuple[str, str]] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)

    def at_once(self, plan: Plan) -> int:
        return self.several

    def answer(self, plan: Plan, pending: Mapping[str, Sequence[Method]], say: Any) -> Generator[Any]:
        self.turns.append(plan.turn)
        for sample in reversed(plan.samples):
            for method in pending.get(sample.id, ()):
                self.calls.append((method.label, sample.id))
                right, number = self.rights(method.label, sample), int(sample.id[4:])
                record = a_timed_choice(number, right=bool(right), cluster=sample.cluster)
                failed = a_failed_record(sample.id, cluster=sample.cluster)
                yield method.label, typed(failed if right is None else record)


def stopping_of(
    margin: float = 0.1,
    tests: int = 1,
    seed: int = 42,
    samples: Sequence[Sample] = SAMPLES,
    jobs: Sequence[Job] = (),
) -> Stopping:
    stopping = Margin({"": margin}, tests).stopping(TAU, samples, seed, SAMPLES, jobs)
    assert stopping
    return stopping


def run(
    root: Path,
    rights: Callable[[str, Sample], bool | None],
    methods: Sequence[Method],
    stopping: Stopping,
    several: int = 1,
) -> tuple[Answers, dict[str, dict[str, Any]], list[str]]:
    """Run the samples; return the engine, the content of each setting's `run.json`, and the lines for the user."""
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


def test_the_order_of_clusters_is_drawn_from_the_seed() -> None:
    first, again, other = (list(stopping_of(seed=seed).clusters) for seed in (1, 1, 2))
    assert first == again != other
    assert first != sorted(first)


def test_the_order_of_clusters_does_not_depend_on_the_order_of_samples() -> None:
    assert list(stopping_of().clusters) == list(stopping_of(samples=SAMPLES[::-1]).clusters)


def test_a_setting_stops_early_at_the_same_cluster_whichever_sample_finishes_first(tmp_path: Path) -> None:
    """The first drawn cluster has one loss. The order of replies must not change where the setting stops."""
    stopping = stopping_of()
    lost = next(iter(stopping.clusters.values()))[0].id
    stops = set()

    def rights(label: str, sample: Sample) -> bool:
        return label == BASE.label or sample.id != lost

    for several in (1, 7):
        _, outcomes, _ = run(tmp_path / str(several), rights, [BASE, DART], stopping_of(), several)
        stops.add((outcomes[DART.label]["stopping"]["stopped_after"], tuple(outcomes[DART.label]["samples"])))
    assert len(stops) == 1


def test_a_setting_as_good_as_base_stops_early_after_the_fewest_possible_clusters(tmp_path: Path) -> None:
    engine, outcomes, lines = run(tmp_path, all_right, [BASE, DART], stopping_of())
    stop = outcomes[DART.label]["stopping"]
    assert (stop["verdict"], stop["stopped_after"]) == ("no worse", fewest(0.1))
    assert len(outcomes[DART.label]["samples"]) == len(engine.calls) / 2 == 2 * fewest(0.1)
    assert lines == [
        f"tau: dart-0.5-layer2: no worse by more than 0.1 after {fewest(0.1)} of 150 clusters (72 samples)"
    ]


def test_a_worse_setting_stops_early_and_base_continues_for_the_other_settings(tmp_path: Path) -> None:
    engine, outcomes, _ = run(tmp_path, dart_loses, [BASE, DART, RANDOM], stopping_of())
    after = {label: outcome["stopping"]["stopped_after"] for label, outcome in outcomes.items()}
    assert outcomes[DART.label]["stopping"]["verdict"] == "worse"
    assert after[DART.label] < after[RANDOM.label] == after[BASE.label]
    counts = {label: sum(called == label for called, _ in engine.calls) for label in after}
    assert counts == {label: 2 * clusters for label, clusters in after.items()}


def test_a_setting_that_the_margin_test_never_decides_runs_all_samples(tmp_path: Path) -> None:
    engine, outcomes, lines = run(tmp_path, all_right, [BASE, DART], stopping_of(margin=0.001))
    assert len(engine.calls) == 2 * len(SAMPLES)
    assert outcomes[DART.label]["stopping"]["verdict"] == "not decided"
    assert "not decided after 150 of 150 clusters" in lines[0]


def test_testing_more_settings_at_once_lets_each_stop_only_after_more_clusters(tmp_path: Path) -> None:
    by_tests = [run(tmp_path / str(n), all_right, [BASE, DART], stopping_of(tests=n))[1] for n in (1, 20)]
    alone, of_20 = (outcomes[DART.label]["stopping"]["stopped_after"] for outcomes in by_tests)
    assert alone == fewest(0.1)
    assert of_20 == fewest(0.1, 0.05 / 20)


def test_a_setting_with_many_failed_samples_stays_undecided_and_runs_all_samples(tmp_path: Path) -> None:
    def rights(label: str, sample: Sample) -> bool | None:
        return None if label == DART.label and int(sample.id[4:]) % 2 else True

    engine, outcomes, _ = run(tmp_path, rights, [BASE, DART], stopping_of())
    assert outcomes[DART.label]["stopping"]["verdict"] == "not decided"
    assert len(engine.calls) == 2 * len(SAMPLES)


def test_a_resumed_run_stops_at_the_same_cluster_as_an_uninterrupted_one(tmp_path: Path) -> None:
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


def test_base_and_a_setting_take_turns_at_running_first_in_successive_rounds(tmp_path: Path) -> None:
    engine, *_ = run(tmp_path, all_right, [BASE, DART], stopping_of())
    assert engine.turns[:4] == [0, 2, 4, 6]


def a_job(method: Method, root: Path, stopping: Mapping[str, Any] | None, answered: Sequence[Sample] = ()) -> Job:
    """Return a job whose folder contains right replies and a stopping rule in `run.json`."""
    folder = RunFolder(root / method.label, {})
    folder.run = {"samples": [record.id for record in answered], **({"stopping": dict(stopping)} if stopping else {})}
    records = (typed(a_timed_choice(int(record.id[4:]), right=True, cluster=record.cluster)) for record in answered)
    folder.records = {record.id: record for record in records}
    return Job(method, folder)


class TestEarlierLooks:
    """The first 100 samples were tested; then the limit, the margin or the settings change."""

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
        return stopping_of(margin, tests, samples=samples, jobs=jobs)

    def test_a_larger_sample_limit_leaves_already_tested_clusters_first_in_the_order(self, tmp_path: Path) -> None:
        before, after = list(stopping_of(samples=SAMPLES[:100]).clusters), list(self.again(tmp_path).clusters)
        assert after[:50] == before
        assert after[50:] == [name for name in stopping_of().clusters if name not in before]

    def test_a_larger_sample_limit_adds_no_samples_to_clusters_already_tested(self, tmp_path: Path) -> None:
        """Half of each cluster was tested. The other half would change the tested results."""
        half = SAMPLES[:100:2]
        rule = stopping_of(samples=half).rule(Job(DART, RunFolder(tmp_path, {})))
        jobs = [a_job(BASE, tmp_path, None, half), a_job(DART, tmp_path, rule, half)]
        assert [len(part) for part in stopping_of(jobs=jobs).clusters.values()] == [1] * 50 + [2] * 100

    def test_a_sample_limit_that_leaves_out_tested_samples_is_refused(self, tmp_path: Path) -> None:
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
    def test_a_changed_stopping_rule_is_refused_for_samples_already_tested(
        self, asked: dict[str, Any], there: str, now: str, tmp_path: Path
    ) -> None:
        with pytest.raises(SettingsError, match=f"was already tested with .*{there}.* now it is .*{now}"):
            self.again(tmp_path, **asked)

    def test_the_margin_may_change_before_the_first_reply(self, tmp_path: Path) -> None:
        assert self.again(tmp_path, margin=0.2, answered=()).margin == 0.2

    def test_two_settings_tested_in_different_orders_of_clusters_are_refused(self, tmp_path: Path) -> None:
        jobs = [a_job(BASE, tmp_path, None)]
        for method, seed in ((DART, 1), (RANDOM, 2)):
            rule = stopping_of(seed=seed).rule(Job(method, RunFolder(tmp_path, {})))
            jobs.append(a_job(method, tmp_path, rule, SAMPLES[:50]))
        with pytest.raises(SettingsError, match="in another order of clusters"):
            stopping_of(jobs=jobs)

    def test_the_size_of_the_largest_cluster_is_taken_over_all_samples_of_the_task(self) -> None:
        assert stopping_of(samples=SAMPLES[::2]).largest == 2


def test_a_setting_keeps_replies_to_all_samples_recorded_before_the_stopping_rule(tmp_path: Path) -> None:
    jobs = [a_job(method, tmp_path, None, SAMPLES) for method in (BASE, DART)]
    stopping = stopping_of(jobs=jobs)
    for outcome in stopping.outcomes(jobs).values():
        assert set(outcome["samples"]) == {sample.id for sample in SAMPLES}
        assert outcome["stopping"]["stopped_after"] == 150
    (line,) = stopping.lines(jobs)
    assert f"after {fewest(0.1)} of 150 clusters (300 samples); 228 samples beyond were on record already" in line


def test_base_keeps_its_replies_to_all_samples_if_another_setting_stops_early(tmp_path: Path) -> None:
    jobs = [a_job(BASE, tmp_path, None, SAMPLES), a_job(DART, tmp_path, None)]
    stopping = stopping_of(jobs=jobs)
    jobs[1] = a_job(DART, tmp_path, None, SAMPLES)
    outcomes = stopping.outcomes(jobs)
    assert len(outcomes[BASE.label]["samples"]) == 300
    assert len(outcomes[DART.label]["samples"]) == 2 * fewest(0.1)


def test_replies_given_after_a_setting_met_its_stopping_rule_are_not_counted(tmp_path: Path) -> None:
    """There are records of samples that the killed first run did not select. Only its rule shows which it selected."""
    rule = stopping_of().rule(Job(DART, RunFolder(tmp_path, {})))
    jobs = [a_job(method, tmp_path, rule, SAMPLES) for method in (BASE, DART)]
    stopping = stopping_of(jobs=jobs)
    assert len(stopping.outcomes(jobs)[DART.label]["samples"]) == 2 * fewest(0.1)


@pytest.mark.parametrize(
    ("margins", "task", "methods", "message"),
    [
        ({"": 0.1}, "tau", [DART], "base and at least one method"),
        ({"": 0.1}, "tau", [BASE], "base and at least one method"),
        ({"race": 0.1}, "tau", [BASE, DART], "race is not run; allowed: tau"),
        ({"": 0.1}, "lalm/clotho", [BASE, DART], "lalm/clotho is scored after the run"),
    ],
)
def test_a_margin_that_no_run_could_test_is_refused(
    margins: dict[str, float], task: str, methods: list[Method], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        stop_margin(margins, [get_task(task)], methods, RunSettings())


def test_the_number_of_margin_tests_is_tasks_with_a_margin_times_settings_besides_base() -> None:
    tasks = [TAU, get_task("gtzan")]
    assert stop_margin({"tau": 0.1}, tasks, [BASE, DART, RANDOM], RunSettings()).tests == 2
    assert stop_margin({"": 0.1}, tasks, [BASE, DART, RANDOM], RunSettings()).tests == 4


SWEEP = ("sweep", "tau", "--model", "embedded", "--methods", "frame:0.1", "--limit", "4")
STOP = ("--margin", "0.9", "--stop-when-decided")


@pytest.fixture
def tau_here(no_env: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Change to a folder with ten clips of one second."""
    monkeypatch.chdir(tmp_path)
    no_env("AUDIOMARATHON_DATA", str(task_folders.build_all(tmp_path / "data", ["tau"])))


@pytest.fixture
def stopped(tau_here: None) -> tuple[Path, str]:
    """Return `run.json` and output of a stopped setting: two clusters decide such a wide margin."""
    said = succeed(*SWEEP, *STOP)
    return next(Path("results").rglob("frame-0.1*/run.json")), said


def test_sweep_and_compare_report_that_a_setting_stopped_early(stopped: tuple[Path, str]) -> None:
    run_json, said = stopped
    stop = json.loads(run_json.read_text())["stopping"]
    assert stop["stopped_after"] < len(stop["order"])
    assert f"after {stop['stopped_after']} of" in said
    (note,) = json.loads(run_json.with_name("summary.json").read_text())["notes"]
    assert "the bounds of compare --margin do" in note
    records = run_json.with_name("samples.jsonl").read_text()
    succeed(*SWEEP, *STOP)
    assert run_json.with_name("samples.jsonl").read_text() == records
    compared = succeed("compare", "results", "--margin", "0.9", "-o", "c.json")
    assert f"frame-0.1-layer2 in tau: stopped when it was decided to be {stop['verdict']}" in compared
    (row,) = json.loads(Path("c.json").read_text())["rows"]
    assert row["decision"]["each"] is True


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--margin", "0.9"), 2, ["go together"]),
        (("--margin", "0.8", STOP[-1]), 1, ["was already tested with margin 0.9", "now it is margin 0.8"]),
    ],
)
def test_a_refused_margin_leaves_the_run_json_of_a_stopped_setting_unchanged(
    stopped: tuple[Path, str], options: Sequence[str], code: int, words: list[str]
) -> None:
    before = stopped[0].read_text()
    refused, said = call(*SWEEP, *options)
    assert (refused, [word for word in words if word not in said]) == (code, [])
    assert stopped[0].read_text() == before


def test_run_json_holds_the_stopping_rule_before_the_first_reply_is_recorded(
    tau_here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[dict[str, Any]]()

    def killed(_engine: object, _plan: object, jobs: Sequence[Job], **_: Any) -> None:
        seen.extend(json.loads((job.folder.path / "run.json").read_text())["stopping"] for job in jobs)
        raise MemoryError

    monkeypatch.setattr(Engine, "evaluate", killed)
    call(*SWEEP, *STOP)
    assert len(seen) == 2
    for stop in seen:
        assert (stop["margin"], stop["alpha"], stop["stopped_after"]) == (0.9, 0.05, None)
        assert stop["order"]
        assert stop["largest"] >= 1


def test_a_setting_is_not_reported_as_stopped_once_all_its_samples_have_been_run(stopped: tuple[Path, str]) -> None:
    order = json.loads(stopped[0].read_text())["stopping"]["order"]
    succeed(*SWEEP)
    run = json.loads(stopped[0].read_text())
    assert (len(run["samples"]), run["stopping"]["order"]) == (len(order), order)
    assert "stopped when it was decided" not in succeed("compare", "results", "--margin", "0.9")
    assert "beyond were on record already" in succeed(*SWEEP, *STOP)
    assert len(json.loads(stopped[0].read_text())["samples"]) == len(order)
    assert "stopped when it was decided" not in succeed("compare", "results")


def test_the_plan_estimates_from_a_pilot_run_how_many_clusters_decide_the_margin(tau_here: None) -> None:
    succeed(*SWEEP)
    planned = succeed(*SWEEP[:-2], "--plan", "--margin", "0.05")
    assert "tau: margin 0.05: at least 73 clusters even if no reply differs; here are 10 clusters" in planned
    assert "of 4 clusters on record differ from base" in planned
    assert "h with base) decide in 80% of cases" in planned
