"""Run the probes of an encoder on tasks, for the commands, for X-ARES' interfaces and for Python callers."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from audiomarathon.engine.run import Result
from audiomarathon.errors import AudioMarathonError, DataError, MissingDataError, SettingsError
from audiomarathon.settings import cache_folder
from audiomarathon.terminal import progress_of
from audiomarathon.wings.encoders.check import verdict
from audiomarathon.wings.encoders.encoder import Encoder, from_module
from audiomarathon.wings.encoders.probing.probe_input import PROTOCOLS, Encoded
from audiomarathon.wings.encoders.probing.published_probes import SEEDS
from audiomarathon.wings.encoders.probing.run import check_data, embed, fit, found_for
from audiomarathon.wings.encoders.probing.store import Store
from audiomarathon.wings.encoders.probing.towers import read_points
from audiomarathon.wings.encoders.registry import load_encoder
from audiomarathon.wings.encoders.tower import TowerEncoder
from audiomarathon.wings.encoders.xares.task import Dataset, EncoderTask

if TYPE_CHECKING:
    import torch

Say = Callable[[str], None]


def data_root() -> Path:
    """Return the folder with the data of all encoder tasks.

    The folder is $AUDIOMARATHON_ENCODER_DATA, else $XARES_ENV_ROOT, else `env`.
    """
    return Path(os.environ.get("AUDIOMARATHON_ENCODER_DATA") or os.environ.get("XARES_ENV_ROOT") or "env")


def ready(
    encoder: str | Encoder | torch.nn.Module, arguments: Mapping[str, str] | None = None, device: str = "auto"
) -> Encoder:
    """Load an encoder given by name or as a module, check that it follows X-ARES' interface, and return it.

    Raises
    ------
    SettingsError, EncoderError
        The encoder breaks the interface, or cannot be loaded.
    """
    device = checked_device(device)
    if isinstance(encoder, str):
        loaded = load_encoder(encoder, arguments, device)
    else:
        loaded = encoder if isinstance(encoder, Encoder) else from_module(encoder, device=device)
    if broken := verdict(loaded.module, loaded.device):
        raise SettingsError(
            f"{encoder if isinstance(encoder, str) else loaded.name}: {broken}; "
            "for details: audiomarathon encoder check"
        )
    return loaded


def checked_device(device: str) -> str:
    """Check the value of `--device` and return it; for "auto", return "cuda" if there is a GPU, else "cpu"."""
    import torch

    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
        raise SettingsError(f"--device {device}: allowed: auto, cpu, cuda, cuda:N")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise SettingsError(f"--device {device}: no CUDA device found; allowed: auto, cpu")
    return ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device


def read_tasks(
    tasks: Sequence[EncoderTask],
    root: Path,
    *,
    limit: int = 0,
    mini: bool = False,
    plan: bool = False,
    bad: bool = False,
    say: Say,
) -> tuple[list[tuple[EncoderTask, Dataset]], list[EncoderTask]]:
    """Read the data of tasks; return (tasks that can be read, each with its data; tasks whose data is missing).

    A task that cannot be read is left out, and a line about it is printed.

    Parameters
    ----------
    limit, mini
        Number of clips to take from each part (0: all), and whether to read the small variant; see
        :meth:`EncoderTask.read`.
    bad
        Whether to accept a task if more than 1 % of its metadata rows are bad, that is, give no clip.
    plan
        Whether the caller only plans a run; then it is no error if no task can be read.

    Raises
    ------
    DataError
        No task can be read.
    """
    there: list[tuple[EncoderTask, Dataset]] = []
    missing: list[EncoderTask] = []
    for task in tasks:
        try:
            dataset = task.read(root, limit=limit, mini=mini)
            check_data(task, dataset, say, allow=bad)
        except DataError as error:
            if len(tasks) == 1 and not plan:
                raise
            missing += [task] if isinstance(error, MissingDataError) else []
            say(f"left out: {error}")
        else:
            there.append((task, dataset))
    if not there and not plan:
        names = ", ".join(task.name for task in tasks)
        raise MissingDataError(f"{root.absolute()}: no data of {names}; get it with: audiomarathon encoder download")
    return there, missing


def encode_task(encoder: Encoder, task: EncoderTask, data: Dataset) -> Encoded:
    """Return a task's embeddings, as :class:`Encoded`; encode clips that are not in the cache, with a progress bar."""
    if isinstance(encoder.module, TowerEncoder) and type(encoder) is Encoder and not task.framed:
        return read_points(encoder, task, data).at(encoder.module.point)
    store = Store(cache_folder(), encoder.identity)
    with progress_of(len(data.clips), f"{task.name} ({encoder.name})", "clip") as step:
        return embed(encoder, task, data, store, step)


def tried(works: Sequence[Iterator[Result]], say: Say) -> tuple[list[Result], bool]:
    """Run the probes of all tasks; return (results, whether a task failed).

    An error in one task is printed, and the next task follows.

    Parameters
    ----------
    works
        One iterator per task, which runs the task's probes and yields their results.

    Raises
    ------
    AudioMarathonError
        The only task failed, or there is no probe to run for any task.
    """
    done, failed = list[Result](), False
    for work in works:
        try:
            for result in work:
                done.append(result)  # results before an error are kept
        except AudioMarathonError as error:
            if len(works) == 1:
                raise
            failed = True
            say(f"error: {error}")
    if not done and not failed:
        raise SettingsError("nothing to run: every probe was left out, for the reasons printed above")
    return done, failed


def check_protocol(protocol: str) -> None:
    """Raise an error unless `protocol` is "standard" (our probes), "as_published" (X-ARES') or "both".

    Raises
    ------
    SettingsError
        The protocol has another name.
    """
    if protocol not in PROTOCOLS:
        raise SettingsError(f"--protocol {protocol}: allowed: {', '.join(PROTOCOLS)}")


def probe_task(
    encoder: Encoder, task: EncoderTask, data: Dataset, results: Path, *, protocol: str, seeds: int = 5, say: Say
) -> Iterator[Result]:
    """Encode a task's clips, fit its probes, and yield each probe's result.

    The parameters are those of :func:`audiomarathon.wings.encoders.probing.run.probe`; `seeds` is the number of seeds.
    """
    check_protocol(protocol)
    if seeds < 1:
        raise SettingsError(f"seeds {seeds}: allowed: 1 or more")
    many = [SEEDS[0] + place for place in range(seeds)]
    if settings := found_for(task, protocol, say):
        yield from fit(encode_task(encoder, task, data), results, settings=settings, seeds=many, say=say)
