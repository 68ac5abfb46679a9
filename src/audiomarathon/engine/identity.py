"""Make the identity of a run: the facts that must not change when a run resumes, such as prompts, data and seed.

Two runs share a folder only if every field of their identities is equal; else :class:`RunFolder` raises an error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from audiomarathon.benchmarks import Loaded, Task
from audiomarathon.benchmarks.fingerprint import fingerprint
from audiomarathon.benchmarks.manifest import read_manifest
from audiomarathon.compression.method import Method
from audiomarathon.costs.limits import beyond_positions
from audiomarathon.engine.setup import Setup, language_of
from audiomarathon.engine.source import source_hash
from audiomarathon.engine.transcripts import texts_of
from audiomarathon.errors import RecordError
from audiomarathon.models.checkpoint import Checkpoint
from audiomarathon.models.registry import ModelSpec
from audiomarathon.runs.folder import CODE, RunFolder, read_run
from audiomarathon.scoring.scorer import Scorer
from audiomarathon.settings import COLD, GRAPH, RunSettings


def run_folders(setup: Setup, task: Task, data: Loaded) -> list[tuple[Method, RunFolder]]:
    """Return each method with its run folder for this task. The folders are not entered (locked) yet."""
    shared = _identity(setup, task, data)
    root = setup.settings.results / task.key / setup.name
    fits = task.scorer.fits
    return [
        (
            method,
            RunFolder(
                root / method.label,
                {**shared, **_method(setup, method), **_beyond(setup, task, data, method)},
                fits,
                texts_of(method, task),
            ),
        )
        for method in setup.methods
    ]


def check_edited(tasks: Sequence[Task], spec: ModelSpec, settings: RunSettings, methods: Sequence[Method]) -> None:
    """Raise RecordError if a run folder has records of another version of a method's code; PyTorch is not imported.

    The message names the folder. Everything else in the identity is compared once the model is known.
    """
    for method in methods:
        now = _code("method", method.parts())
        for path in places_of(tasks, spec, settings, [method]):
            if now and (path / "run.json").is_file():
                held = read_run(path).get("identity") or {}
                RunFolder(path, {**held, **now} if {*now} & {*held} else held).peek()


def places_of(tasks: Sequence[Task], spec: ModelSpec, settings: RunSettings, methods: Sequence[Method]) -> list[Path]:
    """Return the path of the run folder of each method and task.

    Paths are made from names alone: nothing is read, and PyTorch is not imported.
    """
    source = settings.model_path or spec.checkpoint
    folder = Path(source).expanduser()
    name = folder.resolve().name if folder.is_dir() else source.partition("@")[0]
    place = Checkpoint(name, folder, spec.variant).folder_name
    return [settings.results / task.key / place / method.label for method in methods for task in tasks]


def fresh_results(
    tasks: Sequence[Task], spec: ModelSpec, settings: RunSettings, methods: Sequence[Method]
) -> RunSettings:
    """Return the settings, with a new results folder if a method's code was edited since its records were made.

    The new folder's name ends in a hash of the code, so the next run of this version of the code uses the folder again.
    """
    try:
        check_edited(tasks, spec, settings, methods)
    except RecordError:
        code = repr(sorted({code_hash for method in methods for code_hash in _code("method", method.parts()).values()}))
        name = f"{settings.results.absolute().name}-{hashlib.sha256(code.encode()).hexdigest()[:6]}"
        return replace(settings, results=settings.results.absolute().with_name(name))
    return settings


def _method(setup: Setup, method: Method) -> dict[str, Any]:
    graph = {"decode": GRAPH} if setup.graphed(method) else {}  # left out if eager, as in folders of older versions
    return {"method": method.key, **method.parameters(), **graph, **_code("method", method.parts())}


def _beyond(setup: Setup, task: Task, data: Loaded, method: Method) -> dict[str, bool]:
    """Return {"beyond_limits": True} if a run's samples have more positions than the model was made for, else {}.

    {} also if the setting BEYOND_LIMITS, which allows such a run, is off.
    """
    settings = setup.settings
    given = setup.spec, setup.checkpoint.path, task, data.samples, settings, [method]
    return {"beyond_limits": True} if settings.beyond_limits and beyond_positions(*given) else {}


def _code(kind: str, things: Mapping[str, object], without: type | None = None) -> dict[str, str]:
    """Return a hash of the third-party code behind each of the objects `things`, as {name: hash}.

    A name tells the kind and the object, such as `code of task mine`. Objects without third-party code are left out. No
    hash covers subclasses of the class `without` (:func:`source_hash`).
    """
    hashes = {f"{CODE}{kind} {name}": source_hash(thing, without) for name, thing in things.items()}
    return {name: code_hash for name, code_hash in hashes.items() if code_hash}


def _timed_as(settings: RunSettings) -> dict[str, str]:
    """Return {name: value} of the settings that GPU times depend on: the attention kernels, and whether calls are
    warmed up.
    """
    return {"sdpa_backends": settings.sdpa_backends, "timing": COLD if settings.timing == COLD else "warm"}


def _identity(setup: Setup, task: Task, data: Loaded) -> dict[str, Any]:
    """Return the part of a run's identity that is equal for all settings of a task, as {name: value}.

    Among the values are hashes of checkpoint, prompts and data, the token limit and the seed.
    """
    settings, hardware, language = setup.settings, setup.hardware, language_of(setup.spec, task, setup.settings)
    prompts = hashlib.sha256("\0".join(task.prompt(sample) for sample in data.samples).encode()).hexdigest()[:16]
    control = read_manifest(data.folder).control
    return {
        **({"control": dict(control)} if control else {}),  # a task with control audio is not the original task
        **({"version": task.version} if task.version else {}),
        "checkpoint": setup.checkpoint_hash,
        "dtype": hardware.dtype,
        "attention": settings.attn_implementation,
        "prompts": prompts,
        "data": fingerprint(data)[:16],
        "max_new_tokens": settings.max_new_tokens or task.max_new_tokens,
        "decode_tokens": settings.decode_tokens,
        "seed": settings.seed,
        **({"language": language} if language not in ("", "en") else {}),  # older runs are in English
        **({"prefill_chunk": settings.prefill_chunk} if settings.prefill_chunk else {}),  # older runs have no chunks
        "device": hardware.name if settings.timing else None,
        **(_timed_as(settings) if settings.timing and hardware.on_gpu else {}),
        **_code("task", {task.key: task}, without=Scorer),  # scorers may change: they judge stored replies again
        **({} if setup.spec.remote else _code("model", {setup.spec.key: setup.spec.load_family()})),
    }
