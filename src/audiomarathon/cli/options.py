"""Options that several commands share. The options for settings, such as `--ratio`, are made from `settings.py`."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from audiomarathon.cli.output import reporting_errors
from audiomarathon.errors import SettingsError
from audiomarathon.files import named_folder
from audiomarathon.models.registry import BUILT_IN as MODELS

if TYPE_CHECKING:
    from audiomarathon.benchmarks import Loaded, Task

_LONGEST_NAME = 200
Completion = Callable[..., list[str]]


def option(text: str, *flags: str, complete: Completion | None = None, **more: Any) -> Any:
    """Return a typer option with a help text, for `Annotated`; without `flags`, it takes its parameter's name."""
    return typer.Option(*flags, help=text, autocompletion=complete, **more)


def argument(text: str, complete: Completion | None = None) -> Any:
    """Return a typer positional argument with a help text, for `Annotated`."""
    return typer.Argument(help=text, autocompletion=complete)


def output_option(text: str) -> Any:
    """Return the option `--output`, `-o` with a help text, for `Annotated`."""
    return option(text, "--output", "-o")


PICTURES = (".png", ".pdf", ".svg", ".jpg", ".jpeg", ".webp")


def output_file(text: str, *endings: str) -> Any:
    """Return the option `-o` for a file, whose name is checked before anything slow starts.

    The rules are those of :func:`checked_file`.
    """
    return option(text, "--output", "-o", callback=_early(lambda path: checked_file("-o", path, *endings)))


def output_folder(text: str, *flags: str) -> Any:
    """Return the option `-o` (or `flags`) for a folder that is checked before anything slow starts."""
    return option(text, *(flags or ("--output", "-o")), callback=_early(check_folder))


def checked_file(flag: str, path: Path, *endings: str) -> Path:
    """Check the file that a user names for output, and return its path.

    Parameters
    ----------
    endings
        Allowed endings; "*" allows all. The first may be a whole name, such as `report.html`, which the file gets if
        `path` is a folder.

    Raises
    ------
    SettingsError
        The name's ending is not allowed, the path is a folder, or a parent of it is a file.
    """
    path = named_folder(path)
    if path.is_dir() and endings and Path(endings[0]).suffix:
        path /= endings[0]
    endings = tuple(Path(ending).suffix or ending for ending in endings)
    allowed = f"a name that ends in {', '.join(dict.fromkeys(endings))}" if endings else "the name of a file"
    if path.is_dir():
        raise SettingsError(f"{flag} {path}: is a folder; allowed: {allowed}")
    if endings and "*" not in endings and path.suffix.lower() not in endings:
        raise SettingsError(f"{flag} {path}: not allowed; allowed: {allowed}")
    check_folder(path.parent)
    return path


def check_folder(path: Path) -> Path:
    """Check the folder that a user names for output, and return its path.

    A file, or a path through a file, raises SettingsError.
    """
    path = named_folder(path)
    if blocked := next((place for place in (path, *path.parents) if place.exists() and not place.is_dir()), None):
        place = "" if blocked == path else f"{blocked} is "
        raise SettingsError(f"{path}: cannot be written: {place}not a folder")
    return path


def _early(check: Callable[[Path], Path]) -> Callable[[Path | None], Path | None]:
    """Return a callback for a typer option that applies `check` to the option's value as soon as it is parsed.

    Without a value (None), the callback checks nothing.
    """

    def callback(value: Path | None) -> Path | None:
        checked: list[Path] = []
        reporting_errors(lambda: checked.extend([] if value is None else [check(value)]))()
        return checked[0] if checked else None

    return callback


def _names(kind: str) -> Callable[[str], list[str]]:
    """Return a function for shell completion of names of tasks, models or methods; it loads no code of plug-ins."""

    def complete(incomplete: str) -> list[str]:
        from importlib.metadata import entry_points

        if kind == "tasks":
            from audiomarathon.benchmarks.registry import built_in as benchmarks

            built_in = [
                "all",
                *(task.key for benchmark in benchmarks() for task in benchmark.tasks if not task.own_command),
            ]
        elif kind == "models":
            built_in = [name for model in MODELS for name in (model.key, *model.aliases)]
        else:
            from audiomarathon.compression.registry import BUILT_IN as METHODS

            built_in = [method.key for method in METHODS]
        before = re.sub(r"[^,+]*$", "", incomplete)  # complete only the last of several names
        plugged_in = [entry.name for entry in entry_points(group=f"audiomarathon.{kind}")]
        return [before + name for name in built_in + plugged_in]

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
Results = Annotated[Path, option("Results folder.", envvar="RESULTS_DIR")]


