"""Options that several commands share; options for settings are made from `RunSettings`."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from audiomarathon.cli.output import reporting_errors
from audiomarathon.engine.ray_options import EXECUTORS, read_executor
from audiomarathon.errors import SettingsError
from audiomarathon.files import named_folder
from audiomarathon.models.registry import BUILT_IN as MODELS
from audiomarathon.settings import RunSettings, described, flag_of, settings_fields

if TYPE_CHECKING:
    from audiomarathon.benchmarks import Loaded, Task

Command = Callable[..., Any]


def option(text: str, *flags: str, **more: Any) -> Any:
    """Return an option with a help text, for `Annotated`; without `flags` it has the parameter's name."""
    return typer.Option(*flags, help=text, **more)


def argument(text: str, **more: Any) -> Any:
    """Return an argument with a help text, for `Annotated`."""
    return typer.Argument(help=text, **more)


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
        autocompletion=complete_tasks,
    ),
]
_MODEL = option("Model (audiomarathon list models).", autocompletion=complete_models)
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


class Grouped(TyperCommand):
    """Group a command's options in the help under the headings of `rich_help_panel`.

    The help is plain text: rich's panels cost 0.1 s of CPU and a third of 80 columns, and drop text in brackets.
    """

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options by group, in the order in which the groups first appear."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if (line := parameter.get_help_record(ctx)) is not None:
                usual = "Arguments" if parameter.param_type_name == "argument" else "Options"
                groups.setdefault(getattr(parameter, "rich_help_panel", None) or usual, []).append(line)
        for name, lines in groups.items():
            with formatter.section(name):
                formatter.write_dl(lines)


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


def group(about: str, commands: Mapping[str, Command]) -> typer.Typer:
    """Return a command that consists of these commands."""
    app = typer.Typer(help=about, no_args_is_help=True, rich_markup_mode=None)
    app.callback()(lambda: None)  # a single command would lose its name
    for name, command in commands.items():
        app.command(name, cls=Grouped)(reporting_errors(command))
    return app


def with_settings(
    *names: str, but: Sequence[str] = (), read: Callable[..., Any] = RunSettings.read
) -> Callable[[Command], Command]:
    """Add an option for each setting, or for the named ones; the command receives `settings`, which `read` makes."""
    chosen = {one.name: one for one in settings_fields() if (one.name in names or not names) and one.name not in but}

    def add(command: Command) -> Command:
        def call(**given: Any) -> Any:
            flags = {name: given.pop(name) for name in (*chosen, "file", "where") if name in given}
            return command(settings=read(**flags), **given)

        return with_options(command, map(_option, chosen.values()), call, but="settings")

    return add


def with_executor(command: Command) -> Command:
    """Add the options that choose where samples run; the command receives `ray`."""
    asked = inspect.signature(_executor, eval_str=True).parameters

    def call(**given: Any) -> Any:
        return command(ray=read_executor(**{name: given.pop(name) for name in asked}), **given)

    return with_options(command, asked.values(), call, but="ray")


def with_options(command: Command, options: Iterable[Parameter], call: Command | None = None, but: str = "") -> Command:
    """Return the command with more options.

    Parameters
    ----------
    options
        Options to add.
    call
        Function to call with all options instead of the command.
    but
        Parameter of the command that `call` fills in.
    """
    own = inspect.signature(command, eval_str=True).parameters.values()
    kept = [one for one in own if one.kind is not Parameter.VAR_KEYWORD and one.name != but]
    parameters = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in (*kept, *options)]

    @functools.wraps(command)
    def wrapped(**given: Any) -> Any:
        return (call or command)(**given)

    del wrapped.__wrapped__
    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {one.name: one.annotation for one in parameters}
    return wrapped


def run_script(command: Command, arguments: Sequence[str] | None = None, *, name: str = "", **how: Any) -> None:
    """Run one command as a script; a wrong command line gives one line and exit code 2.

    Parameters
    ----------
    arguments
        The command line; None takes `sys.argv`.
    name
        Name of the script in its help; default its file.
    **how
        Arguments for typer's `command`, such as `help` and `epilog`. With `no_args_is_help`, a call without arguments
        shows the help and exits with code 2.
    """
    arguments, name = sys.argv[1:] if arguments is None else arguments, name or Path(sys.argv[0]).name
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    no_arguments = how.pop("no_args_is_help", False) and not arguments
    settings = {"help_option_names": ["-h", "--help"]}
    app.command(cls=Grouped, context_settings=settings, **how)(reporting_errors(command))

    def run() -> int:
        try:
            with contextlib.redirect_stdout(sys.stderr if no_arguments else sys.stdout):
                app(["--help"] if no_arguments else arguments, prog_name=name, standalone_mode=False)
        except typer.TyperException as error:
            text = error.format_message().rstrip(".")
            raise SettingsError(f"{text[:1].lower()}{text[1:]}; see {name} --help") from None
        return 2 if no_arguments else 0

    reporting_errors(run)()


def _option(setting: dataclasses.Field[Any]) -> Parameter:
    switch, default = isinstance(setting.default, bool), setting.default
    told = f"default: {default:d}; " if switch else f"default: {default}; " if default not in ("", None, ()) else ""
    values = setting.metadata["values"]
    shown = option(
        f"{described(setting)} [{told}env: {setting.metadata['env']}]",
        *([f"{flag_of(setting)}/--no-{flag_of(setting)[2:]}"] if switch else []),
        rich_help_panel=setting.metadata["group"],
        autocompletion=complete_methods if setting.name == "method" else (lambda: list(values)) if values else None,
    )
    kind = bool if switch else str
    return Parameter(setting.name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, shown])


_SEVERAL = {"rich_help_panel": "Several GPUs or machines"}


def _executor(
    executor: Annotated[
        str, option("local or ray (docs/scaling.md).", autocompletion=lambda: list(EXECUTORS), **_SEVERAL)
    ] = "local",
    address: Annotated[str | None, option("Ray cluster to join (default: start Ray here).", **_SEVERAL)] = None,
    workers: Annotated[
        int | None, option("Ray workers (default: one per GPU, or one per machine without GPUs).", **_SEVERAL)
    ] = None,
    gpus_per_worker: Annotated[
        float | None, option("GPUs per Ray worker (default 1; fractions share a GPU).", **_SEVERAL)
    ] = None,
) -> None:
    """Declare the options of :func:`with_executor`."""
