"""The engine interface: a model that answers samples in this process, in Ray's workers, or behind an endpoint."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from audiomarathon.costs.prefill import Cost
from audiomarathon.engine.setup import Setup
from audiomarathon.runs.folder import Job

if TYPE_CHECKING:
    from audiomarathon.engine.batches import Plan


@dataclass(frozen=True)
class Engine(ABC):
    """A loaded model that runs one task after another.

    Attributes
    ----------
    setup
        The checkpoint, the machine, the settings and the methods to run.
    say, progress
        See :func:`~audiomarathon.engine.progress_view.watching`.
    cost
        The model's counted FLOPs; None if they cannot be counted.
    """

    setup: Setup
    say: Callable[[str], None]
    progress: bool | None
    cost: Cost | None

    @abstractmethod
    def evaluate(self, plan: Plan, jobs: Sequence[Job]) -> None:
        """Record a reply to every sample under every setting that lacks one."""

    @abstractmethod
    def certificate(self) -> dict[str, Any] | None:
        """Return the stamp of this checkpoint's certificate on the machine that runs it, or None if there is none."""

    @abstractmethod
    def machine(self) -> dict[str, Any]:
        """Return versions and machine; `other_gpu_processes` lists other processes on the GPUs."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return the machine's state now: `gpu`, `load`, and `cpu_s`, the CPU seconds of each process so far."""
