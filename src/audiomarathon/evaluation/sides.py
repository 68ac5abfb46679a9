"""The sides of a comparison: one setting of one checkpoint each, over any number of tasks, read from run folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from audiomarathon.errors import RecordError, SettingsError
from audiomarathon.evaluation.savings import Run
from audiomarathon.plugins import did_you_mean
from audiomarathon.pruning.method import Base


@dataclass(frozen=True)
class Side:
    """One setting of one checkpoint: its runs by task, and the folder of each.

    Attributes
    ----------
    control
        What a control variant of the data lets be heard (:func:`control_name`); "" for the tasks as they are.
    """

    checkpoint: str
    method: str
    runs: Mapping[str, Run]
    folders: Mapping[str, Path]
    control: str = ""

    def name(self, *, with_checkpoint: bool) -> str:
        """Return what the side is called in a table."""
        own = f"{self.checkpoint} {self.method}" if with_checkpoint else self.method
        return f"{own} [{self.control}]" if self.control else own


def control_name(facts: Mapping[str, Any]) -> str:
    """Return what `data controls` made of a run's data, such as `silence` or `30s audio`; "" for a task as it is."""
    control = facts.get("control") or {}
    length = f"{control['seconds']:g}s " if control.get("seconds") else ""
    return f"{length}{control.get('kind', '')}".strip()


def read_sides(paths: Sequence[Path]) -> list[Side]:
    """Read run folders, or folders that hold some, into sides in the order in which they are found.

    Raises
    ------
    RecordError
        When there is none, or two runs of the same task are the same side.
    """
    runs: dict[tuple[str, str, str], dict[str, tuple[Path, Run]]] = {}
    for folder in _run_folders(paths):
        run = Run.read(folder)
        try:
            # A path does not say all: the hub's ends in a commit, and two models may share a checkpoint.
            checkpoint = str(run.facts.get("checkpoint_name") or Path(str(run.facts["checkpoint"])).name)
            key = str(run.facts["method"]), str(run.facts["task"])
        except KeyError as error:
            raise RecordError(f"{folder / 'run.json'}: lacks the field {error}") from None
        tasks = runs.setdefault((checkpoint, key[0], control_name(run.facts)), {})
        if key[1] in tasks:
            raise RecordError(
                f"{folder}: the same task, checkpoint and setting as {tasks[key[1]][0]}; name one of them"
            )
        tasks[key[1]] = (folder, run)
    if not runs:
        raise RecordError(f"{', '.join(map(str, paths))}: no run there (no run.json)")
    return [
        Side(
            checkpoint,
            method,
            {task: run for task, (_, run) in tasks.items()},
            {task: path for task, (path, _) in tasks.items()},
            control,
        )
        for (checkpoint, method, control), tasks in runs.items()
    ]


def _run_folders(paths: Sequence[Path]) -> list[Path]:
    """Return the run folders, and beside each one named by itself its sibling `random` of the same ratio, if any."""
    found: dict[Path, None] = {}
    for path in paths:
        if not path.is_dir():
            raise RecordError(f"{path}: no such folder")
        folders = [path] if (path / "run.json").exists() else sorted(file.parent for file in path.rglob("run.json"))
        # What `reproduce` ran lies in folders of its own: other subsets of the same tasks.
        folders = [
            one for one in folders if not any(part.startswith("reproduce-") for part in one.relative_to(path).parts)
        ]
        found |= dict.fromkeys(folder.absolute() for folder in folders if (folder / "samples.jsonl").exists())
    for path in list(found):
        control = path.parent / control_of(path.name)
        if control != path and (control / "samples.jsonl").exists():
            found.setdefault(control)
    return list(found)


def control_of(label: str) -> str:
    """Return the label of `random` at the same ratio and layer; "" for a label that is not a token pruner's."""
    method, _, rest = label.partition("-")
    return f"random-{rest}" if method and "-layer" in rest and "+" not in label else ""


def missing_controls(sides: Sequence[Side]) -> list[str]:
    """Return the labels of `random` runs that the table should have and that were not run."""
    have = {(side.checkpoint, side.method, side.control) for side in sides}
    wanted = {(side.checkpoint, control_of(side.method), side.control) for side in sides if control_of(side.method)}
    return sorted({label for _checkpoint, label, _control in wanted - have})


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
