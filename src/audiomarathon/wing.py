"""Wings: benchmarks other than AudioMarathon's own ten tasks, each in a folder of its own with all that it needs.

A wing is a folder in `wings/` whose `wing.py` has the object `WING`, or an entry point of another package in the group
`audiomarathon.wings`. The rest of the package (the core) never names a wing: it calls a few methods of every wing,
called hooks, such as `benchmarks` and `commands`. A wing imports the core; it imports no other wing.
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
        Folder of the template; `newname` and `NewName` in it become the new package's name.
    example
        A command to try the new package, with {name} and {folder}.
    taken
        Function that returns the names in use; the new name must differ from them.
    """

    folder: Path
    example: str
    taken: Callable[[], Sequence[Named]]


class Wing:
    """Base class of wings, which add a benchmark: its methods are the hooks that the core calls.

    The core calls a hook only when it needs the result, and a hook imports only then, so that `--help` stays fast.

    Attributes
    ----------
    key
        Name of the wing: letters, digits, `_`.
    """

    key: str
    aliases: tuple[str, ...] = ()

    @property
    def home(self) -> Path:
        """Path of the folder that holds the wing's `wing.py`."""
        return Path(str(sys.modules[type(self).__module__].__file__)).parent

    def benchmarks(self) -> Sequence[Benchmark]:
        """Return the benchmarks that this wing adds.

        Their tasks then have names, data, runs and scores like all others.
        """
        return ()

    def task(self, name: str) -> Task | None:  # noqa: ARG002
        """Return the wing's task with this name if :meth:`benchmarks` does not list it, else None.

        An example is a task that is known only from its runs.
        """
        return None

    def commands(self) -> Mapping[str, Commands]:
        """Return the wing's commands, as {heading in the help: {name: command}}; a new heading is added."""
        return {}

    def importers(self) -> Commands:
        """Return commands for `audiomarathon import`, as {name: command}; they make runs of other programs' replies."""
        return {}

    def exporters(self) -> Commands:
        """Return commands for `audiomarathon export`, as {name: command}; they write runs as other programs' files."""
        return {}

    def templates(self) -> Mapping[str, Template]:
        """Return kinds of packages that `audiomarathon new` can write, as {name: template}."""
        return {}

    def sections(self, data: PageData) -> Sequence[Section]:  # noqa: ARG002
        """Return this wing's sections of the report page about the given runs, without empty sections."""
        return ()

    def tables(self, runs: Sequence[Run]) -> Sequence[Table]:  # noqa: ARG002
        """Return tables about the runs that belong to this wing, such as their scores next to published ones."""
        return ()

    def mini(self, root: Path) -> None:
        """Write the wing's part of the mini benchmark into a data folder: a few short synthetic clips of each task.

        The code is in `mini.py` beside `wing.py`: when that file changes, the mini benchmark is written again.
        """

    def pictures(self, runs: Sequence[Run], folder: Path) -> None:
        """Draw this wing's pictures of the given runs, and write them to `folder`."""


@cache
def built_in() -> tuple[Wing, ...]:
    """Return the wings of this package, sorted by name."""
    names = sorted(module.name for module in pkgutil.iter_modules([str(Path(__file__).with_name("wings"))]))
    return tuple(import_module(f"{__package__}.wings.{name}.wing").WING for name in names)


def all_wings() -> tuple[Wing, ...]:
    """Return the wings of this package, then those of other packages.

    A wing of another package is wrapped in :class:`_Checked`, which checks the types of its hooks' results.
    """
    return (*built_in(), *map(_Checked, plugins(GROUP, Wing, built_in())))


def asked(hook: Callable[[Wing], T]) -> list[T]:
    """Call a hook on each wing and return a list of the results.

    A wing of another package that fails is left out, with a warning.
    """
    answers = []
    for wing in all_wings():
        try:
            answers.append(hook(wing))
        except PluginError as error:
            warn(f"left out: {error}")
    return answers


