"""Join or start a Ray cluster, place workers on its machines, and send them work.

Each worker is a process that holds one loaded model. Ray restarts a worker that died.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import ray
from ray.exceptions import RayError, RayTaskError

from audiomarathon.engine.ray_options import Ray
from audiomarathon.errors import AudioMarathonError, ExecutorError, SettingsError, told
from audiomarathon.settings import RunSettings
from audiomarathon.text import Say, counted

#: Send no usage reports. Do not lower the workers' priority (Ray's default is nice 15): their times are measured. Keep
#: Python's own `print`.
_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0", "RAY_TQDM_PATCH_PRINT": "0"}

KEPT = "Results so far are saved; run the same command to continue"
_PATIENCE_S = 10  # seconds to wait for a connection, and for Ray to stop
LIVES = 3  # after so many workers died with the same part of the work, give it up (or split it, when encoding clips)
_LOOK_S = 5  # seconds between two checks of the cluster while no call ends
_QUIET_S = 60  # seconds until a line names silent workers (again at 120, 240, …); also how long starts may fail
_TOKEN = (
    "but a program answers at this address: if the cluster needs a token, set RAY_AUTH_MODE=token and "
    "RAY_AUTH_TOKEN=…; else install the cluster's version of Ray"
)


@dataclass(frozen=True)
class Shape:
    """The workers to start: how many, and how many GPUs and CPU cores each gets.

    Attributes
    ----------
    gpus, cpus
        GPUs and CPU cores of each worker.
    sharing
        Number of workers that share one GPU, or one machine's cores if they use no GPU. If it is above 1, they slow
        each other, and their times are not comparable with other runs.
    """

    workers: int
    gpus: float
    cpus: int
    sharing: int


@dataclass(frozen=True)
class Place:
    """Where a worker runs: the machine's name, and the process id."""

    host: str
    pid: int


@contextmanager
def connected(wanted: Ray, settings: RunSettings, say: Say, most: int | None = None) -> Iterator[Shape]:
    """Join or start a Ray cluster for the length of the `with` block; yield how many workers to start, on what
    hardware.

    `most` limits the default number of workers without GPUs (:func:`lay_out`).

    Raises
    ------
    AudioMarathonError
        A setting does not fit Ray, no Ray cluster answers at the address, or it has no room for the workers.
    """
    if settings.device.startswith("cuda:"):
        raise SettingsError(f"DEVICE={settings.device}: Ray chooses each worker's GPU; allowed here: auto, cuda, cpu")
    if settings.device == "cpu" and wanted.gpus_per_worker:
        raise SettingsError(
            f"--gpus-per-worker={wanted.gpus_per_worker:g}: DEVICE=cpu uses no GPU; leave out one of the two"
        )
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    ours, listens = wanted.address is None, False
    cores = max(os.cpu_count() or 1, wanted.workers or 1)
    local: dict[str, Any] = {"address": "local", "num_cpus": cores, "include_dashboard": False}
    try:
        if wanted.address is not None:
            _knock(wanted.address)
            listens = True
        ray.init(**local if ours else {"address": wanted.address}, log_to_driver=False, logging_level="error")
    except (RayError, ConnectionError, RuntimeError, ValueError, TimeoutError, OSError) as error:
        where = "Ray cannot be started here" if ours else f"no Ray cluster at {wanted.address}"
        hint = f"; {_TOKEN}" if listens else ""
        raise ExecutorError(f"{where}: {' '.join(str(error).split())[:200]}{hint}") from None
    try:
        shape = lay_out(wanted, settings, _machines(), most)
        kind = _gpus(shape.gpus) if shape.gpus else counted(shape.cpus, "CPU core")
        say(f"Ray: {counted(shape.workers, 'worker')}, {kind} each")
        if shape.sharing > 1 and settings.timing:
            shared = f"{shape.sharing} workers share one {'GPU' if shape.gpus else 'machine'}"
            say(f"warning: {shared}; their times cannot be compared with other runs; --no-timing leaves times out")
        if shape.gpus > 1 and not settings.device_map:
            say(f"warning: each worker uses one of its {shape.gpus:g} GPUs; DEVICE_MAP=auto uses all")
        with _signals({signal.SIGTERM: _end}), _watching_raylet(say, ours=ours):  # Ray would abort at SIGTERM
            yield shape
    except KeyboardInterrupt:
        say("Ray: stopping")
        raise
    finally:
        stopped = isinstance(sys.exc_info()[1], KeyboardInterrupt)
        ignored = dict.fromkeys((signal.SIGTERM, signal.SIGINT), signal.SIG_IGN)
        with _signals(ignored), _hurrying(say, ours=ours, code=130 if stopped else 1):
            ray.shutdown()  # an interrupted shutdown would leave some processes of Ray behind


