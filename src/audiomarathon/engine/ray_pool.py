"""Work shared out to Ray's workers: each holds one loaded model, and Ray restarts it when it dies."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import ray
from ray.exceptions import RayError, RayTaskError

from audiomarathon.engine.ray_cluster import KEPT, Shape, check_cluster, has_room
from audiomarathon.errors import AudioMarathonError, ExecutorError, told

LIVES = 3  # deaths of workers with the same work, after which it is given up or cut into smaller parts
_LOOK_S = 5  # between two looks at the cluster while nothing comes back
_QUIET_S = 60  # without an answer before a line says who is waited for, then twice as long; also for failed starts


class Opened(Protocol):
    """Answer of a worker's `open`, once its model is loaded."""

    @property
    def host(self) -> str:
        """The worker's machine."""

    @property
    def pid(self) -> int:
        """The worker's process."""


class Work(Protocol):
    """How parts of the work are sent out, and what happens to a part whose worker died."""

    def send(self, worker: Any, part: Any) -> Any:
        """Start a call on a worker, without retries, and return its reference."""

    def smaller(self, part: Any, deaths: int) -> Sequence[Any]:
        """Return the parts to try next after so many deaths; empty to give the part up."""

    def given_up(self, part: Any, deaths: int) -> Any:
        """Return the result of a part that is given up."""


@dataclass
class Pool:
    """Ray actors with the method `open(first)`: it loads the model once and refuses to differ from the first worker.

    Attributes
    ----------
    first
        Answer of the first worker that loaded its model.
    known
        The last answer of each worker that loaded its model.
    """

    workers: list[Any]
    shape: Shape
    say: Callable[[str], None]
    first: Any = None
    known: dict[Any, Opened] = field(default_factory=dict)

    @classmethod
    def start(cls, actor: type, arguments: Sequence[Any], shape: Shape, say: Callable[[str], None]) -> Pool:
        """Start the workers, without waiting for them."""
        # A call is repeated after a restart unless it says otherwise: so `open` waits for the new process.
        options = {"num_cpus": shape.cpus, "num_gpus": shape.gpus, "max_restarts": -1, "max_task_retries": LIVES - 1}
        remote = ray.remote(**options, scheduling_strategy="SPREAD")(actor)
        return cls([remote.remote(*arguments) for _ in range(shape.workers)], shape, say)

    def run(self, parts: Iterable[Any] = (), work: Work | None = None) -> Iterator[tuple[Any, Any]]:
        """Yield each part with its result, in the order in which they come back.

        Every worker loads its model first, if it has none; without parts, return when one has. A part whose worker
        died goes back to the front of the queue.

        Raises
        ------
        AudioMarathonError
            What a worker raised; the cluster is lost; no worker or no machine for one is left.
        """
        queue, idle, trouble = deque((part, 0) for part in parts), list[Any](), 0.0
        calls: dict[Any, tuple[Any, Any]] = {one.open.remote(self.first): (one, None) for one in self.workers}
        while queue or any(held for _worker, held in calls.values()) or self.first is None:
            while work and queue and idle:
                worker, held = idle.pop(), queue.popleft()
                calls[work.send(worker, held[0])] = worker, held
            for call in self._ended(calls):
                worker, held = calls.pop(call)
                try:
                    made = ray.get(call)
                except RayTaskError as error:
                    self._failed(worker, error.cause or error, at_work=held is not None)
                    continue
                except RayError as error:
                    calls[worker.open.remote(self.first)] = worker, None
                    if work is None or held is None:  # it died while loading, or Ray has not noticed a lost machine yet
                        trouble = trouble or time.monotonic()
                        at_work = any(held for _worker, held in calls.values())
                        if not at_work and time.monotonic() - trouble > _QUIET_S:
                            raise ExecutorError(f"no worker can load the model ({told(error)}); {KEPT}") from None
                        continue
                    self.say(f"warning: the worker on {self._name(worker)} died; its work is done again")
                    part, deaths = held[0], held[1] + 1
                    if again := work.smaller(part, deaths):
                        queue.extendleft((one, deaths) for one in reversed(again))
                    else:
                        yield part, work.given_up(part, deaths)
                    continue
                trouble = 0.0
                idle.append(worker)
                if held is not None:
                    yield held[0], made
                else:
                    self.first, self.known[worker] = self.first or made, made

    def _failed(self, worker: Any, error: BaseException, *, at_work: bool) -> None:
        """Put a worker aside that cannot load its model; raise what concerns every worker, or was raised at work."""
        if at_work or isinstance(error, ExecutorError) or (not self.first and isinstance(error, AudioMarathonError)):
            raise error from None
        self.workers.remove(worker)
        self.known.pop(worker, None)
        ray.kill(worker)
        if not self.workers:
            raise ExecutorError(f"no worker is left ({told(error)}). {KEPT}") from None
        self.say(f"warning: a worker could not be started: {told(error)}")

    def _ended(self, calls: Mapping[Any, tuple[Any, Any]]) -> list[Any]:
        """Wait until a call ends, and return those that have."""
        quiet, tell_at = 0, _QUIET_S
        while not (ended := ray.wait([*calls], timeout=_LOOK_S)[0]):
            check_cluster()
            if not has_room(self.shape):
                raise ExecutorError(f"no machine is left with room for a worker. {KEPT}")
            quiet += _LOOK_S
            if quiet >= tell_at:
                tell_at *= 2
                busy = [self._name(worker) for worker, held in calls.values() if held is not None]
                who = ", ".join(busy) or "workers to start (loading the model, or queued behind other jobs)"
                self.say(f"Ray: no answer for {quiet} s; waiting for {who}")
        return list(ended)

    def _name(self, worker: Any) -> str:
        return f"{self.known[worker].host} (process {self.known[worker].pid})"

    def ask(self, question: str) -> dict[Any, Any]:
        """Call a method of every worker that has loaded its model; leave out those that died or do not answer."""
        calls = {getattr(worker, question).remote(): worker for worker in self.known}
        ended = ray.wait([*calls], num_returns=len(calls), timeout=_QUIET_S)[0] if calls else []
        return {calls[call]: answer for call in ended if (answer := _answer(call)) is not None}


def _answer(call: Any) -> Any:
    try:
        return ray.get(call)
    except RayError:
        return None
