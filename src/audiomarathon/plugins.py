"""How names find things: look-up with "did you mean", and third parties' entry points."""

from __future__ import annotations

import difflib
import importlib.metadata
import warnings
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from audiomarathon.errors import SettingsError


class Named(Protocol):
    """Something users refer to by a key or an alias."""

    @property
    def key(self) -> str: ...

    @property
    def aliases(self) -> tuple[str, ...]: ...


_SHOWN = 60  # characters of a name that is refused
T = TypeVar("T")
N = TypeVar("N", bound=Named)


def plugins(group: str, kind: type[T]) -> list[T]:
    """Return what third parties register under an entry point `group`, sorted by entry point name.

    An entry point yields an instance of `kind`, or a class or function without arguments that makes one. A broken one
    is named in a warning and left out, so that one bad package cannot take the suite down.
    """
    found: list[T] = []
    for entry in sorted(importlib.metadata.entry_points(group=group), key=lambda entry: entry.name):
        try:
            value = entry.load()
            value = value() if isinstance(value, type) or callable(value) else value
        except Exception as error:  # a stranger's code may raise anything, and must not take the suite down
            warnings.warn(f"{group} plug-in {entry.name!r} ({entry.value}) cannot be loaded: {error}", stacklevel=2)
            continue
        if isinstance(value, kind):
            found.append(value)
        else:
            warnings.warn(f"{group} plug-in {entry.name!r} yields no {kind.__name__}", stacklevel=2)
    return found


def did_you_mean(name: str, allowed: Iterable[str]) -> str:
    """Return " (did you mean 'x'?)" when `name` is close to one of `allowed`, else an empty string."""
    lowered = {candidate.lower(): candidate for candidate in allowed}
    close = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.6)
    return f" (did you mean {lowered[close[0]]!r}?)" if close else ""


def look_up(name: str, among: Sequence[N], *, kind: str) -> N:
    """Return the item whose key or alias is `name`, ignoring case.

    Raises
    ------
    SettingsError
        When there is none: one line with the nearest name and all that are allowed.
    """
    wanted = name.strip().lower()
    for item in among:
        if wanted in (item.key.lower(), *(alias.lower() for alias in item.aliases)):
            return item
    names = [word for item in among for word in (item.key, *item.aliases)]
    allowed = ", ".join(item.key for item in among)
    shown = name if len(name) <= _SHOWN else f"{name[:_SHOWN]}…"
    raise SettingsError(f"unknown {kind} {shown!r}{did_you_mean(name, names)}; allowed: {allowed}")
