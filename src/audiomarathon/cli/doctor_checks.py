"""What is there, what is missing, what to do: the checks behind `audiomarathon doctor`."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from audiomarathon.benchmarks import all_tasks, task_folder
from audiomarathon.benchmarks.registry import all_benchmarks
from audiomarathon.errors import AudioMarathonError, ConfigError, MissingDataError, WeightsError
from audiomarathon.models.checkpoint import find_checkpoint, hub_cache
from audiomarathon.models.registry import EMBEDDED, all_models
from audiomarathon.text import counted


@dataclass(frozen=True)
class Finding:
    """One thing looked at: whether it is in order, what was seen, and what would mend it."""

    good: bool
    text: str
    remedy: str = ""
    fatal: bool = False


def examine() -> list[Finding]:
    """Look at versions, devices, checkpoints and data."""
    return [*_versions(), *_devices(), *_checkpoints(), *_data(), _disk()]


def _versions() -> list[Finding]:
    from packaging.requirements import Requirement

    found = [Finding(True, f"Python {sys.version.split()[0]}")]
    for text in importlib.metadata.requires("audiomarathon") or []:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            found.append(Finding(False, f"{requirement.name} is missing", f"pip install '{requirement}'", fatal=True))
            continue
        if requirement.specifier.contains(version, prereleases=True):
            found.append(Finding(True, f"{requirement.name} {version}"))
        else:
            seen = f"{requirement.name} {version} is outside {requirement.specifier}"
            found.append(Finding(False, seen, f"pip install '{requirement}'", fatal=True))
    return found


def _devices() -> list[Finding]:
    import torch

    if not torch.cuda.is_available():
        remedy = "the embedded model runs on the CPU; real models want a CUDA build of PyTorch and an NVIDIA GPU"
        return [Finding(False, f"no GPU that PyTorch {torch.__version__} can use", remedy)]
    found = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        text = f"GPU {index}: {torch.cuda.get_device_name(index)}, {free / 2**30:.0f} of {total / 2**30:.0f} GiB free"
        found.append(Finding(True, text))
    return found


def _checkpoints() -> list[Finding]:
    found = []
    for model in all_models():
        if model.remote:
            text = f"model {model.key}: behind an endpoint; audiomarathon doctor --model {model.key} asks it"
            found.append(Finding(True, text))
            continue
        again = f"delete that file, and the one it links to; then: audiomarathon models download {model.key}"
        try:
            checkpoint = find_checkpoint(model.checkpoint, download=False)
        except (ConfigError, WeightsError) as error:
            found.append(Finding(False, f"model {model.key} is damaged: {error}", again))
        except AudioMarathonError:
            text = f"model {model.key}: {model.checkpoint} is not in {hub_cache()}"
            found.append(Finding(False, text, f"audiomarathon models download {model.key}  ({model.download_gb:g} GB)"))
        else:
            text, remedy = f"model {model.key}: {checkpoint.path}", ""
            if damage := _damage(checkpoint.path):
                text += f" is damaged: {damage}"
                remedy = f"audiomarathon models download {model.key}  (goes on where it stopped)"
                if model.checkpoint == EMBEDDED:
                    remedy = "reinstall audiomarathon"
                elif "cut short" in damage:
                    remedy = again
            found.append(Finding(not damage, text, remedy))
    return found


def _damage(folder: Path) -> str:
    """Return what a checkpoint's folder lacks, as half a download does; "" when its weights are whole."""
    from safetensors import SafetensorError, safe_open

    if not (folder / "config.json").is_file():
        return "no config.json"
    named: set[str] = set()
    for index in sorted(folder.glob("*.index.json")):
        named |= set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    if missing := sorted(name for name in named if not (folder / name).is_file()):
        return f"{len(missing)} of {counted(len(named), 'weight file')} missing ({missing[0]} …)"
    weights = sorted(file for file in folder.iterdir() if file.suffix in (".safetensors", ".bin") and file.is_file())
    if not weights:
        return "no weights"
    for file in weights:
        if file.suffix == ".safetensors":
            try:
                with safe_open(file, framework="numpy"):
                    pass
            except (OSError, SafetensorError):
                return f"{file.name} is cut short"
    return ""


def _data() -> list[Finding]:
    found: list[Finding] = []
    missing: dict[str, tuple[str, str]] = {}
    for task in all_tasks():
        try:
            folder = task_folder(task, None, os.environ)
            loaded = task.load(folder)
        except MissingDataError as error:
            text, _, remedy = str(error).partition(". ")
            missing[task.key] = text.removeprefix(f"{task.key}: "), remedy
            continue
        except AudioMarathonError as error:
            text, _, remedy = str(error).partition(". ")
            found.append(Finding(False, f"data {text}", remedy))
            continue
        bad = f", {counted(len(loaded.bad_rows), 'bad row')}: {loaded.bad_rows[0]}" if loaded.bad_rows else ""
        licence = next((one.licence for one in all_benchmarks() if one.archive and task in one.tasks), "")
        under = f" ({licence}: not for commercial use)" if licence else ""
        there = f"{counted(len(loaded.samples), 'sample')} in {folder}{under}"
        found.append(Finding(not bad, f"data {task.key}: {there}{bad}"))
    return [*found, *_missing(missing)]


def _missing(tasks: Mapping[str, tuple[str, str]]) -> list[Finding]:
    """Return what is said of tasks that are not there: what holds for all once, and once what to do."""
    if len(tasks) < 2:
        return [Finding(False, f"data {key}: {text}", remedy) for key, (text, remedy) in tasks.items()]
    lines = [f"data {key}: {text}" for key, (text, _) in tasks.items()]
    if len(texts := {text for text, _ in tasks.values()}) == 1:
        lines = [f"data: {texts.pop()}"]
    remedy = "audiomarathon data download vesus (the smallest task, under 1 GB), and so the others by their names"
    remedy += " (--limit 20: 20 samples each); then set AUDIOMARATHON_DATA to the data root"
    return [*(Finding(False, line) for line in lines[:-1]), Finding(False, lines[-1], remedy)]


def _disk() -> Finding:
    cache = hub_cache()
    place = next(folder for folder in (cache, *cache.parents) if folder.exists())
    free = shutil.disk_usage(place).free / 1e9
    return Finding(
        free > 30, f"{free:.0f} GB free for checkpoints in {cache}", "" if free > 30 else "a 7B model wants 23 GB"
    )
