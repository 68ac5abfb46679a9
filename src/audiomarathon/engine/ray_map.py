"""Call a function on many items, such as run folders, in Ray's workers. The function reads and writes files itself."""

from __future__ import annotations

import os
import platform
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from audiomarathon.engine.ray_options import Ray
from audiomarathon.engine.ray_pool import LIVES, Place, Pool, connected
from audiomarathon.errors import AudioMarathonError, ExecutorError, warn
from audiomarathon.settings import RunSettings
from audiomarathon.text import Say

T = TypeVar("T")
R = TypeVar("R")


@dataclass
class _Worker:
    """A process of Ray that calls the function `work` on one item after another.

    `folder` is the working folder, where relative paths start.
    """

    work: Callable[[Any], Any]
    folder: Path
    on_gpu: bool

    def open(self, _first: Place | None = None) -> Place:
        """Change to the working folder and return this worker's machine and process.

        Without a GPU from Ray, also hide all GPUs from this process.
        """
        with suppress(OSError):
            os.chdir(self.folder)
        if not self.on_gpu:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        return Place(platform.node(), os.getpid())

    def call(self, item: Any) -> tuple[Any, list[str]]:
        """Call the function on an item; return (result, warnings).

        If the function raises an error that the user can fix, the error is the result.
        """
        with warnings.catch_warnings(record=True) as caught:
            try:
                outcome = self.work(item)
            except AudioMarathonError as error:
                outcome = error
        return outcome, [str(warning.message) for warning in caught if issubclass(warning.category, UserWarning)]


@dataclass(frozen=True)
class _Calls:
    """Tells a pool of workers how to send, retry and give up an item.

    A part of the pool's work is one item, as (its number in the sequence, item).
    """

    def send(self, worker: Any, part: tuple[int, Any]) -> Any:
        """Start a worker's call on an item; return Ray's reference to the result."""
        return worker.call.options(max_task_retries=0).remote(part[1])

    def smaller(self, part: tuple[int, Any], deaths: int) -> Sequence[tuple[int, Any]]:
        """Return [`part`], to try the item again; an empty list after `LIVES` workers have died with it."""
        return [part] if deaths < LIVES else []

    def given_up(self, part: tuple[int, Any], deaths: int) -> tuple[AudioMarathonError, list[str]]:
        """Return (error, []): the error says how many workers died with the item; the empty list means no warnings."""
        return ExecutorError(f"{part[1]}: {deaths} workers died with it"), []


def ray_map(
    work: Callable[[T], R], items: Sequence[T], wanted: Ray, say: Say, *, on_gpu: bool = False, per_core: bool = False
) -> Iterator[tuple[int, R | AudioMarathonError]]:
    """Call a function on each item in Ray's workers; yield (the item's number, result) as calls end.

    If a call raises an error that the user can fix, the error is yielded in place of the result.

    Parameters
    ----------
    work
        The function. It is sent to each worker once, so that it may keep a model between calls.
    on_gpu
        Whether the work can use a GPU.
    per_core
        Whether the default number of workers is one per core, but at most one per item.

    Raises
    ------
    AudioMarathonError
        The Ray cluster does not exist, has no room or is lost.
    """
    if wanted.workers:
        wanted = replace(wanted, workers=min(wanted.workers, len(items)))  # more would start for nothing
    settings = RunSettings.read({}, device="auto" if on_gpu or wanted.gpus_per_worker else "cpu", timing=False)
    with connected(wanted, settings, say, most=len(items) if per_core else None) as shape:
        pool = Pool.start(_Worker, (work, Path.cwd(), bool(shape.gpus)), shape, say)
        for (number, _item), (outcome, told) in pool.run(enumerate(items), _Calls()):
            for line in told:
                warn(line)
            yield number, outcome
