"""A benchmark: a set of tasks with a common name prefix, groups and weights for means, and published scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from audiomarathon.benchmarks.task import Task


@dataclass(frozen=True)
class TaskFacts:
    """Facts about a task that the benchmark's paper states.

    Attributes
    ----------
    acronym
        The paper's name for the task.
    group
        Group of tasks that the task belongs to; reports show a mean for each group. "" for none.
    count, seconds
        Expected number of samples, and the shortest and longest clip in seconds (None if not stated).
    """

    acronym: str
    group: str
    count: int
    seconds: tuple[float, float] | None


@dataclass(frozen=True)
class Benchmark:
    """A set of tasks whose names share a prefix. Means over tasks stay within a benchmark.

    Attributes
    ----------
    key
        Prefix of its tasks' names (`lalm/clotho`); AudioMarathon's own tasks have no prefix (`tau`).
    title
        One line about the benchmark.
    tasks
        The tasks, in the paper's order.
    facts
        What the paper states about the tasks, as {task's key: facts}; some tasks may be missing.
    published, models
        The paper's scores, on the scale of the task's headline score, as {row of the paper's table: {task: score}}, a
        row being a model. `models` names the row of each model of this package, as {model: row}.
    weights
        Weights of tasks in the mean, as {task's key: weight}; None gives equal weights.
    archive, licence
        Address of one archive with the data, and its licence; "" if there is no such archive.
    hubs
        Name of each task's data set on the hub, as {task's key: name}; the data set may contain archives.
    """

    key: str
    title: str
    tasks: tuple[Task, ...]
    facts: Mapping[str, TaskFacts] = field(default_factory=dict)
    published: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    weights: Mapping[str, float] | None = None
    archive: str = ""
    licence: str = ""
    hubs: Mapping[str, str] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """The benchmark's groups of tasks (reports show a mean for each), as {group: keys of its tasks}."""
        groups: dict[str, tuple[str, ...]] = {}
        for task in self.tasks:
            if (facts := self.facts.get(task.key)) and facts.group:
                groups[facts.group] = (*groups.get(facts.group, ()), task.key)
        return groups
