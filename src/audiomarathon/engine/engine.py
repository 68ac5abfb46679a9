"""A model that answers samples: the engine interface, and a model that is loaded in this process.

Ray's workers (:mod:`.ray_engine`) and endpoints (:mod:`.remote`) are the other two engines.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from audiomarathon.compression.method import Method
from audiomarathon.costs.prefill_flops import Cost
from audiomarathon.engine.setup import Setup, find_setup
from audiomarathon.engine.stamp import stamp
from audiomarathon.models.registry import get_local_model
from audiomarathon.runs.folder import Job
from audiomarathon.settings import RunSettings
from audiomarathon.text import Say

if TYPE_CHECKING:
    from audiomarathon.engine.batches import Plan
    from audiomarathon.models.audio_lm import AudioLM


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
    say: Say
    progress: bool | None
    cost: Cost | None

    @abstractmethod
    def evaluate(self, plan: Plan, jobs: Sequence[Job]) -> None:
        """Record a reply to every sample under every setting that lacks one."""

    def certificate(self) -> dict[str, Any] | None:
        """Return the stamp of this checkpoint's certificate on the machine that runs it, or None if there is none."""
        return stamp(self.setup)

    def state(self) -> dict[str, Any]:
        """Return the machine and its state now.

        `gpu` and `load`; `cpu_s`, the CPU seconds of each process so far; `environment`, versions and machine;
        `other_gpu_processes`, other processes on the GPUs.
        """
        from audiomarathon.engine.environment import cpu_seconds, environment, gpu_state, load, other_gpu_processes

        own = os.getpid()
        now = {"load": load(own), "gpu": gpu_state(), "cpu_s": {str(own): cpu_seconds()}}
        return {**now, "environment": environment(), "other_gpu_processes": other_gpu_processes(own)}


@dataclass(frozen=True)
class LocalEngine(Engine):
    """A model that is loaded in this process."""

    lm: AudioLM

    def evaluate(self, plan: Plan, jobs: Sequence[Job]) -> None:
        """See :meth:`Engine.evaluate`."""
        from audiomarathon.engine.evaluate import evaluate

        evaluate(self.lm, plan, jobs, say=self.say, progress=self.progress)


_COSTS: dict[tuple[str, str, str, str], Cost] = {}
"""Costs counted in this process, by model, checkpoint, precision and attention: each count runs the audio tower."""


def open_local(
    model: str,
    settings: RunSettings,
    methods: Sequence[Method] = (),
    *,
    setup: Setup | None = None,
    say: Say = lambda _line: None,
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
    counted = (spec.key, setup.checkpoint_hash, hardware.dtype, settings.attn_implementation)
    cost = _COSTS.get(counted) or count_cost(lm)
    if cost.encoder_flops_per_second is not None:  # else memory was short, which another time it may not be
        _COSTS[counted] = cost
    return LocalEngine(setup, say, progress, cost, lm)
