"""Write some rows of a task into another folder in the task's format, so that it loads there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from audiomarathon.benchmarks import Loaded, Task
from audiomarathon.benchmarks.manifest import FILE_NAME
from audiomarathon.benchmarks.rows import read_json, write_ascii
from audiomarathon.benchmarks.task import Part
from audiomarathon.errors import DataError

Changes = Mapping[str, Mapping[str, Any]]


def write_rows(
    task: Task,
    loaded: Loaded,
    ids: set[str],
    target: Path,
    changes: Changes = MappingProxyType({}),
    paths: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> None:
    """Write the metadata of some samples into a folder; the caller writes the clips.

    Parameters
    ----------
    loaded
        The loaded task; its folder has the rows.
    ids
        The samples to keep.
    target
        The task's folder to write.
    changes
        By sample, fields to set in its row; None removes a field.
    paths
        By sample, the paths of its clips in the target (default: as in the task's folder).

    Raises
    ------
    DataError
        The task is a plug-in with an unknown format.
    """
    kept = [sample for sample in loaded.samples if sample.id in ids]
    task.write_rows(Part(loaded, kept, changes, paths), target)


def write_manifest(root: Path, facts: Mapping[str, Any], tasks: Mapping[str, Mapping[str, Any] | None]) -> None:
    """Set facts and tasks' entries (None removes an entry) in a root's `audiomarathon.json`; keep the rest."""
    file = root / FILE_NAME
    data = read_json(file) if file.is_file() else {}
    if not isinstance(data, dict) or not isinstance(data.get("tasks", {}), dict):
        raise DataError(f"{file}: expected an object whose field 'tasks' is an object by task key")
    entries = {**data.get("tasks", {}), **tasks}
    merged = {**data, **facts, "tasks": {key: entry for key, entry in entries.items() if entry is not None}}
    write_ascii(file, merged)
