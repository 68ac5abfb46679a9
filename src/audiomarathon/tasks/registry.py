"""The tasks there are: the benchmark's ten, and those of installed plug-ins."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from audiomarathon.errors import SettingsError
from audiomarathon.plugins import look_up, plugins
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
    """Return the benchmark's tasks in the paper's order, then third parties' by entry point name."""
    return (*BENCHMARK, *plugins(ENTRY_POINT_GROUP, Task, BENCHMARK))  # type: ignore[type-abstract]


def get_task(name: str) -> Task:
    """Return a task by key or alias, in any case.

    Raises
    ------
    SettingsError
        There is no such task; the message names those there are, and the nearest name.
    """
    if "," in name:
        raise SettingsError(
            f"unknown task {name[:60]!r}: separate tasks by spaces, run or sweep {name[:60].replace(',', ' ')}"
        )
    return look_up(name, all_tasks(), kind="task")
