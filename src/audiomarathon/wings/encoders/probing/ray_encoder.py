"""Encode batches of clips in Ray workers, each with a GPU or some cores; only the calling process writes files."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from audiomarathon.engine.ray_options import Ray
from audiomarathon.engine.ray_pool import LIVES, Place, Pool, connected
from audiomarathon.errors import ExecutorError, SettingsError
from audiomarathon.settings import RunSettings
from audiomarathon.wings.encoders.encoder import Encoder
from audiomarathon.wings.encoders.probing.encode import Batch, Outcome, SharedEncoder, encode_batch, singly
from audiomarathon.wings.encoders.registry import load_encoder


@dataclass
class _Worker:
    """A copy of an encoder in a Ray worker; `folder` becomes the working folder, to which relative paths refer."""

    name: str
    arguments: Mapping[str, str]
    device: str
    identity: Mapping[str, Any]
    threads: int
    folder: Path

    @cached_property
    def encoder(self) -> Encoder:
        """The encoder, loaded at first use, not in the constructor, so that an error reaches the caller unchanged."""
        import torch

        with suppress(OSError):
            os.chdir(self.folder)
        torch.set_num_threads(self.threads)
        encoder = load_encoder(self.name, self.arguments, self.device)
        if odd := [fact for fact, value in encoder.identity.items() if value != self.identity.get(fact)]:
            where = f"{self.name} on {platform.node()} differs from {self.name} on this machine"
            raise ExecutorError(f"{where} ({', '.join(odd)}): put the same files on every machine")
        return encoder

    def open(self, _first: Place | None = None) -> Place:
        """Load the encoder if it is not loaded; return the worker's machine and process id."""
        _ = self.encoder
        return Place(platform.node(), os.getpid())

    def encode(self, batch: Batch, framed: bool) -> Outcome:
        """Decode and encode a batch; return ({key: embedding}, {key: error}).

        With `framed`, an embedding has all frames of the clip.
        """
        return encode_batch(self.encoder, batch, framed)


@contextmanager
def shared_out(
    loaded: Encoder, name: object, arguments: Mapping[str, str], device: str, wanted: Ray, say: Callable[[str], None]
) -> Iterator[SharedEncoder]:
    """Yield an encoder that sends its batches to Ray workers, which stop at the end of the `with` block.

    Parameters
    ----------
    loaded
        The encoder in this process; each worker loads it again, and checks that its identity is the same.
    name, arguments
        The encoder's name (such as `hf:ID` or a file) and the arguments of its class; see :func:`load_encoder`.
    device
        "auto", "cuda" or "cpu".
    wanted
        Number and size of the workers.

    Raises
    ------
    SettingsError, ExecutorError
        A module was given instead of a name, a worker would have more than one GPU, or the Ray cluster is missing or
        full.
    """
    if not isinstance(name, str):
        raise SettingsError(f"{loaded.name}: Ray's workers load an encoder by name (FILE.py, hf:ID, …), not a module")
    if (wanted.gpus_per_worker or 0) > 1:
        raise SettingsError(f"--gpus-per-worker={wanted.gpus_per_worker:g}: an encoder takes one GPU; allowed: 0 to 1")
    with connected(wanted, RunSettings.read({}, device=device, timing=False), say) as shape:
        place = "cuda" if shape.gpus else "cpu"
        given = (name, arguments, place, loaded.identity, shape.cpus, Path.cwd())
        pool = Pool.start(_Worker, given, shape, say)
        yield SharedEncoder(**vars(loaded), work=partial(_work, pool), copies_on=place)


def _work(pool: Pool, batches: Iterable[Batch], framed: bool) -> Iterator[tuple[Batch, Outcome]]:
    """Yield (batch, outcome) for each batch once a worker has encoded it.

    An outcome has the embeddings, and the reasons why some are missing.
    """
    todo = [*batches]
    for batch, (rows, failed) in pool.run(todo, _Encoding(framed)) if todo else ():
        yield (
            batch,
            ({row: np.array(embedding) for row, embedding in rows.items()}, failed),
        )  # a copy: the array is in Ray's memory


@dataclass(frozen=True)
class _Encoding:
    """How a pool of Ray workers handles a batch; a batch that killed three workers is split into single clips."""

    framed: bool

    def send(self, worker: Any, part: Batch) -> Any:
        """Start to encode a batch on a worker; return Ray's reference to the result."""
        return worker.encode.options(max_task_retries=0).remote(part, self.framed)

    def smaller(self, part: Batch, deaths: int) -> Sequence[Batch]:
        """Return the batches to try after a batch killed `deaths` workers.

        Before the third death, this is the same batch; at the third, a batch for each of its clips; later, nothing.
        """
        if deaths < LIVES:
            return [part]
        clips = singly(part)
        return clips if deaths == LIVES and len(clips) > 1 else []

    def given_up(self, part: Batch, _deaths: int) -> Outcome:
        """Return the outcome of a batch that is not tried again: ({}, {key: why its embedding is missing})."""
        return {}, dict.fromkeys(part.rows, f"WorkerLost: {LIVES} workers died encoding it")
