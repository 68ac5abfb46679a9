"""The paper's table again: its protocol, its way of counting, our runs, beside what was published."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from audiomarathon.errors import SettingsError
from audiomarathon.evaluation.published import published
from audiomarathon.evaluation.run import Result
from audiomarathon.evaluation.savings import Run
from audiomarathon.metrics.paired import DRAWS
from audiomarathon.metrics.statistics import Floats, Sums, cluster_totals, interval_of_mean, resampled
from audiomarathon.settings import RunSettings
from audiomarathon.tasks import get_task
from audiomarathon.tasks.registry import GROUPS

PROTOCOLS = ("paper", "full")
OVERALL = "overall"


@dataclass(frozen=True)
class _Drawn:
    """A task's score in each bootstrap sample, shape (draws,), and how many clusters it has."""

    scores: Floats
    clusters: int


@dataclass(frozen=True)
class Reproduced:
    """One row: a task, the mean of a group of tasks, or of all.

    Attributes
    ----------
    mine
        The score counted as the paper did; None where nothing could be counted.
    interval
        95 %, bootstrap over clusters.
    published
        The paper's score; None where it has none (of a mean: of one of its tasks).
    """

    scope: str
    samples: int
    mine: float | None
    interval: tuple[float, float] | None
    published: float | None

    @property
    def difference(self) -> float | None:
        """Mine less published."""
        return None if self.mine is None or self.published is None else self.mine - self.published

    @property
    def agrees(self) -> bool | None:
        """Whether the published score lies within the interval."""
        if self.interval is None or self.published is None:
            return None
        return self.interval[0] <= self.published <= self.interval[1]


def paper_settings(settings: RunSettings) -> RunSettings:
    """Return the settings of the public runs: `had` balanced with seed 42, `vesus` without persons 2 and 10 when happy.

    Raises
    ------
    SettingsError
        When a setting contradicts the protocol.
    """
    if settings.method != "base" or settings.ratio:
        raise SettingsError(f"PRUNE_METHOD={settings.method}: the published runs are base; reproduce runs nothing else")
    if settings.seed != 42:
        raise SettingsError(f"SEED={settings.seed}: the paper's protocol is seed 42; --protocol full takes any")
    return dataclasses.replace(settings, balance=True, skip_persons=("2", "10"), skip_emotion="happy")


def reproduced(results: Sequence[Result], model: str, *, seed: int = 42) -> list[Reproduced]:
    """Return a row a task, then the groups' means, then the mean of all tasks.

    A mean over tasks is given only when all tasks of the group were run; its interval resamples each task on its own.
    """
    told = published(model)
    draws: dict[str, _Drawn | None] = {}
    rows: dict[str, Reproduced] = {}
    for result in results:
        run = Run.read(result.folder)
        task = get_task(str(run.facts["task"]))
        records = list(run.records.values())
        sums = task.published_sums(records)
        if sums is None:
            raise SettingsError(f"{task.key}: the paper has no such task")
        rows[task.key], draws[task.key] = _of_task(task.key, sums, [str(r["cluster"]) for r in records], told, seed)
    acronyms = {get_task(key).acronym: key for key in rows}
    groups = {name: [acronyms[a] for a in members if a in acronyms] for name, members in GROUPS.items()}
    whole = [name for name, members in GROUPS.items() if len(groups[name]) == len(members)]
    means = [_mean(name, groups[name], rows, draws) for name in whole]
    if len(whole) == len(GROUPS):
        means.append(_mean(OVERALL, [key for members in groups.values() for key in members], rows, draws))
    return [*rows.values(), *means]


def _of_task(
    key: str, sums: Sums, clusters: Sequence[str], told: Mapping[str, float], seed: int
) -> tuple[Reproduced, _Drawn | None]:
    theirs = told.get(key)
    theirs = None if theirs is None or math.isnan(theirs) else theirs
    if not len(sums.columns):
        return Reproduced(key, 0, None, None, theirs), None
    totals = cluster_totals(sums.columns, clusters)
    mine = float(sums.statistic(totals.sum(axis=0, keepdims=True))[0, 0])
    if math.isnan(mine):
        return Reproduced(key, len(clusters), None, None, theirs), None
    if len(totals) < 2:
        return Reproduced(key, len(clusters), mine, None, theirs), None
    drawn = _Drawn(resampled(totals, sums.statistic, np.random.default_rng(seed), DRAWS)[:, 0], len(totals))
    return Reproduced(key, len(clusters), mine, _interval([drawn]), theirs), drawn


def _mean(
    scope: str, keys: Sequence[str], rows: Mapping[str, Reproduced], draws: Mapping[str, _Drawn | None]
) -> Reproduced:
    members = [rows[key] for key in keys]
    mine = [row.mine for row in members if row.mine is not None]
    theirs = [row.published for row in members if row.published is not None]
    each = [drawn for key in keys if (drawn := draws[key]) is not None]
    return Reproduced(
        scope,
        sum(row.samples for row in members),
        sum(mine) / len(mine) if len(mine) == len(keys) else None,
        _interval(each) if len(each) == len(keys) else None,
        sum(theirs) / len(theirs) if len(theirs) == len(keys) else None,
    )


def _interval(tasks: Sequence[_Drawn]) -> tuple[float, float] | None:
    return interval_of_mean(np.array([task.scores for task in tasks]), [task.clusters for task in tasks])
