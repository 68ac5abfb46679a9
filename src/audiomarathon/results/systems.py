"""Read run folders as systems. A system is one setting (a method, …) of one checkpoint, over any number of tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from audiomarathon.compression.method import Base
from audiomarathon.errors import RecordError, SettingsError
from audiomarathon.fingerprint import same, short, stronger
from audiomarathon.results.beside import conditions_of, marks_of_graphs
from audiomarathon.runs.read import Run, read_runs
from audiomarathon.text import did_you_mean


@dataclass(frozen=True)
class System:
    """One setting of one checkpoint, with its runs of several tasks.

    Attributes
    ----------
    checkpoint
        The checkpoint's name, with part of its content's hash if several checkpoints have this name.
    method
        The method's label, such as `fast_v-0.5-layer2`.
    runs
        The runs, by task.
    control
        Kind of audio control ("silence", "noise"), or "" for the real audio.
    marks
        Precision, attention implementation, seed and third-party model code, each only if it differs from the most
        frequent value of all runs; "as a graph" if only this distinguishes two systems.
    """

    checkpoint: str
    method: str
    runs: Mapping[str, Run]
    control: str = ""
    marks: tuple[str, ...] = ()

    @property
    def is_base(self) -> bool:
        """Whether this system is base, which removes nothing."""
        return self.method == Base().label

    @property
    def conditions(self) -> tuple[str, str, tuple[str, ...]]:
        """(Checkpoint, control, marks), which must be equal for a system and its base."""
        return self.checkpoint, self.control, self.marks

    @property
    def identity(self) -> dict[str, Any]:
        """The identity (the facts that must not change, such as data and seed) of the system's first run."""
        return dict(next(iter(self.runs.values())).identity)

    def name(self, *, with_checkpoint: bool) -> str:
        """Return the system's name for tables: method, control and marks, after the checkpoint if `with_checkpoint`."""
        heard = [f"[{self.control}]"] if self.control else []
        return " ".join([*[self.checkpoint] * with_checkpoint, self.method, *heard, *self.marks])


def read_systems(paths: Sequence[Path]) -> list[System]:
    """Read run folders, or folders that contain them, as systems. Those that heard control audio come last.

    With each pruner's run, the run of the control `random` at the same ratio and layer (or at the input) is read too,
    if it is in the same folder.

    Raises
    ------
    RecordError
        When there is no run, two runs are of the same system and task, or a named run is damaged.
    """
    return systems_of(read_runs(paths, _control_beside))


def systems_of(runs: Sequence[Run]) -> list[System]:
    """Group runs into systems (one setting of one checkpoint each). Those that heard control audio come last.

    Raises
    ------
    RecordError
        When two runs are of the same system and task.
    """
    if not runs:
        raise RecordError("no readable run found")
    marked = [(marked_run, _marks(marked_run)) for marked_run in runs]
    known = Counter(mark for _one, marks in marked for mark in marks.items())
    usual = dict(reversed([mark for mark, _count in known.most_common()]))
    written: dict[str, set[object]] = {}
    for run in runs:
        written.setdefault(run.checkpoint, set()).add(run.identity.get("checkpoint"))
    contents = {name: {each: stronger(each, prints) for each in prints} for name, prints in written.items()}
    ambiguous = {name for name, known in contents.items() if len({*known.values()}) > 1}
    systems: dict[tuple[str, str, str, tuple[str, ...]], dict[str, Run]] = {}
    as_graph = marks_of_graphs(runs)
    for run, marks in marked:
        content = contents[run.checkpoint][run.identity.get("checkpoint")]
        content = f" {short(content)}" if run.checkpoint in ambiguous else ""
        unusual = [text for name, text in marks.items() if text != usual[name]]
        told = (*unusual, *filter(None, [as_graph(run)]))
        tasks = systems.setdefault((run.checkpoint + content, run.method, run.control, told), {})
        if run.key in tasks:
            raise twice(run, tasks[run.key])
        tasks[run.key] = run
    return [
        System(checkpoint, method, tasks, control, marks)
        for (checkpoint, method, control, marks), tasks in sorted(
            systems.items(), key=lambda system: bool(system[0][2])
        )
    ]


