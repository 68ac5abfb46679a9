"""The sides of a comparison: one setting of one checkpoint each, over any number of tasks, read from run folders."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from audiomarathon.compression.method import Base
from audiomarathon.errors import RecordError, SettingsError
from audiomarathon.fingerprint import same, short, stronger
from audiomarathon.runs.folder import checkpoint_of, holds_records
from audiomarathon.runs.read import Run
from audiomarathon.tasks.finding import walk
from audiomarathon.text import did_you_mean

_T = TypeVar("_T")

#: What of a run's identity makes another side of the same checkpoint and method, and how a name shows it.
_MARKS = {"dtype": "{}", "attention": "{}", "seed": "seed {}"}


@dataclass(frozen=True)
class Side:
    """One setting of one checkpoint: its runs by task, and the folder of each.

    Attributes
    ----------
    checkpoint
        Its name; with the beginning of its content's hash where several of that name were read.
    method
        The label of its method.
    control
        What a control variant of the data lets be heard (:func:`control_name`); "" for the tasks as they are.
    marks
        What else tells it from most of the runs read with it: precision, attention, seed.
    """

    checkpoint: str
    method: str
    runs: Mapping[str, Run]
    folders: Mapping[str, Path]
    control: str = ""
    marks: tuple[str, ...] = ()

    def name(self, *, with_checkpoint: bool) -> str:
        """Return what the side is called in a table."""
        heard = [f"[{self.control}]"] if self.control else []
        return " ".join([*[self.checkpoint] * with_checkpoint, self.method, *heard, *self.marks])


def control_name(facts: Mapping[str, Any]) -> str:
    """Return what `data controls` made of a run's data, such as `silence` or `30s audio`; "" for a task as it is."""
    control = facts.get("control") or {}
    length = f"{control['seconds']:g}s " if control.get("seconds") else ""
    return f"{length}{control.get('kind', '')}".strip()


@dataclass(frozen=True)
class _Found:
    """A run as it was read, and of which task and checkpoint it is."""

    folder: Path
    run: Run
    checkpoint: str
    task: str

    @classmethod
    def read(cls, folder: Path) -> _Found:
        try:
            run = Run.read(folder)
        except TypeError:
            raise RecordError(f"{folder / 'run.json'}: the samples are no list of names") from None
        if lacking := [name for name in ("checkpoint", "method", "task") if name not in run.facts]:
            raise RecordError(f"{folder / 'run.json'}: lacks the field {lacking[0]!r}")
        if not isinstance(run.facts.get("identity", {}), dict):
            raise RecordError(f"{folder / 'run.json'}: the identity is no JSON object")
        return cls(folder, run, checkpoint_of(run.facts), str(run.facts["task"]))

    @property
    def identity(self) -> Mapping[str, Any]:
        identity: Mapping[str, Any] = self.run.facts.get("identity", {})
        return identity

    def mark(self, name: str) -> str:
        return _MARKS[name].format(self.identity.get(name, "unknown"))


def read_sides(paths: Sequence[Path]) -> list[Side]:
    """Read run folders, or folders that hold some, into sides in the order in which they are found, controls last.

    Raises
    ------
    RecordError
        When there is none, or two runs of the same task are the same side; when a run that was named is damaged.
    """
    found = list(readable(paths, _with_controls(run_folders(paths)), _Found.read))
    if not found:
        raise RecordError(f"{', '.join(map(str, paths))}: no run there (no run.json)")
    usual = {name: Counter(one.mark(name) for one in found).most_common(1)[0][0] for name in _MARKS}
    written: dict[str, set[object]] = {}
    for one in found:
        written.setdefault(one.checkpoint, set()).add(one.identity.get("checkpoint"))
    contents = {name: {each: stronger(each, prints) for each in prints} for name, prints in written.items()}
    ambiguous = {name for name, known in contents.items() if len({*known.values()}) > 1}
    sides: dict[tuple[str, str, str, tuple[str, ...]], dict[str, _Found]] = {}
    for one in found:
        content = contents[one.checkpoint][one.identity.get("checkpoint")]
        content = f" {short(content)}" if one.checkpoint in ambiguous else ""
        marks = tuple(one.mark(name) for name in _MARKS if one.mark(name) != usual[name])
        side = one.checkpoint + content, str(one.run.facts["method"]), control_name(one.run.facts), marks
        tasks = sides.setdefault(side, {})
        if one.task in tasks:
            raise RecordError(_twice(one, tasks[one.task]))
        tasks[one.task] = one
    return [
        Side(
            checkpoint,
            method,
            {task: one.run for task, one in tasks.items()},
            {task: one.folder for task, one in tasks.items()},
            control,
            marks,
        )
        for (checkpoint, method, control, marks), tasks in sorted(sides.items(), key=lambda side: bool(side[0][2]))
    ]


