"""Describe the machine for a run's records: versions, hardware, load, and other processes."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import re
import statistics
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from audiomarathon.version import __version__

_PACKAGES = (
    "torch", "transformers", "accelerate", "numpy", "soundfile", "soxr", "jiwer", "whisper-normalizer",
    "mistral-common", "peft", "ray",  # optional: for some model families, and for Ray's workers
)  # fmt: skip
_LOOKS, _LOOK_EVERY_S = 5, 0.005  # count the running processes several times: one look may fall into a short burst
_GPU_FIELDS = (
    "index", "name", "driver_version", "clocks.sm", "clocks.mem", "temperature.gpu", "power.draw",
    "clocks_event_reasons.active", "memory.used", "memory.total",
)  # fmt: skip


def device_name(device: str, device_map: str = "") -> str:
    """Return the name of the hardware that times depend on: the GPU, all GPUs of a device map, or the CPU."""
    import torch

    if device_map:
        names = sorted(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
        return f"{device_map} over {', '.join(names)}"
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    return _cpu_model()


def environment() -> dict[str, Any]:
    """Return {name: value} of facts that stay fixed during a run: versions, commit, platform, CPU, CUDA, threads."""
    import torch

    return {**software(), "threads": torch.get_num_threads(), "cuda": torch.version.cuda}


def software() -> dict[str, Any]:
    """Return {name: value} about this machine and its software: versions, commit, platform and CPU; PyTorch is not
    imported.
    """
    return {
        "audiomarathon": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "packages": _versions(),
    }


@functools.cache
def _versions() -> dict[str, str]:
    versions = {}
    for name in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def gpu_state() -> list[dict[str, str]]:
    """Return, for each GPU, its driver, clocks, temperature, power and memory, as {field of nvidia-smi: text}.

    The list is empty if PyTorch sees no GPU.
    """
    rows = _nvidia_smi("--query-gpu=" + ",".join(_GPU_FIELDS))
    return [dict(zip(_GPU_FIELDS, row, strict=False)) for row in rows]


def load(root: int, proc: Path = Path("/proc")) -> dict[str, Any]:
    """Return the machine's load averages, its number of cores, and how busy other programs keep it.

    Keys: `average` (load averages), `cores`, and `foreign_processes` (mean number of other programs' threads that run
    or wait for a core). Where `/proc` does not exist, the load average of the last minute stands in for the number of
    threads.

    Parameters
    ----------
    root
        Id of a process of this run: its threads, and those of its descendants, are not counted.
    """
    average = list(os.getloadavg()) if hasattr(os, "getloadavg") else None
    looks: list[int] = []
    try:
        ours = _descendants(root, proc)
        for _ in range(_LOOKS):
            (running,) = re.findall(r"^procs_running (\d+)", (proc / "stat").read_text(), re.MULTILINE)
            states = [_stat(file)[0] for pid in ours for file in proc.glob(f"{pid}/task/*/stat")]
            looks.append(max(0, int(running) - states.count("R")))
            time.sleep(_LOOK_EVERY_S)
    except (OSError, ValueError):
        looks = []
    foreign = statistics.mean(looks) if looks else average and average[0]
    return {"average": average, "foreign_processes": foreign, "cores": os.cpu_count() or 1}


def _descendants(root: int, proc: Path) -> set[int]:
    """Return the ids of a process and all its descendants."""
    parents = {int(file.parent.name): int(_stat(file)[1] or 0) for file in proc.glob("[0-9]*/stat")}
    ours, children = set[int](), {root}
    while children:
        ours |= children
        children = {pid for pid, parent in parents.items() if parent in children} - ours
    return ours


def _stat(file: Path) -> tuple[str, str]:
    """Return (state, parent id) of a process, from its `stat` file in `/proc`; a running process has the state `R`.

    Return "" for both if the process has ended.
    """
    try:
        state, parent = file.read_text(errors="replace").rpartition(")")[2].split()[:2]
    except (OSError, ValueError):
        return "", ""
    return state, parent


def cpu_seconds() -> float:
    """Return the CPU time that this process and its ended children have taken since it started."""
    return sum(os.times()[:4])


def other_gpu_processes(own_pid: int) -> list[str]:
    """Return a line (id, name, memory) for each other process on a GPU: such processes disturb the times."""
    rows = _nvidia_smi("--query-compute-apps=pid,process_name,used_memory")
    return [" ".join(row) for row in rows if row and row[0] != str(own_pid)]


def _nvidia_smi(query: str) -> list[list[str]]:
    import torch

    if not torch.cuda.is_available():
        return []
    lines = (_output("nvidia-smi", query, "--format=csv,noheader") or "").splitlines()
    return [[cell.strip() for cell in line.split(",")] for line in lines if line.strip()]


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


@functools.cache
def _commit() -> str | None:
    """Return the git commit of this checkout, with `+dirty` if files changed; None outside a checkout."""
    if _output("git", "ls-files", "--error-unmatch", __file__) is None:
        return None  # installed inside another project's checkout
    commit = _output("git", "rev-parse", "HEAD")
    return commit and commit + ("+dirty" if _output("git", "status", "--porcelain", "-uno") else "")


def _output(*command: str) -> str | None:
    """Run a command in this file's folder; return the text that it prints, or None if it fails."""
    here = Path(__file__).parent
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True, cwd=here)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
