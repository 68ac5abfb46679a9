"""Write some of a task's rows into another folder, in its own format, so that it loads there as the same task."""

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
    """Write the metadata of some samples into a folder; clips are the caller's to put there, under the same paths.

    Parameters
    ----------
    loaded
        The task as it was loaded; its folder holds the rows.
    ids
        The samples to keep.
    target
        The task's folder to write.
    changes
        By sample the fields to set in its row. A field set to None is taken away.
    paths
        By sample, where each of its clips lies in the target; default: where it lies in the task's folder.

    Raises
    ------
    DataError
        The task is a third party's, whose format is not known.
    """
    kept = [sample for sample in loaded.samples if sample.id in ids]
    task.write_rows(Part(loaded, kept, changes, paths), target)


def write_manifest(root: Path, facts: Mapping[str, Any], tasks: Mapping[str, Mapping[str, Any] | None]) -> None:
    """Set facts and tasks' entries (None: take it away) in a root's `audiomarathon.json`; the rest of it stays."""
    file = root / FILE_NAME
    data = read_json(file) if file.is_file() else {}
    if not isinstance(data, dict) or not isinstance(data.get("tasks", {}), dict):
        raise DataError(f"{file}: expected an object whose field 'tasks' is an object by task key")
    entries = {**data.get("tasks", {}), **tasks}
    merged = {**data, **facts, "tasks": {key: entry for key, entry in entries.items() if entry is not None}}
    write_ascii(file, merged)
