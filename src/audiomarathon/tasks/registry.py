"""The tasks there are: the benchmark's ten, and those of installed plug-ins."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib.metadata import entry_points
from types import MappingProxyType

from audiomarathon.errors import SettingsError
from audiomarathon.tasks.desed import Desed
from audiomarathon.tasks.gtzan import Gtzan
from audiomarathon.tasks.had import Had
from audiomarathon.tasks.librispeech import LibriSpeech
from audiomarathon.tasks.race import Race
from audiomarathon.tasks.slue import Slue
from audiomarathon.tasks.task import Task
from audiomarathon.tasks.tau import Tau
from audiomarathon.tasks.vesus import Vesus
from audiomarathon.tasks.vox import Vox
from audiomarathon.tasks.vox_age import VoxAge

ENTRY_POINT_GROUP = "audiomarathon.tasks"

#: The ten tasks in the paper's order.
BENCHMARK: tuple[Task, ...] = (
    LibriSpeech(),
    Race(),
    Slue(),
    Tau(),
    Gtzan(),
    Desed(),
    Vesus(),
    Had(),
    Vox(),
    VoxAge(),
)

#: Acronyms of the tasks whose mean is shown beside the overall mean.
GROUPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "speech content": ("ASR", "SCR", "SER"),
        "audio classification": ("ASC", "MC", "SED"),
        "speaker": ("ER", "SD", "SAR", "SGR"),
    }
)


def all_tasks() -> tuple[Task, ...]:
    """Return the benchmark's tasks in the paper's order, then those of plug-ins by name."""
    return (*BENCHMARK, *_plugins()[0])


def broken_plugins() -> Mapping[str, str]:
    """Return, for each plug-in that could not be used, its entry point's name and why."""
    return _plugins()[1]


def get_task(name: str) -> Task:
    """Return a task by key, alias or acronym, in any case.

    Raises
    ------
    SettingsError
        There is no such task; the message names those there are, the nearest name, and plug-ins that failed.
    """
    tasks, broken = _plugins()
    tasks = (*BENCHMARK, *tasks)
    by_name = {known: task for task in reversed(tasks) for known in _names(task)}
    wanted = _normalised(name)
    if wanted in by_name:
        return by_name[wanted]
    for plugin, reason in broken.items():
        if _normalised(plugin) == wanted:
            raise SettingsError(f"task {name!r}: its plug-in could not be used: {reason}")
    near = difflib.get_close_matches(wanted, by_name, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    failed = f" (plug-ins that could not be used: {', '.join(broken)})" if broken else ""
    raise SettingsError(f"unknown task {name!r}; allowed: {', '.join(task.key for task in tasks)}{failed}{hint}")


def _names(task: Task) -> set[str]:
    return {_normalised(name) for name in (task.key, task.acronym, *task.aliases)}


def _normalised(name: str) -> str:
    return name.strip().lower().replace("-", "_")


def _plugins() -> tuple[tuple[Task, ...], Mapping[str, str]]:
    tasks: list[Task] = []
    broken: dict[str, str] = {}
    taken = {name for task in BENCHMARK for name in _names(task)}
    for entry in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda entry: entry.name):
        try:
            found = entry.load()
            task = found() if isinstance(found, type) else found
            if not isinstance(task, Task):
                raise TypeError(f"{entry.value} is not a Task")
            names = _names(task)
        except Exception as error:  # a stranger's code may raise anything, and must not hide the others
            broken[entry.name] = f"{type(error).__name__}: {error}"
            continue
        if clash := sorted(names & taken):
            broken[entry.name] = f"the name {clash[0]!r} is taken"
            continue
        taken |= names
        tasks.append(task)
    return tuple(tasks), MappingProxyType(broken)
