"""Load an object that a user names by its file or module: `FILE.py`, `FILE.py:Name`, `package.module:Name`."""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from audiomarathon.errors import SettingsError, blaming
from audiomarathon.files import read_plain
from audiomarathon.text import did_you_mean

FILE = re.compile(r"(.+\.py)(?::([A-Za-z_]\w*))?")
_MODULE = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_]\w*)")


#: Loaded files by module name. Each entry maps the file's module, and the modules that it imports from its folder, to
#: the source text that was run. These modules are not in `sys.modules`, since two folders may have modules of the same
#: name. A pickle for another process holds such a class by value, since the other process could not import it.
_LOADED: dict[str, dict[ModuleType, bytes]] = {}


def is_reference(text: str, known: Collection[str] = ()) -> bool:
    """Tell whether a text names an object by its file (`FILE.py`, `FILE.py:Name`) or module (`package.module:Name`).

    Parameters
    ----------
    known
        Names in lower case, such as those of methods. If `fast_v` is known, `fast_v:Name` is not a reference.
    """
    match = FILE.fullmatch(text) or _MODULE.fullmatch(text)
    return bool(match) and match[1].lower() not in known  # type: ignore[index]


def texts_of(module: str) -> Mapping[ModuleType, bytes]:
    """Return the source text of a loaded file, and of the modules that it imported from its folder, as {module: text}.

    Parameters
    ----------
    module
        Name under which the file was loaded. For an unknown name, the result is empty.
    """
    return _LOADED.get(module, {})


def object_at(reference: str, what: str, fits: Callable[[object], bool], allowed: str) -> tuple[str, Any]:
    """Load the object that a reference such as `FILE.py:Name` names; return a pair: the object's name, and the object.

    A file is run once, and again if it was edited. Packages are also searched in the working folder.

    Parameters
    ----------
    what
        Kind of object, for messages, such as `method`.
    fits
        Function that tells whether an object is of this kind. If the reference names only a file, it also finds the
        object in the file.
    allowed
        Description of the allowed objects, for messages.

    Raises
    ------
    SettingsError
        When the file or the object does not exist, or several objects fit.
    PluginError
        When the file or module raises an error.
    """
    file = FILE.fullmatch(reference)
    where = f"{what} {reference}"
    if file:
        module, *beside = _load(Path(file[1]).expanduser().resolve(), where)
        name = file[2]
    else:
        place, _, name = reference.partition(":")
        if os.getcwd() not in sys.path:  # noqa: PTH109  # entries of sys.path are strings
            sys.path.append(os.getcwd())  # noqa: PTH109
        with raising(where):
            module = importlib.import_module(place)
    objects = {key: value for key, value in vars(module).items() if key[0] != "_"}
    if not name:
        names = [key for key, value in objects.items() if fits(value) and _home(value) == module.__name__]
        if len(names) != 1:
            candidates = (
                f"several: {', '.join(names)}; name one, as {reference}:{names[0]}" if names else "nothing usable"
            )
            raise SettingsError(f"{where}: defines {candidates}; allowed: {allowed}")
        name = names[0]
    if name not in objects:
        near = did_you_mean(name, [key for key, value in objects.items() if _home(value) == module.__name__])
        raise SettingsError(f"{where}: there is no {name!r}{near}; allowed: {allowed}")
    if file and _home(objects[name]) in {module.__name__ for module in beside}:
        raise SettingsError(f"{where}: {name} is defined in {_home(objects[name])}.py; name that file")
    return name, objects[name]


def raising(where: str) -> AbstractContextManager[None]:
    """Return a context manager that turns any error of third-party code into a :class:`PluginError` of one line.

    The line begins with `where`, such as the name of the file that is loaded.
    """
    return blaming(f"{where}: cannot be loaded:")


@contextmanager
def importing_from(folder: Path) -> Iterator[list[ModuleType]]:
    """Inside the block, make a folder's modules importable. Yield a list that is still empty and is filled at the end.

    At the end of the block, the list holds the modules that were imported from the folder. They are also removed from
    `sys.modules`, since the next folder may have modules of the same names.
    """
    before, imported = set(sys.modules), list[ModuleType]()
    sys.path.insert(0, str(folder))
    try:
        yield imported
    finally:
        sys.path.remove(str(folder))
        for new in set(sys.modules) - before:
            file = Path(getattr(sys.modules[new], "__file__", None) or "")
            package = new.partition(".")[0]
            top = folder / package
            if package not in before and (file == top.with_suffix(".py") or file.is_relative_to(top)):
                imported.append(sys.modules.pop(new))


def run_file(path: Path) -> ModuleType:
    """Run a Python file as a module, and return the module. Its name is unique to the file's path and content.

    Raises
    ------
    SettingsError
        When the file cannot be read.
    """
    text = _text(path)
    module = ModuleType(_name(path, text))
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses and inspect look here
    try:
        exec(compile(text, str(path), "exec"), module.__dict__)  # no .pyc: it would hide an edit within one second
    except BaseException:
        del sys.modules[module.__name__]
        raise
    return module


def _load(path: Path, where: str) -> dict[ModuleType, bytes]:
    text = _text(path)
    name = _name(path, text)
    if not _is_current(_LOADED.get(name)):
        with raising(where), importing_from(path.parent) as beside:
            module = run_file(path)
        del sys.modules[name]
        _LOADED[name] = {module: text} | {
            module: Path(module.__file__).read_bytes() for module in beside if module.__file__
        }
    return _LOADED[name]


def _is_current(texts: Mapping[ModuleType, bytes] | None) -> bool:
    """Tell whether a loaded file, and the files that it imported from its folder, are unchanged since they were loaded.

    Parameters
    ----------
    texts
        The source text that was run for each module; None if the file was never loaded, which gives False.
    """
    try:
        return texts is not None and all(
            Path(str(module.__file__)).read_bytes() == text for module, text in texts.items()
        )
    except OSError:
        return False


def _text(path: Path) -> bytes:
    try:
        return read_plain(path)
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from error


def _name(path: Path, text: bytes) -> str:
    return f"{path.stem}_{hashlib.sha256(bytes(path) + text).hexdigest()[:12]}"


def _home(value: object) -> str:
    """Return the name of the module that defines a class or function; for any other object, the module of its class."""
    return str((value if isinstance(value, type | FunctionType) else type(value)).__module__)
