"""Where samples are run: in this process, or shared out to Ray's workers. Nothing here imports Ray or torch."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

from audiomarathon.errors import SettingsError

EXECUTORS = ("local", "ray")


@dataclass(frozen=True)
class Ray:
    """Workers that each hold one loaded model.

    Attributes
    ----------
    address
        Of a cluster that is there (`auto`, `host:6379`); None starts Ray on this machine.
    workers
        How many; None for as many as there are GPUs to give them, without GPUs one a machine.
    gpus_per_worker
        A fraction lets workers share a GPU; None is 1 where there are GPUs and the device is not the CPU.
    """

    address: str | None = None
    workers: int | None = None
    gpus_per_worker: float | None = None


def read_executor(
    executor: str, *, address: str | None = None, workers: int | None = None, gpus_per_worker: float | None = None
) -> Ray | None:
    """Return what the command line asks for; None is this process.

    Raises
    ------
    SettingsError
        For a value that is not allowed, and where Ray is not installed.
    """
    if executor not in EXECUTORS:
        raise SettingsError(f"--executor={executor}: not allowed; allowed: {', '.join(EXECUTORS)}")
    given = {"--address": address, "--workers": workers, "--gpus-per-worker": gpus_per_worker}
    if executor == "local":
        if idle := [name for name, value in given.items() if value is not None]:
            raise SettingsError(f"{idle[0]}={given[idle[0]]}: only for --executor ray")
        return None
    if workers is not None and workers < 1:
        raise SettingsError(f"--workers={workers}: not allowed; allowed: a whole number from 1")
    if gpus_per_worker is not None and not (0 <= gpus_per_worker <= 1 or gpus_per_worker == int(gpus_per_worker) > 0):
        raise SettingsError(f"--gpus-per-worker={gpus_per_worker:g}: not allowed; allowed: 0 to 1, or a whole number")
    if importlib.util.find_spec("ray") is None:
        raise SettingsError("several workers want Ray, which is not installed: pip install 'ray>=2.40' (or .[ray])")
    return Ray(address, workers, gpus_per_worker)
