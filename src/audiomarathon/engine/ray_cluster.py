"""Which machines Ray has for us: a cluster joined or started, and how workers fit on it."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from audiomarathon.engine.executor import Ray
from audiomarathon.errors import ExecutorError, SettingsError
from audiomarathon.settings import RunSettings
from audiomarathon.text import counted

#: Nothing is reported to anybody. Workers are what is measured: Ray would let every other process go first (nice 15).
#: And Python's own print stays: Ray would put another in its place for good.
_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0", "RAY_TQDM_PATCH_PRINT": "0"}

_PATIENCE_S = 10
_TOKEN = (
    "something listens there: does it ask for a token (RAY_AUTH_MODE=token RAY_AUTH_TOKEN=…), or is its Ray another?"
)


@dataclass(frozen=True)
class Shape:
    """How the workers are laid out.

    Attributes
    ----------
    gpus, cpus
        Of each worker.
    sharing
        How many workers share what a model runs on: a GPU, or without GPUs a machine's cores. Above 1 they disturb
        each other's times.
    """

    workers: int
    gpus: float
    cpus: int
    sharing: int


@contextmanager
def connected(wanted: Ray, settings: RunSettings, say: Callable[[str], None]) -> Iterator[Shape]:
    """Join or start a cluster for the length of the block.

    Raises
    ------
    AudioMarathonError
        When there is none at the address, or no room for the workers.
    """
    if settings.device.startswith("cuda:"):
        raise SettingsError(f"DEVICE={settings.device}: Ray gives each worker its GPU; allowed here: auto, cuda, cpu")
    if settings.device == "cpu" and wanted.gpus_per_worker:
        raise SettingsError(f"--gpus-per-worker={wanted.gpus_per_worker:g}: DEVICE=cpu uses none")
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    quiet = {"log_to_driver": False, "logging_level": "error"}
    listens = False
    try:
        if wanted.address is None:
            cores = max(os.cpu_count() or 1, wanted.workers or 1)
            ray.init(address="local", num_cpus=cores, include_dashboard=False, **quiet)
        else:
            _knock(wanted.address)
            listens = True
            ray.init(address=wanted.address, **quiet)
    except (RayError, ConnectionError, RuntimeError, ValueError, TimeoutError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        reason += f"; {_TOKEN}" if listens else ""
        where = f"no Ray cluster at {wanted.address}" if wanted.address else "Ray cannot be started here"
        raise ExecutorError(f"{where}: {reason}") from None
    try:
        shape = lay_out(wanted, settings, _machines())
        kind = _gpus(shape.gpus) if shape.gpus else counted(shape.cpus, "CPU core")
        say(f"Ray: {counted(shape.workers, 'worker')}, {kind} each")
        if shape.sharing > 1 and settings.timing:
            one = "GPU" if shape.gpus else "machine"
            say(
                f"warning: {shape.sharing} workers share one {one}: their times are not comparable with others "
                "(run.json says how many shared); --no-timing leaves times out"
            )
        if shape.gpus > 1 and not settings.device_map:
            say(f"warning: DEVICE_MAP is not set: of its {shape.gpus:g} GPUs each worker uses one")
        with (
            _signals({signal.SIGTERM: _end}),
            _telling_of_its_end(say, ours=wanted.address is None),
        ):  # Ray would abort at it
            yield shape
    except KeyboardInterrupt:
        say("Ray: stopping")
        raise
    finally:
        ours, stopped = wanted.address is None, isinstance(sys.exc_info()[1], KeyboardInterrupt)
        ignored = dict.fromkeys((signal.SIGTERM, signal.SIGINT), signal.SIG_IGN)
        with _signals(ignored), _hurrying(say, ours=ours, code=130 if stopped else 1):
            ray.shutdown()  # interrupted, it would leave some of its processes behind


@contextmanager
def _telling_of_its_end(say: Callable[[str], None], *, ours: bool) -> Iterator[None]:
    """Say it when this machine's raylet ends inside the block: Ray ends this process then, with pages of its own."""
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    over = threading.Event()

    def wait() -> None:
        with suppress(OSError):
            link.recv(1)  # nothing is ever sent: it returns when the other end is gone
        if not over.is_set():
            say("error: this machine's part of the Ray cluster has ended (raylet); what is recorded is safe, run again")
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
def _hurrying(say: Callable[[str], None], *, ours: bool, code: int) -> Iterator[None]:
    """Do not wait for a frozen Ray: kill what was started here, or leave a cluster of others with an exit code."""

    def hurry() -> None:
        if ours:
            say("Ray does not stop: killing its processes")
            _kill_ours()
        else:
            say("error: Ray does not answer on this machine; what is recorded is safe, run again to go on")
            os._exit(code)

    timer = threading.Timer(_PATIENCE_S, hurry)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _kill_ours() -> None:
    """Kill what Ray has started for this process."""
    ray._private.worker._global_node.kill_all_processes(check_alive=False, allow_graceful=False)


