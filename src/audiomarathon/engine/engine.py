"""What answers samples: a model that is loaded in this process, in workers, or behind an endpoint."""

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
    """A model that is loaded somewhere and runs task after task.

    Attributes
    ----------
    setup
        The checkpoint, the machine, and the settings and methods that it is run under.
    say, progress
        See :func:`~audiomarathon.engine.progress_view.watching`.
    cost
        The model's counted FLOPs; None where they cannot be known.
    """

    setup: Setup
    say: Callable[[str], None]
    progress: bool | None
    cost: Cost | None

    @abstractmethod
    def evaluate(self, plan: Plan, jobs: Sequence[Job]) -> None:
        """Record a reply of every sample under every setting that has none yet."""

    @abstractmethod
    def certificate(self) -> dict[str, Any] | None:
        """Return the stamp of the certificate of this checkpoint where it runs; None where there is none."""

    @abstractmethod
    def machine(self) -> dict[str, Any]:
        """Return versions and machine, and other processes on the GPUs as `other_gpu_processes`."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return the machine's state now: `gpu`, `load`, and by process the CPU seconds taken so far as `cpu_s`."""
