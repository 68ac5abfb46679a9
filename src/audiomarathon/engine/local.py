"""A model that is loaded in this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from audiomarathon.compression.method import Method
from audiomarathon.engine.engine import Engine
from audiomarathon.engine.setup import Setup, find_setup
from audiomarathon.engine.stamp import stamp
from audiomarathon.models.registry import get_local_model
from audiomarathon.runs.folder import Job
from audiomarathon.settings import RunSettings

if TYPE_CHECKING:
    from audiomarathon.engine.batches import Plan
    from audiomarathon.models.audio_lm import AudioLM


@dataclass(frozen=True)
class LocalEngine(Engine):
    """A model that is loaded in this process."""

    lm: AudioLM

    def evaluate(self, plan: Plan, jobs: Sequence[Job]) -> None:
        """See :meth:`Engine.evaluate`."""
        from audiomarathon.engine.evaluate import evaluate

        evaluate(self.lm, plan, jobs, say=self.say, progress=self.progress)

    def certificate(self) -> dict[str, Any] | None:
        """See :meth:`Engine.certificate`."""
        return stamp(self.setup)

    def machine(self) -> dict[str, Any]:
        """See :meth:`Engine.machine`."""
        from audiomarathon.engine.environment import environment, other_gpu_processes

        return {"environment": environment(), "other_gpu_processes": other_gpu_processes(os.getpid())}

    def state(self) -> dict[str, Any]:
        """See :meth:`Engine.state`."""
        from audiomarathon.engine.environment import cpu_seconds, gpu_state, load

        return {"gpu": gpu_state(), "load": load(os.getpid()), "cpu_s": {str(os.getpid()): cpu_seconds()}}


def open_local(
    model: str,
    settings: RunSettings,
    methods: Sequence[Method],
    *,
    setup: Setup | None = None,
    say: Callable[[str], None] = lambda _line: None,
    progress: bool | None = None,
) -> LocalEngine:
    """Load a model and check that the methods apply to it.

    Parameters
    ----------
    setup
        Result of an earlier call of :func:`find_setup`.

    Raises
    ------
    AudioMarathonError
        The model or device is not available here, or a method does not apply.
    """
    from audiomarathon.costs.flops import count_cost
    from audiomarathon.models.loading import check_finite

    spec = get_local_model(model)
    setup = setup or find_setup(model, settings, methods)
    checkpoint, hardware = setup.checkpoint, setup.hardware
    own = settings.model_path and settings.model_path != spec.checkpoint
    name = f"{checkpoint.name}, run as {spec.key}," if own else f"{spec.key} ({checkpoint.name})"
    say(f"model {name} on {hardware.device}, {hardware.dtype}, {settings.attn_implementation}")
    lm = spec.load_family().load(
        checkpoint.path,
        device=hardware.device,
        dtype=hardware.dtype,
        attn_implementation=settings.attn_implementation,
        device_map=settings.device_map,
    )
    check_finite(checkpoint.path, lm.model)
    for method in methods:
        method.check(lm)
    return LocalEngine(setup, say, progress, count_cost(lm), lm)
