"""The interface of trackers: three methods, called when a run starts, has new scores or times, and ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar


@dataclass(frozen=True)
class TrackedRun:
    """Facts of a run for trackers: one task under one setting.

    Attributes
    ----------
    task, checkpoint, method
        Names of the task, the checkpoint and the method (without ratio and layer).
    label
        Label of the setting, such as `random-0.9-layer2`, which is also the name of the run's folder.
    ratio
        Fraction of tokens or KV-cache entries to remove; 0 for base and for joined methods.
    folder
        The run's folder, with `run.json`, `samples.jsonl` and, after the end, `summary.json`.
    identity
        The facts that must not change when the run resumes, such as prompts, data and seed.
    swept
        True if other settings of the same task run in the same command.
    """

    task: str
    checkpoint: str
    method: str
    label: str
    ratio: float
    folder: Path
    identity: Mapping[str, Any]
    swept: bool


@dataclass(frozen=True)
class Point:
    """A point on a run's curves: numbers after `samples` answered samples.

    `figures` is {name: number}: the score so far (if computed at this point), and the last sample's seconds of each
    stage.
    """

    samples: int
    figures: Mapping[str, float]


class Tracker(ABC):
    """Base class of trackers, which show runs in another program.

    A tracker that raises an exception gets no more calls; the run continues.

    Attributes
    ----------
    key, aliases
        Name of the tracker for `--track`, and alternative names.
    """

    key: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def started(self, run: TrackedRun) -> None:
        """Start to show a run, or continue if a stopped run is resumed."""

    @abstractmethod
    def scored(self, run: TrackedRun, points: Sequence[Point]) -> None:
        """Receive new points of the run's curves. For a resumed run, the first call also has the earlier points."""

    @abstractmethod
    def finished(self, run: TrackedRun, summary: Mapping[str, Any] | None) -> None:
        """Receive the content of `summary.json` at the run's end; None if the run was interrupted."""
