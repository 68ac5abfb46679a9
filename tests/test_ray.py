"""Runs distributed to Ray's workers have the same records as local runs, whatever happens to a worker."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import task_folders
from builders import a_record, records_in, steady, write_run
from conftest import call
from jasco_folders import a_reply
from test_cli import one_error

from audiomarathon.benchmarks import Sample, get_task
from audiomarathon.compression.registry import get_method
from audiomarathon.engine import ray_options
from audiomarathon.engine.batches import Plan
from audiomarathon.engine.ray_options import Ray, read_executor
from audiomarathon.engine.run import Result, run
from audiomarathon.engine.sweep import sweep
from audiomarathon.errors import ExecutorError, SettingsError
from audiomarathon.lock import hold_run
from audiomarathon.settings import RunSettings

if find_spec("ray"):
    from audiomarathon.engine import ray_engine, ray_pool

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed (pip install 'ray>=2.40')")
BROKEN = "bus-lisbon-1000-0-a.wav"


@pytest.fixture(scope="module")
def go(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[Result]]:
    """Run ten short clips, one of them broken, under two settings."""
    root = tmp_path_factory.mktemp("ray")
    clips = task_folders.build_tau(root / "data" / "TAU") / "concatenated_resampled"
    (clips / BROKEN).write_bytes(b"RIFF")

    def call(name: str, ray: Ray | None, **flags: Any) -> list[Result]:
        given = {"max_new_tokens": 6, "model_path": str(tiny_checkpoint), "data": str(root / "data"), **flags}
        settings = RunSettings.read({}, results=root / name, **given)
        methods = [get_method("base"), get_method("frame", 0.5)]
        if settings.timing:
            return sweep([get_task("tau")], "qwen2.5-omni", settings, methods, ray=ray, progress=False).results
        return list(run(["tau"], "qwen2.5-omni", settings, methods, ray=ray, progress=False))

    return call


def answers(results: list[Result]) -> list[dict[str, Any]]:
    """Return each setting's records by id, without times and memory."""
    by_setting = []
    for result in results:
        lines = records_in(result.folder)
        by_setting.append({row["id"]: steady(row) for row in lines})
        assert len(by_setting[-1]) == len(lines) == 10
        assert [row["id"] for row in lines if row["error"]] == [f"concatenated_resampled/{BROKEN}"]
    return by_setting


@needs_ray
@pytest.mark.long
class TestRuns:
    """Killed workers, lost machines and Ctrl-C are tested in drills/test_drill_workers.py."""

    @pytest.mark.parametrize(("workers", "flags"), [(1, {}), (4, {"timing": False, "batch_size": 2})])
    def test_replies_and_scores_of_runs_on_ray_equal_those_of_local_runs(self, go, workers: int, flags: dict) -> None:
        results = go(f"ray-{workers}", Ray(workers=workers), **flags)
        assert answers(results) == answers(go(f"local-{workers}", None, **flags))
        assert {result.summary["complete"] for result in results} == {False}  # the broken clip
        facts = json.loads((results[0].folder / "run.json").read_text())
        assert facts["settings"]["device"] == "cpu"  # not "auto": a worker without a GPU may see all GPUs
        (session,) = facts["sessions"]
        assert (session["executor"], session["workers"], session["workers_sharing"]) == ("ray", workers, workers)


