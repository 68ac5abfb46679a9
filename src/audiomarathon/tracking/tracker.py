"""What a tracker is: it is told when a run starts, how its figures come on, and how it ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar


@dataclass(frozen=True)
class TrackedRun:
    """A run as trackers see it: one task under one setting.

    Attributes
    ----------
    task, checkpoint, method
        Their names; the method's is its key, without ratio and layer.
    label
        The setting: the name of the run's folder.
    ratio
        Fraction removed; 0 of base.
    folder
        Holds `run.json`, `samples.jsonl` and, once the run is finished, `summary.json`.
    identity
        What makes two runs the same run.
    swept
        Whether other settings of the task are run beside it.
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
    """Figures after so many answered samples: `score` of all of them, seconds of the last one's stages."""

    samples: int
    figures: Mapping[str, float]


class Tracker(ABC):
    """Shows runs somewhere. What it raises ends the tracking, never the run.

    Attributes
    ----------
    key, aliases
        Its name after `--track`, and other names.
    """

    key: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def started(self, run: TrackedRun) -> None:
        """Take word that a run starts, or goes on where it stopped."""

    @abstractmethod
    def scored(self, run: TrackedRun, points: Sequence[Point]) -> None:
        """Take the points since the last call; the first call of a resumed run holds those on record too."""

    @abstractmethod
    def finished(self, run: TrackedRun, summary: Mapping[str, Any] | None) -> None:
        """Take the content of `summary.json`; None where the run was interrupted."""
