"""Choose the engine from the settings, and open it for the duration of a block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from audiomarathon.compression.method import Method
from audiomarathon.engine.engine import Engine
from audiomarathon.engine.local import open_local
from audiomarathon.engine.ray_options import Ray
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
    """Load a model, in this process or in Ray's workers, for the duration of the block; see :func:`open_local`.

    Parameters
    ----------
    needed
        Called before the weights are loaded, which may take minutes. It raises errors that can be known by then, and
        returns whether any work is left; if not, no model is loaded. On a joined cluster only the workers know their
        machine, so the model is loaded first.

    Yields
    ------
    tuple of Setup and Engine
        The engine is None if no work is left.
    """
    check_writable(settings.results)
    if settings.save_attn and (ray is not None or get_model(model).remote):
        raise SettingsError(
            "SAVE_ATTN=1: attention can be captured in this process only; allowed: a local model, no --executor ray"
        )
    if get_model(model).remote:
        from audiomarathon.engine.remote import open_endpoint

        if ray is not None:
            raise SettingsError(
                f"--executor ray: {model} runs behind an endpoint; to send several requests at once set BATCH_SIZE and "
                "--no-timing"
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
    from audiomarathon.engine.ray_engine import open_workers

    with open_workers(model, settings, methods, ray, say=say, progress=progress) as workers:
        if ray.address is not None:
            needed(workers.setup)
        yield workers.setup, workers
