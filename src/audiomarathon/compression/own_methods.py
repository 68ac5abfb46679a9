"""Load a method that a user wrote, from a file or a module: `my_pruner.py:Novelty`, `my_pkg.mod:Novelty`.

The method's key is the class's `key`, so that an installed method and the same method named by its file have one label;
without a `key`, it is the class's name. Labels of folders and table rows begin with the key: `Novelty-0.5-layer2`.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, TypeVar

from audiomarathon.compression.external import Foreign
from audiomarathon.compression.method import Method, plain
from audiomarathon.errors import SettingsError
from audiomarathon.object_reference import object_at, raising
from audiomarathon.plugins import flaw, guard

ALLOWED = "a subclass of TokenPruner, KVPress or Method, or an object used as `with press(model):`"
_RATIO = ("ratio", "compression_ratio")  # names of the parameter for the fraction to remove
M = TypeVar("M", bound=Method)


def method_at(reference: str, ratio: float | None, known: tuple[Method, ...]) -> Method:
    """Load the method that a reference names, such as `my_pruner.py:Novelty`, and return it with ratio 0.

    The exception is an external press (an object used as `with press(model):`), which gets its ratio here.

    Parameters
    ----------
    ratio
        Passed to the class of an external press if it has a parameter `ratio` or `compression_ratio`.
    known
        Methods whose names and aliases the new method may not have.

    Raises
    ------
    SettingsError
        The method does not exist, its name is taken, or the ratio of a press is missing.
    PluginError
        The file or the class raises an error.
    """
    where = f"method {reference}"
    name, value = object_at(reference, "method", _is_method, ALLOWED)
    if _is_method(value):
        name = vars(value).get("key", name)
    others = [other for other in known if not _same(other, value)]
    if name.lower() in {word.lower() for other in others for word in (other.key, *other.aliases)}:
        raise SettingsError(f"{where}: the name {name} is taken by another method; rename the class")
    if not (_is_method(value) or isinstance(value, Method)):
        return _press(where, name, value, ratio)
    with raising(where):
        made: Method = _named(value() if isinstance(value, type) else value, name)
    if wrong := flaw(made, Method):
        raise SettingsError(f"{where}: {wrong}")
    guard(made, Method, where)
    return made


def _is_method(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Method)


def _same(other: Method, value: object) -> bool:
    """Tell whether an installed method is the class that the user names by its file: equal name and source text."""
    mine, theirs = value if isinstance(value, type) else type(value), type(other)
    if theirs.__module__.startswith("audiomarathon."):
        return False
    try:
        return mine.__qualname__ == theirs.__qualname__ and inspect.getsource(mine) == inspect.getsource(theirs)
    except (OSError, TypeError):
        return False


def _named(method: M, key: str) -> M:
    """Return a copy of a method with the key `key`. If its class has no title, use its docstring's first line."""
    kind = type(method)
    about = (inspect.cleandoc(kind.__doc__ or "").splitlines() or [key])[0]
    facts = {"key": key, "aliases": (), "title": getattr(kind, "title", about), "saves": getattr(kind, "saves", "?")}
    same = {fact: getattr(kind, fact) for fact in ("__module__", "__qualname__", "__doc__")}
    named: type[M] = type(kind)(key, (kind,), {**facts, **same})  # type: ignore[misc]
    return named(**{field.name: getattr(method, field.name) for field in dataclasses.fields(method) if field.init})


def _press(where: str, name: str, value: Any, ratio: float | None) -> Method:
    """Return an external press (an object used as `with press(model):`), wrapped as a method.

    `value` is the press, or its class, which is then called, with the ratio if it takes one.
    """
    kind = value if isinstance(value, type) and not hasattr(value, "__enter__") else None
    if kind is not None:
        if not any("__call__" in vars(base) for base in kind.__mro__):
            raise SettingsError(f"{where}: is not a method; allowed: {ALLOWED}")
        with raising(where):
            takes = next((parameter for parameter in inspect.signature(kind).parameters if parameter in _RATIO), None)
            if takes and ratio is None:
                raise SettingsError(f"{where}: the ratio is missing; add it, such as {where.partition(' ')[2]}:0.5")
            value = kind(**{takes: ratio} if takes else {})
        if takes and ratio is not None:
            return _named(Foreign(press=value, name=f"{name}-{plain(ratio)}", ratio=ratio), name)
    if ratio is not None:
        raise SettingsError(
            f"{where}: takes no ratio; leave the ratio out (a sweep needs a class with a parameter "
            f"{' or '.join(_RATIO)})"
        )
    if not callable(value):
        raise SettingsError(f"{where}: is of type {type(value).__name__}; allowed: {ALLOWED}")
    return _named(Foreign(press=value, name=name), name)
