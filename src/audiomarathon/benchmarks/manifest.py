"""Read and write the manifest of a data root, `audiomarathon.json`, with facts about its tasks' data.

If there is no such file, the facts in the paper apply.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from audiomarathon.benchmarks.audiomarathon.benchmark import AUDIOMARATHON
from audiomarathon.benchmarks.registry import benchmark_of, facts_of
from audiomarathon.benchmarks.rows import read_json, write_ascii
from audiomarathon.benchmarks.task import Task
from audiomarathon.errors import DataError

FILE_NAME = "audiomarathon.json"
PUBLISHED_LICENCE = "CC-BY-NC-4.0"


@dataclass(frozen=True)
class Expected:
    """What to expect of a task's data: the number of samples, and the shortest and longest clip in seconds."""

    count: int
    seconds: tuple[float, float]


@dataclass(frozen=True)
class Manifest:
    """Facts about the data in one data root, from its `audiomarathon.json`.

    Attributes
    ----------
    name, licence
        Name and licence of the data set; without the file, those of the published data.
    tasks
        Expected counts and durations that the file states, as {task's key: facts}; for other tasks the paper's apply.
    file
        Path of `audiomarathon.json`; None if there is no such file.
    control
        How the audio of a control variant was made (`audiomarathon data controls`); None for the real audio.
    """

    name: str = "AudioMarathon"
    licence: str = PUBLISHED_LICENCE
    tasks: Mapping[str, Expected] = field(default_factory=lambda: MappingProxyType({}))
    file: Path | None = None
    control: Mapping[str, Any] | None = None

    def licence_of(self, task: Task) -> str:
        """Return a task's licence as `audiomarathon.json` states it, else the published data's, else "not stated"."""
        if self.file or benchmark_of(task.key) == AUDIOMARATHON.key:
            return self.licence
        return (task.download or ("", "not stated"))[1]

    def expected(self, task: Task) -> Expected | None:
        """Return the number of samples and the clip lengths that a task should have; None if they are not stated."""
        facts = facts_of(task.key)
        return self.tasks.get(task.key) or (Expected(facts.count, facts.seconds) if facts and facts.seconds else None)


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a data root, or of the data root above a task's folder.

    Parameters
    ----------
    folder
        A data root or a task's folder; the file is searched here and in the four folders above.

    Raises
    ------
    DataError
        The file is not JSON, or a field is not allowed.
    """
    folder = folder.absolute()
    for place in (folder, *folder.parents[:4]):
        if (file := place / FILE_NAME).is_file():
            return _parse(file)
    return Manifest()


def write_manifest(root: Path, facts: Mapping[str, Any], tasks: Mapping[str, Mapping[str, Any]]) -> None:
    """Write fields into a data root's `audiomarathon.json`: `facts` at the top, `tasks` under the field `tasks`.

    All other fields of an existing file stay as they are. `tasks` is {task's key: what to expect of its data}.
    """
    file = root / FILE_NAME
    data = _content(file) if file.is_file() else {}
    write_ascii(file, {**data, **facts, "tasks": {**data.get("tasks", {}), **tasks}})


def _content(file: Path) -> dict[str, Any]:
    data = read_json(file)
    if not isinstance(data, dict) or not isinstance(data.get("tasks", {}), dict):
        raise DataError(f"{file}: expected an object; its field 'tasks' must be an object with task keys")
    return data


def _parse(file: Path) -> Manifest:
    data = _content(file)
    tasks = {key: _expected(file, key, entry) for key, entry in data.get("tasks", {}).items()}
    control = data.get("control")
    if control is not None and not isinstance(control, dict):
        raise DataError(f"{file}: field 'control' must be an object")
    licence = data.get("licence", data.get("license", "not stated"))
    return Manifest(str(data.get("name", "not named")), str(licence), MappingProxyType(tasks), file, control)


def _expected(file: Path, key: str, entry: Any) -> Expected:
    try:
        count, low, high = entry["count"], float(entry["min_seconds"]), float(entry["max_seconds"])
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{file}: task {key!r} needs the numbers count, min_seconds and max_seconds") from error
    if not isinstance(count, int) or isinstance(count, bool) or count < 0 or not 0 <= low <= high:
        raise DataError(f"{file}: task {key!r} needs count >= 0 and 0 <= min_seconds <= max_seconds")
    return Expected(count, (low, high))
