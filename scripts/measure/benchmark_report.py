"""Measure the cost of a report of many runs: `audiomarathon report` against reading and parsing the same records.

`--runs 10000 --samples 6` measures `status`, `score`, `report` and `compare` instead, on a quarter, half and all of
this many runs, and prints the exponent k of each doubling (costs grow as runs^k), the seconds a million records would
take if they grow linearly, and the cost of `compare` ÷ that of `report`.

A real sweep of the embedded model runs first (five tasks, ten settings, a few samples). Its records are repeated under
other names up to the wanted number of samples, so the commands accept every run folder. Each side is a process. CPU
seconds are compared, child processes included, because wall seconds depend on how busy the machine is.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from audiomarathon.embedded.mini_benchmark import mini_benchmark
from audiomarathon.engine.run import score
from audiomarathon.runs.record_line import sealed

TASKS = ("tau", "gtzan", "desed", "vesus", "vox")
GRID = ("--methods", "random,frame,fast_v", "--ratios", "0.3,0.5,0.9")
_READ = """
import json, pathlib, sys
for file in pathlib.Path(sys.argv[1]).rglob("samples.jsonl"):
    [json.loads(line) for line in file.open()]
"""


def make_runs(root: Path, samples: int) -> int:
    """Write fifty runs with this many samples each; return the number of runs."""
    command = [sys.executable, "-m", "audiomarathon", "sweep", *TASKS, "--model", "embedded", *GRID, "--limit", "8"]
    env = os.environ | {"AUDIOMARATHON_DATA": str(mini_benchmark()), "RESULTS_DIR": str(root)}
    subprocess.run(command, env=env, check=True, capture_output=True)
    folders = sorted(file.parent for file in root.rglob("samples.jsonl"))
    for folder in folders:
        records = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
        many = [_renamed(records[number % len(records)], number) for number in range(samples)]
        (folder / "samples.jsonl").write_bytes(b"".join(sealed(record) for record in many))
        facts = json.loads((folder / "run.json").read_text()) | {"samples": [record["id"] for record in many]}
        (folder / "run.json").write_text(json.dumps(facts))
        score(folder)
    return len(folders)


def multiply(source: Path, root: Path, runs: int) -> None:
    """Fill a results folder with `runs` runs: those of `source`, then copies of them with slightly different ratios."""
    folders = sorted(
        (file.parent for file in source.rglob("run.json")), key=lambda folder: (folder.name[:4] != "base", folder)
    )
    copies = (
        (folder, copy) for copy in itertools.count() for folder in folders if not copy or "base" not in folder.name
    )
    for folder, copy in itertools.islice(copies, runs):
        facts = json.loads((folder / "run.json").read_text())
        if copy:
            ratio = facts["identity"]["ratio"] + copy / 1e5
            method, _, layer = facts["method"].split("-")
            facts["identity"]["ratio"] = facts["drops"]["ratio"] = ratio
            facts["method"] = f"{method}-{ratio:.5f}-{layer}"
        to = root / folder.parent.relative_to(source) / facts["method"]
        to.mkdir(parents=True)
        (to / "run.json").write_text(json.dumps(facts))
        for name in ("samples.jsonl", "summary.json"):
            (to / name).write_bytes((folder / name).read_bytes())


def print_growth(source: Path, root: Path, runs: int, samples: int) -> None:
    """Print the cost of each command on a quarter, half and all of the runs, and how it grows."""
    used: dict[str, list[float]] = {}
    for size in (runs // 4, runs // 2, runs):
        results = root / str(size)
        multiply(source, results, size)
        page = root / "report.html"
        for name, *more in (["status"], ["score"], ["report", "-o", str(page), "--no-spectrograms"], ["compare"]):
            cpu, wall, peak = cost([sys.executable, "-m", "audiomarathon", name, str(results), *more])
            used.setdefault(name, []).append(cpu)
            print(f"{size:6} runs  {name:8} {cpu:6.1f} CPU s  {wall:6.1f} wall s  {peak:5.2f} GB", flush=True)
    print(f"page: {page.stat().st_size / 1e6:.1f} MB")
    for name, cpu in used.items():
        exponents = ", ".join(f"{math.log2(after / before):.2f}" for before, after in itertools.pairwise(cpu))
        million = (cpu[-1] - cpu[-2]) / (runs - runs // 2) / samples * 1e6
        print(f"{name:8} exponents {exponents}; a million records: {million:,.0f} CPU s")
    print(f"compare ÷ report: {used['compare'][-1] / used['report'][-1]:.2f}")


def _renamed(record: dict[str, Any], number: int) -> dict[str, Any]:
    name = f"{record['id']}_{number:05d}"
    unequal = {"kv_lengths": [length + number for length in record["kv_lengths"]]}  # as for clips of unequal lengths
    return {key: value for key, value in record.items() if key != "crc"} | {"id": name, "cluster": name} | unequal


def cost(command: list[str]) -> tuple[float, float, float]:
    """Run a command; return (its CPU seconds, its wall seconds, its peak memory in GB)."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - begin
    if status:
        sys.exit(f"failed: {' '.join(command)}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, wall, used.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e9


def main() -> None:
    """Measure the report and the reading of the same records, and print both with their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=1000, help="samples a run (default 1000)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, in which the sides take turns (default 3)")
    parser.add_argument("--runs", type=int, default=0, help="measure growth up to this many runs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        runs = make_runs(root / "results", options.samples)
        print(f"{options.runs or runs} runs of {options.samples} samples")
        if options.runs:
            print_growth(root / "results", root, options.runs, options.samples)
            return
        report = [sys.executable, "-m", "audiomarathon", "report", str(root / "results")]
        sides = {
            "records read": [sys.executable, "-c", _READ, str(root / "results")],
            "report": [*report, "-o", str(root / "report.html"), "--no-spectrograms"],
            "report --figures": [*report, "-o", str(root / "report.html"), "--figures", str(root), "--no-spectrograms"],
        }
        costs: dict[str, list[tuple[float, float, float]]] = {name: [] for name in sides}
        for _ in range(options.rounds):
            for name, command in sides.items():
                costs[name].append(cost(command))
        least = {name: [min(figures) for figures in zip(*rounds, strict=True)] for name, rounds in costs.items()}
        print(f"{'least of the rounds':20} CPU s  wall s  peak GB  x records read")
        for name, (cpu, wall, peak) in least.items():
            print(f"{name:20} {cpu:5.1f}  {wall:6.1f}  {peak:7.2f}  {cpu / least['records read'][0]:6.1f}")
        print(f"page: {(root / 'report.html').stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
