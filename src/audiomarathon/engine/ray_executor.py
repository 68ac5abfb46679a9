"""Samples shared out to Ray's workers; this process alone writes the run folders.

One queue of handfuls; a worker that is free gets the next. A worker that dies loses the handful in its hands, which
goes back to the front of the queue, and is replaced. Which worker gets a handful changes nothing about its records: a
sample's seed is its own.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from audiomarathon.benchmarks import Sample
from audiomarathon.compression.method import Method
from audiomarathon.engine.batches import Plan
from audiomarathon.engine.engine import Engine
from audiomarathon.engine.evaluate import error_record, pending_methods
from audiomarathon.engine.executor import Ray
from audiomarathon.engine.progress_view import watching
from audiomarathon.engine.ray_cluster import Shape, check_cluster, connected, has_room
from audiomarathon.engine.ray_crew import Crew, cause_of
from audiomarathon.engine.ray_worker import Labelled, Opened, Worker
from audiomarathon.engine.setup import Setup
from audiomarathon.models.registry import get_model
from audiomarathon.runs.folder import Job
from audiomarathon.settings import RunSettings

_BATCHES_A_HANDFUL = 4  # untimed: the later ones are decoded while the first is in the model
_LIVES = 3  # deaths of workers with the same sample in hand, after which it is recorded as an error


@dataclass(frozen=True)
class Handful:
    """Samples that are handed to a worker together, and the number of their first batch."""

    samples: tuple[Sample, ...]
    turn: int


@dataclass(frozen=True)
class RayEngine(Engine):
    """A model that is loaded in each of Ray's workers."""

    crew: Crew
    shape: Shape

    def certificate(self) -> dict[str, Any] | None:
        """See :meth:`Engine.certificate`: that of the first worker's machine."""
        return self._first().certificate

    def machine(self) -> dict[str, Any]:
        """See :meth:`Engine.machine`; versions are the first worker's, GPUs and processes those of all machines."""
        found = self._by_host()
        ours = {(opened.host, str(opened.pid)) for opened in self.crew.known.values()}
        others = [(host, row) for host, one in found.items() for row in one["other_gpu_processes"]]
        return {
            "environment": self._first().environment,
            "other_gpu_processes": [f"{host} {row}" for host, row in others if (host, row.split()[0]) not in ours],
            "executor": "ray",
            "workers": self.shape.workers,
            "gpus_per_worker": self.shape.gpus,
            "workers_sharing": self.shape.sharing,
        }

    def state(self) -> dict[str, Any]:
        """See :meth:`Engine.state`; the load is that of the busiest machine."""
        asked = [(opened, worker.state.remote()) for worker, opened in self.crew.known.items()]
        states: dict[tuple[str, int], dict[str, Any]] = {}
        for opened, answer in asked:
            with suppress(RayError):
                states[opened.host, opened.pid] = ray.get(answer)
        by_host = {host: state for (host, _pid), state in states.items()}
        busiest = max(by_host.items(), key=lambda one: _crowd(one[1]["load"]), default=None)
        return {
            "gpu": [gpu for state in by_host.values() for gpu in state["gpu"]],
            "load": {"host": busiest[0], **busiest[1]["load"]} if busiest else None,
            "cpu_s": {f"{host} {pid}": sum(state["cpu_s"].values()) for (host, pid), state in states.items()},
        }

    def _first(self) -> Opened:
        assert self.crew.first is not None
        return self.crew.first

    def _by_host(self) -> dict[str, dict[str, Any]]:
        """Ask one worker of each machine about it; one that has died meanwhile has nothing to say."""
        one_each = {opened.host: worker for worker, opened in self.crew.known.items()}
        found = {}
        for host, worker in one_each.items():
            with suppress(RayError):
                found[host] = ray.get(worker.machine.remote())
        return found

    def evaluate(self, plan: Plan, jobs: Sequence[Job]) -> None:
        """See :meth:`Engine.evaluate`."""
        pending, folders = pending_methods(plan, jobs), {job.method.label: job.folder for job in jobs}
        todo = [replace(s, clips=tuple(c.absolute() for c in s.clips)) for s in plan.samples if s.id in pending]
        labels = {id_: [method.label for method in methods] for id_, methods in pending.items()}
        with watching(plan, jobs, self.say, progress=self.progress) as bar:

            def put_on_record(answered: Iterator[tuple[Handful, list[Labelled]]]) -> None:
                for handful, made in answered:
                    for label, record in made:
                        folders[label].append(record)
                    bar.update(len(handful.samples))

            around = Round(self.crew, plan, labels, deque(cut(todo, plan, self.shape.workers)))
            try:
                put_on_record(around.run())
            except KeyboardInterrupt:  # what has come back by now is kept; what is in hand is redone
                put_on_record(around.returned())
                raise
            finally:
                around.let_go()


def _crowd(load: Mapping[str, Any]) -> float:
    return (load["foreign_processes"] or 0.0) / float(load["cores"])


