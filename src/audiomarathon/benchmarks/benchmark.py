"""What a benchmark is: a namespace of tasks, how their means are taken, and what was published of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from audiomarathon.benchmarks.task import Task


@dataclass(frozen=True)
class TaskFacts:
    """What a benchmark's paper says of a task.

    Attributes
    ----------
    acronym
        The paper's name for it.
    group
        The tasks whose mean is shown beside the overall mean; "" for none.
    count, seconds
        Expected samples, and the range of clip durations; None where it is not stated.
    """

    acronym: str
    group: str
    count: int
    seconds: tuple[float, float] | None


@dataclass(frozen=True)
class Benchmark:
    """A namespace of tasks. Means over tasks never reach beyond it.

    Attributes
    ----------
    key
        Begins the names of its tasks (`lalm/clotho`); tasks of the home benchmark have bare names.
    title
        What it asks.
    tasks
        In the paper's order.
    facts
        What the paper says, by the task's key; may lack some.
    published
        By the paper's row (a model) the scores in 0–1 by task; of `models` which row a model of ours has.
    weights
        Of tasks in the mean, by key; None weighs them alike.
    archive, licence
        Address of the data as one archive, and its licence; "" for data that is not fetched so.
    hubs
        By task its data set on the hub, which may hold archives; tasks have data sets of their own.
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
        """Keys of the tasks of each group."""
        found: dict[str, tuple[str, ...]] = {}
        for task in self.tasks:
            if (facts := self.facts.get(task.key)) and facts.group:
                found[facts.group] = (*found.get(facts.group, ()), task.key)
        return found
