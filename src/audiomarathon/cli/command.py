"""Make typer commands from functions, and options for settings from the fields of `RunSettings`."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from audiomarathon.cli.options import complete_methods, option
from audiomarathon.cli.output import reporting_errors, say
from audiomarathon.engine.ray_options import EXECUTORS, Ray, read_executor
from audiomarathon.errors import SettingsError
from audiomarathon.settings import RunSettings, described, flag_of, settings_fields

Command = Callable[..., Any]

#: Patterns in typer's messages about a value, as {pattern: plain words}.
_PLAIN = {
    r": Value error, ": ": ",
    r"Input should be (?=greater|less)": "expected a number ",
    r"Input should be (a valid )?": "expected ",
    r", unable to parse string as an? \w+": "",
    r"expected integer": "expected a whole number",
    r"expected number": "expected a number",
}


class Grouped(TyperCommand):
    """A typer command that refuses empty and infinite values, and whose help lists options by `rich_help_panel`.

    The help is plain text, since rich's panels cost 0.1 s of CPU and a third of 80 columns, and drop text in brackets.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line; raise an error for NaN, infinity and empty text, such as from an unset shell
        variable.

        An empty path would mean the working folder, and an empty setting the default. Empty text is allowed if the
        default is "".
        """
        if not ctx.resilient_parsing:  # as for completion
            written = self.make_parser(ctx).parse_args(list(args))[0]
            for parameter in self.get_params(ctx):
                given = written.get(parameter.name or "")
                texts = given if isinstance(given, list | tuple) else [given]
                if parameter.default != "" and any(isinstance(text, str) and not text.strip() for text in texts):
                    name = "/".join(parameter.opts)
                    raise typer.BadParameter(f"{name} is empty; leave it out, or give a value", ctx)
        rest: list[str] = super().parse_args(ctx, args)
        for parameter in self.get_params(ctx):
            value = ctx.params.get(parameter.name or "")
            if isinstance(value, float) and not math.isfinite(value):
                raise typer.BadParameter(f"{'/'.join(parameter.opts)} {value}: expected a finite number", ctx)
        return rest

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options in the help, group by group, in the order in which the groups first appear."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if (line := parameter.get_help_record(ctx)) is not None:
                kind = "Arguments" if parameter.param_type_name == "argument" else "Options"
                groups.setdefault(getattr(parameter, "rich_help_panel", None) or kind, []).append(line)
        for name, lines in groups.items():
            with formatter.section(name):
                formatter.write_dl(lines)


def group(about: str, commands: Mapping[str, Command]) -> typer.Typer:
    """Return a command with the given subcommands; `about` is its help text."""
    app = typer.Typer(help=about, no_args_is_help=True, rich_markup_mode=None)
    app.callback()(lambda: None)  # otherwise typer drops the name of a single subcommand
    for name, command in commands.items():
        app.command(name, cls=Grouped)(reporting_errors(command))
    return app


def with_group(
    name: str, make: Callable[..., Any], options: Sequence[Parameter] = (), more: Sequence[str] = ()
) -> Callable[[Command], Command]:
    """Return a decorator that adds options to a command, and passes the command one object made from their values.

    The function `make` makes the object: it gets the options' values as arguments. The command gets the object as the
    parameter `name`. A Python caller may pass the parameter `name` directly instead of the options.

    Parameters
    ----------
    options
        The options to add; by default the annotated parameters of `make`.
    more
        Names of further arguments of `make`, which an outer decorator may supply.
    """
    options = options or [*inspect.signature(make, eval_str=True).parameters.values()]
    names = (*(option.name for option in options), *more)

    def add(command: Command) -> Command:
        def call(**given: Any) -> Any:
            arguments = {name: given.pop(name) for name in names if name in given}
            return command(**given) if name in given else command(**given, **{name: make(**arguments)})

        return with_options(command, options, call, but=name)

    return add


def with_settings(
    *names: str, but: Sequence[str] = (), read: Callable[..., Any] = RunSettings.read
) -> Callable[[Command], Command]:
    """Return a decorator that adds an option for each setting to a command, and passes it all settings as `settings`.

    Parameters
    ----------
    names
        Names of the settings; without any, all settings.
    but
        Names of settings that get no option.
    read
        Function that gets the options' values as keyword arguments, and returns the settings.
    """
    options = [
        _option(field) for field in settings_fields() if (field.name in names or not names) and field.name not in but
    ]
    return with_group("settings", read, options, ("file", "where"))


def with_options(command: Command, options: Iterable[Parameter], call: Command | None = None, but: str = "") -> Command:
    """Return a command that takes the options of the given command, and further options.

    Parameters
    ----------
    options
        Options to add.
    call
        Function that is called with all options, instead of the command.
    but
        Parameter of the command that becomes no option, because `call` supplies it.
    """
    declared = inspect.signature(command, eval_str=True).parameters.values()
    kept = [
        parameter for parameter in declared if parameter.kind is not Parameter.VAR_KEYWORD and parameter.name != but
    ]
    parameters = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in (*kept, *options)]

    @functools.wraps(command)
    def wrapped(**given: Any) -> Any:
        return (call or command)(**given)

    del wrapped.__wrapped__
    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return wrapped


def run_script(command: Command, arguments: Sequence[str] | None = None, *, name: str = "", **how: Any) -> None:
    """Run one command as a script, and exit; after a wrong command line, print one line and exit with code 2.

    Parameters
    ----------
    arguments
        The command line; None takes `sys.argv`.
    name
        Name of the script in its help; by default the name of its file.
    **how
        Arguments for typer's `command`, such as `help` and `epilog`. With `no_args_is_help`, a call without arguments
        shows the help and exits with code 2.
    """
    arguments, name = sys.argv[1:] if arguments is None else arguments, name or Path(sys.argv[0]).name
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    settings = {"help_option_names": ["-h", "--help"]}
    app.command(cls=Grouped, context_settings=settings, **how)(reporting_errors(command))
    reporting_errors(lambda: run_app(app, arguments, name))()


def run_app(app: typer.Typer, arguments: Sequence[str], name: str) -> int:
    """Run a command of a typer app, and return its exit code.

    Raises
    ------
    SettingsError
        The command line is wrong. The message is one line, instead of typer's usage text.
    """
    try:
        return app(arguments, prog_name=name, standalone_mode=False) or 0
    except typer.TyperException as error:
        text, command = error.format_message().rstrip("."), getattr(error, "ctx", None)
        for foreign, plain in _PLAIN.items():
            text = re.sub(foreign, plain, text)
        if text.startswith("Usage: "):  # no arguments: show the help
            say(error.format_message())
            return error.exit_code
        from audiomarathon.report.listings import LISTINGS

        path = command.command_path if command else name
        listed = [argument for argument in arguments if argument in LISTINGS and text.startswith("No such command")]
        see = f"audiomarathon list {listed[0]}" if listed else f"{path} --help"
        raise SettingsError(f"{text[:1].lower()}{text[1:]}; see {see}") from None


def _option(setting: dataclasses.Field[Any]) -> Parameter:
    switch, default = isinstance(setting.default, bool), setting.default
    usual = f"default: {default:d}; " if switch else f"default: {default}; " if default not in ("", None, ()) else ""
    values = setting.metadata["values"]
    shown = option(
        f"{described(setting)} [{usual}env: {setting.metadata['env']}]",
        *([f"{flag_of(setting)}/--no-{flag_of(setting)[2:]}"] if switch else []),
        rich_help_panel=setting.metadata["group"],
        complete=complete_methods if setting.name == "method" else (lambda: list(values)) if values else None,
    )
    kind = bool if switch else str
    return Parameter(setting.name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, shown])


_several = functools.partial(option, rich_help_panel="Several GPUs or machines")


def _executor(
    executor: Annotated[
        str, _several("Where to run: local, or ray (docs/scaling.md).", complete=lambda: list(EXECUTORS))
    ] = "local",
    address: Annotated[str | None, _several("Ray cluster to join (default: start Ray here).")] = None,
    workers: Annotated[
        int | None, _several("Ray workers (default: one per GPU, or machine without GPUs; score: one per core).")
    ] = None,
    gpus_per_worker: Annotated[float | None, _several("GPUs per worker (default 1; fractions share a GPU).")] = None,
) -> Ray | None:
    return read_executor(executor, address=address, workers=workers, gpus_per_worker=gpus_per_worker)


#: Decorator that adds the options for Ray to a command, which gets them as `ray` (None: run in this process).
with_executor = with_group("ray", _executor)
