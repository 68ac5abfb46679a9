"""Which folder a run's records go to, and what two runs must share for their records to be one run's."""

from __future__ import annotations

import hashlib
from typing import Any

from audiomarathon.evaluation.records import SCHEMA_VERSION, RunFolder
from audiomarathon.evaluation.session import Setup
from audiomarathon.pruning.method import Method
from audiomarathon.tasks import Loaded, Task
from audiomarathon.tasks.fingerprint import fingerprint
from audiomarathon.tasks.manifest import read_manifest


def check_folders(setup: Setup, task: Task, data: Loaded) -> None:
    """Refuse folders that hold another run, or that another process writes, before anything is run."""
    for _method, folder in run_folders(setup, task, data):
        if folder.path.exists():
            with folder:
                pass


def run_folders(setup: Setup, task: Task, data: Loaded) -> list[tuple[Method, RunFolder]]:
    """Return the folder of each setting of a task, not yet entered."""
    shared = _identity(setup, task, data)
    root = setup.settings.results / task.key / setup.checkpoint.folder_name
    return [
        (method, RunFolder(root / method.label, shared | {"method": method.key, **method.parameters()}))
        for method in setup.methods
    ]


def _identity(setup: Setup, task: Task, data: Loaded) -> dict[str, Any]:
    """What two runs must share for their records to be one run's (DESIGN.md, section 4.8)."""
    settings, hardware = setup.settings, setup.hardware
    prompts = hashlib.sha256("\0".join(task.prompt(sample) for sample in data.samples).encode()).hexdigest()[:16]
    control = read_manifest(data.folder).control
    return {
        **({"control": dict(control)} if control else {}),  # another task than the one it was made of
        "schema_version": SCHEMA_VERSION,
        "checkpoint": setup.checkpoint_hash,
        "dtype": hardware.dtype,
        "attention": settings.attn_implementation,
        "prompts": prompts,
        "data": fingerprint(data)[:16],
        "max_new_tokens": settings.max_new_tokens or task.max_new_tokens,
        "decode_tokens": settings.decode_tokens,
        "seed": settings.seed,
        "device": hardware.name if settings.timing else None,
    }
