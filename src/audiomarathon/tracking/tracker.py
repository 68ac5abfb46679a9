"""The tracker interface: three hooks for the start, the figures and the end of a run."""

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
        Their names; the method's is its key, without ratio and layer.
    label
        The setting: the name of the run's folder.
    ratio
        Fraction removed; 0 for base.
    folder
        Contains `run.json`, `samples.jsonl` and, after the end, `summary.json`.
    identity
        The run's identity.
    swept
        True if other settings of the task run with it.
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
    """Figures after a number of answered samples: their `score`, and the seconds of the last sample's stages."""

    samples: int
    figures: Mapping[str, float]


class Tracker(ABC):
    """Shows runs somewhere. An exception ends the tracking, never the run.

    Attributes
    ----------
    key, aliases
        Name after `--track`, and other names.
    """

    key: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def started(self, run: TrackedRun) -> None:
        """Start a run, or continue a stopped one."""

    @abstractmethod
    def scored(self, run: TrackedRun, points: Sequence[Point]) -> None:
        """Receive the points since the last call; a resumed run's first call also has the recorded ones."""

    @abstractmethod
    def finished(self, run: TrackedRun, summary: Mapping[str, Any] | None) -> None:
        """Receive the content of `summary.json`; None if the run was interrupted."""