@contextmanager
def _watching_raylet(say: Say, *, ours: bool) -> Iterator[None]:
    """During the `with` block, end this process with one message if Ray's daemon on this machine (the raylet) ends.

    Without this, Ray would print pages of text. If this process started Ray (`ours`), Ray's other processes are killed
    too.
    """
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    over = threading.Event()

    def wait() -> None:
        with suppress(OSError):
            link.recv(1)  # the raylet never sends anything: this returns when the connection breaks
        if not over.is_set():
            say(f"error: this machine's part of the Ray cluster has ended (raylet). {KEPT}")
            if ours:
                _kill_ours()
            os._exit(ExecutorError.exit_code)

    with suppress(OSError):
        link.connect(ray._private.worker._global_node.raylet_socket_name)
        threading.Thread(target=wait, name="raylet", daemon=True).start()
    try:
        yield
    finally:
        over.set()
        with suppress(OSError):
            link.shutdown(socket.SHUT_RDWR)  # wakes the thread
        link.close()


@contextmanager
def _hurrying(say: Say, *, ours: bool, code: int) -> Iterator[None]:
    """Limit how long the `with` block, which stops Ray, may take.

    When the time is over: if this process started Ray (`ours`), kill Ray's processes. If it joined a running Ray
    cluster, leave the cluster alone, and end this process with the exit code `code`.
    """

    def hurry() -> None:
        if ours:
            say("Ray does not stop: killing its processes")
            _kill_ours()
        else:
            say(f"error: Ray does not answer on this machine. {KEPT}")
            os._exit(code)

    timer = threading.Timer(_PATIENCE_S, hurry)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _kill_ours() -> None:
    """Kill the processes that Ray started for this process."""
    ray._private.worker._global_node.kill_all_processes(check_alive=False, allow_graceful=False)


def _end(number: int, _frame: object) -> None:
    """Handle a signal: exit with the code 128 + the signal's number, so that `finally` blocks clean up first."""
    sys.exit(128 + number)


@contextmanager
def _signals(handlers: Mapping[signal.Signals, Any]) -> Iterator[None]:
    """Replace signal handlers during the `with` block.

    Outside the main thread, where this is not allowed, change nothing.
    """
    ours = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number, handler in handlers.items() if ours}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)  # None: the handler was not set from Python


def _knock(address: str) -> None:
    """Raise OSError if no server listens at `host:port`, since Ray itself would try for a minute and then abort.

    The address `auto` means `RAY_ADDRESS`, else the Ray cluster last started on this machine, which may have ended.
    """
    if address == "auto":
        noted = Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp", "ray", "ray_current_cluster")
        address = os.environ.get("RAY_ADDRESS") or (noted.read_text() if noted.is_file() else "")
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=_PATIENCE_S).close()


def check_cluster() -> None:
    """Raise ExecutorError if the Ray cluster's head or Ray's daemon on this machine (the raylet) has ended.

    Without this check, Ray would end this process with a message of its own.
    """
    context, lost = ray.get_runtime_context(), ""
    try:
        _knock(context.gcs_address)
    except OSError as error:
        lost = f"the head of the Ray cluster at {context.gcs_address} is lost ({error.strerror or error})"
    else:
        if not any(node["Alive"] and node["NodeID"] == context.get_node_id() for node in ray.nodes()):
            lost = "this machine's part of the Ray cluster is lost (its raylet has ended)"
    if lost:
        raise ExecutorError(f"{lost}. {KEPT}")


def _machines() -> list[dict[str, Any]]:
    """Return the resources (CPU cores, GPUs, …) of each live machine of the Ray cluster."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def has_room(shape: Shape) -> bool:
    """Tell whether any live machine has as many CPU cores and GPUs as one worker needs."""
    return any(node.get("CPU", 0) >= shape.cpus and node.get("GPU", 0) >= shape.gpus for node in _machines())


def lay_out(wanted: Ray, settings: RunSettings, nodes: Sequence[dict[str, Any]], most: int | None = None) -> Shape:
    """Return how many workers to start, and how many GPUs and CPU cores each gets.

    `nodes` holds each machine's resources under Ray's names (`CPU`, `GPU`). Without GPUs, the default is one worker per
    machine or, with `most`, one per core and at most `most`.

    Raises
    ------
    ExecutorError
        The machines have no room for that many workers.
    """
    gpus = wanted.gpus_per_worker
    if gpus is None:
        gpus = float(settings.device != "cpu" and any(node.get("GPU", 0) >= 1 for node in nodes))
    usable = [node for node in nodes if node.get("CPU", 0) >= 1 and node.get("GPU", 0) >= gpus]
    cores = sum(int(node["CPU"]) for node in usable)
    on_each = [_on_gpus(node["GPU"], gpus) if gpus else cores for node in usable]
    room = sum(min(int(node["CPU"]), slot) for node, slot in zip(usable, on_each, strict=True))
    workers = wanted.workers or (room if gpus else len(usable) if most is None else min(most, room))
    if not 1 <= workers <= room:
        what = f"{_gpus(gpus)} and a CPU core each" if gpus else "a CPU core each"
        wants, there = counted(max(1, workers), "worker"), counted(len(nodes), "machine")
        raise ExecutorError(
            f"{wants} with {what} do not fit: there is room for {room} on {there}; lower --workers or --gpus-per-worker"
        )
    slots = on_each if gpus else [-(-workers // len(usable))] * len(usable)
    cpus = max(1, min(int(node["CPU"]) // max(1, min(slot, workers)) for node, slot in zip(usable, slots, strict=True)))
    sharing = min(workers, _on_gpus(1, gpus)) if gpus else -(-workers // len(usable))
    return Shape(workers, gpus, cpus, max(1, sharing))


def _gpus(count: float) -> str:
    return f"{count:g} GPU" if count <= 1 else f"{count:g} GPUs"


def _on_gpus(there: float, each: float) -> int:
    """Return how many workers fit on a machine with `there` GPUs if each worker gets `each` GPUs.

    A fraction never spans two GPUs: two GPUs hold two workers with 0.6 GPUs each.
    """
    return int(there / each) if each > 1 else int(there) * int(1 / each + 1e-6)


class Work(Protocol):
    """Work that a :class:`Pool` of workers does in parts: how to send a part, and what to do if its worker dies."""

    def send(self, worker: Any, part: Any) -> Any:
        """Start a call on a worker, without retries; return Ray's reference to its result."""

    def smaller(self, part: Any, deaths: int) -> Sequence[Any]:
        """Return the parts to try next after `deaths` workers died with this part; an empty list gives the part up."""

    def given_up(self, part: Any, deaths: int) -> Any:
        """Return the result to use for a part that is given up, after `deaths` workers died with it."""


