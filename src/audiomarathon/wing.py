"""Wings: benchmarks of their own beside the home tasks. The core asks a wing's hooks, and never names a wing.

A wing is a folder in `wings/` whose `wing.py` has the object `WING`, or an entry point of another package in the group
`audiomarathon.wings`. A wing imports the core; it imports no other wing.
"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from audiomarathon.errors import PluginError, blaming, warn
from audiomarathon.plugins import plugins

if TYPE_CHECKING:
    from audiomarathon.benchmarks.benchmark import Benchmark
    from audiomarathon.benchmarks.task import Task
    from audiomarathon.plugins import Named
    from audiomarathon.report.page_data import PageData
    from audiomarathon.report.render import Table
    from audiomarathon.report.sections import Section
    from audiomarathon.runs.read import Run

T = TypeVar("T")
GROUP = "audiomarathon.wings"
Commands = Mapping[str, Any]
"""Commands by name: functions, or groups made by :func:`audiomarathon.cli.command.group`."""


@dataclass(frozen=True)
class Template:
    """A kind of package that `audiomarathon new` writes.

    Attributes
    ----------
    folder
        Folder of the template; `newname` and `NewName` in it become the new name.
    example
        A command to try the new package, with {name} and {folder}.
    taken
        Function that returns what exists already; the new name must be another.
    """

    folder: Path
    example: str
    taken: Callable[[], Sequence[Named]]


class Wing:
    """What the core asks of a wing. Every hook is called on use only, and imports on use, so that `--help` stays fast.

    Attributes
    ----------
    key
        Name of the wing: letters, digits, `_`.
    """

    key: str
    aliases: tuple[str, ...] = ()

    @property
    def home(self) -> Path:
        """Folder of the wing's code."""
        return Path(str(sys.modules[type(self).__module__].__file__)).parent

    def benchmarks(self) -> Sequence[Benchmark]:
        """Return the wing's benchmarks, whose tasks then have names, data, runs and scores like all others."""
        return ()

    def task(self, name: str) -> Task | None:  # noqa: ARG002
        """Return a task that is in no list, such as one that is known by its runs only; None for any other name."""
        return None

    def commands(self) -> Mapping[str, Commands]:
        """Return commands, by the heading of the help under which they stand (a new one is added)."""
        return {}

    def importers(self) -> Commands:
        """Return commands for `audiomarathon import`, which turn replies of other programs into runs."""
        return {}

    def exporters(self) -> Commands:
        """Return commands for `audiomarathon export`, which write runs as files of other programs."""
        return {}

    def templates(self) -> Mapping[str, Template]:
        """Return kinds of packages for `audiomarathon new`, by name."""
        return {}

    def sections(self, data: PageData) -> Sequence[Section]:  # noqa: ARG002
        """Return sections for the page about these runs; empty ones are left out."""
        return ()

    def tables(self, runs: Sequence[Run]) -> Sequence[Table]:  # noqa: ARG002
        """Return tables about those of the runs that are the wing's, such as ours beside the published scores."""
        return ()

    def mini(self, root: Path) -> None:
        """Write the wing's part of the mini benchmark into a data root: a few short synthetic clips of each task.

        Its code is in `mini.py` beside `wing.py`: when that file changes, the mini benchmark is written again.
        """

    def pictures(self, runs: Sequence[Run], folder: Path) -> None:
        """Draw what the wing can draw of runs into a folder."""


@cache
def built_in() -> tuple[Wing, ...]:
    """Return the wings of this package, by name."""
    names = sorted(one.name for one in pkgutil.iter_modules([str(Path(__file__).with_name("wings"))]))
    return tuple(import_module(f"{__package__}.wings.{name}.wing").WING for name in names)


def all_wings() -> tuple[Wing, ...]:
    """Return the wings of this package, then those of other packages, whose answers are checked."""
    return (*built_in(), *map(_Checked, plugins(GROUP, Wing, built_in())))


def asked(hook: Callable[[Wing], T]) -> list[T]:
    """Return what each wing answers. A wing of another package that fails is left out, with a warning."""
    found = []
    for wing in all_wings():
        try:
            found.append(hook(wing))
        except PluginError as error:
            warn(f"left out: {error}")
    return found


def joined(what: str, known: Mapping[str, Any], hook: Callable[[Wing], Mapping[str, T]]) -> dict[str, T]:
    """Return what all wings answer as one mapping, without names that are taken, of which a warning tells.

    Parameters
    ----------
    what
        What the names are, for the warning.
    known
        The core's own names.
    """
    found: dict[str, T] = {}
    for own in asked(hook):
        for name, value in own.items():
            if name in known or name in found:
                warn(f"{what} {name!r} of a wing is left out: the name is taken")
            else:
                found[name] = value
    return found


class _Checked(Wing):
    """A wing of another package: an answer of another kind than its hook's raises a :class:`PluginError`."""

    def __init__(self, wing: Wing) -> None:
        self.key, self._wing = wing.key, wing

    @property
    def home(self) -> Path:
        return self._wing.home

    def _answer(self, name: str, kind: str, *given: Any, named: bool = False, several: bool = True) -> Any:
        """Return a hook's answer: a mapping if `named`, else a list if `several`, of objects of this kind."""
        where = f"{GROUP} plug-in {self.key!r}: {name}()"
        with blaming(f"{where} raised"):
            found = getattr(self._wing, name)(*given)
            found = dict(found) if named else list(found) if several else found
        each = list(dict(found).values()) if named else found if several else [found] * (found is not None)
        if odd := [one for one in each if not _is_a(one, kind)]:
            raise PluginError(f"{where} returned {type(odd[0]).__name__}; allowed: {kind}")
        return found

    def benchmarks(self) -> Sequence[Benchmark]:
        found: Sequence[Benchmark] = self._answer("benchmarks", "Benchmark")
        return found

    def task(self, name: str) -> Task | None:
        found: Task | None = self._answer("task", "Task", name, several=False)
        return found

    def commands(self) -> Mapping[str, Commands]:
        found: Mapping[str, Commands] = self._answer("commands", "Mapping", named=True)
        if odd := [one for own in found.values() for one in own.values() if not _is_a(one, "command")]:
            raise PluginError(f"{GROUP} plug-in {self.key!r}: commands() holds {odd[0]!r}; allowed: functions")
        return found

    def importers(self) -> Commands:
        found: Commands = self._answer("importers", "command", named=True)
        return found

    def exporters(self) -> Commands:
        found: Commands = self._answer("exporters", "command", named=True)
        return found

    def templates(self) -> Mapping[str, Template]:
        found: Mapping[str, Template] = self._answer("templates", "Template", named=True)
        return found

    def sections(self, data: PageData) -> Sequence[Section]:
        found: Sequence[Section] = self._answer("sections", "Section", data)
        return found

    def tables(self, runs: Sequence[Run]) -> Sequence[Table]:
        found: Sequence[Table] = self._answer("tables", "Table", runs)
        return found

    def mini(self, root: Path) -> None:
        self._answer("mini", "None", root, several=False)

    def pictures(self, runs: Sequence[Run], folder: Path) -> None:
        self._answer("pictures", "None", runs, folder, several=False)


def _is_a(one: object, kind: str) -> bool:
    """Tell whether an object is of a kind, named as text, since the core's classes lie above this module."""
    if kind == "command":
        return callable(one) or hasattr(one, "registered_commands")
    return isinstance(one, Mapping) if kind == "Mapping" else kind in {part.__name__ for part in type(one).__mro__}
