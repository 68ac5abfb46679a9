"""How well audio LLMs understand long audio, and what dropping audio tokens or KV cache costs and buys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from audiomarathon.version import __version__

if TYPE_CHECKING:
    from audiomarathon.engine.run import Result

__all__ = ["__version__", "evaluate", "run_task"]


def evaluate(*tasks: str, model: str | None = None, method: object = None, **settings: Any) -> list[Result]:
    """Evaluate a model on tasks from Python.

    Parameters
    ----------
    *tasks
        Names (`audiomarathon list tasks`).
    model
        A name (`audiomarathon list models`). Without data None is the embedded toy model on the mini benchmark.
    method
        A method, a name such as `fast_v:0.5`, or any object used as `with press(model):`; or a list of them, to be run
        side by side on each sample. Names without a ratio take `ratio`; None takes `PRUNE_METHOD`, else base. An object
        that prints itself by its address (a lambda) needs a name, which its folder gets too: `("mine-0.3", press)`.
    **settings
        Fields of :class:`audiomarathon.settings.RunSettings`, such as `limit=100, results="out"`; env vars fill the
        rest.

    Returns
    -------
    list of Result
        For each task and method its folder and the content of its `summary.json`.

    Raises
    ------
    AudioMarathonError
        For whatever is the caller's to mend.
    """
    import warnings
    from dataclasses import replace

    from audiomarathon.compression.external import as_method
    from audiomarathon.embedded.without_data import toy_or_real
    from audiomarathon.engine.run import run
    from audiomarathon.settings import RunSettings

    model, read = toy_or_real(model, tasks, RunSettings.read(**settings), warnings.warn)
    wanted = method if isinstance(method, list) else [read.method if method is None else method]
    bare = replace(read, ratio=None) if len(wanted) > 1 else read  # beside others, base is what they are compared with
    methods = [as_method(one, bare if one == "base" else read) for one in wanted]
    return list(run(tasks, model, read, methods))


def run_task(task: str, *, model: str) -> None:
    """Run one task on one model with settings from env vars; see :func:`audiomarathon.cli.app.run_task`."""
    from audiomarathon.cli.app import run_task as run

    run(task, model=model)