@dataclass
class Round:
    """One task's way through the workers."""

    crew: Crew
    plan: Plan
    labels: Mapping[str, Sequence[str]]
    queue: deque[Handful]
    busy: dict[Any, tuple[Any, Handful]] = field(default_factory=dict)
    deaths: Counter[str] = field(default_factory=Counter)

    def run(self) -> Iterator[tuple[Handful, list[Labelled]]]:
        """Yield each handful with its records, in the order in which they come back."""
        shared = ray.put(replace(self.plan, samples=()))
        while self.queue or self.busy:
            while self.queue and self.crew.idle:
                worker, handful = self.crew.idle.pop(), self.queue.popleft()
                own = {sample.id: self.labels[sample.id] for sample in handful.samples}
                self.busy[worker.work.remote(shared, handful.samples, own, handful.turn)] = (worker, handful)
            yield from self._take(self.crew.wait(self.busy))

    def returned(self) -> Iterator[tuple[Handful, list[Labelled]]]:
        """Yield what has come back by now, without waiting."""
        if self.busy:
            ended, _ = ray.wait([*self.busy], num_returns=len(self.busy), timeout=0)
            yield from self._take(ended)

    def let_go(self) -> None:
        """Leave those that are still at work to the next task; they begin on it when they are through with this one."""
        self.crew.idle += [worker for worker, _handful in self.busy.values()]

    def _take(self, ended: Sequence[Any]) -> Iterator[tuple[Handful, list[Labelled]]]:
        for call in ended:
            if call in self.crew.starting:
                self.crew.welcome(call, timing=self.plan.batch_size is None)
                continue
            worker, handful = self.busy.pop(call)
            try:
                made = ray.get(call)
            except RayTaskError as error:
                self.crew.idle.append(worker)
                raise cause_of(error) from None
            except RayError:
                yield from self.lost(handful)
                self.crew.mourn(worker)
            else:
                self.crew.idle.append(worker)
                yield handful, made

    def lost(self, handful: Handful) -> Iterator[tuple[Handful, list[Labelled]]]:
        """Put a lost handful back, in smaller parts each time; a sample that has cost three workers is an error."""
        ids = [sample.id for sample in handful.samples]
        self.deaths.update(ids)
        deaths = max(self.deaths[id_] for id_ in ids)
        if len(ids) == 1 and deaths >= _LIVES:
            (sample,) = handful.samples
            record = error_record(self.plan, sample, f"WorkerLost: {deaths} workers died with this sample in hand")
            yield handful, [(label, record) for label in self.labels[sample.id]]
            return
        size = (self.plan.batch_size or 1) if deaths == 1 else 1
        starts = range(0, len(ids), size)
        parts = [Handful(handful.samples[at : at + size], handful.turn + at // size) for at in starts]
        self.queue.extendleft(reversed(parts))


def cut(samples: Sequence[Sample], plan: Plan, workers: int) -> Iterator[Handful]:
    """Cut samples into handfuls: one when timed, else a few batches, fewer towards the end so that all end together."""
    size, turn, at = plan.batch_size or 1, 0, 0
    while at < len(samples):
        left = -(-(len(samples) - at) // size)
        batches = 1 if plan.batch_size is None else max(1, min(_BATCHES_A_HANDFUL, left // (2 * workers)))
        yield Handful(tuple(samples[at : at + batches * size]), turn)
        at, turn = at + batches * size, turn + batches


@contextmanager
def open_workers(
    model: str,
    settings: RunSettings,
    methods: Sequence[Method],
    wanted: Ray,
    *,
    say: Callable[[str], None],
    progress: bool | None,
) -> Iterator[RayEngine]:
    """Start workers and yield once the first has loaded its model; the others join in as they are ready.

    Raises
    ------
    AudioMarathonError
        When there is no such cluster, no room on it, or what :func:`open_local` raises in a worker.
    """
    if settings.model_path and Path(settings.model_path).expanduser().is_dir():
        settings = replace(settings, model_path=str(Path(settings.model_path).expanduser().absolute()))
    with connected(wanted, settings, say) as shape:
        if not shape.gpus and settings.device == "auto":
            settings = replace(settings, device="cpu")  # Ray may leave a worker that asked for no GPU the sight of all
        actor = ray.remote(num_cpus=shape.cpus, num_gpus=shape.gpus, scheduling_strategy="SPREAD")(Worker)

        def start() -> tuple[Any, Any]:
            worker = actor.remote()
            return worker, worker.open.remote(model, settings, methods)

        crew = Crew(start, say, lambda: has_room(shape), check_cluster)
        try:
            for _ in range(shape.workers):
                crew.hire()
            while crew.first is None:
                crew.welcome(crew.wait()[0], timing=settings.timing)
            one = crew.first
            found = one.checkpoint, one.checkpoint_hash, one.hardware
            setup = Setup(*found, settings, tuple(methods), get_model(model))
            yield RayEngine(setup, say, progress, one.cost, crew, shape)
        finally:
            for worker in [*crew.known, *crew.starting.values()]:
                ray.kill(worker)
