"""Join or start a Ray cluster, and lay out workers on its machines."""

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

from audiomarathon.engine.ray_options import Ray
from audiomarathon.errors import ExecutorError, SettingsError
from audiomarathon.settings import RunSettings
from audiomarathon.text import counted

#: Send no usage reports. Do not lower the workers' priority (nice 15): their times are measured. Keep Python's `print`.
_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0", "RAY_TQDM_PATCH_PRINT": "0"}

KEPT = "Results so far are saved; run the same command to continue"
_PATIENCE_S = 10
_TOKEN = (
    "something listens there: does it ask for a token (RAY_AUTH_MODE=token RAY_AUTH_TOKEN=…), or is its Ray another?"
)


@dataclass(frozen=True)
class Shape:
    """Layout of the workers.

    Attributes
    ----------
    gpus, cpus
        GPUs and CPU cores of each worker.
    sharing
        Number of workers that share a GPU, or without GPUs a machine's cores. Above 1 they disturb each other's times.
    """

    workers: int
    gpus: float
    cpus: int
    sharing: int


@contextmanager
def connected(wanted: Ray, settings: RunSettings, say: Callable[[str], None]) -> Iterator[Shape]:
    """Join or start a cluster for the duration of the block.

    Raises
    ------
    AudioMarathonError
        No cluster answers at the address, or it has no room for the workers.
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
                f"warning: {shape.sharing} workers share one {one}: their times cannot be compared with other runs "
                "(run.json has the number); --no-timing leaves times out"
            )
        if shape.gpus > 1 and not settings.device_map:
            say(f"warning: each worker uses one of its {shape.gpus:g} GPUs; DEVICE_MAP=auto uses all")
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
    """Print one line if this machine's raylet ends inside the block: Ray would end this process with pages of text."""
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
def _hurrying(say: Callable[[str], None], *, ours: bool, code: int) -> Iterator[None]:
    """Do not wait for a frozen Ray: kill the cluster started here, or exit and leave a joined cluster alone."""

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
    """Kill the processes that Ray started for this one."""
    ray._private.worker._global_node.kill_all_processes(check_alive=False, allow_graceful=False)


def _end(number: int, _frame: object) -> None:
    """Exit with the code of a terminated process, after cleaning up."""
    sys.exit(128 + number)


@contextmanager
def _signals(handlers: Mapping[signal.Signals, Any]) -> Iterator[None]:
    """Replace signal handlers for the duration of the block; only the main thread may, others change nothing."""
    ours = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number, handler in handlers.items() if ours}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)  # None: not Python's


def _knock(address: str) -> None:
    """Raise OSError if nothing listens at `host:port`: Ray itself would try for a minute, and then abort.

    `auto` is the address that Ray wrote down when its head was started on this machine; the head may have ended since.
    """
    if address == "auto":
        noted = Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp", "ray", "ray_current_cluster")
        address = os.environ.get("RAY_ADDRESS") or (noted.read_text() if noted.is_file() else "")
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=_PATIENCE_S).close()


def check_cluster() -> None:
    """Check the cluster's head and this machine's raylet: without them Ray would end this process with its own message.

    Raises
    ------
    ExecutorError
        One of them is lost; the message says which.
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
    """Return the resources of each live machine."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def has_room(shape: Shape) -> bool:
    """Tell whether a live machine is large enough for a worker."""
    return any(node.get("CPU", 0) >= shape.cpus and node.get("GPU", 0) >= shape.gpus for node in _machines())


def lay_out(wanted: Ray, settings: RunSettings, nodes: Sequence[dict[str, Any]]) -> Shape:
    """Lay out the workers on machines, given each machine's resources as Ray names them.

    Raises
    ------
    ExecutorError
        The machines have no room for that many workers.
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
    """Return how many workers fit on some GPUs. A share never spans two GPUs: two GPUs hold two shares of 0.6."""
    return int(there / each) if each > 1 else int(there) * int(1 / each + 1e-6)
