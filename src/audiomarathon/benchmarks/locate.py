"""Find a task's folder by its metadata file or its structure, anywhere under the data root."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from audiomarathon.benchmarks.task import Task
from audiomarathon.errors import DataError, MissingDataError
from audiomarathon.files import named_folder
from audiomarathon.text import did_you_mean, nearly

HUB_DATASET = "Hezep/AudioMarathon"

#: Keys of the tasks in the public data set; `audiomarathon data download` can fetch all of them.
HUB_TASKS = ("librispeech", "race", "slue", "tau", "gtzan", "desed", "vesus", "had", "vox", "vox_age")


@dataclass(frozen=True)
class Folder:
    """A folder that :func:`walk` found: its path, its depth below the root, the names of its files and subfolders."""

    path: Path
    depth: int
    files: frozenset[str]
    folders: frozenset[str]


def walk(root: Path) -> Iterator[Folder]:
    """Yield `root` and the folders under it, nearest first and in name order.

    Hidden and unreadable folders are skipped. Linked folders are followed, since large corpora are often linked into a
    data root, but a folder already seen under another name is not entered again, so loops end.
    """
    seen: set[tuple[int, int]] = set()
    level, depth = [root.absolute()], 0
    while level:
        below: list[Path] = []
        for path in level:
            try:
                status = path.stat()
                if (status.st_dev, status.st_ino) in seen:
                    continue
                seen.add((status.st_dev, status.st_ino))
                with os.scandir(path) as entries:
                    visible = [(entry.name, entry.is_dir()) for entry in entries if not entry.name.startswith(".")]
            except OSError:
                continue
            folders = sorted(name for name, is_folder in visible if is_folder)
            files = frozenset(name for name, is_folder in visible if not is_folder)
            yield Folder(path, depth, files, frozenset(folders))
            below.extend(path / name for name in folders)
        level, depth = below, depth + 1


def nearest(root: Path, matches: Callable[[Folder], bool]) -> list[Path]:
    """Return the folders under `root` for which `matches` is true and that are nearest to it.

    Several are returned if they are at the same depth.
    """
    folders: list[Path] = []
    found_at = 0
    for folder in walk(root):
        if folders and folder.depth > found_at:
            break
        if matches(folder):
            folders.append(folder.path)
            found_at = folder.depth
    return folders


def the_one(task: Task, root: Path, folders: list[Path], sought: str) -> Path:
    """Return the folder in `folders` if there is exactly one, else raise an error.

    `sought` describes the folder in the message.

    Raises
    ------
    MissingDataError
        No folder was found; the message says how to get the data.
    DataError
        Several folders were found.
    """
    if not folders:
        place = f"no {sought} under {root.absolute()}" if root.is_dir() else f"{root} is not a folder"
        raise MissingDataError(f"{task.key}: {place}. {how_to_get(task)}")
    if len(folders) > 1:
        several = ", ".join(str(path) for path in sorted(folders)[:3]) + ", …" * (len(folders) > 3)
        raise DataError(
            f"{task.key}: found {sought} in {len(folders)} folders at the same depth: {several}; "
            f"choose one with {path_variable(task)}"
        )
    return folders[0]


def path_variable(task: Task) -> str:
    """Return the name of the env var for the folder of this task's data, such as `VESUS_DATA_PATH`."""
    return f"{re.sub('[-./]', '_', task.key.upper())}_DATA_PATH"


def how_to_get(task: Task) -> str:
    """Return one line of advice: the command that downloads a task's data, and the env vars to set afterwards."""
    advice = f"{task.source[:1].upper()}{task.source[1:]}; then " if task.source else ""
    if task.download:
        advice = f"Get it with: audiomarathon data download {task.key} ({', '.join(task.download)}); then "
    elif task.key in HUB_TASKS:
        advice = f"Get it with: audiomarathon data download {task.key}; then "
        if task.key != "vesus":
            advice = (
                "Start with the smallest task (VESUS, under 1 GB): audiomarathon data download vesus. For "
                f"{task.key}: audiomarathon data download {task.key} (--limit 20 fetches 20 samples only); then "
            )
    advice += f"set AUDIOMARATHON_DATA or --data to the data root, or {path_variable(task)} to the folder of this task"
    return advice[:1].upper() + advice[1:]


def task_folder(task: Task, data_root: Path | None, env: Mapping[str, str]) -> Path:
    """Return the folder of a task's data.

    Parameters
    ----------
    task
        The task.
    data_root
        The folder that holds all tasks; None uses `AUDIOMARATHON_DATA`.
    env
        The environment. `<TASK>_DATA_PATH` limits the search to that folder and those below it.

    Raises
    ------
    DataError
        No root is set, a folder does not exist, or the data is missing or found twice; the message says how to get it.
    """
    task = task.owner
    variable = path_variable(task)
    if named := env.get(variable, "").strip():
        folder = named_folder(named)
        if not folder.is_dir():
            raise DataError(f"{variable}={named}: not a folder. {how_to_get(task)}")
        return task.find(folder)
    for name in os.environ:
        if name != variable and nearly(name.upper(), [variable]):
            warnings.warn(f"unknown env var {name} is ignored{did_you_mean(name, [variable])}", stacklevel=2)
    if data_root is None and (root := env.get("AUDIOMARATHON_DATA", "").strip()):
        data_root = named_folder(root)
    if data_root is None:
        raise MissingDataError(f"{task.key}: no data root is set. {how_to_get(task)}")
    if not data_root.is_dir():
        raise MissingDataError(f"the data root {data_root.absolute()} is not a folder. {how_to_get(task)}")
    return task.find(data_root)
