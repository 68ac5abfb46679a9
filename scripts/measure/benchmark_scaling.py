"""Measure how a run scales with Ray's workers: 1 to N on this machine, against the same run in one process.

  python scripts/measure/benchmark_scaling.py                          # the embedded model, mini benchmark, CPU
  python scripts/measure/benchmark_scaling.py --workers 1,2,4,8 --model qwen2.5-omni --data DATA --device cuda

For each number of workers it prints the seconds until all workers have loaded their model, the seconds of the samples
from then on, and samples a second as a ratio to the local run's. Rounds are interleaved, so that a machine that slows
down does so for all; the median of the rounds is shown, with minimum and maximum. If replies differ, it stops.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import ray
import transformers

from audiomarathon.benchmarks import get_task
from audiomarathon.compression.registry import get_method
from audiomarathon.engine.engine import Engine
from audiomarathon.engine.ray_engine import RayEngine
from audiomarathon.engine.ray_options import Ray
from audiomarathon.engine.run import load_task, opened, run_task
from audiomarathon.engine.setup import Setup
from audiomarathon.settings import RunSettings


def wait_for_all(engine: Engine | None) -> None:
    """Wait until every worker has loaded its model. (A run starts with the first worker that has.)"""
    if isinstance(engine, RayEngine):
        ray.get([worker.open.remote(engine.pool.first) for worker in engine.pool.workers])


def measured(workers: int, flags: argparse.Namespace, results: Path) -> tuple[float, float, dict[str, str]]:
    """Return (seconds until a run's model is loaded, seconds of its samples, its replies) with `workers` Ray workers.

    0 workers: the run uses one process, without Ray.
    """
    settings = RunSettings.read(
        {}, data=flags.data, results=results, limit=flags.samples, timing=False, device=flags.device, max_new_tokens=16
    )
    task, methods = get_task(flags.task), [get_method("base")]
    data = load_task(task, settings, lambda _line: None)
    again = [replace(sample, id=f"{sample.id}_{turn}") for turn in range(flags.repeat) for sample in data.samples]
    data = replace(data, samples=again)
    begin = time.perf_counter()
    opening: AbstractContextManager[tuple[Setup, Engine | None]] = opened(
        flags.model, settings, methods, Ray(workers=workers) if workers else None
    )
    with opening as (setup, engine):
        wait_for_all(engine)
        ready = time.perf_counter()
        (result,) = run_task(setup, engine, task, data, progress=False)
        ended = time.perf_counter()
    records = [json.loads(line) for line in (result.folder / "samples.jsonl").read_text().splitlines()]
    return ready - begin, ended - ready, {record["id"]: record["reply"] for record in records}


def read_flags() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", default="1,2,3,4", help="[%(default)s]")
    parser.add_argument("--model", default="embedded", help="[%(default)s]")
    parser.add_argument("--data", default="", help="root of the tasks' data (default: the mini benchmark)")
    parser.add_argument("--task", default="tau", help="[%(default)s]")
    parser.add_argument("--samples", type=int, default=0, help="samples of the task; 0 = all [%(default)s]")
    parser.add_argument("--repeat", type=int, default=1, help="number of times to run each sample [%(default)s]")
    parser.add_argument("--rounds", type=int, default=3, help="[%(default)s]")
    parser.add_argument("--device", default="cpu", help="[%(default)s]")
    return parser.parse_args()


def main() -> None:
    """Measure each number of workers in turn, and print a table."""
    flags = read_flags()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if not flags.data:
        from audiomarathon.embedded.mini_benchmark import mini_benchmark

        flags.data = str(mini_benchmark())
    counts = [0, *(int(word) for word in flags.workers.split(","))]
    timings: dict[int, list[tuple[float, float]]] = {count: [] for count in counts}
    first: dict[str, str] | None = None
    with tempfile.TemporaryDirectory() as name:
        for turn in range(flags.rounds):
            for count in counts:
                ready, took, replies = measured(count, flags, Path(name) / f"{turn}-{count}")
                first = first or replies
                if replies != first:
                    sys.exit(f"error: {count} workers gave other replies than one process")
                timings[count].append((ready, took))
                print(f"round {turn + 1}, {count or 'no'} workers: {took:.1f} s", file=sys.stderr)
    assert first is not None
    local = statistics.median(took for _, took in timings[0])
    what = f"{len(first)} samples of {flags.task}, {flags.model}, {flags.device}, {os.cpu_count()} cores"
    threads = os.environ.get("OMP_NUM_THREADS", "not set")
    print(f"{what}, load {os.getloadavg()[0]:.1f}, OMP_NUM_THREADS={threads}\n")
    print("| workers | ready s | samples s (least–most) | samples a second, × one process |\n|---|---|---|---|")
    for count, rounds in timings.items():
        took = [seconds for _, seconds in rounds]
        ready, middle = statistics.median(seconds for seconds, _ in rounds), statistics.median(took)
        label = str(count) if count else "none, one process"
        print(f"| {label} | {ready:.1f} | {middle:.1f} ({min(took):.1f}–{max(took):.1f}) | {local / middle:.2f} |")


if __name__ == "__main__":
    main()
