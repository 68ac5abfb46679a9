"""Objects that users name by where they lie: `FILE.py`, `FILE.py:Name`, `package.module:Name`."""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from audiomarathon.errors import AudioMarathonError, PluginError, SettingsError, told
from audiomarathon.text import did_you_mean, plain

FILE = re.compile(r"(.+\.py)(?::([A-Za-z_]\w*))?")
_MODULE = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_]\w*)")


@dataclass(frozen=True)
class _Loaded:
    """A file's module, and the text of it and of the modules beside it as they were run."""

    module: ModuleType
    texts: Mapping[ModuleType, bytes]

    @property
    def current(self) -> bool:
        """Whether the files still hold these texts."""
        try:
            return all(Path(str(one.__file__)).read_bytes() == text for one, text in self.texts.items())
        except OSError:
            return False


#: By name. They are not in `sys.modules`: two folders may hold modules of one name, and pickles for other processes
#: carry such a class whole, since no import would find it there.
_LOADED: dict[str, _Loaded] = {}


def is_reference(text: str, known: Collection[str] = ()) -> bool:
    """Tell whether a text names an object by where it lies.

    Parameters
    ----------
    known
        Names, in lower case, that mean something else before a colon.
    """
    found = FILE.fullmatch(text) or _MODULE.fullmatch(text)
    return bool(found) and found[1].lower() not in known  # type: ignore[index]


def texts_of(module: str) -> Mapping[ModuleType, bytes]:
    """Return the modules behind an object of a file with their texts: the file, and those beside it that it imports."""
    return _LOADED[module].texts if module in _LOADED else {}


def object_at(reference: str, what: str, fits: Callable[[object], bool], allowed: str) -> tuple[str, Any]:
    """Return the object that a reference means, and its name.

    A file is run once, and again after an edit. Packages are found in the working folder too.

    Parameters
    ----------
    what
        Word for messages: method, task.
    fits
        Tells which of a file's objects are meant when none is named.
    allowed
        What the object may be, for messages.

    Raises
    ------
    SettingsError
        No such file or object, or several and none is named.
    PluginError
        The file or module raised an error.
    """
    file = FILE.fullmatch(reference)
    where = f"{what} {reference}"
    if file:
        loaded = _load(Path(file[1]).expanduser().resolve(), where)
        module, name = loaded.module, file[2]
    else:
        place, _, name = reference.partition(":")
        if os.getcwd() not in sys.path:  # noqa: PTH109  # entries of sys.path are texts
            sys.path.append(os.getcwd())  # noqa: PTH109
        with raising(where):
            module = importlib.import_module(place)
    own = {key: one for key, one in vars(module).items() if key[0] != "_"}
    if not name:
        names = [key for key, one in own.items() if fits(one) and _home(one) == module.__name__]
        if len(names) != 1:
            found = f"several: {', '.join(names)}; name one, as {reference}:{names[0]}" if names else "none"
            raise SettingsError(f"{where}: defines {found}; allowed: {allowed}")
        name = names[0]
    if name not in own:
        near = did_you_mean(name, [key for key, one in own.items() if _home(one) == module.__name__])
        raise SettingsError(f"{where}: there is no {name!r}{near}; allowed: {allowed}")
    if file and _home(own[name]) in {one.__name__ for one in loaded.texts} - {module.__name__}:
        raise SettingsError(f"{where}: {name} is defined in {_home(own[name])}.py; name that file")
    return name, own[name]


@contextmanager
def raising(where: str) -> Iterator[None]:
    """Turn whatever a stranger's code raises into one line."""
    try:
        yield
    except (AudioMarathonError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise PluginError(f"{where}: cannot be loaded: {plain(told(error))}") from error


@contextmanager
def importing_from(folder: Path) -> Iterator[list[ModuleType]]:
    """Make a folder's modules importable inside the block, and list those that were imported.

    They are forgotten afterwards: the next folder may hold others of the same names.
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
    """Run a file as a module whose name is that of no other file, and of no other content.

    Raises
    ------
    SettingsError
        It cannot be read.
    """
    text = _text(path)
    module = ModuleType(_name(path, text))
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses and inspect look it up
    try:
        exec(compile(text, str(path), "exec"), module.__dict__)  # no .pyc: an edit within a second is seen
    except BaseException:
        del sys.modules[module.__name__]
        raise
    return module


def _load(path: Path, where: str) -> _Loaded:
    text = _text(path)
    name = _name(path, text)
    if name not in _LOADED or not _LOADED[name].current:
        with raising(where), importing_from(path.parent) as beside:
            module = run_file(path)
        del sys.modules[name]
        texts = {one: Path(str(one.__file__)).read_bytes() for one in beside if one.__file__}
        _LOADED[name] = _Loaded(module, {module: text, **texts})
    return _LOADED[name]


def _text(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from error


def _name(path: Path, text: bytes) -> str:
    return f"{path.stem}_{hashlib.sha256(bytes(path) + text).hexdigest()[:12]}"


def _home(value: object) -> str:
    """Return the name of the module that defines an object, or its class."""
    return str((value if isinstance(value, type | FunctionType) else type(value)).__module__)
