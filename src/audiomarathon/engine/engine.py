"""An engine answers samples with a model. This file has the interface, and the engine that runs in this process.

The other two engines use Ray's workers (:mod:`.ray_engine`) and an endpoint (:mod:`.remote`).
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from audiomarathon.compression.method import Method
from audiomarathon.costs.cost import Cost
from audiomarathon.engine.setup import Setup, find_setup
from audiomarathon.engine.stamp import stamp
from audiomarathon.models.registry import get_local_model
from audiomarathon.records import Record
from audiomarathon.runs.folder import Job
from audiomarathon.settings import GRAPH, RunSettings
from audiomarathon.text import Say

if TYPE_CHECKING:
    from audiomarathon.engine.batches import Plan
    from audiomarathon.engine.evaluate import Labelled
    from audiomarathon.engine.progress_view import Watch
    from audiomarathon.models.audio_lm import AudioLM


@dataclass(frozen=True)
class Engine(ABC):
    """An engine: a model that is ready to answer the samples of one task after another.

    Attributes
    ----------
    setup
        The checkpoint, the machine, the settings and the methods to run.
    cost
        The model's counted FLOPs; None if they cannot be counted.
    """

    setup: Setup
    cost: Cost | None

    def evaluate(
        self, plan: Plan, jobs: Sequence[Job], *, say: Say = lambda _line: None, progress: bool | None = None
    ) -> None:
        """Answer every sample that has no reply yet, under every setting, and store the records.

        Parameters
        ----------
        jobs
            Each setting with its run folder, which the caller has entered (locked) by `with`. Samples whose record
            holds an error are tried again.
        say
            Receives lines for the user.
        progress
            Whether to show a live view; see :func:`~audiomarathon.engine.progress_view.watching`.

        Raises
        ------
        RecordError
            A record cannot be written. A sample that fails raises nothing: its record holds the error.
        """
        from audiomarathon.engine.progress_view import watching

        with watching(plan, jobs, say, progress=progress) as watch:
            if (stopping := plan.stopping) is None:
                self._round(plan, jobs, watch, say)
                return
            for samples, active in stopping.rounds(jobs, self.at_once(plan)):
                part = replace(plan, samples=tuple(samples), stopping=None)
                plan = replace(plan, turn=plan.turn + self._round(part, active, watch, say))
        for line in stopping.lines(jobs):
            say(line)

    def at_once(self, plan: Plan) -> int:
        """Return how many samples the engine needs at a time to keep the model busy.

        A run that may stop early works in rounds; each round has at least this many samples.
        """
        return max([plan.batch_size or 1, *plan.sizes.values()])

    def _round(self, plan: Plan, jobs: Sequence[Job], watch: Watch, say: Say) -> int:
        """Answer the plan's samples that lack a reply under at least one setting; return how many samples these are."""
        done = [(job.method, job.folder.done(plan.clips or None)) for job in jobs]
        lacking = {sample.id: [method for method, ids in done if sample.id not in ids] for sample in plan.samples}
        pending = {id_: methods for id_, methods in lacking.items() if methods}
        folders = {job.method.label: job.folder for job in jobs}
        left = {id_: len(methods) for id_, methods in pending.items()}

        def store(label: str, record: Record) -> None:
            if record.answered and record.id in plan.readings:
                record = plan.readings[record.id].added_to(record)
            folders[label].append(record)
            left[record.id] -= 1
            if not left[record.id]:
                watch.update()

        with closing(self.answer(plan, pending, say)) as answers:
            try:
                for label, record in answers:
                    store(label, record)
            except KeyboardInterrupt as interrupt:  # store replies that have arrived before the run ends
                with suppress(KeyboardInterrupt):
                    store(*answers.throw(interrupt))
                    for label, record in answers:
                        store(label, record)
                raise
        return len(pending)

    @abstractmethod
    def answer(self, plan: Plan, pending: Mapping[str, Sequence[Method]], say: Say) -> Generator[Labelled]:
        """Answer samples; yield (label of the setting, record) as soon as a record is made.

        `pending` has the settings to run, as {sample id: methods}.
        """

    def certificate(self) -> dict[str, Any] | None:
        """Return what `audiomarathon certify` found for this checkpoint and machine: {"verdict": …, "date": …,
        "checks": …}.

        `run.json` stores it. Return None if the command has not run here; see :func:`.stamp.stamp`.
        """
        return stamp(self.setup)

    def state(self) -> dict[str, Any]:
        """Describe the machine as it is now.

        Keys: `gpu` (state of each GPU), `load` (load of the machine), `cpu_s` (CPU seconds of each process of the run
        so far), `environment` (versions and hardware), `other_gpu_processes` (other programs on the GPUs).
        """
        from audiomarathon.engine.environment import cpu_seconds, environment, gpu_state, load, other_gpu_processes

        pid = os.getpid()
        return {
            "load": load(pid),
            "gpu": gpu_state(),
            "cpu_s": {str(pid): cpu_seconds()},
            "environment": environment(),
            "other_gpu_processes": other_gpu_processes(pid),
        }


