"""An encoder in Ray's workers, on a GPU or a group of cores each: they encode batches, this process alone writes.

Ray restarts a worker that dies; the batch it had goes to any free worker.
"""

from __future__ import annotations

import os
import platform
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayError, RayTaskError

from audiomarathon.encoders.encoder import Encoder, load_encoder
from audiomarathon.engine.executor import Ray
from audiomarathon.engine.ray_cluster import Shape, check_cluster, connected, has_room
from audiomarathon.errors import ExecutorError, SettingsError, told
from audiomarathon.probing.encode import Batch, Outcome, SharedEncoder, encode_batch, singly
from audiomarathon.settings import RunSettings

_LIVES = 3  # workers that may die with a batch, before it is given up
_LOOK_S = 5  # between two looks at the cluster, while nothing comes back
_QUIET_S = 60  # without an answer, before the user is told; of failed starts, before the run ends
_KEPT = "what is encoded is kept, run again to go on"


@dataclass
class _Worker:
    """A copy of the encoder; relative paths start in `folder`."""

    name: str
    arguments: Mapping[str, str]
    device: str
    identity: Mapping[str, Any]
    threads: int
    folder: Path

    @cached_property
    def encoder(self) -> Encoder:
        """Load the encoder; not in the constructor, so that an error reaches the caller as it is."""
        import torch

        with suppress(OSError):
            os.chdir(self.folder)
        torch.set_num_threads(self.threads)
        found = load_encoder(self.name, self.arguments, self.device)
        if odd := [fact for fact, value in found.identity.items() if value != self.identity.get(fact)]:
            where = f"{self.name} on {platform.node()} differs from the one here"
            raise ExecutorError(f"{where} ({', '.join(odd)}): put the same files on every machine")
        return found

    def ready(self) -> None:
        """Return once the encoder is loaded."""
        _ = self.encoder

    def encode(self, batch: Batch, framed: bool) -> Outcome:
        """Decode and encode a batch."""
        return encode_batch(self.encoder, batch, framed)


@contextmanager
def shared_out(
    loaded: Encoder, name: object, arguments: Mapping[str, str], device: str, wanted: Ray, say: Callable[[str], None]
) -> Iterator[SharedEncoder]:
    """Yield an encoder whose batches Ray's workers encode.

    Parameters
    ----------
    loaded
        The encoder in this process; that of each worker must be the same.
    name, arguments
        As for :func:`load_encoder`.
    device
        "auto", "cuda" or "cpu".

    Raises
    ------
    SettingsError, ExecutorError
        A module in place of a name, more than one GPU a worker; no cluster, or no room in it for the workers.
    """
    if not isinstance(name, str):
        raise SettingsError(f"{loaded.name}: Ray's workers load an encoder by name (FILE.py, hf:ID, …), not a module")
    if (wanted.gpus_per_worker or 0) > 1:
        raise SettingsError(f"--gpus-per-worker={wanted.gpus_per_worker:g}: an encoder takes one GPU; allowed: 0 to 1")
    with connected(wanted, RunSettings.read({}, device=device, timing=False), say) as shape:
        place = "cuda" if shape.gpus else "cpu"
        lasting = {"max_restarts": -1, "max_task_retries": _LIVES - 1, "scheduling_strategy": "SPREAD"}
        actor = ray.remote(num_cpus=shape.cpus, num_gpus=shape.gpus, **lasting)(_Worker)
        given = (name, arguments, place, loaded.identity, shape.cpus, Path.cwd())
        workers = [actor.remote(*given) for _ in range(shape.workers)]
        yield SharedEncoder(**vars(loaded), work=partial(_work, workers, shape, say), copies_on=place)


def _work(
    workers: Sequence[Any], shape: Shape, say: Callable[[str], None], batches: Iterable[Batch], framed: bool
) -> Iterator[tuple[Batch, Outcome]]:
    """Yield batches as they come back; one that costs three workers is tried clip by clip, then given up."""
    queue, idle, deaths = deque(batches), list[Any](), Counter[tuple[str, ...]]()
    calls: dict[Any, tuple[Any, Batch | None]] = {one.ready.remote(): (one, None) for one in workers if queue}
    trouble = 0.0  # since when workers do not start
    while queue or any(batch for _, batch in calls.values()):
        while queue and idle:
            worker, batch = idle.pop(), queue.popleft()
            calls[worker.encode.options(max_task_retries=0).remote(batch, framed)] = worker, batch
        for call in _ended([*calls], shape, say):
            worker, held = calls.pop(call)
            try:
                found = ray.get(call)
            except RayTaskError as error:
                raise (error.cause or error) from None
            except RayError as error:
                calls[worker.ready.remote()] = worker, None
                if held is None:  # it dies as it loads, or Ray has not yet seen that its machine is lost
                    trouble = trouble or time.monotonic()
                    if time.monotonic() - trouble > _QUIET_S:
                        raise ExecutorError(f"no worker can load the encoder ({told(error)}); {_KEPT}") from None
                    continue
                say("warning: a worker is lost; Ray restarts it, and its clips are encoded again")
                deaths[tuple(held.rows)] += 1
                if deaths[tuple(held.rows)] < _LIVES:
                    queue.appendleft(held)
                elif len(parts := singly(held)) > 1:
                    queue.extendleft(parts)
                    deaths.update({tuple(part.rows): _LIVES - 1 for part in parts})
                else:
                    yield held, ({}, dict.fromkeys(held.rows, f"WorkerLost: {_LIVES} workers died encoding it"))
                continue
            trouble = 0.0
            idle.append(worker)
            if held:  # its rows are copied: they lie in Ray's memory
                yield held, ({row: np.array(one) for row, one in found[0].items()}, found[1])


def _ended(calls: Sequence[Any], shape: Shape, say: Callable[[str], None]) -> Sequence[Any]:
    """Wait until a call ends.

    Raises
    ------
    ExecutorError
        The cluster is lost, or every machine that can hold a worker.
    """
    quiet = 0
    while not (ended := ray.wait(calls, timeout=_LOOK_S)[0]):
        check_cluster()
        if not has_room(shape):
            raise ExecutorError(f"no machine is left with room for a worker; {_KEPT}")
        if (quiet := quiet + _LOOK_S) == _QUIET_S:
            say(f"Ray: no answer for {quiet} s: workers wait for room, load the encoder or encode a long batch")
    return list(ended)
