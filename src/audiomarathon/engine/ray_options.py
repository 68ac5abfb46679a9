"""Options of `--executor`, which runs samples in this process or in Ray's workers.

Nothing here imports Ray or torch.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

from audiomarathon.errors import SettingsError

EXECUTORS = ("local", "ray")


@dataclass(frozen=True)
class Ray:
    """Options for Ray's workers, which hold one loaded model each.

    Attributes
    ----------
    address
        Address of a running Ray cluster (`auto`, `host:6379`); None starts Ray on this machine.
    workers
        Number of workers; None: one per GPU, or one per machine without GPUs.
    gpus_per_worker
        GPUs per worker; with a fraction, workers share a GPU. None means 1, or 0 on machines without GPUs or on a CPU.
    """

    address: str | None = None
    workers: int | None = None
    gpus_per_worker: float | None = None


def read_executor(
    executor: str, *, address: str | None = None, workers: int | None = None, gpus_per_worker: float | None = None
) -> Ray | None:
    """Check the values of `--executor` and its options. Return the options for Ray; None to run in this process.

    Raises
    ------
    SettingsError
        A value is not allowed, or Ray is not installed.
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
        raise SettingsError("--executor ray needs Ray: pip install 'ray>=2.40', or pip install 'audiomarathon[ray]'")
    return Ray(address, workers, gpus_per_worker)
