"""Benchmark audio LLMs on long audio, and measure what dropping audio tokens or KV cache entries costs and saves."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from audiomarathon.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import torch

    from audiomarathon.cli.app import run_task
    from audiomarathon.engine.run import Result
    from audiomarathon.report.notebook import compare_runs, load_runs, write_report
    from audiomarathon.wings.encoders.check import check_audio_encoder
    from audiomarathon.wings.encoders.encoder import Encoder
    from audiomarathon.wings.encoders.results.scores import Score

__all__ = [
    "__version__",
    "check_audio_encoder",
    "compare_runs",
    "evaluate",
    "evaluate_encoder",
    "load_runs",
    "run_task",
    "write_report",
]

_LAZY = dict.fromkeys(("compare_runs", "load_runs", "write_report"), "report.notebook") | {
    "check_audio_encoder": "encoders",
    "run_task": "cli.app",
}
"""For each function that is imported only at its first use, the module that defines it."""


def evaluate(
    *tasks: str, model: str | None = None, method: object = None, progress: bool | None = None, **settings: Any
) -> list[Result]:
    """Evaluate a model on tasks from Python.

    Parameters
    ----------
    *tasks
        Task names (`audiomarathon list tasks`).
    model
        A model's name (`audiomarathon list models`). If neither a model nor data is named, the embedded toy model runs
        on the mini benchmark.
    method
        How to remove audio tokens or KV-cache entries: a method, a name such as `fast_v:0.5`, or any object used as
        `with press(model):`; or a list of these, to run side by side on each sample. Names without a ratio use the
        setting `ratio`. None uses the env var `PRUNE_METHOD`, else `base` (nothing is removed). An object whose repr
        shows its memory address (a lambda) needs a name, also used for its folder: `("mine-0.3", press)`.
    progress
        None shows progress on a terminal or in a notebook; False shows nothing.
    **settings
        Fields of :class:`audiomarathon.settings.RunSettings`, such as `limit=100, results="out"`. Env vars set the
        fields that are not given.

    Returns
    -------
    list of Result
        For each task and method, the run's folder and the content of its `summary.json`.

    Raises
    ------
    AudioMarathonError
        For any error that the caller can fix.
    """
    from dataclasses import replace

    from audiomarathon.compression.registry import as_method
    from audiomarathon.embedded.without_data import toy_or_real
    from audiomarathon.engine.run import run
    from audiomarathon.errors import warn
    from audiomarathon.settings import RunSettings

    model, read = toy_or_real(model, tasks, RunSettings.read(**settings), warn)
    given = method if isinstance(method, list) else [read.method if method is None else method]
    no_ratio = replace(read, ratio=None) if len(given) > 1 else read  # in a list, base is the reference without a ratio
    methods = [as_method(choice, no_ratio if choice == "base" else read) for choice in given]
    return list(run(tasks, model, read, methods, progress=progress))


def evaluate_encoder(
    encoder: str | torch.nn.Module | Encoder,
    tasks: str | Sequence[str] = ("esc50",),
    *,
    protocol: str = "both",
    data: str | Path | None = None,
    results: str | Path = "results",
    limit: int = 0,
    mini: bool = False,
    seeds: int = 5,
    llm: str = "",
    tokenizer: str = "",
    device: str = "auto",
) -> list[Score]:
    """Probe an audio encoder on X-ARES' tasks from Python: train small classifiers on its embeddings, and score them.

    Parameters
    ----------
    encoder
        A name for `audiomarathon encoder run`, or a module with X-ARES' interface.
    tasks
        Names, domains, or paths of `*_task.py` files. A task without data is skipped, with a warning.
    protocol, limit, mini, seeds, llm, tokenizer, device
        Options of `audiomarathon encoder run`.
    data
        The folder that contains the tasks' folders; None for the command line's default.

    Returns
    -------
    list of Score
        For each task and probe, the estimated score with its 95 % interval.

    Raises
    ------
    AudioMarathonError
        For any error that the caller can fix.
    """
    import logging
    import warnings
    from pathlib import Path

    from audiomarathon.runs.read import Run
    from audiomarathon.wings.encoders.probing.evaluate import data_root, probe_task, read_tasks, ready, tried
    from audiomarathon.wings.encoders.results.scores import task_scores
    from audiomarathon.wings.encoders.xares.tasks import equipped, named

    loaded, say = ready(encoder, device=device), logging.getLogger(__name__).info
    names = tasks.split(",") if isinstance(tasks, str) else tasks
    chosen = [equipped(task, llm=llm, tokenizer=tokenizer) for task in named(names, loaded.module)]
    root = data_root() if data is None else Path(data)
    there, _missing = read_tasks(chosen, root, limit=limit, mini=mini, say=warnings.warn)
    probes = [
        probe_task(loaded, task, dataset, Path(results), protocol=protocol, seeds=seeds, say=say)
        for task, dataset in there
    ]
    done, _failed = tried([*probes], warnings.warn)
    return task_scores([Run.read(result.folder) for result in done])


def __getattr__(name: str) -> Any:
    """Import a public function when it is first used, so that `import audiomarathon` loads neither torch nor pandas."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
