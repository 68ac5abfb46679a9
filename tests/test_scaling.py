"""The cost of commands grows linearly with settings and samples: Python and C calls at n, 2n and 4n."""

from __future__ import annotations

import cProfile
import pstats
from pathlib import Path
from typing import Any, cast

import pytest
from builders import a_record, a_run, a_verdict, changed, typed
from typer.testing import CliRunner

from audiomarathon.benchmarks import get_task
from audiomarathon.cli.app import app
from audiomarathon.tracking.following import _Curve
from audiomarathon.tracking.mlflow import MLflow
from audiomarathon.tracking.tracker import TrackedRun

COMMANDS = {name: [name] for name in ("status", "score", "compare")}
COMMANDS |= {"best": ["compare", "--at-latency", "1.0"], "report": ["report", "--no-spectrograms"]}
WARM_UP = 2, 2
SETTINGS, SAMPLES = [(4, 2), (8, 2), (16, 2)], [(1, 8), (1, 16), (1, 32)]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, int], Path]:
    """A results folder for each number of settings and samples."""
    folders = {}
    for settings, samples in [WARM_UP, *SETTINGS, *SAMPLES]:
        root = folders[settings, samples] = tmp_path_factory.mktemp("results")
        for place in range(settings + 1):
            label = f"dart-0.{100 + place}-layer2" if place else "base-0"
            changed(a_run(root, label, [(number + place) % 3 > 0 for number in range(samples)]), settings={"seed": 42})
    return folders


def calls(command: list[str], folder: Path, output: Path) -> int:
    profile = cProfile.Profile()
    more = ["-o", str(output / "report.html")] if command[0] == "report" else []
    profile.enable()
    done = CliRunner().invoke(app, [command[0], str(folder), *command[1:], *more])
    profile.disable()
    assert done.exit_code == 0, done.output
    return sum(calls for _, calls, *_ in pstats.Stats(profile).stats.values())


@pytest.mark.parametrize("command", COMMANDS)
def test_function_calls_of_a_command_grow_at_most_linearly_in_number_of_settings_or_samples(
    command, results, tmp_path
) -> None:
    calls(COMMANDS[command], results[WARM_UP], tmp_path)  # imports modules and fills caches
    for sizes in (SETTINGS, SAMPLES):
        once, twice, fourfold = (calls(COMMANDS[command], results[size], tmp_path) for size in sizes)
        assert fourfold - twice <= 2.3 * (twice - once), (
            sizes
        )  # 2 if linear, 4 if quadratic; some calls happen once per process


def exported(count: int) -> int:
    """Count the calls that send a run with this many samples to MLflow."""
    told, tracker = TrackedRun("tau", "M", "base", "base-0", 0.0, Path(), {}, False), cast(Any, MLflow())
    tracker._runs = tracker._known = {str(Path().resolve()): 0}
    tracker._log = lambda _id, steps: len(steps)
    curve, profile = _Curve(get_task("tau"), told), cProfile.Profile()
    verdict = a_verdict("A", ["park", "bus"], right=True)
    curve.fresh = [typed(a_record(str(number), **verdict)) for number in range(count)]
    profile.enable()
    tracker.scored(told, curve.points())
    profile.disable()
    return sum(calls for _, calls, *_ in pstats.Stats(profile).stats.values())


def test_function_calls_of_an_mlflow_export_grow_at_most_linearly_in_number_of_records() -> None:
    exported(2)
    once, twice, fourfold = map(exported, (40, 80, 160))
    assert fourfold - twice <= 2.3 * (twice - once)