def joined(what: str, known: Mapping[str, Any], hook: Callable[[Wing], Mapping[str, T]]) -> dict[str, T]:
    """Call a hook on all wings, and merge the dicts that the wings return into one.

    A name that is taken is left out, with a warning.

    Parameters
    ----------
    what
        Kind of thing that the names name, for the warning, such as `command`.
    known
        The core's names, which no wing may take.
    """
    merged: dict[str, T] = {}
    for additions in asked(hook):
        for name, value in additions.items():
            if name in known or name in merged:
                warn(f"{what} {name!r} of a wing is left out: the name is taken")
            else:
                merged[name] = value
    return merged


class _Checked(Wing):
    """Wrapper of a wing from another package: it raises a :class:`PluginError` if a hook returns the wrong type."""

    def __init__(self, wing: Wing) -> None:
        self.key, self._wing = wing.key, wing

    @property
    def home(self) -> Path:
        return self._wing.home

    def _answer(self, name: str, kind: str, *given: Any, named: bool = False, several: bool = True) -> Any:
        """Call a hook of the wrapped wing, and raise a :class:`PluginError` if it returns the wrong type.

        Parameters
        ----------
        name, given
            Name of the hook, and its arguments.
        kind
            Name of the class that the returned objects must have.
        named, several
            Whether the hook returns a mapping of names to such objects, or a list of them; if neither, one object or
            None.
        """
        where = f"{GROUP} plug-in {self.key!r}: {name}()"
        with blaming(f"{where} raised"):
            answer = getattr(self._wing, name)(*given)
            answer = dict(answer) if named else list(answer) if several else answer
        each = list(dict(answer).values()) if named else answer if several else [answer] * (answer is not None)
        if odd := [member for member in each if not _is_a(member, kind)]:
            raise PluginError(f"{where} returned {type(odd[0]).__name__}; allowed: {kind}")
        return answer

    def benchmarks(self) -> Sequence[Benchmark]:
        benchmarks: Sequence[Benchmark] = self._answer("benchmarks", "Benchmark")
        return benchmarks

    def task(self, name: str) -> Task | None:
        task: Task | None = self._answer("task", "Task", name, several=False)
        return task

    def commands(self) -> Mapping[str, Commands]:
        commands: Mapping[str, Commands] = self._answer("commands", "Mapping", named=True)
        if odd := [
            command for group in commands.values() for command in group.values() if not _is_a(command, "command")
        ]:
            raise PluginError(f"{GROUP} plug-in {self.key!r}: commands() holds {odd[0]!r}; allowed: functions")
        return commands

    def importers(self) -> Commands:
        importers: Commands = self._answer("importers", "command", named=True)
        return importers

    def exporters(self) -> Commands:
        exporters: Commands = self._answer("exporters", "command", named=True)
        return exporters

    def templates(self) -> Mapping[str, Template]:
        templates: Mapping[str, Template] = self._answer("templates", "Template", named=True)
        return templates

    def sections(self, data: PageData) -> Sequence[Section]:
        sections: Sequence[Section] = self._answer("sections", "Section", data)
        return sections

    def tables(self, runs: Sequence[Run]) -> Sequence[Table]:
        tables: Sequence[Table] = self._answer("tables", "Table", runs)
        return tables

    def mini(self, root: Path) -> None:
        self._answer("mini", "None", root, several=False)

    def pictures(self, runs: Sequence[Run], folder: Path) -> None:
        self._answer("pictures", "None", runs, folder, several=False)


def _is_a(candidate: object, kind: str) -> bool:
    """Tell whether an object's class, or a base class, has the name `kind`.

    The class is given by name, since this module cannot import the core's classes. `command` stands for a function or a
    group of commands, and `Mapping` for any mapping.
    """
    if kind == "command":
        return callable(candidate) or hasattr(candidate, "registered_commands")
    return (
        isinstance(candidate, Mapping)
        if kind == "Mapping"
        else kind in {part.__name__ for part in type(candidate).__mro__}
    )
