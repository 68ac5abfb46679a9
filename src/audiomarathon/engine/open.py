"""Which engine the settings mean, opened for the length of a block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from audiomarathon.compression.method import Method
from audiomarathon.engine.engine import Engine
from audiomarathon.engine.executor import Ray
from audiomarathon.engine.local import open_local
from audiomarathon.engine.setup import Setup, find_setup
from audiomarathon.errors import SettingsError
from audiomarathon.files import check_writable
from audiomarathon.models.registry import get_model
from audiomarathon.settings import RunSettings


@contextmanager
def opened(
    model: str,
    settings: RunSettings,
    methods: Sequence[Method],
    ray: Ray | None = None,
    *,
    needed: Callable[[Setup], bool] = lambda _setup: True,
    say: Callable[[str], None] = lambda _line: None,
    progress: bool | None = None,
) -> Iterator[tuple[Setup, Engine | None]]:
    """Load a model, in this process or in Ray's workers, for the length of the block; see :func:`open_local`.

    Parameters
    ----------
    needed
        Called before the weights are loaded, which may take minutes: it refuses what can be refused by then, and tells
        whether anything is left to do. If not, no model is loaded. On a cluster that is joined only the workers know
        their machine, so there the model comes first.

    Yields
    ------
    tuple of Setup and Engine
        The engine is None where nothing is left to do.
    """
    check_writable(settings.results)
    if settings.save_attn and (ray is not None or get_model(model).remote):
        raise SettingsError(
            "SAVE_ATTN=1: attention is seen in this process only; allowed: a local model, no --executor ray"
        )
    if get_model(model).remote:
        from audiomarathon.engine.remote import open_endpoint

        if ray is not None:
            raise SettingsError(
                f"--executor ray: {model} runs elsewhere; BATCH_SIZE with --no-timing sends several requests"
            )
        engine = open_endpoint(model, settings, methods, say=say, progress=progress)
        needed(engine.setup)
        yield engine.setup, engine
        return
    if ray is None or ray.address is None:
        on_cpu = ray is not None and ray.gpus_per_worker == 0 and settings.device == "auto"
        setup = find_setup(model, replace(settings, device="cpu") if on_cpu else settings, methods)
        if not needed(setup):
            yield setup, None
            return
        if ray is None:
            yield setup, open_local(model, settings, methods, setup=setup, say=say, progress=progress)
            return
    from audiomarathon.engine.ray_executor import open_workers

    with open_workers(model, settings, methods, ray, say=say, progress=progress) as workers:
        if ray.address is not None:
            needed(workers.setup)
        yield workers.setup, workers
