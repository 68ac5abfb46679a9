"""Faults of a run on Ray's workers: workers killed, a machine lost, samples that kill, Ctrl-C again and again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import task_folders
from builders import records_in, steady
from hanging import no_hang

from audiomarathon.benchmarks import Sample, get_task
from audiomarathon.cli.output import reporting_errors, say
from audiomarathon.compression.registry import get_method
from audiomarathon.engine.ray_options import Ray
from audiomarathon.engine.run import run
from audiomarathon.engine.sweep import Swept, sweep
from audiomarathon.errors import ExecutorError
from audiomarathon.settings import RunSettings

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed (pip install 'ray>=2.40')"),
]


class Told(type(get_task("tau"))):  # type: ignore[misc]
    """TAU, but each worker writes a file named after its process and works slowly. Some samples kill it."""

    def prompt(self, sample: Sample) -> str:
        folder = Path(os.environ["DRILL_FOLDER"])
        if os.getpid() != int(os.environ["DRILL_SPARES"]):
            (folder / str(os.getpid())).touch()
            if any(word in sample.id for word in os.environ["DRILL_POISON"].split()):
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.3)
        return super().prompt(sample)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return task_folders.build_tau(tmp_path_factory.mktemp("data") / "TAU").parent


def answers(data: Path, model: Path, results: Path, ray: Ray | None, say: Any) -> dict[str, Any]:
    """Run ten clips under two settings, on workers or in this process. Return the records without parts that vary."""
    settings = RunSettings.read({}, results=results, max_new_tokens=4, model_path=str(model), data=str(data))
    methods = [get_method("base"), get_method("frame", 0.5)]
    done = list(run([Told()], "qwen2.5-omni", settings, methods, ray=ray, say=say, progress=False))
    records = {f"{result.method} {line['id']}": line for result in done for line in records_in(result.folder)}
    assert len(records) == 20
    lines = [record for result in done for record in records_in(result.folder)]
    assert sum(not line["error"] for line in lines) == sum(
        not record["error"] for record in records.values()
    )  # each once
    return {key: record if record["error"] else steady(record) for key, record in records.items()}


@pytest.fixture
def go(data: Path, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return `answers` with a named results folder."""
    (tmp_path / "pids").mkdir()
    for name, value in {"FOLDER": str(tmp_path / "pids"), "SPARES": str(os.getpid()), "POISON": ""}.items():
        monkeypatch.setenv(f"DRILL_{name}", value)
    places = [str(Path(__file__).parent), str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(places))
    return lambda name, ray, say=str: answers(data, tiny_checkpoint, tmp_path / name, ray, say)


@contextmanager
def meanwhile(work: Any, *arguments: Any) -> Iterator[None]:
    """Run a function in a thread beside the block. Raise its exception after the block."""
    failed: list[BaseException] = []

    def guarded() -> None:
        try:
            work(*arguments)
        except BaseException as error:  # raised again in the test's thread
            failed.append(error)

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    yield
    thread.join(60)
    if failed:
        raise failed[0]
    assert not thread.is_alive()


def kill_workers(folder: Path, killed: set[str], count: int, over: threading.Event) -> None:
    """Kill workers at random moments, within a second of when they are first seen at work."""
    chance = random.Random(len(killed))
    while len(killed) < count and not over.wait(0.01):
        for pid in {file.name for file in folder.iterdir()} - killed:
            if not over.wait(chance.random()) and len(killed) < count:
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
                killed.add(pid)


def test_a_sweep_whose_workers_are_killed_at_random_records_every_sample(go, tmp_path: Path, times, tell) -> None:
    count, killed, said, errors, rounds = times(2, 20), set[str](), list[str](), list[str](), 0
    whole = go("local", None)
    while len(killed) < count:
        name, over, rounds = f"killed-{rounds}", threading.Event(), rounds + 1
        with no_hang(900), meanwhile(kill_workers, tmp_path / "pids", killed, count, over):
            try:
                records = go(name, Ray(workers=2), said.append)
            finally:
                over.set()
        errors += [record["error"] for record in records.values() if record["error"]]
        assert {key: record for key, record in records.items() if not record["error"]}.items() <= whole.items()
        assert go(name, None) == whole
    assert set(errors) <= {"WorkerLost: 3 workers died while they ran this sample"}
    assert 0 < sum(" died;" in line for line in said) <= count
    tell(f"{count} workers killed in {rounds} runs, {len(errors)} error records; resumed here, all as a local run")


def test_a_sweep_continues_after_all_workers_die_between_tasks(go, data, tiny_checkpoint, tmp_path, tell) -> None:
    def kill(_swept: Swept) -> None:
        for file in (tmp_path / "pids").iterdir():
            with suppress(ProcessLookupError):
                os.kill(int(file.name), signal.SIGKILL)

    task_folders.build_librispeech(data / "LibriSpeech")
    settings = RunSettings.read(
        {}, results=tmp_path / "killed", max_new_tokens=4, model_path=str(tiny_checkpoint), data=str(data)
    )
    with no_hang(600):
        tasks, methods = [Told(), get_task("librispeech")], [get_method("base")]
        outcome = sweep(tasks, "qwen2.5-omni", settings, methods, ray=Ray(workers=2), progress=False, finished=kill)
    assert (outcome.failures, outcome.complete) == ({}, True)
    assert [result.summary["errors"] for result in outcome.results] == [0, 0]
    tell(f"the second task went to others: {[result.summary['n'] for result in outcome.results]} answered")