def one_line(name: str) -> str:
    """Return a name that a user gives, after checking that it fits into a table: one line of limited length."""
    if not name.isprintable() or len(name) > _LONGEST_NAME:
        raise typer.BadParameter(f"{name[:60]!r}; allowed: one line of up to {_LONGEST_NAME} characters")
    return name


ModelName = Annotated[str, option("Name of the model in tables.", "--model-name", callback=one_line)]
DEFAULT_RESULTS = Path("results")
PlanRuns = Annotated[bool, option("Print runs, samples, estimated hours and memory, and stop.", "--plan")]
Seed = Annotated[int, option("Seed of intervals and significance tests.", min=0)]
DeviceName = Annotated[str, option("Device: auto, cpu, cuda or cuda:N.")]
MOST_CALLS = 1_000  # a larger number of calls needs the user's consent
Yes = Annotated[bool, option(f"Make more than {MOST_CALLS:,} calls without asking.", "--yes", "-y")]
BatchSize = Annotated[int, option("Texts per batch, or requests sent at the same time.", min=1)]
Track = Annotated[
    str,
    option("Log runs to a tracker while they run: mlflow (docs/tracking.md).", "--track", rich_help_panel="Tracking"),
]


Fresh = Annotated[
    bool, option("If a method's code was edited since its last run, put its results into a new folder.", "--fresh")
]


def listed(text: str) -> list[str]:
    """Split a text at commas; return the parts without spaces around them, and without empty parts."""
    return [part.strip() for part in text.split(",") if part.strip()]


Margin = Annotated[
    str | None,
    option("Test: no worse than base by more than this? One margin (0.02) or one a task (tau=0.02,race=0.05)."),
]


def margins_of(text: str | None) -> dict[str, float]:
    """Read the value of `--margin`; return {task key: largest allowed loss of score}.

    One margin without a task has the key "", and applies to all other tasks.

    Raises
    ------
    SettingsError
        A margin is not a number between 0 and 1, or a task is named twice.
    """
    by_task = dict[str, float]()
    for part in listed(text or ""):
        task, _, number = part.rpartition("=")
        try:
            margin = float(number)
        except ValueError:
            margin = math.nan
        if not 0 < margin < 1 or (task := task.strip()) in by_task:
            allowed = "one number above 0 and below 1 (0.02), or one a task (tau=0.02,race=0.05)"
            raise SettingsError(f"--margin {text}: not allowed; allowed: {allowed}")
        by_task[task] = margin
    if text is not None and not by_task:
        raise SettingsError("--margin is empty; allowed: such as 0.02, or tau=0.02,race=0.05")
    return by_task


def places(data: Path | None) -> tuple[Path | None, Mapping[str, str]]:
    """Return (the data root, the env vars such as TAU_DATA_PATH that locate single tasks' data).

    --data overrides every env var, so with it the second value is empty.
    """
    from audiomarathon.embedded.without_data import data_root

    named = str(data or os.environ.get("AUDIOMARATHON_DATA", "").strip())
    return data_root(named), {} if data else os.environ


def tasks_named(names: list[str] | None) -> list[Task]:
    """Return the named tasks, each once. `all` means AudioMarathon's ten; None means every task."""
    from audiomarathon.benchmarks import all_tasks, get_task
    from audiomarathon.benchmarks.audiomarathon.benchmark import AUDIOMARATHON

    if names is None:
        return list(all_tasks())
    chosen = AUDIOMARATHON.tasks if names == ["all"] else map(get_task, names)
    return list({task.key: task for task in chosen}.values())


def load_task(name: str, data: Path | None) -> tuple[Task, Loaded]:
    """Return (the task with this name, its samples)."""
    from audiomarathon.benchmarks import get_task, task_folder

    task = get_task(name)
    return task, task.load(task_folder(task, *places(data)))