@pytest.fixture(scope="class")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Start one Ray with room for two workers, shared by all commands; the judges' cache is empty."""
    from audiomarathon.engine import ray_map, ray_pool

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUDIOMARATHON_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        with ray_pool.connected(
            Ray(workers=2), RunSettings.read({}, device="cpu", timing=False), lambda _line: None
        ) as shape:
            patch.setattr(ray_map, "connected", lambda *_, **_more: nullcontext(shape))
            yield


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Write four runs of replies to judge and score; one reply is the same in all of them."""
    for number in range(4):
        replies = ["They build a sandcastle.", f"They sing {number} songs.", f"Waves, {number} times."]
        records = [a_reply(clip, 1, reply) for clip, reply in enumerate(replies, 1)]
        facts = {"schema_version": 2, "task": "jasco", "method": f"frame-0.{number}", "checkpoint": "/m/M"}
        facts |= {"settings": {"seed": 42}, "identity": {"method": "frame", "ratio": number / 10}}
        lines = [
            a_record(record.id, cluster=record.cluster, reply=record.reply, reference=record.reference)
            for record in records
        ]
        write_run(tmp_path / "runs" / f"frame-0.{number}", facts, lines)
    return tmp_path / "runs"


def content(root: Path) -> dict[str, bytes]:
    return {str(file.relative_to(root)): file.read_bytes() for file in root.rglob("*") if file.is_file()}


def both_ways(runs: Path, *command: str) -> tuple[dict[str, bytes], dict[str, bytes], str]:
    """Run a command here and in Ray's workers; return the files of both, and the output of the latter."""
    shutil.copytree(runs, other := runs.with_name("by-ray"))
    here = call(*command[:1], runs, *command[1:])
    there = call(*command[:1], other, *command[1:], "--executor", "ray", "--workers", "2")
    assert here[0] == there[0]
    return content(runs), content(other), there[1]


