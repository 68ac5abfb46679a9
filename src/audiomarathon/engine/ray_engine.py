"""Answer samples in Ray's workers, each with a loaded model. Only this process writes the run folders.

Any worker may get any samples: each sample has its own seed, so its reply does not depend on the worker. The pool of
workers, which also replaces workers that died, is in `ray_pool.py`.
"""

from __future__ import annotations

import os
import platform
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import ray
import torch

from audiomarathon.benchmarks import Sample
from audiomarathon.compression.method import Method
from audiomarathon.engine.batches import Plan, by_length, in_batches
from audiomarathon.engine.engine import Engine, LocalEngine, open_local
from audiomarathon.engine.environment import environment, load
from audiomarathon.engine.evaluate import Labelled, answer, error_record
from audiomarathon.engine.ray_options import Ray
from audiomarathon.engine.ray_pool import LIVES, Pool, connected
from audiomarathon.engine.setup import Setup
from audiomarathon.errors import ModelError
from audiomarathon.settings import RunSettings
from audiomarathon.text import Say

_BATCHES_A_CHUNK = 4  # batches per chunk in an untimed run: later ones are prepared while the model works on the first


@dataclass(frozen=True)
class Opened:
    """Facts about a worker that has loaded its model; the worker sends them to the main process.

    Attributes
    ----------
    setup
        The setup on the worker's machine, with the checkpoint's hash and the hardware.
    cost
        The model's counted FLOPs; None if they cannot be counted.
    certificate
        What `audiomarathon certify` found for this checkpoint on the worker's machine; None if it has not run there.
    environment
        Versions and hardware of that machine.
    said
        Messages for the user that were produced during loading.
    """

    setup: Setup
    cost: Any
    certificate: dict[str, Any] | None
    host: str
    pid: int
    environment: dict[str, Any]
    said: tuple[str, ...]


@dataclass
class Worker:
    """A process of Ray that holds a loaded model, and answers one call at a time.

    Attributes
    ----------
    begun
        Task and session of the last call.
    cold
        Whether the next timed sample must first be run once to warm up.
    """

    model: str
    settings: RunSettings
    methods: Sequence[Method]
    begun: object = None
    cold: bool = True

    @cached_property
    def loaded(self) -> tuple[LocalEngine, Opened]:
        """Return (the engine with its loaded model, facts about this worker); the first access loads the model.

        The constructor does not load it, since Ray would wrap the constructor's errors in an error of its own.
        """
        said: list[str] = []
        with warnings.catch_warnings(record=True) as caught:
            engine = open_local(self.model, self.settings, self.methods, say=said.append)
            certificate = engine.certificate()
        said += [
            f"warning: {caught_warning.message}"
            for caught_warning in caught
            if issubclass(caught_warning.category, UserWarning)
        ]
        setup, host, pid = replace(engine.setup, methods=()), platform.node(), os.getpid()
        return engine, Opened(setup, engine.cost, certificate, host, pid, environment(), tuple(said))

    def open(self, first: Opened | None) -> Opened:
        """Load the model if it is not loaded yet, and return the facts about this worker.

        `first` has the facts about the first worker that loaded its model; None if this is the first one.

        Raises
        ------
        ModelError
            This worker's checkpoint or precision differs from the first worker's, or in a timed run its device.
        """
        _engine, opened = self.loaded
        if first and (differing := differences(first.setup, opened.setup)):
            raise ModelError(f"worker on {opened.host} differs from the one on {first.host}: {differing}")
        return opened

    def state(self) -> dict[str, Any]:
        """Return the state of the worker's machine now: GPUs, load, CPU seconds and versions (:meth:`Engine.state`).

        The load leaves out the threads of all workers on the machine, which share one parent process.
        """
        return {**self.loaded[0].state(), "load": load(os.getppid())}

    def work(
        self,
        shared: tuple[Opened, Plan],
        samples: Sequence[Sample],
        pending: Mapping[str, Sequence[str]],
        first_turn: int,
    ) -> list[Labelled]:
        """Answer samples under their pending settings; return a list of (label of the setting, record).

        `shared` is (facts about the first worker, plan). `pending` has the settings to run, as {sample id: labels}:
        labels are cheaper to send than methods.
        """
        first, plan = shared
        self.open(first)  # Ray may have restarted this process without notice
        engine, _opened = self.loaded
        if self.begun != (plan.task.key, plan.session):
            self.begun, self.cold = (plan.task.key, plan.session), plan.warm_up
            torch.manual_seed(plan.seed)
        by_label = {method.label: method for method in engine.setup.methods}
        methods = {id_: [by_label[label] for label in labels] for id_, labels in pending.items()}
        made = list(answer(engine.lm, plan, samples, methods, first_turn=first_turn, cold=self.cold))
        self.cold = self.cold and all(not record.answered for _label, record in made)
        return made


