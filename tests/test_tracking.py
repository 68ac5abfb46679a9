"""Trackers that follow runs while they go on: the three hooks, and MLflow."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partialmethod
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import task_folders
from builders import a_failed_record, a_record, a_verdict, one_load, records_in, typed  # noqa: F401 (a fixture)
from conftest import call

from audiomarathon.benchmarks import get_task
from audiomarathon.compression.registry import get_method
from audiomarathon.engine.run import Result, run
from audiomarathon.engine.sweep import sweep
from audiomarathon.errors import SettingsError
from audiomarathon.runs.folder import Job, RunFolder
from audiomarathon.settings import RunSettings
from audiomarathon.tracking import following, registry
from audiomarathon.tracking.mlflow import MLflow
from audiomarathon.tracking.registry import open_trackers
from audiomarathon.tracking.tracker import Point, TrackedRun, Tracker

pytestmark = pytest.mark.usefixtures("one_load")


HOOKS = ["started", "scored", "finished"]


class Noting(Tracker):
    """Store all calls; `hurt` maps the name of a hook to the error that it raises."""

    key = "noting"

    def __init__(self, **hurt: BaseException) -> None:
        self.calls: list[tuple[str, Any, Any]] = []
        self.hurt = hurt

    def _note(self, hook: str, run, what=None) -> None:
        if hook in self.hurt:
            raise self.hurt[hook]
        self.calls.append((hook, run, what))

    started = partialmethod(_note, "started")
    scored = partialmethod(_note, "scored")
    finished = partialmethod(_note, "finished")

    def of(self, label: str) -> list[tuple[str, Any]]:
        return [(hook, what) for hook, run, what in self.calls if run.label == label]

    def points(self, label: str) -> list[Any]:
        return [point for hook, what in self.of(label) if hook == "scored" for point in what]


@pytest.fixture
def go(tiny_checkpoint: Path, tmp_path: Path, no_env) -> Callable[..., list[Result]]:
    """Run tau on the tiny checkpoint with trackers."""
    task_folders.build_tau(tmp_path / "data" / "TAU")

    def call(
        *trackers: Tracker, ratios=(), say=lambda _line: None, command=run, tasks=("tau",), **flags
    ) -> list[Result]:
        place = {"data": str(tmp_path / "data"), "model_path": str(tiny_checkpoint), "results": tmp_path / "out"}
        settings = RunSettings.read({}, **{"max_new_tokens": 1, "limit": 3, **place, **flags})
        methods = [get_method("base"), *(get_method("frame", ratio) for ratio in ratios)]
        outcome = command(tasks, "qwen2.5-omni", settings, methods, progress=False, trackers=trackers, say=say)
        return outcome.results if command is sweep else list(outcome)

    return call


def test_a_tracker_is_told_the_start_the_scores_and_the_summary_of_a_run(go) -> None:
    noting = Noting()
    (result,) = go(noting)
    assert [hook for hook, _what in noting.of("base-0")] == ["started", "scored", "finished"]
    told, records = noting.calls[0][1], records_in(result.folder)
    facts = json.loads((result.folder / "run.json").read_text())
    assert (told.task, told.checkpoint, told.method, told.ratio, told.swept) == ("tau", "tiny-omni", "base", 0.0, False)
    assert (told.identity, told.folder) == (facts["identity"], result.folder)
    points = noting.points("base-0")
    assert [point.samples for point in points] == [1, 2, 3]
    assert [point.figures["llm_prefill_s"] for point in points] == [record["time"]["llm_prefill"] for record in records]
    assert points[-1].figures["score"] == result.summary["score"]
    assert noting.calls[-1][2] == result.summary


def test_a_tracker_gets_the_running_scores_of_every_setting_of_a_sweep(go) -> None:
    noting = Noting()
    go(noting, ratios=(0.5,), limit=2)
    for label, ratio in (("base-0", 0.0), ("frame-0.5-layer2", 0.5)):
        assert [point.samples for point in noting.points(label)] == [1, 2]
        assert {(run.ratio, run.swept) for _hook, run, _ in noting.calls if run.label == label} == {(ratio, True)}


def test_running_scores_are_sent_to_the_tracker_before_the_run_ends(go, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "EVERY_S", 0.0)
    noting = Noting()
    go(noting)
    assert [hook for hook, _what in noting.of("base-0")] == ["started", *["scored"] * 3, "finished"]
    assert all("score" in point.figures for point in noting.points("base-0"))


def test_tracking_of_a_resumed_run_begins_with_the_existing_records(go) -> None:
    go(limit=2)
    noting = Noting()
    go(noting, limit=3)
    assert [point.samples for point in noting.points("base-0")] == [1, 2, 3]
    again = Noting()
    go(again, limit=3)  # nothing left to do
    assert again.points("base-0")[-1].figures["score"] == noting.points("base-0")[-1].figures["score"]


def test_failed_samples_and_replies_to_changed_clips_send_no_running_score_to_a_tracker(tmp_path: Path) -> None:
    clips, noting = dict.fromkeys("abcd", "now"), Noting()
    answered = {id_: typed(a_record(id_, **a_verdict("A", ["bus", "tram"], right=True), clips="now")) for id_ in "abd"}
    with RunFolder(tmp_path, {"method": "base"}) as folder:
        folder.write_run({})
        folder.append(replace(answered["a"], clips="then"))
        folder.append(answered["b"])
        job = Job(get_method("base"), folder)
        with following.following([noting], get_task("tau"), [job], "M", clips, print) as finished:
            folder.append(typed(a_failed_record("c")))
            folder.append(answered["d"])
            finished(job, {"n": 2})
    assert [point.samples for point in noting.points("base-0")] == [1, 2]


@pytest.mark.parametrize("hook", HOOKS)
def test_a_tracker_that_fails_is_dropped_with_a_warning_and_the_run_completes(go, hook: str) -> None:
    lines: list[str] = []
    hurt, well = Noting(**{hook: OSError("no route to host")}), Noting()
    (result,) = go(hurt, well, say=lines.append, limit=1)
    assert result.summary["complete"]
    (line,) = (line for line in lines if "warning" in line)
    assert line == "warning: noting failed in tau (OSError: no route to host); nothing more is sent to it"
    assert [hook_name for hook_name, *_rest in well.calls] == HOOKS
    assert [hook_name for hook_name, *_rest in hurt.calls] == HOOKS[: HOOKS.index(hook)]


@pytest.mark.parametrize("command", [run, sweep])
def test_a_tracker_that_failed_in_one_task_is_not_called_in_the_others(go, command: Callable[..., Any]) -> None:
    """A server that hangs costs a minute a call, and was called again in every task."""
    lines: list[str] = []
    go(Noting(started=OSError("no route")), say=lines.append, limit=1, command=command, tasks=[get_task("tau")] * 2)
    assert sum("warning: noting" in line for line in lines) == 1


def test_a_running_score_that_cannot_be_computed_is_not_sent_to_the_tracker(
    go, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "sums_of", lambda _scorer, verdicts: 1 / (len(verdicts) - 3))
    noting = Noting()
    (result,) = go(noting)
    assert result.summary["complete"]
    assert all("score" not in point.figures for point in noting.points("base-0"))


def test_an_interrupted_run_is_marked_as_finished_in_the_tracker_without_a_summary(
    go, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "EVERY_S", 0.0)
    noting = Noting(scored=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        go(noting)
    assert noting.calls[-1][0] == "finished"
    assert noting.calls[-1][2] is None


def test_trackers_are_found_by_name_and_entry_point(monkeypatch) -> None:
    assert open_trackers("") == []
    with pytest.raises(SettingsError, match="unknown tracker 'wandb'; allowed: mlflow"):
        open_trackers("wandb")
    entry = EntryPoint("noting", f"{__name__}:Noting", registry.GROUP)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [entry] if group == registry.GROUP else [])
    (tracker,) = open_trackers("noting, noting")
    assert isinstance(tracker, Noting)


def test_the_example_tracker_of_the_docs_page_writes_the_lines_shown_there(go, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parent.parent / "docs" / "tracking.md").read_text(encoding="utf-8")
    space: dict[str, Any] = {}
    exec(page.partition("```python\n")[2].partition("```")[0], space)
    (result,) = go(space["Logbook"]())
    lines = Path("logbook.txt").read_text().splitlines()
    assert lines[0] == f"tau base-0: started in {result.folder}"
    assert lines[1].startswith("tau base-0: 3 samples, {")
    assert lines[2] == f"tau base-0: {result.summary['score']}"


def test_mlflow_gets_only_the_new_scores_of_a_resumed_run(tmp_path: Path) -> None:
    """A fake client replaces the server."""
    ended, steps, place = list[str](), list[int](), str(tmp_path.resolve())
    tracker: Any = MLflow()
    tracker._runs, tracker._known = {place: "id"}, {place: 2}
    tracker._log = lambda _id, logged: steps.extend(logged)
    tracker._client = SimpleNamespace(
        log_artifact=lambda *_: None, set_terminated=lambda _id, status: ended.append(status)
    )
    told = TrackedRun("tau", "M", "base", "base-0", 0.0, tmp_path, {}, False)
    tracker.scored(told, [Point(samples, {}) for samples in (1, 2, 3, 4)])
    tracker.scored(told, [Point(samples, {}) for samples in (4, 5)])
    assert steps == [3, 4, 5]
    whole = {"n": 5, "score": 0.5, "timing": {}, "complete": True}
    for summary in (whole, whole | {"complete": False}, None):
        tracker.finished(told, summary)
    assert ended == ["FINISHED", "FAILED", "KILLED"]


def test_a_missing_mlflow_is_refused_with_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    for command in ("run", "sweep"):
        code, said = call(command, "tau", "--data", "mini", "--model", "embedded", "--track", "mlflow")
        assert code == 2
        assert "error: --track mlflow needs MLflow: pip install 'audiomarathon[mlflow]'" in said


def test_a_tracking_store_that_mlflow_refuses_is_a_one_line_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class RefusedError(Exception):
        pass

    def refuse() -> None:
        raise RefusedError("the file store is in maintenance mode")

    package, exceptions = ModuleType("mlflow"), ModuleType("mlflow.exceptions")
    vars(package).update(MlflowClient=refuse, get_tracking_uri=lambda: "file:runs")
    vars(exceptions).update(MlflowException=RefusedError)
    monkeypatch.setitem(sys.modules, "mlflow", package)
    monkeypatch.setitem(sys.modules, "mlflow.exceptions", exceptions)
    with pytest.raises(SettingsError, match=r"cannot use file:runs; .*sqlite:///.*ALLOW_FILE_STORE=true"):
        open_trackers("mlflow")


@pytest.mark.long
@pytest.mark.skipif(not find_spec("mlflow"), reason="mlflow is not installed")
def test_mlflow_stores_curves_identity_and_summary_of_each_run(
    go, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is a database, which asks no server to run."""
    from mlflow import MlflowClient

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/store.db")
    first = go(*open_trackers("mlflow"), ratios=(0.3, 0.6), limit=2)
    results = go(*open_trackers("mlflow"), ratios=(0.3, 0.6), limit=3)
    assert len(first) == len(results) == 3
    client = MlflowClient()
    experiment = client.get_experiment_by_name("audiomarathon")
    runs = {tracked.info.run_name: tracked for tracked in client.search_runs([experiment.experiment_id])}
    labels = ("base-0", "frame-0.3-layer2", "frame-0.6-layer2")
    assert set(runs) == {*(f"tau {label}" for label in labels), "tau tiny-omni frame by ratio"}  # resumed, not doubled
    for label, result in zip(labels, results, strict=True):
        shown, score = runs[f"tau {label}"], result.summary["score"]
        assert shown.info.status == "FINISHED"
        identity = json.loads((result.folder / "run.json").read_text())["identity"]
        assert {name: shown.data.params[name] for name in identity} == {n: str(v) for n, v in identity.items()}
        for metric in ("answered", "llm_prefill_s"):
            assert [point.step for point in client.get_metric_history(shown.info.run_id, metric)] == [1, 2, 3]
        assert (shown.data.metrics["score"], shown.data.metrics["final/score"]) == (score, score)
        file = client.download_artifacts(shown.info.run_id, "summary.json", str(tmp_path))
        assert json.loads(Path(file).read_text()) == json.loads((result.folder / "summary.json").read_text())
    curve = client.get_metric_history(runs["tau tiny-omni frame by ratio"].info.run_id, "score")
    scores = [result.summary["score"] for result in results]
    assert {point.step: point.value for point in curve} == dict(zip((0, 30, 60), scores, strict=True))