def _twice(one: _Found, other: _Found) -> str:
    names = {*one.identity, *other.identity}
    differing = sorted(name for name in names if not same(one.identity.get(name), other.identity.get(name)))
    but = f", though their {', '.join(differing)} differ" if differing else ""
    return f"{one.folder}: the same task, checkpoint and setting as {other.folder}{but}; name one of them"


def run_folders(paths: Sequence[Path]) -> list[Path]:
    """Return the run folders named, and those under the folders named.

    Raises
    ------
    RecordError
        When there is no such folder.
    """
    found: dict[Path, Path] = {}
    for path in paths:
        if not path.is_dir():
            raise RecordError(f"{path}: no such folder")
        root = path.absolute()
        for folder in sorted(one.path for one in walk(root) if "samples.jsonl" in one.files):
            # What `reproduce` ran lies in folders of its own: other subsets of the same tasks.
            apart = any(part.startswith("reproduce-") for part in folder.relative_to(root).parts)
            if holds_records(folder) and not apart:
                found.setdefault(folder.resolve(), folder)  # a link to a run is no second run
    return list(found.values())


def readable(paths: Sequence[Path], folders: Iterable[Path], read: Callable[[Path], _T]) -> Iterator[_T]:
    """Yield what is read of each folder; a damaged run, or an old one, that was not named is left out with a warning.

    Raises
    ------
    RecordError
        For a damaged run among `paths`.
    """
    named = {path.resolve() for path in paths}
    for folder in folders:
        try:
            yield read(folder)
        except RecordError as error:
            if folder.resolve() in named:
                raise
            warnings.warn(f"left out: {error}", stacklevel=2)


def _with_controls(folders: Sequence[Path]) -> list[Path]:
    """Return run folders, and beside each its sibling `random` of the same ratio, if any."""
    found = dict.fromkeys(folders)
    for path in folders:
        control = path.parent / control_of(path.name)
        if control != path and (control / "samples.jsonl").exists():
            found.setdefault(control)
    return list(found)


def control_of(label: str) -> str:
    """Return the label of `random` at the same ratio and layer; "" where no pruner alone drops tokens."""
    method, _, rest = label.partition("-")
    pruned = "-layer" in rest and "+" not in label and not rest.startswith("0-")
    return f"random-{rest}" if method and pruned else ""


def missing_controls(sides: Sequence[Side]) -> dict[str, str]:
    """Return the ratio of each `random` run that the table should have and that was not run, by the side's name."""
    several = len({side.checkpoint for side in sides}) > 1
    have = {side.name(with_checkpoint=several) for side in sides}
    wanted = [replace(side, method=control_of(side.method)) for side in sides if not side.control]
    by_name = {side.name(with_checkpoint=several): side.method for side in wanted if side.method}
    return {name: label.split("-")[1] for name, label in sorted(by_name.items()) if name not in have}


def find_reference(sides: Sequence[Side], name: str | None) -> Side:
    """Return the side that all others are compared with: the one named, else base, else the first.

    Raises
    ------
    SettingsError
        When no side has that name.
    """
    several = len({side.checkpoint for side in sides}) > 1
    by_name = {side.name(with_checkpoint=several): side for side in sides}
    if name is None:
        ordered = sorted(sides, key=lambda side: bool(side.control))  # the tasks as they are come first
        return next((side for side in ordered if side.method == Base().label), ordered[0])
    if name not in by_name:
        raise SettingsError(
            f"--against {name}: no such setting there{did_you_mean(name, by_name)}; there are {', '.join(by_name)}"
        )
    return by_name[name]