def _end(number: int, _frame: object) -> None:
    """Leave as a terminated process does, but through what is to be cleared up."""
    sys.exit(128 + number)


@contextmanager
def _signals(handlers: Mapping[signal.Signals, Any]) -> Iterator[None]:
    """Handle signals in another way for the length of the block; in a thread, which may not, as before."""
    ours = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number, handler in handlers.items() if ours}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)  # None: not Python's


def _knock(address: str) -> None:
    """Raise OSError where nothing listens at `host:port`: Ray itself tries for a minute, and then aborts.

    `auto` is what Ray noted down when its head was started on this machine, which may have ended since.
    """
    if address == "auto":
        noted = Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp", "ray", "ray_current_cluster")
        address = os.environ.get("RAY_ADDRESS") or (noted.read_text() if noted.is_file() else "")
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=_PATIENCE_S).close()


def check_cluster() -> None:
    """Look for the cluster's head and this machine's raylet; without them Ray ends this process, without our last line.

    Raises
    ------
    ExecutorError
        Saying which of them is lost.
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
        raise ExecutorError(f"{lost}; what is recorded is safe, run again to go on")


def _machines() -> list[dict[str, Any]]:
    """Return the resources of each machine that is up."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def has_room(shape: Shape) -> bool:
    """Whether a machine that is up is large enough for a worker."""
    return any(node.get("CPU", 0) >= shape.cpus and node.get("GPU", 0) >= shape.gpus for node in _machines())


def lay_out(wanted: Ray, settings: RunSettings, nodes: Sequence[dict[str, Any]]) -> Shape:
    """Return how workers fit on machines, given each machine's resources as Ray names them.

    Raises
    ------
    ExecutorError
        When there is no room for as many as are wanted.
    """
    gpus = wanted.gpus_per_worker
    if gpus is None:
        gpus = float(settings.device != "cpu" and any(node.get("GPU", 0) >= 1 for node in nodes))
    able = [node for node in nodes if node.get("CPU", 0) >= 1 and node.get("GPU", 0) >= gpus]
    cores = sum(int(node["CPU"]) for node in able)
    on_each = [_on_gpus(node["GPU"], gpus) if gpus else cores for node in able]
    room = sum(min(int(node["CPU"]), slot) for node, slot in zip(able, on_each, strict=True))
    workers = wanted.workers or (room if gpus else len(able))
    if not 1 <= workers <= room:
        what = f"{_gpus(gpus)} and a CPU core each" if gpus else "a CPU core each"
        wants, there = counted(max(1, workers), "worker"), counted(len(nodes), "machine")
        raise ExecutorError(f"{wants} of {what}: there is room for {room} on {there}")
    slots = on_each if gpus else [-(-workers // len(able))] * len(able)
    cpus = max(1, min(int(node["CPU"]) // max(1, min(slot, workers)) for node, slot in zip(able, slots, strict=True)))
    sharing = min(workers, _on_gpus(1, gpus)) if gpus else -(-workers // len(able))
    return Shape(workers, gpus, cpus, max(1, sharing))


def _gpus(count: float) -> str:
    return f"{count:g} GPU" if count <= 1 else f"{count:g} GPUs"


def _on_gpus(there: float, each: float) -> int:
    """Return how many workers GPUs hold; a worker's share of one lies on one, so that two have room for 0.6 twice."""
    return int(there / each) if each > 1 else int(there) * int(1 / each + 1e-6)
