"""What runs in each of Ray's workers: one loaded model that answers what it is handed. Nothing here imports Ray."""

from __future__ import annotations

import os
import platform
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from audiomarathon.benchmarks import Sample
from audiomarathon.compression.method import Method
from audiomarathon.costs.prefill import Cost
from audiomarathon.engine.batches import Plan
from audiomarathon.engine.local import LocalEngine, open_local
from audiomarathon.engine.setup import Hardware
from audiomarathon.models.checkpoint import Checkpoint
from audiomarathon.records import Record
from audiomarathon.settings import RunSettings

#: A setting's label, and the record of one sample under it.
Labelled = tuple[str, Record]


@dataclass(frozen=True)
class Opened:
    """What a worker says of itself once its model is loaded.

    Attributes
    ----------
    environment
        Versions and machine.
    said
        Lines for the user that came up while loading.
    """

    checkpoint: Checkpoint
    checkpoint_hash: str
    hardware: Hardware
    cost: Cost | None
    certificate: dict[str, Any] | None
    host: str
    pid: int
    environment: dict[str, Any]
    said: tuple[str, ...]


class Worker:
    """Holds a model, and answers one call at a time."""

    def __init__(self) -> None:
        self._engine: LocalEngine | None = None
        self._begun: object = None
        self._cold = True

    def open(self, model: str, settings: RunSettings, methods: Sequence[Method]) -> Opened:
        """Load the model; not in the constructor, so that what is wrong reaches the caller as it is."""
        from audiomarathon.engine.environment import environment

        said: list[str] = []
        with warnings.catch_warnings(record=True) as caught:
            engine = self._engine = open_local(model, settings, methods, say=said.append)
            certificate = engine.certificate()
        said += [f"warning: {one.message}" for one in caught if issubclass(one.category, UserWarning)]
        return Opened(
            engine.setup.checkpoint,
            engine.setup.checkpoint_hash,
            engine.setup.hardware,
            engine.cost,
            certificate,
            platform.node(),
            os.getpid(),
            environment(),
            tuple(said),
        )

    def machine(self) -> dict[str, Any]:
        """Return the machine as it is now."""
        assert self._engine is not None
        return self._engine.machine()

    def state(self) -> dict[str, Any]:
        """Return the machine's state now; the other workers descend from the process that started this one."""
        from audiomarathon.engine.environment import load

        assert self._engine is not None
        return {**self._engine.state(), "load": load(os.getppid())}

    def work(
        self, plan: Plan, samples: Sequence[Sample], pending: Mapping[str, Sequence[str]], first_turn: int
    ) -> list[Labelled]:
        """Answer samples under the settings pending for each, named by their labels."""
        import torch

        from audiomarathon.engine.evaluate import answer

        assert self._engine is not None
        if self._begun != (plan.task.key, plan.session):
            self._begun, self._cold = (plan.task.key, plan.session), plan.warm_up
            torch.manual_seed(plan.seed)
        by_label = {method.label: method for method in self._engine.setup.methods}
        methods = {id_: [by_label[label] for label in labels] for id_, labels in pending.items()}
        made: list[Labelled] = []
        for _done in answer(
            self._engine.lm,
            plan,
            samples,
            methods,
            lambda method, record: made.append((method.label, record)),
            first_turn=first_turn,
            cold=self._cold,
        ):
            pass
        self._cold = self._cold and all(not record.answered for _label, record in made)
        return made