def _marks(run: Run) -> dict[str, str]:
    """Return the conditions that distinguish runs of one checkpoint and method, as {field of the identity: text}."""
    return {n: form.format(run.identity[n]) for n, form in conditions_of(run).items() if n != "checkpoint"}


def twice(run: Run, other: Run) -> RecordError:
    """Make the error to raise when two runs have the same task, checkpoint and setting."""
    names = {*run.identity, *other.identity}
    differing = sorted(name for name in names if not same(run.identity.get(name), other.identity.get(name)))
    but = f", though the two differ in {', '.join(differing)}" if differing else ""
    return RecordError(
        f"{run.folder}: the same task, checkpoint and setting as {other.folder}{but}; name only one of them"
    )


def _control_beside(folder: Path) -> Path | None:
    """Return the folder of the `random` run that is the control of a pruner's run: same ratio, layer and parent folder.

    `random` drops random tokens. None if there is no such folder.
    """
    control = folder.parent / (control_of(folder.name) or folder.name)
    return control if control != folder and (control / "run.json").exists() else None


def control_of(label: str) -> str:
    """Return the label of `random`, which drops random tokens, with the ratio and layer of the pruner's `label`.

    "" if the label is not a pruner's.
    """
    method, _, rest = label.partition("-")
    pruned = ("-layer" in rest or rest.endswith("-input")) and "+" not in label and not rest.startswith("0-")
    return f"random-{rest}" if method and pruned else ""


def missing_controls(systems: Sequence[System]) -> dict[str, str]:
    """Return the runs of `random` (which drops random tokens) that are missing, as {system's name: method's label}.

    Each pruner should be compared with `random` at its ratio and layer.
    """
    several = len({system.checkpoint for system in systems}) > 1
    have = {system.name(with_checkpoint=several) for system in systems}
    wanted = [replace(system, method=control_of(system.method)) for system in systems if not system.control]
    by_name = {system.name(with_checkpoint=several): system.method for system in wanted if system.method}
    return {name: label for name, label in sorted(by_name.items()) if name not in have}


def sweeps_of(labels: Iterable[str]) -> list[str]:
    """Return options for the command line of `sweep` that run the pruners with these labels again.

    There is one text for each layer, or other place where tokens are dropped. Layer 2, the default, needs no option.
    """
    ratios: dict[str, set[str]] = {}
    for _method, ratio, place in (label.split("-", 2) for label in labels):
        if "=" in place:  # a schedule, which brings its ratio
            ratios.setdefault("--schedule " + place.removeprefix("layer").replace("=", ":").replace("-", ","), set())
        else:
            at = f" --layer {place.removeprefix('layer')}" if place.startswith("layer") else f" --at {place}"
            ratios.setdefault("" if place == "layer2" else at, set()).add(ratio)
    return [
        f"--ratios {','.join(sorted(at_place))}{place}" if at_place else place
        for place, at_place in sorted(ratios.items())
    ]


def find_reference(systems: Sequence[System], name: str | None) -> System:
    """Return the system to compare the others with: the named one, else base (no compression), else the first.

    A method's name is enough if the method has one setting: `random` for `random-0.9-layer2`.

    Raises
    ------
    SettingsError
        When no system has that name.
    """
    several = len({system.checkpoint for system in systems}) > 1
    by_name = {system.name(with_checkpoint=several): system for system in systems}
    if name is None:
        ordered = sorted(systems, key=lambda system: bool(system.control))  # real audio first
        return next((system for system in ordered if system.is_base), ordered[0])
    of_method = [system for system in systems if system.identity.get("method") == name and not system.control]
    if name not in by_name and len(of_method) != 1:
        raise SettingsError(f"no setting is called {name}{did_you_mean(name, by_name)}; allowed: {', '.join(by_name)}")
    return by_name.get(name) or of_method[0]


def base_of(system: System, systems: Sequence[System]) -> System | None:
    """Return base (the system without compression) with the checkpoint, control and marks of the given system.

    Marks are precision, seed and the like. None if there is no such base.
    """
    return next((base for base in systems if base.is_base and base.conditions == system.conditions), None)
