"""Measure a sweep of nine ratios (one process) against nine separate runs (nine processes).

  python scripts/measure/benchmark_sweep.py --samples 10                     # the embedded model
  python scripts/measure/benchmark_sweep.py --samples 3 --config scaled      # random weights (benchmark_efficiency.py)

Both sides are `audiomarathon` commands on the mini benchmark (90 to 120 s of audio), measured whole: starting Python,
loading the model, warming up every setting, and the samples. The records show where the time went: the sweep decodes
audio, extracts features and runs the audio tower once a sample. Nothing else is shared, because each setting's prefill
and decode are timed. `rest` is starting, loading and warming up.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import transformers
from benchmark_efficiency import at_least
from efficiency.random_models import SIZES, random_model
from rich.console import Console
from rich.table import Table

from audiomarathon.settings import env_names

RATIOS = [f"0.{step}" for step in range(1, 10)]
SHARED, OWN = ("load", "preprocess", "encoder"), ("llm_prefill", "decode")


def measured(commands: Sequence[Sequence[str]], **env: str) -> tuple[float, float]:
    """Run `audiomarathon` commands one after another; return (wall seconds, CPU seconds)."""
    clean = {name: value for name, value in os.environ.items() if name not in env_names()}
    wall, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    for command in commands:
        line = [sys.executable, "-m", "audiomarathon", *command]
        done = subprocess.run(line, env=clean | env, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"error: {' '.join(line)} ended with exit code {done.returncode}: {done.stderr.strip()}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter() - wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def split(results: Path, sharing: int) -> dict[str, float]:
    """Return {stage: its seconds, summed over a folder's records}.

    In a sweep, `sharing` records share the work on a clip's audio, so the seconds of that work are divided by it.
    """
    records = [json.loads(line) for file in results.rglob("samples.jsonl") for line in file.read_text().splitlines()]
    times = [record["time"] for record in records]
    return {
        stage: sum(times_of[stage] for times_of in times) / (sharing if stage in SHARED else 1)
        for stage in SHARED + OWN
    }


def read_flags() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", choices=("embedded", *SIZES), default="embedded")
    parser.add_argument("--task", default="tau", help="task of the mini benchmark [%(default)s]")
    parser.add_argument("--method", default="fast_v", help="[%(default)s]")
    parser.add_argument("--samples", type=at_least(1), default=10, help="[%(default)s]")
    parser.add_argument("--threads", default="1", help="CPU threads of each process [%(default)s]")
    return parser.parse_args()


def main() -> None:
    """Measure the sweep and the separate runs, and print a table."""
    from audiomarathon.embedded.mini_benchmark import mini_benchmark

    flags = read_flags()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    rows: dict[str, tuple[tuple[float, float], dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        where = Path(name)
        env = {"AUDIOMARATHON_DATA": str(mini_benchmark()), "OMP_NUM_THREADS": flags.threads, "DTYPE": "float32"}
        model = "embedded"
        if flags.config != "embedded":
            lm, model = random_model(flags.config, "cpu", "float32"), "qwen2.5-omni"
            for part in (lm.model, lm.tokenizer, lm.feature_extractor):
                part.save_pretrained(where / "model")
            env["MODEL_PATH"] = str(where / "model")
            del lm
        common = [flags.task, "--model", model, "--limit", str(flags.samples)]
        runs = [
            ["run", *common, "--method", flags.method, "--ratio", ratio, "--results", str(where / "runs")]
            for ratio in RATIOS
        ]
        sweep = ["sweep", *common, "--methods", flags.method, "--ratios", ",".join(RATIOS), "--no-base"]
        rows["nine runs"] = measured(runs, **env), split(where / "runs", 1)
        rows["one sweep"] = measured([[*sweep, "--results", str(where / "sweep")]], **env), split(where / "sweep", 9)
    show(rows, f"{flags.config}, {flags.task}, {flags.samples} samples, {flags.method} at nine ratios; seconds")


def show(rows: dict[str, tuple[tuple[float, float], dict[str, float]]], title: str) -> None:
    """Print the seconds of both sides, and the sweep's seconds as a share of the separate runs'."""
    table = Table(title=title)
    for heading in ("", "wall", "CPU", *SHARED, *OWN, "rest", "samples alone"):
        table.add_column(heading, justify="right")
    numbers = []
    for name, ((wall, cpu), parts) in rows.items():
        alone = sum(parts.values())
        numbers.append((wall, cpu, *parts.values(), wall - alone, alone))
        table.add_row(name, *(f"{value:.1f}" for value in numbers[-1]))
    table.add_row("share", *(f"{swept / run:.0%}" for run, swept in zip(*numbers, strict=True)))
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
