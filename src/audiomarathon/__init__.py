"""How well audio LLMs understand long audio, and what dropping audio tokens or KV cache costs and buys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from audiomarathon.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import torch

    from audiomarathon.encoders.encoder import Encoder
    from audiomarathon.engine.run import Result
    from audiomarathon.report.notebook import Runs, Shown, Source
    from audiomarathon.results.encoders import Score

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


def evaluate(
    *tasks: str, model: str | None = None, method: object = None, progress: bool | None = None, **settings: Any
) -> list[Result]:
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
    progress
        False shows nothing; None shows on a terminal, or in a notebook, how far the run is.
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

    from audiomarathon.compression.registry import as_method
    from audiomarathon.embedded.without_data import toy_or_real
    from audiomarathon.engine.run import run
    from audiomarathon.errors import warn
    from audiomarathon.settings import RunSettings

    model, read = toy_or_real(model, tasks, RunSettings.read(**settings), warn)
    wanted = method if isinstance(method, list) else [read.method if method is None else method]
    bare = replace(read, ratio=None) if len(wanted) > 1 else read  # beside others, base is what they are compared with
    methods = [as_method(one, bare if one == "base" else read) for one in wanted]
    return list(run(tasks, model, read, methods, progress=progress))


def load_runs(runs: Source) -> Runs:
    """Read finished and unfinished runs into pandas frames.

    Parameters
    ----------
    runs
        A run folder, a folder that holds some, what `evaluate` returned, or a list of these. Beside the run of a pruner
        its control `random` of the same ratio is read, where it lies in the same folder.

    Returns
    -------
    Runs
        `summaries` (one row a run) and `records` (one row a sample) are frames, `charts` pictures by task; Jupyter and
        `print` show a table of scores and times.

    Raises
    ------
    RecordError
        When there is no run, or one that was named is damaged.
    """
    from audiomarathon.report.notebook import load_runs as load

    return load(runs)


def compare_runs(runs: Source, against: str | None = None, *, seed: int = 42) -> Shown:
    """Compare settings, or models, on the samples that both answered: the table of `audiomarathon compare`.

    Parameters
    ----------
    runs
        As :func:`load_runs` takes them, or what it returned.
    against
        The setting that all others are compared with, or its method where that has one setting (`random`); None is
        base, else the first.
    seed
        Of the intervals and tests.

    Returns
    -------
    DataFrame, shape (settings x scopes, columns)
        One row a setting on each task, each group of tasks and overall: `score`, `reference_score`, their `difference`
        with the ends of its 95 % interval (`difference_low`, `difference_high`), `p` of the paired test, `p_holm`, and
        speed-ups as reference ÷ setting, above 1 is faster (`llm_prefill_speedup`, …).

    Raises
    ------
    AudioMarathonError
        When there is nothing to compare, or no setting of that name.
    """
    from audiomarathon.report.notebook import compare_runs as compare

    return compare(runs, against, seed)


def write_report(
    runs: Source,
    output: str | Path = "report.html",
    *,
    title: str = "AudioMarathon report",
    samples: int = 500,
    audio: str = "link",
    spectrograms: bool = True,
    data: str | Path | None = None,
) -> Path:
    """Write the page of `audiomarathon report`, one self-contained HTML file, and return its path.

    Parameters
    ----------
    runs
        As :func:`load_runs` takes them, or what it returned.
    title, samples, audio, spectrograms, data
        As the options of the command.

    Raises
    ------
    AudioMarathonError
        When there is no run, the page cannot be written, or the extra `report` is not installed.
    """
    from pathlib import Path

    from audiomarathon.report.notebook import write_report as write
    from audiomarathon.report.page import PageOptions

    options = PageOptions(title, samples, audio, spectrograms, None if data is None else Path(data))
    return write(runs, Path(output), options)


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
    """Probe an audio encoder on X-ARES' tasks from Python.

    Parameters
    ----------
    encoder
        A name as `audiomarathon encoder run` takes it, or a module with X-ARES' interface.
    tasks
        Names, domains, paths of `*_task.py` files. Without data a task is left out, with a warning.
    protocol, limit, mini, seeds, llm, tokenizer, device
        As the options of `audiomarathon encoder run`.
    data
        Folder of the tasks' folders; None as on the command line.

    Returns
    -------
    list of Score
        Of each task, by probe: the estimate with its 95 % interval.

    Raises
    ------
    AudioMarathonError
        For whatever is the caller's to mend.
    """
    import logging
    import warnings
    from pathlib import Path

    from audiomarathon.benchmarks.xares.tasks import equipped, named
    from audiomarathon.probing.evaluate import data_root, probe_task, read_tasks, ready, tried
    from audiomarathon.results.encoders import task_scores
    from audiomarathon.runs.read import Run

    loaded, say = ready(encoder, device=device), logging.getLogger(__name__).info
    names = tasks.split(",") if isinstance(tasks, str) else tasks
    chosen = [equipped(task, llm=llm, tokenizer=tokenizer) for task in named(names, loaded.module)]
    root = data_root() if data is None else Path(data)
    there, _missing = read_tasks(chosen, root, limit=limit, mini=mini, say=warnings.warn)
    probes = [
        probe_task(loaded, task, found, Path(results), protocol=protocol, seeds=seeds, say=say) for task, found in there
    ]
    done, _failed = tried([*probes], warnings.warn)
    return task_scores([Run.read(one.folder) for one in done])


def check_audio_encoder(encoder: object) -> bool:
    """Tell whether X-ARES would accept an encoder; see :func:`audiomarathon.encoders.check.check_audio_encoder`."""
    from audiomarathon.encoders.check import check_audio_encoder as check

    return check(encoder)


def run_task(task: str, *, model: str) -> None:
    """Run one task on one model with settings from env vars; see :func:`audiomarathon.cli.app.run_task`."""
    from audiomarathon.cli.app import run_task as run

    run(task, model=model)
