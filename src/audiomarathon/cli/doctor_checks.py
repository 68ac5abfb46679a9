"""The checks of `audiomarathon doctor`: versions, devices, checkpoints, data and disk, or an endpoint."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from audiomarathon.benchmarks import all_tasks, task_folder
from audiomarathon.benchmarks.registry import all_benchmarks
from audiomarathon.errors import (
    AudioMarathonError,
    ConfigError,
    MissingDataError,
    ModelError,
    SettingsError,
    WeightsError,
)
from audiomarathon.models.checkpoint import find_checkpoint, hub_cache
from audiomarathon.models.registry import EMBEDDED, ModelSpec, all_models
from audiomarathon.settings import own_settings
from audiomarathon.text import counted

_LIMIT_S = 20.0  # time limit for an endpoint's answer
_SHOWN = 8  # number of an endpoint's models to list


@dataclass(frozen=True)
class Check:
    """Result of one check: whether it passed (`good`), what was found, and how to fix it.

    If `fatal`, `doctor` exits with 1.
    """

    good: bool
    text: str
    remedy: str = ""
    fatal: bool = False


def examine() -> list[Check]:
    """Check versions, devices, checkpoints, data and disk; return the results."""
    return [*_versions(), *_devices(), *map(_checkpoint, all_models()), *_data(), _disk()]


def _versions() -> list[Check]:
    from packaging.requirements import Requirement

    checks = [Check(True, f"Python {sys.version.split()[0]}")]
    try:
        required = importlib.metadata.requires("audiomarathon") or []
    except importlib.metadata.PackageNotFoundError:  # its folder is only on sys.path
        return [
            *checks,
            Check(False, "audiomarathon is not installed, so versions are not checked", "pip install -e ."),
        ]
    for text in required:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        name, install = requirement.name, f"pip install '{requirement}'"
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            checks.append(Check(False, f"{name} is missing", install, fatal=True))
            continue
        if requirement.specifier.contains(version, prereleases=True):
            checks.append(Check(True, f"{name} {version}"))
        else:
            checks.append(Check(False, f"{name} {version}; required: {requirement.specifier}", install, fatal=True))
    return checks


def _devices() -> list[Check]:
    import torch

    if not torch.cuda.is_available():
        remedy = "the embedded model runs on the CPU; real models need a CUDA build of PyTorch and an NVIDIA GPU"
        return [Check(False, f"no GPU that PyTorch {torch.__version__} can use", remedy)]
    checks = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        text = f"GPU {index}: {torch.cuda.get_device_name(index)}, {free / 2**30:.0f} of {total / 2**30:.0f} GiB free"
        checks.append(Check(True, text))
    return [*checks, Check(True, f"sdpa may use the kernels {own_settings().sdpa_backends} (SDPA_BACKENDS)")]


def _checkpoint(model: ModelSpec) -> Check:
    if model.remote:
        text = f"model {model.key}: behind an endpoint; check it with: audiomarathon doctor --model {model.key}"
        return Check(True, text)
    download = f"audiomarathon models download {model.key}"
    replace = f"delete that file, and the file it links to; then: {download}"
    try:
        checkpoint = find_checkpoint(model.checkpoint, download=False)
    except (ConfigError, WeightsError) as error:
        return Check(False, f"model {model.key} is damaged: {error}", replace)
    except AudioMarathonError:
        text = f"model {model.key}: {model.checkpoint} is not in {hub_cache()}"
        return Check(False, text, f"{download}  ({model.download_gb:g} GB)")
    text = f"model {model.key}: {checkpoint.path}"
    if not (damage := _damage(checkpoint.path)):
        return Check(True, text)
    remedy = replace if "cut short" in damage else f"{download}  (resumes the download)"
    remedy = "reinstall audiomarathon" if model.checkpoint == EMBEDDED else remedy
    return Check(False, f"{text} is damaged: {damage}", remedy)


def _damage(folder: Path) -> str:
    """Return what is missing or broken in a checkpoint's folder (interrupted download, …); "" if it is complete."""
    from safetensors import SafetensorError, safe_open

    if not (folder / "config.json").is_file():
        return "no config.json"
    named: set[str] = set()
    for index in folder.glob("*.index.json"):
        named |= set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    if missing := sorted(name for name in named if not (folder / name).is_file()):
        return f"{len(missing)} of {counted(len(named), 'weight file')} missing ({missing[0]} …)"
    weights = sorted(file for file in folder.glob("*.safetensors") if file.is_file())
    if not weights and not any(file.is_file() for file in folder.glob("*.bin")):
        return "no weights"
    for file in weights:
        try:
            safe_open(file, framework="numpy")
        except (OSError, SafetensorError):
            return f"{file.name} is cut short"
    return ""