def differences(first: Setup, other: Setup) -> str:
    """Return, as text, the differences between two workers' setups that are not allowed; "" if there are none.

    `first` is the first worker's setup. Checkpoint and precision may not differ, nor the device in a timed run.
    """
    pairs = {
        "checkpoint": (first.checkpoint_hash, other.checkpoint_hash),
        "dtype": (first.hardware.dtype, other.hardware.dtype),
        "device": (first.hardware.name, other.hardware.name) if first.settings.timing else ("", ""),
    }
    return ", ".join(f"{name} {theirs}, not {ours}" for name, (ours, theirs) in pairs.items() if ours != theirs)


@dataclass(frozen=True)
class RayEngine(Engine):
    """An engine that answers samples in Ray's workers, each of which has loaded the model."""

    pool: Pool

    def certificate(self) -> dict[str, Any] | None:
        """Return what `audiomarathon certify` found for this checkpoint on the first worker's machine, or None.

        The result is {"verdict": …, "date": …, "checks": …}; None means that the command has not run there.
        """
        certificate: dict[str, Any] | None = self.pool.first.certificate
        return certificate

    def state(self) -> dict[str, Any]:
        """Describe the workers' machines: the first worker's versions, all GPUs, and the load of the busiest machine.

        The keys are those of :meth:`Engine.state`; further keys have the number of workers, the GPUs of each worker,
        and how many workers share a GPU.
        """
        known, shape = self.pool.known, self.pool.shape
        states = [(known[worker], state) for worker, state in self.pool.states().items()]
        by_host = {opened.host: state for opened, state in states}
        busiest = max(by_host.items(), key=lambda item: _foreign_share(item[1]["load"]), default=None)
        ours = {(opened.host, str(opened.pid)) for opened in known.values()}
        others = [(host, row) for host, state in by_host.items() for row in state["other_gpu_processes"]]
        return {
            "environment": self.pool.first.environment,
            "other_gpu_processes": [f"{host} {row}" for host, row in others if (host, row.split()[0]) not in ours],
            "executor": "ray",
            "workers": shape.workers,
            "gpus_per_worker": shape.gpus,
            "workers_sharing": shape.sharing,
            "gpu": [gpu for state in by_host.values() for gpu in state["gpu"]],
            "load": {"host": busiest[0], **busiest[1]["load"]} if busiest else None,
            "cpu_s": {f"{opened.host} {opened.pid}": sum(state["cpu_s"].values()) for opened, state in states},
        }

    def at_once(self, plan: Plan) -> int:
        """Return how many samples must be in work at a time to keep all workers busy."""
        return super().at_once(plan) * self.pool.shape.workers

    def answer(self, plan: Plan, pending: Mapping[str, Sequence[Method]], say: Say) -> Generator[Labelled]:
        """Answer samples in the workers; yield (label of the setting, record) when a worker returns its records."""
        self.pool.say = say
        todo = [
            replace(s, clips=tuple(c.absolute() for c in s.clips))
            for s in by_length(plan, plan.samples)
            if s.id in pending
        ]
        labels = {id_: [method.label for method in methods] for id_, methods in pending.items()}
        work = TaskWork(plan, labels, ray.put((self.pool.first, replace(plan, samples=()))))
        for _chunk, made in self.pool.run(cut(todo, plan, self.pool.shape.workers), work) if todo else ():
            yield from made