def test_a_sample_that_kills_its_workers_becomes_an_error_record(go, monkeypatch: pytest.MonkeyPatch, tell) -> None:
    whole, said = go("local", None), list[str]()
    monkeypatch.setenv("DRILL_POISON", "tram- metro-")
    with no_hang(600):
        records = go("killed", Ray(workers=2), said.append)
    errors = {key: record["error"] for key, record in records.items() if record["error"]}
    poisoned = {key for key in whole if "tram-" in key or "metro-" in key}
    assert errors == dict.fromkeys(poisoned, "WorkerLost: 3 workers died while they ran this sample")
    assert {key: record for key, record in records.items() if key not in errors} == {
        key: record for key, record in whole.items() if key not in errors
    }
    lost = sum(" died;" in line for line in said)
    assert lost == 3 * len(poisoned) / 2
    monkeypatch.setenv("DRILL_POISON", "")
    assert go("killed", Ray(workers=1)) == whole
    tell(f"{len(poisoned) // 2} samples cost {lost} workers and became error records; mended, they are answered")


@pytest.mark.parametrize("cores", [(2, 1), (1,)], ids=["another is left", "none is left"])
def test_a_sweep_that_lost_a_machine_finishes_on_another_or_ends_with_an_error_and_resumes(
    go, cores: tuple[int, ...], tmp_path: Path, tell
) -> None:
    from test_encoder_ray import machines

    def lose(made: Any) -> None:
        while len([*(tmp_path / "pids").iterdir()]) < sum(cores):
            time.sleep(0.05)
        time.sleep(0.5)
        made.remove_node(made.machines[0], allow_graceful=False)

    said = list[str]()
    ended = nullcontext() if len(cores) == 2 else pytest.raises(ExecutorError, match="no machine is left")
    with no_hang(600), machines(*cores) as made, meanwhile(lose, made), ended:
        assert go("killed", Ray(made.address, workers=sum(cores)), said.append) == go("local", None)
    assert go("killed", None) == go("local", None)
    assert len(cores) == 1 or sum(" died;" in line for line in said) == 2
    tell(
        f"a machine of {len(cores)} is lost: " + ("the run ends, and resumes", "the other did the rest")[len(cores) - 1]
    )


def processes(mark: str) -> set[int]:
    """Return all processes whose environment contains a word, except this process."""
    pids = set[int]()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and mark.encode() in (entry / "environ").read_bytes():
                pids.add(int(entry.name))
        except OSError:  # ended meanwhile
            continue
    return pids - {os.getpid()}


@reporting_errors
def command(data: str, model: str, results: str) -> int:
    """Run on two workers as the command line does."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore Ctrl-C
    answers(Path(data), Path(model), Path(results), Ray(workers=2), say)
    return 0


def begun(mark: str, data: Path, model: Path, results: Path) -> subprocess.Popen[str]:
    """Start `command` and its children with a word in their environment. Wait for the first record."""
    script = "import sys, test_drill_workers; test_drill_workers.command(*sys.argv[1:])"
    main = subprocess.Popen(
        [sys.executable, "-c", script, data, model, results],
        env=os.environ | {"DRILL_MARK": mark}, start_new_session=True, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while not any(file.stat().st_size for file in results.rglob("samples.jsonl")):
        assert main.poll() is None
        time.sleep(0.02)
    return main


@pytest.mark.parametrize(
    ("raylet", "sent", "codes", "told"),
    [
        (None, [signal.SIGINT], [130], ""),
        (None, [signal.SIGINT] * 8, [130, -2], ""),  # the last may meet a Python that is on its way out
        (None, [signal.SIGTERM], [143], ""),
        (None, [signal.SIGKILL], [-9], ""),
        (signal.SIGSTOP, [signal.SIGINT], [130], "Ray does not stop"),
        (signal.SIGKILL, [], [2], "has ended (raylet)"),
    ],
)
def test_stopping_the_main_process_leaves_no_ray_process(
    go, raylet: int | None, sent: list[int], codes: list[int], told: str, data, tiny_checkpoint, tmp_path, tell
) -> None:
    """Nor does a frozen or a dead raylet; and a run elsewhere goes on."""
    mark, results = f"drill-{os.getpid()}-{raylet}-{sent}", tmp_path / "killed"
    with no_hang(300):
        main = begun(mark, data, tiny_checkpoint, results)
        for pid in processes(mark) if raylet else ():
            if Path(f"/proc/{pid}/exe").resolve().name == "raylet":
                os.kill(pid, raylet)
        for number in sent:
            with suppress(ProcessLookupError):
                os.killpg(main.pid, number) if number == signal.SIGINT else os.kill(main.pid, number)
            time.sleep(0.3)
        said = main.communicate()[1]
        assert (main.returncode in codes, told in said, "Traceback" in said) == (True, True, False), said
        while processes(mark):
            time.sleep(0.1)
    before = sum(len(file.read_bytes().splitlines()) for file in results.rglob("samples.jsonl"))
    assert raylet or 0 < before < 20
    assert go("killed", None) == go("local", None)
    tell(f"{told or sent}: exit code {main.returncode}, {before} of 20 records, no process left, the rest done")
