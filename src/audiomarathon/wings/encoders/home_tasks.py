"""AudioMarathon's own tasks as tasks for encoders: which class does a clip of 90 to 300 seconds belong to?

A clip's label is its class, such as its scene or genre (:attr:`Sample.stratum`). Folds keep clusters (dependent clips,
such as a speaker's) whole. A clip has the id and prompt of its home task (the task of AudioMarathon), so a probe of a
model can be compared with the model's replies.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from audiomarathon.audio.member import Member
from audiomarathon.benchmarks.audiomarathon.benchmark import AUDIOMARATHON
from audiomarathon.benchmarks.benchmark import Benchmark
from audiomarathon.benchmarks.locate import task_folder
from audiomarathon.benchmarks.task import Filters, Loaded, Task
from audiomarathon.errors import MissingDataError
from audiomarathon.plugins import look_up
from audiomarathon.wings.encoders.xares.task import Clip, Dataset, EncoderTask, limited
from audiomarathon.wings.encoders.xares.tasks import named

_LABELLED = ("tau", "gtzan", "vesus", "had", "vox", "vox_age", "desed")  # tasks whose options are classes


@dataclass(frozen=True, kw_only=True)
class LongTask(EncoderTask):
    """A task of AudioMarathon (`home`) as a task for encoders: probes predict the class of a clip."""

    home: Task

    def find(self, root: Path) -> Path:
        """Return the folder of AudioMarathon's task under `root`, or else under `AUDIOMARATHON_DATA` if that is set."""
        try:
            return task_folder(self.home, root, os.environ)
        except MissingDataError:
            if not os.environ.get("AUDIOMARATHON_DATA"):
                raise
            return task_folder(self.home, None, os.environ)

    def load(self, folder: Path, filters: Filters = Filters()) -> Loaded:
        """Read AudioMarathon's task from a folder; return its samples, and the rows that could not be read."""
        return self.home.load(folder, filters)

    def read(self, root: Path, *, limit: int = 0, mini: bool = False) -> Dataset:  # noqa: ARG002
        """Return the clips of AudioMarathon's task, each labelled with its class.

        `limit` is the number of clips to take, as in :meth:`EncoderTask.read`; 0 takes all. `mini` has no effect: there
        is no small variant. A clip's `facts` hold the prompt that AudioMarathon's task gives a model with this clip.
        """
        loaded = self.home.load(self.find(root))
        clips = tuple(
            Clip(
                sample.id,
                "all",
                cast("Member", sample.clips[0]),
                (sample.stratum,),
                sample.cluster,
                (self.home.prompt(sample),),
            )
            for sample in loaded.samples
            if sample.stratum
        )
        classes = tuple(sorted({label for clip in clips for label in clip.labels}))
        rows = len(clips) + len(loaded.bad_rows)
        return Dataset(loaded.folder, limited(clips, limit) if limit else clips, classes, loaded.bad_rows, True, rows)


LONG = Benchmark(
    key="long",
    title="What does an encoder know of AudioMarathon's long clips?",
    tasks=tuple(
        LongTask(
            key=f"long/{task.key}", formal_name=task.key, title=task.title, domain="long", globs={"all": ""},
            folds=True, label="stratum", in_release=False, home=task,
        )
        for task in AUDIOMARATHON.tasks
        if task.key in _LABELLED
    ),
)  # fmt: skip


def encoder_tasks(names: Sequence[str], encoder: Any = None) -> list[EncoderTask]:
    """Return the encoder tasks that the names stand for, each once.

    "long" stands for all of AudioMarathon's tasks as encoder tasks, `long/tau` for one of them. Other names stand for
    tasks of X-ARES, as :func:`named` explains. `encoder` is passed to the functions in a user's task file.
    """
    tasks: dict[str, EncoderTask] = {}
    for name in map(str.strip, names):
        if name.lower() == "long":
            chosen: Sequence[Any] = LONG.tasks
        elif name.lower().startswith("long/"):
            chosen = [look_up(name, LONG.tasks, kind="encoder task")]
        else:
            chosen = named([name], encoder)
        tasks |= {task.key: task for task in chosen}
    return list(tasks.values())
