"""Look up names (with "did you mean" for unknown ones), and load plug-ins from entry points."""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from audiomarathon.errors import SettingsError, blaming, told
from audiomarathon.text import did_you_mean, plain


class Named(Protocol):
    """Anything that users select by its key or an alias, such as a task or a method."""

    @property
    def key(self) -> str: ...

    @property
    def aliases(self) -> tuple[str, ...]: ...


_SHOWN = 60  # characters of a refused name in a message
_PART = r"[A-Za-z0-9][\w.-]*"
_KEY = re.compile(rf"{_PART}(/{_PART})?")  # a key becomes the name of a folder, or of two nested folders
_FACTS: dict[str, type | tuple[type, ...]] = {"str": str, "int": int, "float": (int, float), "bool": bool}
N = TypeVar("N", bound=Named)


def plugins(
    group: str, kind: type[N], built_in: Sequence[N] = (), flaw_of: Callable[[N], str] = lambda _value: ""
) -> list[N]:
    """Load the plug-ins that other packages declare in an entry point group, sorted by entry point name.

    An entry point names an instance of `kind`, or a class or function that makes an instance without arguments. A
    plug-in that cannot be loaded is left out, with a warning, so that one bad package breaks no command. Later errors
    in its methods become a :class:`PluginError` that names the plug-in.

    Parameters
    ----------
    built_in
        Built-in items; a plug-in whose key is taken by one of them is left out.
    flaw_of
        Function for further checks: it returns a plug-in's fault, such as `has no usable 'scorer'`, or "".
    """
    accepted: list[N] = []
    for entry in _entries(importlib.metadata.entry_points, group, tuple(sys.path)):
        name = plain(f"{group} plug-in {entry.name!r}")
        try:
            value = entry.load()
            value = value() if isinstance(value, type) or callable(value) else value
            wrong = flaw(value, kind) or flaw_of(value)
            if not wrong:
                guard(value, kind, f"{name} ({value.key})")
        except BaseException as error:  # third-party code may raise anything, sys.exit and KeyboardInterrupt included
            warnings.warn(f"{name} ({entry.value}) cannot be loaded: {plain(told(error))}", stacklevel=2)
            continue
        if wrong:
            warnings.warn(f"{name} {wrong}", stacklevel=2)
            continue
        names = {word.lower(): item for item in (*built_in, *accepted) for word in (item.key, *item.aliases)}
        if value.key.lower() in names:
            warnings.warn(f"{name} is left out: its key {value.key!r} is taken; give it another key", stacklevel=2)
            continue
        for alias in value.aliases:
            if alias.lower() in names:
                owner = names[alias.lower()].key
                warnings.warn(
                    f"{name}: its alias {plain(alias)!r} is ignored, since it already names {owner!r}", stacklevel=2
                )
        accepted.append(value)
    return accepted


@functools.lru_cache(maxsize=64)
def _entries(find: Callable[..., Any], group: str, _path: tuple[str, ...]) -> list[Any]:
    """Return the entry points of a group, sorted by name.

    The search is slow, since it reads a file of every installed package, so results are cached. `_path` is `sys.path`:
    if it changes, the search runs again.
    """
    return sorted(find(group=group), key=lambda entry: entry.name)


def flaw(value: object, kind: type) -> str:
    """Check that a plug-in has the class and attributes of `kind`; return its first fault as text, or "" if it fits."""
    if not isinstance(value, kind):
        return f"is not a {kind.__name__}"
    for name, written in kind.__annotations__.items():
        wanted = written[len("ClassVar[") : -1] if written.startswith("ClassVar[") else written
        fact = getattr(value, name, None)
        items: tuple[object, ...] = (fact,)
        if wanted.startswith("tuple["):
            items = fact if isinstance(fact, tuple) else (None,)
            if "..." not in wanted and len(items) != wanted.count(",") + 1:
                items = (None,)
        types = next((types for word, types in _FACTS.items() if wanted.startswith((word, f"tuple[{word}"))), object)
        lacking = fact is None and "None" not in wanted
        if lacking or not all(isinstance(item, types) for item in items):
            return f"has no usable {name!r}; it must be a {wanted}"
    key = getattr(value, "key", "")
    return "" if _KEY.fullmatch(key) else f"has the key {plain(repr(key))}; allowed: letters, digits, . _ - and one /"


def guard(value: object, kind: type, name: str) -> None:
    """Change a plug-in's class so that errors in its public methods name the plug-in.

    If the class has a property where `kind` declares a plain attribute, its present value replaces the property.
    """
    owner = type(value)
    if owner.__module__.partition(".")[0] == __name__.partition(".")[0]:
        return  # a class of this package
    for fact in kind.__annotations__:
        if isinstance(inspect.getattr_static(owner, fact, None), property):
            setattr(owner, fact, getattr(value, fact))
    for method, declared in vars(kind).items():
        inner = inspect.getattr_static(owner, method, None)
        if method[0] == "_" or not inspect.isfunction(declared) or not inspect.isfunction(inner):
            continue
        if not hasattr(inner, "guarded"):
            setattr(owner, method, _guarded(inner, f"{name}: {method}()"))


def _guarded(inner: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(inner)
    def outer(*args: Any, **kwargs: Any) -> Any:
        with blaming(f"{name} raised"):
            result = inner(*args, **kwargs)
        return _guarded_items(result, name) if inspect.isgenerator(result) else result

    outer.guarded = True  # type: ignore[attr-defined]
    return outer


def _guarded_items(iterator: Iterator[Any], name: str) -> Iterator[Any]:
    """Yield the items of a plug-in's iterator; if it raises, raise a :class:`PluginError` with the plug-in's `name`.

    A generator's code runs only when its items are taken, so a guard around the call alone would miss its errors.
    """
    while True:
        with blaming(f"{name} raised"):
            try:
                item = next(iterator)
            except StopIteration:
                return
        yield item


def look_up(name: str, among: Sequence[N], *, kind: str) -> N:
    """Return the item whose key or alias is `name`, ignoring case.

    Raises
    ------
    SettingsError
        When no item has this name; the message suggests the nearest name, or lists all allowed names.
    """
    wanted = name.strip().lower()
    for item in among:
        if wanted in (item.key.lower(), *(alias.lower() for alias in item.aliases)):
            return item
    names = [word for item in among for word in (item.key, *item.aliases)]
    allowed = ", ".join(item.key for item in among)
    shown = name if len(name) <= _SHOWN else f"{name[:_SHOWN]}…"
    raise SettingsError(f"unknown {kind} {shown!r}{did_you_mean(name, names) or f'; allowed: {allowed}'}")