@dataclass
class Pool:
    """A pool of workers: Ray actors that have a method `open(first)`.

    `open` loads the model once, and raises an error if the worker differs from the first worker.

    Attributes
    ----------
    first
        What `open` returned on the first worker that loaded its model; it has the worker's `host` and `pid`.
    known
        What `open` last returned, as {worker: result}, for each worker that has loaded its model.
    """

    workers: list[Any]
    shape: Shape
    say: Say
    first: Any = None
    known: dict[Any, Any] = field(default_factory=dict)

    @classmethod
    def start(cls, actor: type, arguments: Sequence[Any], shape: Shape, say: Say) -> Pool:
        """Return a pool whose workers are starting; do not wait for them."""
        # Ray repeats a call to a worker that it restarts, unless the call forbids that. So `open` outlives a restart.
        options = {"num_cpus": shape.cpus, "num_gpus": shape.gpus, "max_restarts": -1, "max_task_retries": LIVES - 1}
        remote = ray.remote(**options, scheduling_strategy="SPREAD")(actor)
        return cls([remote.remote(*arguments) for _ in range(shape.workers)], shape, say)

    def run(self, parts: Iterable[Any] = (), work: Work | None = None) -> Iterator[tuple[Any, Any]]:
        """Send the parts of the work to workers; yield (part, result) whenever a worker has finished a part.

        A worker without a loaded model loads it first. Without parts, return when the first worker has loaded its
        model. If a worker died, its part goes back to the front of the queue, perhaps cut smaller; see :class:`Work`.

        Raises
        ------
        AudioMarathonError
            A worker raised an error, the Ray cluster or all workers are lost, or no machine has room for a worker.
        """
        queue, idle, trouble = deque((part, 0) for part in parts), list[Any](), 0.0
        calls: dict[Any, tuple[Any, Any]] = {worker.open.remote(self.first): (worker, None) for worker in self.workers}
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
                    self.say(f"warning: the worker on {self._name(worker)} died; its work runs again")
                    part, deaths = held[0], held[1] + 1
                    if again := work.smaller(part, deaths):
                        queue.extendleft((part, deaths) for part in reversed(again))
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
        """Handle an error that a worker raised.

        Raise the error if it came from work on a part (`at_work`), or if every worker would fail with it. Otherwise the
        worker cannot load its model: drop it, and raise :class:`ExecutorError` if no worker is left.
        """
        if at_work or isinstance(error, ExecutorError) or (not self.first and isinstance(error, AudioMarathonError)):
            raise error from None
        self.workers.remove(worker)
        self.known.pop(worker, None)
        ray.kill(worker)
        if not self.workers:
            raise ExecutorError(f"no worker is left ({told(error)}). {KEPT}") from None
        self.say(f"warning: a worker could not be started: {told(error)}")

    def _ended(self, calls: Mapping[Any, tuple[Any, Any]]) -> list[Any]:
        """Wait until at least one of the calls to workers ends, and return those that have ended."""
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

    def states(self) -> dict[Any, Any]:
        """Return {worker: result of its `state()`} for workers that have loaded their model; leave out workers that do
        not answer.
        """
        calls = {worker.state.remote(): worker for worker in self.known}
        ended = ray.wait([*calls], num_returns=len(calls), timeout=_QUIET_S)[0] if calls else []
        states = {}
        for call in ended:
            with suppress(RayError):
                states[calls[call]] = ray.get(call)
        return states