@dataclass(frozen=True)
class LocalEngine(Engine):
    """An engine whose model is loaded in this process."""

    lm: AudioLM

    def answer(self, plan: Plan, pending: Mapping[str, Sequence[Method]], say: Say) -> Generator[Labelled]:
        """Answer samples with the loaded model; yield (label of the setting, record) as soon as a record is made.

        `pending` has the settings to run, as {sample id: methods}.
        """
        from audiomarathon.engine.batches import by_length
        from audiomarathon.engine.evaluate import answer

        samples = by_length(plan, [sample for sample in plan.samples if sample.id in pending])
        cold = plan.warm_up and not plan.turn
        yield from answer(self.lm, plan, samples, pending, first_turn=plan.turn, cold=cold, say=say)


_COSTS: dict[tuple[str, str, str, str], Cost] = {}
"""Cost of each (model, checkpoint hash, dtype, attention kernel); cached, because counting runs the audio tower."""


def open_local(
    model: str,
    settings: RunSettings,
    methods: Sequence[Method] = (),
    *,
    setup: Setup | None = None,
    say: Say = lambda _line: None,
) -> LocalEngine:
    """Load a model, check that the methods apply to it, and return the engine.

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
    from audiomarathon.models.kernels import kernels_for
    from audiomarathon.models.loading import check_finite

    spec = get_local_model(model)
    setup = setup or find_setup(model, settings, methods)
    checkpoint, hardware = setup.checkpoint, setup.hardware
    other_weights = settings.model_path and settings.model_path != spec.checkpoint
    name = f"{checkpoint.name}, run as {spec.key}," if other_weights else f"{spec.key} ({checkpoint.name})"
    say(f"model {name} on {hardware.device}, {hardware.dtype}, {settings.attn_implementation}")
    lm = spec.load_family().load(
        checkpoint.path,
        device=hardware.device,
        dtype=hardware.dtype,
        attn_implementation=settings.attn_implementation,
        device_map=settings.device_map,
    )
    lm.sdpa_backends, lm.decode = kernels_for(hardware.device, settings.sdpa_backends), setup.decode
    lm.prefill_chunk = settings.prefill_chunk
    check_finite(checkpoint.path, lm.model)
    if lm.decode == GRAPH and lm.why_eager:
        say(f"decode stays eager: {lm.why_eager}")
    elif lm.decode == GRAPH and settings.save_attn:
        say("decode stays eager in the calls that save attention")
    for method in methods:
        method.check(lm)
        if lm.decode == GRAPH and not lm.why_eager and not method.decodes_statically:
            say(f"decode of {method.label} stays eager: the method does not say that decode needs none of its code")
    if not lm.hears:
        return LocalEngine(setup, None, lm)
    key = (spec.key, setup.checkpoint_hash, hardware.dtype, settings.attn_implementation)
    cost = _COSTS.get(key) or count_cost(lm)
    if cost.encoder_flops_per_second is not None:  # None: the tower ran out of memory, so count again next time
        _COSTS[key] = cost
    return LocalEngine(setup, cost, lm)