@pytest.fixture(params=["copies", pytest.param("ray", marks=pytest.mark.long)])
def workers(request, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Use Ray's workers, or replace them by copies of the work in this process, the last item first."""
    from audiomarathon.engine import ray_map

    def by_copies(
        work: Any, items: Sequence[Any], _wanted: Ray, _say: Any, **_shape: bool
    ) -> Iterator[tuple[int, Any]]:
        from ray import cloudpickle

        worker = ray_map._Worker(cloudpickle.loads(cloudpickle.dumps(work)), Path.cwd(), on_gpu=True)
        for number, item in [*enumerate(items)][::-1]:
            yield number, worker.call(item)[0]

    if request.param == "ray":
        request.getfixturevalue("cluster")
    else:
        monkeypatch.setenv("AUDIOMARATHON_CACHE", str(tmp_path / "workers' cache"))
        monkeypatch.setattr(ray_map, "ray_map", by_copies)


@needs_ray
@pytest.mark.usefixtures("workers")
class TestStoredReplies:
    def test_the_score_command_gives_stored_replies_the_same_scores_on_ray_as_locally(self, runs: Path) -> None:
        (runs / "frame-0.2" / "run.json").write_text("{}")
        here, there, said = both_ways(runs, "score")
        assert sum(name.endswith("summary.json") for name in here) == 3
        assert there == here
        assert [line for line in said.splitlines() if "error" in line and "frame-0.2" in line and "run.json" in line]

    def test_the_judge_command_gives_the_same_verdicts_on_ray_and_sends_each_request_once(
        self, runs, monkeypatch
    ) -> None:
        with monkeypatch.context() as patch:
            patch.setenv("AUDIOMARATHON_CACHE", str(runs.parent / "cache"))
            shutil.copytree(runs, other := runs.with_name("by-ray"))
            assert call("judge", runs, "--with", "toy")[0] == 0
        for _again in range(2):
            assert call("judge", other, "--with", "toy", "--executor", "ray", "--workers", "2")[0] == 0
            assert content(other) == content(runs)
        texts = {file: file.read_text() for file in other.rglob("judgements-toy.jsonl")}
        judged = [(file, json.loads(line)) for file, text in texts.items() for line in text.splitlines()]
        sent = {(file, judgement["request_hash"]) for file, judgement in judged if not judgement["cached"]}
        assert len(sent) == len({judgement["request_hash"] for _file, judgement in judged})

    def test_the_judge_command_judges_the_other_runs_if_one_run_is_in_use(self, runs: Path) -> None:
        with hold_run(runs / "frame-0.1"):
            code, said = call("judge", runs, "--with", "toy", "--no-cache", "--anchors-only", "--executor", "ray")
        assert code == 1
        assert sum("frame-0.1" in line and line.startswith("error:") for line in said.splitlines()) == 1
        assert len([*runs.rglob("judgements-toy.jsonl")]) == 3


@needs_ray
def test_ray_starts_no_more_workers_than_there_are_work_items(monkeypatch: pytest.MonkeyPatch) -> None:
    from audiomarathon.engine import ray_map

    asked = list[int | None]()
    monkeypatch.setattr(ray_map, "connected", lambda wanted, *_, **_more: asked.append(wanted.workers) or 1 / 0)
    for workers in (1000, 2, None):
        with pytest.raises(ZeroDivisionError):
            [*ray_map.ray_map(str, range(3), Ray(workers=workers), lambda _line: None)]
    assert asked == [3, 2, None]


@needs_ray
def test_a_work_item_on_which_three_workers_died_is_an_error_that_names_the_item() -> None:
    from audiomarathon.engine.ray_map import _Calls

    part = 4, Path("runs/base-0")
    assert [_Calls().smaller(part, deaths) for deaths in (1, 2, 3)] == [[part], [part], []]
    (error, _warnings) = _Calls().given_up(part, 3)
    assert "runs/base-0: 3 workers died" in str(error)


def a_plan(batch_size: int | None, count: int = 10) -> Plan:
    samples = tuple(Sample(f"{n}", (), "?", "A", f"{n}", ("x", "y"), ("x", "y")) for n in range(count))
    return Plan(get_task("tau"), samples, 8, batch_size=batch_size)


@needs_ray
@pytest.mark.parametrize(
    ("hash_", "dtype", "card", "timing", "said"),
    [
        ("a", "bfloat16", "H100", True, ""),
        ("b", "bfloat16", "H100", True, "checkpoint b, not a"),
        ("a", "float16", "H100", False, "dtype float16, not bfloat16"),
        ("a", "bfloat16", "A100", True, "device A100, not H100"),
        ("a", "bfloat16", "A100", False, ""),
    ],
)
def test_a_ray_worker_with_another_checkpoint_or_dtype_or_gpu_than_the_first_is_reported(
    hash_, dtype, card, timing, said
) -> None:
    def setup(checkpoint_hash: str, dtype: str, name: str) -> Any:
        settings, hardware = SimpleNamespace(timing=timing), SimpleNamespace(dtype=dtype, name=name)
        return SimpleNamespace(checkpoint_hash=checkpoint_hash, hardware=hardware, settings=settings)

    assert ray_engine.differences(setup("a", "bfloat16", "H100"), setup(hash_, dtype, card)) == said


@needs_ray
class TestChunks:
    @pytest.mark.parametrize(
        ("batch_size", "workers", "sizes", "turns"),
        [
            (None, 2, [1] * 10, list(range(10))),
            (1, 1, [4, 3, 1, 1, 1], [0, 4, 7, 8, 9]),
            (2, 2, [2] * 5, [0, 1, 2, 3, 4]),
            (3, 1, [6, 3, 1], [0, 2, 3]),
        ],
    )
    def test_chunks_of_samples_for_ray_workers_get_smaller_towards_the_end_of_a_run(
        self, batch_size, workers, sizes, turns
    ) -> None:
        plan = a_plan(batch_size)
        chunks = list(ray_engine.cut(plan.samples, plan, workers))
        assert ([len(chunk.samples) for chunk in chunks], [chunk.turn for chunk in chunks]) == (sizes, turns)
        assert [sample for chunk in chunks for sample in chunk.samples] == list(plan.samples)

    def test_samples_lost_with_a_ray_worker_are_retried_in_ever_smaller_groups(self) -> None:
        plan = a_plan(2, 4)
        work = ray_engine.TaskWork(plan, {id_: ["base-0"] for id_ in "0123"}, None)

        def cut_again(deaths: int, *samples: Sample) -> list[tuple[list[str], int]]:
            return [
                ([s.id for s in piece.samples], piece.turn)
                for piece in work.smaller(ray_engine.Chunk(samples, 7), deaths)
            ]

        assert cut_again(1, *plan.samples) == [(["0", "1"], 7), (["2", "3"], 8)]
        assert cut_again(2, *plan.samples[:2]) == [(["0"], 7), (["1"], 8)]
        assert cut_again(2, plan.samples[0]) == [(["0"], 7)]
        assert cut_again(3, plan.samples[0]) == []
        made = work.given_up(ray_engine.Chunk(plan.samples[:1], 7), 3)
        assert [(label, record.id, record.error) for label, record in made] == [
            ("base-0", "0", "WorkerLost: 3 workers died while they ran this sample")
        ]


@needs_ray
class TestLayOut:
    GPUS = ({"CPU": 32, "GPU": 4}, {"CPU": 32, "GPU": 4}, {"CPU": 8})

    @pytest.mark.parametrize(
        ("wanted", "flags", "nodes", "shape"),
        [
            (Ray(), {}, [{"CPU": 2}], (1, 0, 2, 1)),
            (Ray(workers=2), {}, [{"CPU": 2}], (2, 0, 1, 2)),
            (Ray(workers=3), {}, [{"CPU": 7}, {"CPU": 7}], (3, 0, 3, 2)),
            (Ray(), {}, GPUS, (8, 1, 8, 1)),
            (Ray(workers=3), {}, GPUS, (3, 1, 10, 1)),
            (Ray(gpus_per_worker=0.5), {}, GPUS, (16, 0.5, 4, 2)),
            (Ray(gpus_per_worker=2), {}, GPUS, (4, 2, 16, 1)),
            (Ray(gpus_per_worker=0.3), {}, GPUS, (24, 0.3, 2, 3)),
            (Ray(gpus_per_worker=0.6), {}, GPUS, (8, 0.6, 8, 1)),
            (Ray(), {"device": "cpu"}, GPUS, (3, 0, 8, 1)),
        ],
    )
    def test_gpus_and_cpus_are_divided_among_the_workers(self, wanted, flags, nodes, shape) -> None:
        layout = ray_pool.lay_out(wanted, RunSettings.read({}, **flags), nodes)
        assert (layout.workers, layout.gpus, layout.cpus, layout.sharing) == shape

    @pytest.mark.parametrize("wanted", [Ray(workers=9), Ray(gpus_per_worker=8), Ray(workers=5, gpus_per_worker=2)])
    def test_too_many_workers_are_refused_with_the_number_that_fits(self, wanted: Ray) -> None:
        with pytest.raises(ExecutorError, match=r"room for [084] on 3 machines"):
            ray_pool.lay_out(wanted, RunSettings.read({}), self.GPUS)


def refuses(wanted: Ray, message: str, **settings: Any) -> None:
    """Check that no connection is made, and that the error matches."""
    refused = pytest.raises((ExecutorError, SettingsError), match=message)
    with refused, ray_pool.connected(wanted, RunSettings.read({}, **settings), print):
        pass


@needs_ray
def test_devices_and_addresses_that_ray_cannot_use_are_refused_before_it_starts() -> None:
    refuses(Ray("127.0.0.1:1", gpus_per_worker=1), "DEVICE=cuda:1", device="cuda:1")
    refuses(Ray("127.0.0.1:1", gpus_per_worker=1), "--gpus-per-worker=1", device="cpu")
    refuses(Ray("127.0.0.1:1"), "no Ray cluster")


@needs_ray
def test_a_ray_cluster_that_has_ended_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:1")
    refuses(Ray("auto"), r"no Ray cluster .*auto: .*refused")


@needs_ray
def test_the_error_of_a_ray_cluster_that_refuses_a_connection_mentions_the_auth_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(**_options: Any) -> None:
        raise ConnectionError("Failed to connect to Ray cluster")

    monkeypatch.setattr(ray_pool, "_knock", lambda _address: None)
    monkeypatch.setattr(ray_pool.ray, "init", refuse)
    refuses(Ray("head:6379"), r"Failed to connect .* RAY_AUTH_TOKEN")


@needs_ray
class TestWaiting:
    def waiting(self, said: list[str], looks: int, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[Any]]:
        """Return a wait for a worker's call that ends after this many polls."""
        left = iter(range(looks))
        monkeypatch.setattr(
            ray_pool.ray, "wait", lambda calls, timeout: ([], calls) if next(left, None) is not None else (calls, [])
        )
        monkeypatch.setattr(ray_pool, "has_room", lambda _shape: True)
        pool = ray_pool.Pool(["worker"], None, said.append)  # type: ignore[arg-type]
        pool.known["worker"] = SimpleNamespace(host="node7", pid=42)
        return lambda: pool._ended({"call": ("worker", ("chunk", 0))})

    def test_waiting_for_a_slow_worker_is_reported_at_growing_intervals(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ray_pool, "check_cluster", lambda: None)
        said: list[str] = []
        assert self.waiting(said, 30, monkeypatch)() == ["call"]
        assert len(said) == 2
        for line, seconds in zip(said, (60, 120), strict=True):
            assert f"{seconds} s" in line
            assert "node7 (process 42)" in line

    @pytest.mark.parametrize("alive", [True, False])
    def test_waiting_ends_with_an_error_if_the_raylet_of_this_machine_is_lost(self, monkeypatch, alive: bool) -> None:
        context = SimpleNamespace(gcs_address="h:1", get_node_id=lambda: "here")
        monkeypatch.setattr(ray_pool, "_knock", lambda _address: None)
        monkeypatch.setattr(ray_pool.ray, "get_runtime_context", lambda: context)
        nodes = [{"NodeID": "there", "Alive": True}, {"NodeID": "here", "Alive": alive}]
        monkeypatch.setattr(ray_pool.ray, "nodes", lambda: nodes)
        with nullcontext() if alive else pytest.raises(ExecutorError, match="raylet has ended"):
            ray_pool.check_cluster()

    def test_waiting_ends_with_an_error_if_the_head_node_is_lost(self, monkeypatch: pytest.MonkeyPatch) -> None:
        wait = self.waiting([], 30, monkeypatch)
        context = SimpleNamespace(gcs_address="127.0.0.1:1")
        monkeypatch.setattr(ray_pool.ray, "get_runtime_context", lambda: context)
        with pytest.raises(ExecutorError, match=r"head .*127\.0\.0\.1:1 .*lost"):
            wait()

    def test_waiting_for_a_shutdown_of_ray_that_hangs_is_cut_short(self, monkeypatch: pytest.MonkeyPatch) -> None:
        killed, left, said = threading.Event(), list[int](), list[str]()
        node = SimpleNamespace(kill_all_processes=lambda **_how: killed.set())
        monkeypatch.setattr(ray_pool.ray._private.worker, "_global_node", node)
        monkeypatch.setattr(ray_pool, "_PATIENCE_S", 0.01)
        with ray_pool._hurrying(said.append, ours=True, code=130):
            assert killed.wait(10)
        killed.clear()
        monkeypatch.setattr(ray_pool.os, "_exit", lambda code: (left.append(code), killed.set()))
        with ray_pool._hurrying(said.append, ours=False, code=130):
            assert killed.wait(10)
        assert (left, len(said)) == ([130], 2)


class TestCommandLine:
    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"executor": "slurm"}, "--executor=slurm: .*allowed: local, ray"),
            ({"executor": "local", "workers": 2}, "--workers=2: .*--executor ray"),
            ({"executor": "ray", "workers": 0}, "--workers=0: not allowed"),
            ({"executor": "ray", "gpus_per_worker": 1.5}, "--gpus-per-worker=1.5: not allowed"),
        ],
    )
    def test_invalid_executor_options_are_refused(self, given: dict[str, Any], message: str) -> None:
        with pytest.raises(SettingsError, match=message):
            read_executor(**given)

    def test_executor_ray_without_the_package_names_the_package_to_install(self, tmp_path: Path, monkeypatch) -> None:
        monkeypatch.setattr(ray_options.importlib.util, "find_spec", lambda _name: None)
        with pytest.raises(SettingsError, match=r"pip install .ray>=2\.40"):
            read_executor("ray")
        for command in (["score"], ["judge", "--with", "toy"]):
            _code, said = call(*command, tmp_path / "none", "--executor", "ray")
            assert "pip install 'ray" in one_error(said)  # before a run is read
        assert read_executor("local") is None