def _foreign_share(load: Mapping[str, Any]) -> float:
    return (load["foreign_processes"] or 0.0) / float(load["cores"])


@dataclass(frozen=True)
class Chunk:
    """Samples that are sent to a worker together.

    `turn` is the number of the first batch of these samples within the task; it decides which setting goes first.
    """

    samples: tuple[Sample, ...]
    turn: int


def cut(samples: Sequence[Sample], plan: Plan, workers: int) -> Iterator[Chunk]:
    """Cut samples into chunks to send to workers: one sample each in a timed run, else a few batches each.

    Chunks get smaller towards the end, so that all workers end at about the same time.
    """
    batches, turn = in_batches(samples, plan.batch_size or 1), 0
    while turn < len(batches):
        left = len(batches) - turn
        count = 1 if plan.batch_size is None else max(1, min(_BATCHES_A_CHUNK, left // (2 * workers)))
        yield Chunk(tuple(sample for batch in batches[turn : turn + count] for sample in batch), plan.turn + turn)
        turn += count


@dataclass(frozen=True)
class TaskWork:
    """One task's samples as work for a pool of workers.

    Attributes
    ----------
    labels
        The settings to run, as {sample id: labels}.
    shared
        Ray's reference to (facts about the first worker, plan).
    """

    plan: Plan
    labels: Mapping[str, Sequence[str]]
    shared: Any

    def send(self, worker: Any, part: Chunk) -> Any:
        """Send a chunk to a worker, and return Ray's reference to the result."""
        pending = {sample.id: self.labels[sample.id] for sample in part.samples}
        return worker.work.options(max_task_retries=0).remote(self.shared, part.samples, pending, part.turn)

    def smaller(self, part: Chunk, deaths: int) -> list[Chunk]:
        """Split a chunk whose worker died into parts to try next: first into batches, then into single samples.

        Return an empty list after `LIVES` deaths.
        """
        if deaths >= LIVES:
            return []
        batches = in_batches(part.samples, (self.plan.batch_size or 1) if deaths == 1 else 1)
        return [Chunk(tuple(batch), part.turn + number) for number, batch in enumerate(batches)]

    def given_up(self, part: Chunk, deaths: int) -> list[Labelled]:
        """Return an error record for each sample and setting of a chunk, after too many workers died with it."""
        reason = f"WorkerLost: {deaths} workers died while they ran this sample"
        records = {sample.id: error_record(self.plan, sample, reason) for sample in part.samples}
        return [(label, record) for id_, record in records.items() for label in self.labels[id_]]


@contextmanager
def open_workers(
    model: str, settings: RunSettings, methods: Sequence[Method], wanted: Ray, *, say: Say
) -> Iterator[RayEngine]:
    """Start workers, and yield the engine once the first worker has loaded its model; others join when they are ready.

    Raises
    ------
    AudioMarathonError
        The Ray cluster does not exist or has no room, or :func:`open_local` raised an error in a worker.
    """
    if settings.model_path and Path(settings.model_path).expanduser().is_dir():
        settings = replace(settings, model_path=str(Path(settings.model_path).expanduser().absolute()))
    with connected(wanted, settings, say) as shape:
        if not shape.gpus and settings.device == "auto":
            settings = replace(settings, device="cpu")  # a worker that got no GPU from Ray may still see all GPUs
        pool = Pool.start(Worker, (model, settings, tuple(methods)), shape, say)
        for _ in pool.run():
            pass
        for line in pool.first.said:
            say(line)
        setup = replace(pool.first.setup, settings=settings, methods=tuple(methods))
        yield RayEngine(setup, pool.first.cost, pool)