def _data() -> list[Check]:
    checks: list[Check] = []
    missing: dict[str, tuple[str, str]] = {}
    for task in all_tasks():
        try:
            folder = task_folder(task, None, os.environ)
            loaded = task.load(folder)
        except AudioMarathonError as error:
            text, _, remedy = str(error).partition(". ")
            if isinstance(error, MissingDataError):
                missing[task.key] = text.removeprefix(f"{task.key}: "), remedy
            else:
                checks.append(Check(False, f"data {text}", remedy))
            continue
        bad = f", {counted(len(loaded.bad_rows), 'bad row')}: {loaded.bad_rows[0]}" if loaded.bad_rows else ""
        licence = next(
            (benchmark.licence for benchmark in all_benchmarks() if benchmark.archive and task in benchmark.tasks), ""
        )
        terms = f" ({licence}: not for commercial use)" if licence else ""
        text = f"data {task.key}: {counted(len(loaded.samples), 'sample')} in {folder}{terms}{bad}"
        checks.append(Check(not bad, text))
    return [*checks, *_missing(missing)]


def _missing(tasks: Mapping[str, tuple[str, str]]) -> list[Check]:
    """Return failed checks for tasks whose data is missing; `tasks` is {task: (reason, remedy)}.

    Several tasks get one common remedy, and a single check if the reason is the same for all of them.
    """
    if len(tasks) < 2:
        return [Check(False, f"data {key}: {text}", remedy) for key, (text, remedy) in tasks.items()]
    lines = [f"data {key}: {text}" for key, (text, _) in tasks.items()]
    if len(texts := {text for text, _ in tasks.values()}) == 1:
        lines = [f"data: {texts.pop()}"]
    remedy = "audiomarathon data download vesus (the smallest task, under 1 GB), or other tasks by name"
    remedy += " (--limit 20: 20 samples each); then set AUDIOMARATHON_DATA to the data root"
    return [*(Check(False, line) for line in lines[:-1]), Check(False, lines[-1], remedy)]


def _disk() -> Check:
    cache = hub_cache()
    place = next(folder for folder in (cache, *cache.parents) if folder.exists())
    free = shutil.disk_usage(place).free / 1e9
    return Check(free > 30, f"{free:.0f} GB free for models in {cache}", "" if free > 30 else "a 7B model needs 23 GB")


def examine_endpoint(model: str, env: Mapping[str, str] | None = None) -> Iterator[Check]:
    """Check an endpoint's address, key and list of models; yield the results.

    No model is called, so it costs nothing.
    """
    from audiomarathon.endpoint.client import Endpoint, EndpointError

    env = os.environ if env is None else env
    try:
        endpoint = Endpoint.from_env(model or "unnamed", env)
    except SettingsError as error:
        yield Check(False, str(error), fatal=True)
        return
    endpoint.limit_s = _LIMIT_S
    address = endpoint.url + (f", through the proxy {endpoint.via}" if endpoint.via else "")
    unset = "" if env.get("OPENAI_BASE_URL") else " is not set; the default"
    yield Check(True, f"OPENAI_BASE_URL{unset}: {address}")
    yield Check(True, f"OPENAI_API_KEY is {'set' if endpoint.key else 'not set; no key is sent'}")
    try:
        names = endpoint.models()
    except ModelError as error:
        yield Check(False, str(error), fatal=True)
    except EndpointError as error:
        remedy = "check that the server is up, and that OPENAI_BASE_URL is its address, ending in /v1"
        yield Check(False, f"{endpoint.host}: {error}", remedy, fatal=True)
    else:
        yield Check(True, f"{endpoint.host} answers" + (", and accepts the key" if endpoint.key else ""))
        yield _named(model, names)


def _named(model: str, names: list[str]) -> Check:
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    if model in names:
        return Check(True, f"the endpoint lists {model}; only a run shows whether that model accepts audio")
    text, remedy = f"{model} is not listed", "some endpoints accept unlisted names"
    if not model:
        text, remedy = "no model is named", "name one with --model-path NAME (MODEL_PATH)"
    return Check(False, f"{text}; the endpoint lists: {shown or 'none'}", remedy)
