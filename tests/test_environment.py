"""Load by other processes: recorded beside wall times, with a warning where it may distort them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import Mock

import pytest
import task_folders
from builders import one_load  # noqa: F401 (a fixture)

from audiomarathon.cli.output import reporting_errors
from audiomarathon.engine import environment
from audiomarathon.engine.run import run
from audiomarathon.errors import BusyMachineWarning, warn
from audiomarathon.settings import RunSettings

pytestmark = pytest.mark.usefixtures("one_load")


def processes(proc: Path, running: int, *ours: tuple[int, int, Sequence[str]]) -> Path:
    """Write a `/proc` with the number of running tasks, and processes as (pid, parent, thread states)."""
    (proc / "x").mkdir(parents=True)
    (proc / "stat").write_text(f"cpu 1 2 3\nprocs_running {running}\nprocs_blocked 0\n")
    for pid, parent, states in ours:
        for thread, state in enumerate(states):
            place = proc / str(pid) / "task" / str(pid + thread)
            place.mkdir(parents=True)
            (place / "stat").write_text(f"{pid} (a) R 1 (name) {state} {parent} 1 1\n")
        (proc / str(pid) / "stat").write_text(f"{pid} (a) R 1 (name) {states[0]} {parent} 1 1\n")
    return proc


def test_threads_and_child_processes_of_the_run_do_not_count_as_foreign_processes(tmp_path: Path) -> None:
    tree = [(10, 1, "RS"), (20, 10, "R"), (30, 20, "RR"), (40, 1, "R")]
    assert environment.load(10, processes(tmp_path / "proc", 9, *tree))["foreign_processes"] == 5


def test_without_a_proc_folder_the_load_average_replaces_the_count_of_foreign_processes(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (3.5, 2.0, 1.0))
    load = environment.load(10, tmp_path / "none")
    assert (load["average"], load["foreign_processes"]) == ([3.5, 2.0, 1.0], 3.5)


@pytest.mark.parametrize(("foreign", "timing", "warned"), [(2.2, True, True), (1.0, True, False), (9, False, False)])
def test_a_timed_run_on_a_busy_machine_warns_and_records_the_load(
    tmp_path: Path, tiny_checkpoint: Path, monkeypatch, foreign: float, timing: bool, warned: bool
) -> None:
    loads = [{"average": [float(n)] * 3, "foreign_processes": foreign, "cores": 2} for n in range(2)]
    monkeypatch.setattr(environment, "load", Mock(side_effect=loads))
    monkeypatch.setattr(environment, "cpu_seconds", Mock(side_effect=[100.0, 103.5]))
    data = task_folders.build_tau(tmp_path / "data")
    flags = {"data": str(data), "results": tmp_path / "out", "model_path": str(tiny_checkpoint), "timing": timing}
    settings = RunSettings.read({}, **flags, limit=1, max_new_tokens=1)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        (result,) = run(["tau"], "qwen2.5-omni", settings, progress=False)
    assert any("2 busy processes" in str(caught.message) for caught in told) is warned
    (session,) = json.loads((result.folder / "run.json").read_text())["sessions"]
    assert [session["load_before"], session["load_after"]] == loads
    assert session["cpu_s"] == 3.5  # the session's CPU time, not that of the whole process


def test_a_command_warns_only_once_that_the_machine_is_busy(capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> int:
        for number in (2, 3):
            warn(f"{number} busy processes", BusyMachineWarning)
            warn(f"another warning, {number}")
        return 0

    with warnings.catch_warnings():
        reporting_errors(command)()
    assert capsys.readouterr().err.splitlines() == [
        "warning: 2 busy processes", "warning: another warning, 2", "warning: another warning, 3"
    ]  # fmt: skip
