"""Kill a sweep by SIGKILL at random moments, then let it finish; or run several sweeps at once on one folder.

Usage: killed_sweep.py kill|race COUNT DATA MODEL RESULTS. Prints the outcome of the child processes as JSON. If a sweep
ends before its kill, the next sweep writes into the next of the folders RESULTS/0, RESULTS/1, …

The engine is imported once. Each sweep is a fork of this process, which computes nothing itself. Each kill comes at a
random moment within the time that an undisturbed sweep took (in RESULTS/undisturbed).
"""

from __future__ import annotations

import importlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import torch

import audiomarathon.engine.environment
import audiomarathon.engine.evaluate
import audiomarathon.models.qwen2_5_omni
import audiomarathon.report.sweep_report  # noqa: F401
from audiomarathon.benchmarks import get_task
from audiomarathon.engine.sweep import Swept, grid, sweep
from audiomarathon.settings import RunSettings

TASKS = ("tau", "librispeech")
LIMIT = None if os.environ.get("AUDIOMARATHON_TESTS") == "all" else 4  # samples of a task


def go(data: str, model: str, results: str, *, logs: Path | None = None) -> int:
    """Sweep two tasks under three settings; return 0 when all is complete."""
    from audiomarathon.report.sweep_report import write_outcome
    from audiomarathon.results.sweep_summary import read_outcome

    settings = RunSettings.read({}, data=data, model_path=model, results=Path(results), max_new_tokens=4, limit=LIMIT)
    methods = grid(["random", "frame"], [0.5])
    tasks = [get_task(name) for name in TASKS]
    outcome = read_outcome(settings.results, seed=settings.seed)

    def write(swept: Swept) -> None:
        outcome.add(swept)
        write_outcome(outcome, settings.results, "qwen2.5-omni")

    swept = sweep(tasks, "qwen2.5-omni", settings, methods, progress=False, logs=logs, finished=write)
    return 0 if swept.complete else 1


def fork(arguments: list[str]) -> int:
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
        os._exit(go(*arguments))
    return child


def import_all(arguments: list[str]) -> None:
    """Import all modules that a sweep imports (a first child lists them). Otherwise kills would only hit imports."""
    with tempfile.TemporaryDirectory() as folder:
        child = os.fork()
        if child == 0:
            torch.set_num_threads(1)
            go(*arguments[:2], folder)
            Path(folder, "modules").write_text("\n".join(sys.modules))
            os._exit(0)
        os.waitpid(child, 0)
        for name in Path(folder, "modules").read_text().splitlines():
            with suppress(ImportError):
                importlib.import_module(name)


def ended(child: int) -> int:
    """Wait for a child and return its exit code; negative for the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(what: str, count: int, data: str, model: str, results: Path) -> None:
    chance, killed, codes, rounds = random.Random(0), 0, list[int](), 0
    import_all([data, model])
    begin = time.monotonic()
    ended(fork([data, model, str(results / "undisturbed")]))
    whole_s = time.monotonic() - begin
    if what == "race":
        children = [fork([data, model, str(results / "0")]) for _ in range(count)]
        codes = [ended(child) for child in children]
    while what == "kill" and killed < count:
        child = fork([data, model, str(results / str(rounds))])
        time.sleep(whole_s * chance.random())
        os.kill(child, signal.SIGKILL)
        if ended(child) < 0:
            killed += 1
        else:
            rounds += 1  # nothing was left to kill
    codes.append(ended(fork([data, model, str(results / str(rounds))])))
    print(json.dumps({"killed": killed, "codes": codes, "rounds": rounds + 1}))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4], Path(sys.argv[5]))
