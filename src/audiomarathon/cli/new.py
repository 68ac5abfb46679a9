"""`audiomarathon new`: write a small plug-in package with a test, from the templates in `new_templates/`."""

from __future__ import annotations

import keyword
import re
import shutil
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from audiomarathon.cli.options import argument, option
from audiomarathon.cli.output import say
from audiomarathon.errors import SettingsError
from audiomarathon.files import named_folder, write_bytes, writing
from audiomarathon.models.registry import all_models
from audiomarathon.plugins import Named
from audiomarathon.wing import Template, joined

_TEMPLATES = Path(__file__).parent / "new_templates"
_LONGEST = 60  # limit of a name in characters, since it is part of file names and of labels in tables
_NAME = re.compile(rf"(?=.{{1,{_LONGEST}}}\Z)[A-Za-z](\w*[A-Za-z0-9])?", re.ASCII)
_FOLDERS = ("src", "tests", "conftest", "example")  # words of the new package, and pytest's file


def _methods() -> Sequence[Named]:
    from audiomarathon.compression.registry import all_methods

    return all_methods()


def _tasks() -> Sequence[Named]:
    from audiomarathon.benchmarks import all_tasks

    return all_tasks()


def _judges() -> Sequence[Named]:
    from audiomarathon.judges.registry import plugged_in

    return plugged_in()


#: The kinds of packages, as {name: template}: those of the core, then those of wings (benchmarks in own folders).
_CORE = {
    "method": Template(
        _TEMPLATES / "method", "audiomarathon run tau --data mini --method {name} --ratio 0.5", _methods
    ),
    "task": Template(_TEMPLATES / "task", "audiomarathon run {name} --data {folder}/example --model embedded", _tasks),
    "model": Template(_TEMPLATES / "model", "audiomarathon run tau --data mini --model {name} --limit 2", all_models),
    "judge": Template(_TEMPLATES / "judge", "audiomarathon judge results/jasco --with {name}", _judges),
}
KINDS = _CORE | joined("the template", _CORE, lambda wing: wing.templates())


def new(
    kind: Annotated[str, argument(f"{', '.join(KINDS)}.", complete=lambda: list(KINDS))],
    name: Annotated[str, argument("Name of the package, also used in commands.")],
    into: Annotated[Path, option("Parent folder of the new package.")] = Path(),
) -> None:
    """Write a working package for your own method, task, model, judge or encoder, with a test.

    Example: audiomarathon new method my_pruner
    """
    from audiomarathon.benchmarks.rows import shown

    if kind not in KINDS:
        raise SettingsError(f"new {shown(kind)}: not allowed; allowed: {', '.join(KINDS)}")
    if not _NAME.fullmatch(name) or _is_reserved(kind, name):
        allowed = f"up to {_LONGEST} letters, digits and _, as in my_{kind}; no word of Python or of the template"
        raise SettingsError(f"new {kind} {shown(name)}: not allowed; allowed: {allowed}")
    folder = named_folder(into) / name
    with writing(folder):
        if folder.exists():
            raise SettingsError(f"{folder}: already exists; give another name or --into")
    if name.lower() in _taken(kind) or find_spec(name) is not None or _is_installed(name):
        raise SettingsError(f"new {kind} {name}: a {kind} or a package of that name exists; give another name")
    _write(KINDS[kind].folder, folder, name)
    say(f"wrote {folder}; next:")
    for command in (
        f"pip install -e {folder}",
        f"pytest {folder}",
        KINDS[kind].example.format(name=name, folder=folder),
    ):
        typer.echo(command)


def _is_reserved(kind: str, name: str) -> bool:
    """Tell whether a new package may not have this name.

    The name, or the class name made from it, is a Python keyword, a word in the template's code, or a folder's name.
    """
    words = {word for file in KINDS[kind].folder.rglob("*.py") for word in re.findall(r"\w+", file.read_text("utf-8"))}
    title = _title(name)
    return keyword.iskeyword(name) or keyword.iskeyword(title) or title in words - {"NewName"} or name in _FOLDERS


def _title(name: str) -> str:
    """Return the class name made from a package's name: `my_pruner` gives `MyPruner`."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def _taken(kind: str) -> set[str]:
    """Return, in lower case, the names and aliases that existing methods (or tasks, …, as `kind` says) already have."""
    # These words have a meaning before a colon in --with.
    forms = {"endpoint", "local", "openai", "replay"} if kind == "judge" else set()
    return {*forms, *(word.lower() for known in KINDS[kind].taken() for word in (known.key, *known.aliases))}


def _is_installed(name: str) -> bool:
    """Tell whether a package of this name is installed, since the new package would replace it; `_` equals `-`."""
    try:
        return bool(distribution(name))
    except PackageNotFoundError:
        return False


def _write(template: Path, folder: Path, name: str) -> None:
    """Copy a template to `folder`, with the new name in place of `newname`. After an error, `folder` does not exist."""
    title = _title(name)
    unfinished = folder.with_name(f".{folder.name}.new")
    with writing(folder):
        shutil.rmtree(unfinished, ignore_errors=True)
        for file in sorted(template.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                content = file.read_bytes()
                if file.suffix != ".wav":
                    content = content.replace(b"newname", name.encode()).replace(b"NewName", title.encode())
                place = file.relative_to(template).as_posix().replace("newname", name)
                write_bytes(unfinished / place, content)
        unfinished.replace(folder)
