"""How well audio LLMs understand long audio, and what dropping audio tokens or KV cache costs and buys."""

from __future__ import annotations

__version__ = "0.1.0"

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from audiomarathon.evaluation.run import Result

__all__ = ["__version__", "evaluate", "run_task"]


def evaluate(*tasks: str, model: str = "embedded", method: object = None, **settings: Any) -> list[Result]:
    """Evaluate a model on tasks from Python.

    Parameters
    ----------
    *tasks
        Names (`audiomarathon list tasks`).
    method
        A method, a name such as `fast_v:0.5`, or any object used as `with press(model):`; or a list of them, to be run
        side by side on each sample. Names without a ratio take `ratio`; None takes `PRUNE_METHOD`, else base.
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
    from dataclasses import replace

    from audiomarathon.evaluation.run import run
    from audiomarathon.pruning.foreign import as_method
    from audiomarathon.settings import RunSettings

    read = RunSettings.read(**settings)
    wanted = method if isinstance(method, list) else [read.method if method is None else method]
    bare = replace(read, ratio=0.0) if len(wanted) > 1 else read  # beside others, base is what they are compared with
    methods = [as_method(one, bare if one == "base" else read) for one in wanted]
    return list(run(tasks, model, read, methods))


def run_task(task: str, *, model: str) -> None:
    """Run one task on one model with settings from env vars; see :func:`audiomarathon.cli.run_task`."""
    from audiomarathon.cli import run_task as run

    run(task, model=model)
