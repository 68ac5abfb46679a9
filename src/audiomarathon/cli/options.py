"""Options that several commands share."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from audiomarathon.files import named_folder
from audiomarathon.models.registry import BUILT_IN as MODELS

if TYPE_CHECKING:
    from audiomarathon.benchmarks import Loaded, Task

Completion = Callable[..., list[str]]


def option(text: str, *flags: str, complete: Completion | None = None, **more: Any) -> Any:
    """Return an option with a help text, for `Annotated`; without `flags` it has the parameter's name."""
    return typer.Option(*flags, help=text, autocompletion=complete, **more)


def argument(text: str, complete: Completion | None = None) -> Any:
    """Return an argument with a help text, for `Annotated`."""
    return typer.Argument(help=text, autocompletion=complete)


def output_option(text: str) -> Any:
    """Return the option `--output`."""
    return option(text, "--output", "-o")


def _names(kind: str) -> Callable[[str], list[str]]:
    """Return a function that completes names. It reads plug-ins' names without loading their code."""

    def complete(incomplete: str) -> list[str]:
        from importlib.metadata import entry_points

        if kind == "tasks":
            from audiomarathon.benchmarks.registry import BUILT_IN as BENCHMARKS

            own = ["all", *(task.key for one in BENCHMARKS for task in one.tasks if not task.probed)]
        elif kind == "models":
            own = [name for model in MODELS for name in (model.key, *model.aliases)]
        else:
            from audiomarathon.compression.registry import BUILT_IN as METHODS

            own = [method.key for method in METHODS]
        before = re.sub(r"[^,+]*$", "", incomplete)  # complete the last of several names
        others = [entry.name for entry in entry_points(group=f"audiomarathon.{kind}")]
        return [before + name for name in own + others]

    return complete


complete_tasks, complete_models, complete_methods = map(_names, ("tasks", "models", "methods"))
Tasks = Annotated[
    list[str],
    argument(
        "Tasks (audiomarathon list tasks), FILE.toml, FILE.py:CLASS, or 'all' for AudioMarathon's ten.",
        complete=complete_tasks,
    ),
]
_MODEL = option("Model (audiomarathon list models).", complete=complete_models)
Model = Annotated[str, _MODEL]
ModelOrNone = Annotated[str | None, _MODEL]

Runs = Annotated[list[Path], argument("Run folders, or folders that contain run folders.")]
Data = Annotated[Path | None, option("Data root [env: AUDIOMARATHON_DATA].", "--data")]
Results = Annotated[Path, option("Results folder [env: RESULTS_DIR].", envvar="RESULTS_DIR")]
DEFAULT_RESULTS = Path("results")
PlanRuns = Annotated[bool, option("Print runs, samples, estimated hours and memory, and stop.", "--plan")]
Seed = Annotated[int, option("Seed of intervals and tests.", min=0)]
DeviceName = Annotated[str, option("auto, cpu, cuda or cuda:N.")]
Plan = Annotated[bool, option("Print calls, tokens and price, and stop.", "--plan")]
MOST_CALLS = 1_000  # made without asking
Yes = Annotated[bool, option(f"Make more than {MOST_CALLS:,} calls without asking.", "--yes", "-y")]
BatchSize = Annotated[int, option("Texts or requests in a batch, or in flight.", min=1)]
Cache = Annotated[bool, option("Reuse answers that this judge gave before, and store new ones.")]
Track = Annotated[
    str,
    option("Log runs to a tracker while they run: mlflow (docs/tracking.md).", "--track", rich_help_panel="Tracking"),
]


def listed(text: str) -> list[str]:
    """Return the parts of a list joined by commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def places(data: Path | None) -> tuple[Path | None, Mapping[str, str]]:
    """Return the data root and the env vars in which to find tasks; --data overrides all of them."""
    return (named_folder(data), {}) if data else (None, os.environ)


def load_task(name: str, data: Path | None) -> tuple[Task, Loaded]:
    """Return a task and its samples."""
    from audiomarathon.benchmarks import get_task, task_folder

    task = get_task(name)
    return task, task.load(task_folder(task, *places(data)))
