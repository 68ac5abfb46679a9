"""`--config` reads a command's arguments and settings from a YAML file, `--save-config` writes them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from audiomarathon.cli.command import Command, with_options
from audiomarathon.cli.options import checked_file, option
from audiomarathon.cli.output import reporting_errors, say
from audiomarathon.errors import SettingsError
from audiomarathon.files import read_plain, write_text
from audiomarathon.settings import PATH_ENDING, RunSettings, settings_fields
from audiomarathon.text import did_you_mean, plain

_NOT_IN_FILE = ("config", "save_config", "help")
_PATHS = "data_paths"
_SETTINGS = {setting.name: setting for setting in settings_fields()}


def with_config(command: Command) -> Command:
    """Return the command with the options `--config` and `--save-config`.

    The command also receives the settings in the file as `file` and the file's name as `where`, for
    :func:`with_settings`. The file's values for the command's own arguments are put into click's `default_map`, which
    click uses for arguments without a flag or env var.
    """

    def call(ctx: typer.Context, config: None, save_config: Path | None, **given: Any) -> Any:
        del config  # the option's callback (`_read`) has read the file
        read = ctx.meta.get(__name__, {})
        if save_config is None:
            return command(**given, **read)
        save_config = checked_file("--save-config", save_config, "audiomarathon.yaml", "*")
        flags = {name: value for name, value in given.items() if name in _SETTINGS}
        return _save(save_config, ctx, given, RunSettings.read(**read, **flags))

    return with_options(command, inspect.signature(_options, eval_str=True).parameters.values(), call)


@reporting_errors
def _read(ctx: typer.Context, path: Path | None) -> None:
    """Read the config file before all other options, and store its content in `ctx`.

    Values are read as text, as on a command line: YAML would turn `no` into false and `010` into 8.
    """
    if path is None or ctx.resilient_parsing:
        return
    parameters = {
        word: parameter
        for parameter in ctx.command.params
        if parameter.name not in _NOT_IN_FILE
        for word in _words(parameter)
    }
    settings: dict[str, Any] = {}
    arguments: dict[str, Any] = {}
    for key, node in _pairs(path, _root(path)).items():
        place = f"{path}, line {node.start_mark.line + 1}: {key}"
        parameter = parameters.get(key.replace("-", "_"))
        name = _PATHS if parameter is None and key.replace("-", "_") == _PATHS else getattr(parameter, "name", "")
        if not name:
            allowed = sorted({_PATHS, *map(_key, parameters.values())})
            raise SettingsError(f"{place}: unknown key{did_you_mean(key, allowed)}; allowed: {', '.join(allowed)}")
        if name in settings or name in arguments:
            raise SettingsError(f"{place} is given twice; keep one")
        if name == _PATHS:
            settings[name] = _paths(path, node)
        elif name in _SETTINGS:
            settings[name] = ",".join(_texts(place, node))
        else:
            arguments[name] = _argument(ctx, parameter, place, _texts(place, node))
    ctx.default_map = arguments
    ctx.meta[__name__] = {"file": settings, "where": str(path)}


def _root(path: Path) -> Any:
    """Return the root node of a YAML file."""
    import yaml

    try:
        # Values are parsed as flags are: YAML itself reads `no` as false, `010` as eight and `1:30` as ninety.
        return yaml.compose(read_plain(path), yaml.BaseLoader)
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        why = getattr(error, "problem", None) or getattr(error, "reason", None) or "nested too deeply"
        raise SettingsError(f"{path}{line}: cannot be read as YAML: {plain(str(why))}") from None


def _pairs(path: Path, node: Any) -> dict[str, Any]:
    """Return the content of a YAML mapping, as {key: node}."""
    if getattr(node, "id", "") != "mapping" or any(key.id != "scalar" for key, _value in node.value):
        what = "nothing" if node is None else f"a YAML {node.id}"
        raise SettingsError(f"{path}: expected lines of a name and a value, such as 'ratio: 0.5', found {what}")
    pairs: dict[str, Any] = {}
    for key, value in node.value:
        if key.value in pairs:
            raise SettingsError(f"{path}, line {key.start_mark.line + 1}: {plain(key.value)} is given twice; keep one")
        pairs[plain(key.value)] = value
    return pairs


def _texts(place: str, node: Any) -> list[str]:
    """Return the text of a YAML value, or of each value in a YAML list."""
    items = node.value if node.id == "sequence" else [node]
    if any(item.id != "scalar" for item in items):
        raise SettingsError(f"{place}: expected a value or a list of values, found a {node.id}")
    # An unquoted null means that the value is not given.
    return ["" if item.style is None and item.value.lower() in ("~", "null") else item.value for item in items]


def _paths(path: Path, node: Any) -> dict[str, str]:
    """Return the task folders that a config file names under `data_paths`, as {env var (`TAU_DATA_PATH`): folder}."""
    paths = {name: ",".join(_texts(f"{path}: {name}", value)) for name, value in _pairs(path, node).items()}
    if wrong := [name for name in paths if not name.endswith(PATH_ENDING)]:
        raise SettingsError(f"{path}: {_PATHS}: unknown name {wrong[0]!r}; allowed: names such as TAU{PATH_ENDING}")
    return {name: text for name, text in paths.items() if text}


def _argument(ctx: typer.Context, parameter: Any, place: str, texts: list[str]) -> Any:
    """Convert the texts that a config file gives for a command's argument to the argument's type; None if empty.

    `place` names the argument in the message of an error.
    """
    several = parameter.nargs != 1 or parameter.multiple
    value = [word for text in texts for word in text.split()] if several else ",".join(texts)
    try:
        return parameter.process_value(ctx, value) if value else None
    except typer.TyperException as error:
        raise SettingsError(f"{place}={plain(str(value))}: {getattr(error, 'message', error)}") from None


def _words(parameter: Any) -> list[str]:
    return [parameter.name, *(word.lstrip("-").replace("-", "_") for word in parameter.opts)]


def _key(parameter: Any) -> str:
    """Return the name of a command's parameter in a config file: its flag without the leading dashes."""
    return str(parameter.opts[0].lstrip("-"))


def _save(path: Path, ctx: typer.Context, given: Mapping[str, Any], settings: RunSettings) -> int:
    """Write a config file, for --save-config: all values that differ from the defaults. Return the exit code.

    API keys and tokens are not settings, so they are never written.
    """
    import yaml

    content: dict[str, Any] = {}
    for parameter in ctx.command.params:
        setting = _SETTINGS.get(parameter.name)
        value, usual = (
            (getattr(settings, parameter.name), setting.default)
            if setting
            else (given.get(parameter.name), parameter.default)
        )
        if parameter.name not in _NOT_IN_FILE and value not in (None, usual):
            content[_key(parameter)] = str(value) if isinstance(value, Path) else value
    if settings.data_paths:
        content[_PATHS] = dict(settings.data_paths)
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    write_text(path, f"# {ctx.command_path} --config {path.name}\n# Flags and env vars override this file.\n{text}")
    say(f"wrote {path}; run it with: {ctx.command_path} --config {path}")
    return 0


_file = functools.partial(option, rich_help_panel="Config file")


def _options(
    ctx: typer.Context,
    config: Annotated[
        Path | None,
        _file("YAML file with this command's options; flags and env vars override it.", callback=_read, is_eager=True),
    ] = None,
    save_config: Annotated[Path | None, _file("Write these options to a --config file, and run nothing.")] = None,
) -> None:
    """Never called: its parameters are the options that :func:`with_config` adds to a command."""
