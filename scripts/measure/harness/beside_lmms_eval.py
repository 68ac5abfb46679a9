"""Time this project and lmms-eval on the same samples and weights, as two alternating commands."""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from audiomarathon.benchmarks import get_task, task_folder
from audiomarathon.benchmarks.selection import select
from audiomarathon.embedded.mini_benchmark import mini_benchmark
from audiomarathon.models.checkpoint import embedded_checkpoint
from audiomarathon.settings import RunSettings, env_names

HERE = Path(__file__).parent
CLOCKS = ("wall", "cpu")
CHECKPOINT = str(embedded_checkpoint())
OURS = ("run", "tau", "--model", "embedded", "--dtype", "float32", "--device", "cpu")
THEIRS = (
    *("--model", "qwen2_5_omni", "--batch_size", "1", "--tasks", "audiomarathon_tau", "--log_samples"),
    *("--include_path", str(HERE / "lmms_eval_task"), "--model_args"),
    f"pretrained={CHECKPOINT},device_map=cpu,attn_implementation=sdpa,system_prompt=You are a helpful assistant.",
)
#: What must be equal on both sides: prompt with its audio tokens, mel frames, reply, and how the model computes.
SAME = ("prompt", "frames", "reply", "dtype", "attention")

Measured = dict[tuple[str, str], float]


def beside_lmms_eval(python: str, count: int, rounds: int) -> None:
    """Run both commands alternately on `count` samples, and print the seconds of whole runs and of their parts.

    An additional first round only warms the disk's cache.

    Parameters
    ----------
    python
        The interpreter of an environment that has lmms-eval (docs/benchmarks.md, "Harness").
    """
    data, task = mini_benchmark(), get_task("tau")
    samples = select(task.load(task_folder(task, data, {})).samples, count, RunSettings().seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = [{"clip": str(s.clips[0]), "prompt": task.prompt(s), "answer": s.answer} for s in samples]
        (folder / "tau.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        commands = {
            "audiomarathon": [sys.executable, *OURS, "--data", str(data), "--limit", str(count), "--results"],
            "lmms-eval": [python, *THEIRS, "--output_path"],
        }
        measured: dict[str, list[Measured]] = {side: [] for side in commands}
        for number in range(rounds + 1):
            asked = {}
            for side in sorted(commands, reverse=number % 2 == 1):
                interpreter, *command = commands[side]
                line = [interpreter, str(HERE / "noted_run.py"), side, "calls.json", CHECKPOINT, *command]
                took, calls = one_run([*line, str(folder / f"{side}-{number}")], folder, len(samples))
                asked[side] = sorted(json.dumps([call[what] for what in SAME]) for call in calls)
                if number:
                    measured[side].append(took)
            ours, theirs = asked.values()
            if ours != theirs:
                raise SystemExit("error: the two sides differ in prompts, replies or computation")
    show(measured, len(samples))


def one_run(line: Sequence[str], folder: Path, count: int) -> tuple[Measured, list[Mapping[str, Any]]]:
    """Run one command; return (seconds of each of its parts by wall and CPU clock, its logged `generate` calls)."""
    env = {name: value for name, value in os.environ.items() if name not in env_names()}
    env |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hub")}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.monotonic()
    done = subprocess.run(line, cwd=folder, env=env, capture_output=True, text=True, check=False)
    wall = time.monotonic() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"error: {' '.join(line)} ended with exit code {done.returncode}: {done.stderr.strip()}")
    calls = json.loads((folder / "calls.json").read_text())[-count:]  # earlier calls warm up the model
    if len(calls) < count:
        raise SystemExit(f"error: {line[2]} asked the model {len(calls)} times, not {count}: {done.stdout.strip()}")
    whole = {"wall": wall, "cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}
    started = {"wall": begin, "cpu": 0.0}
    took = {}
    for clock in CLOCKS:
        begins, ends = ([call[end][clock] for call in calls] for end in ("begin", "end"))
        took["whole run", clock] = whole[clock]
        took["until the first sample is asked", clock] = begins[0] - started[clock]
        took["model, a sample", clock] = statistics.mean(e - b for b, e in zip(begins, ends, strict=True))
        took["between samples", clock] = statistics.mean(b - e for b, e in zip(begins[1:], ends, strict=False))
        took["after the last answer", clock] = started[clock] + whole[clock] - ends[-1]
    return took, calls


def show(measured: Mapping[str, Sequence[Measured]], count: int) -> None:
    """Print one row per part of a run: medians of both sides, and the median, minimum and maximum ratio over rounds."""
    ours, theirs = measured["audiomarathon"], measured["lmms-eval"]
    print(f"audiomarathon beside lmms-eval, {count} samples, {len(ours)} rounds: seconds, ours, theirs, ours ÷ theirs")
    for part, clock in ours[0]:
        mine, other = ([run[part, clock] for run in side] for side in (ours, theirs))
        ratios = [a / b for a, b in zip(mine, other, strict=True)]
        print(
            f"{part:32} {clock:5} {statistics.median(mine):8.2f} {statistics.median(other):8.2f} "
            f"{statistics.median(ratios):6.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        )
