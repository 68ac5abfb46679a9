"""The paper's table again: its protocol, its way of counting, our runs, beside what was published."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from audiomarathon.engine.run import Result
from audiomarathon.errors import SettingsError
from audiomarathon.metrics.paired import DRAWS
from audiomarathon.metrics.statistics import Floats, Sums, cluster_totals, interval_of_mean, mean_of, resampled
from audiomarathon.models.registry import ModelSpec
from audiomarathon.runs.read import Record, Run
from audiomarathon.settings import RunSettings
from audiomarathon.tasks import get_task
from audiomarathon.tasks.published import published
from audiomarathon.tasks.registry import GROUPS
from audiomarathon.text import counted

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
    samples, unparsed
        Answered; of those, replies that chose nothing, which the release dropped before it counted.
    mine
        The score counted as the paper did, F1 as macro-F1; None where nothing could be counted.
    interval
        95 %, bootstrap over clusters.
    weighted
        F1 weighted by support, which some of the release's scripts took instead; None for transcription, and of means.
    published
        The paper's score; None where it has none (of a mean: of one of its tasks).
    """

    scope: str
    samples: int
    unparsed: int
    mine: float | None
    interval: tuple[float, float] | None
    weighted: float | None
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


def protocol_settings(settings: RunSettings, protocol: str) -> RunSettings:
    """Return settings under which the samples are those of a protocol.

    `paper`: of the public runs, `had` balanced with seed 42, `vesus` without persons 2 and 10 when happy; `full`: all.

    Raises
    ------
    SettingsError
        When there is no such protocol, or a setting contradicts it.
    """
    if protocol not in PROTOCOLS:
        raise SettingsError(f"--protocol {protocol}: allowed: {', '.join(PROTOCOLS)}")
    if settings.method != "base" or settings.ratio:
        raise SettingsError(f"PRUNE_METHOD={settings.method}: the published runs are base; reproduce runs nothing else")
    if protocol == "full":
        return dataclasses.replace(settings, balance=False, skip_persons=(), skip_emotion="")
    if settings.seed != 42:
        raise SettingsError(f"SEED={settings.seed}: the paper's protocol is seed 42; --protocol full takes any")
    return dataclasses.replace(settings, balance=True, skip_persons=("2", "10"), skip_emotion="happy")


def caveats(
    results: Sequence[Result], failures: Mapping[str, str], settings: RunSettings, spec: ModelSpec
) -> list[str]:
    """Return a line for each thing that makes these scores other than the published ones are."""
    lines = [f"{key} was not run: {why}" for key, why in failures.items()]
    if settings.limit:
        lines.append(f"{counted(settings.limit, 'sample')} a task only: the published scores are of all of them")
    if settings.model_path and published(spec.key):
        lines.append(f"the checkpoint is {settings.model_path}; the published scores are of {spec.checkpoint}")
    for result in results:
        of, task = result.summary, get_task(result.summary["task"])
        have = of["data_samples"] + of["bad_rows"] + sum(of["left_out"].values())
        found = {
            f"not counted, errors or not done yet: {of['expected'] - of['n']}": of["expected"] > of["n"],
            f"bad rows left out: {of['bad_rows']}": of["bad_rows"],
            f"samples whose audio was cut short: {of['truncated']}": of["truncated"],
            f"the data holds {counted(have, 'sample')}, the whole task {task.count:,}": have != task.count,
            f"the data is a control ({(of.get('control') or {}).get('kind')})": of.get("control"),
        }
        lines += [f"{task.key}: {line}" for line, holds in found.items() if holds]
    return lines


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
        rows[task.key], draws[task.key] = _of_task(task.key, sums, records, told, seed)
    acronyms = {get_task(key).acronym: key for key in rows}
    groups = {name: [acronyms[a] for a in members if a in acronyms] for name, members in GROUPS.items()}
    whole = [name for name, members in GROUPS.items() if len(groups[name]) == len(members)]
    means = [_mean(name, groups[name], rows, draws) for name in whole]
    if len(whole) == len(GROUPS):
        means.append(_mean(OVERALL, [key for members in groups.values() for key in members], rows, draws))
    return [*rows.values(), *means]


def _of_task(
    key: str, sums: Sums, records: Sequence[Record], told: Mapping[str, float], seed: int
) -> tuple[Reproduced, _Drawn | None]:
    unparsed = sum(record.get("parsed", "") is None for record in records)
    row = Reproduced(key, len(records), unparsed, None, None, None, told.get(key))
    if not records:
        return row, None
    totals = cluster_totals(sums.columns, [str(record["cluster"]) for record in records])
    figures = dict(zip(sums.names, sums.statistic(totals.sum(axis=0, keepdims=True))[0].tolist(), strict=True))
    mine = figures[sums.names[0]]
    if math.isnan(mine):
        return row, None
    row = dataclasses.replace(row, mine=mine, weighted=figures.get("weighted_f1"))
    if len(totals) < 2:
        return row, None
    rng = np.random.default_rng([seed, *key.encode()])  # of its own: a mean's tasks are drawn independently
    drawn = _Drawn(resampled(totals, sums.statistic, rng, DRAWS)[:, 0], len(totals))
    return dataclasses.replace(row, interval=_interval([drawn])), drawn


def _mean(
    scope: str, keys: Sequence[str], rows: Mapping[str, Reproduced], draws: Mapping[str, _Drawn | None]
) -> Reproduced:
    members = [rows[key] for key in keys]
    each = [drawn for key in keys if (drawn := draws[key]) is not None]
    return Reproduced(
        scope,
        sum(row.samples for row in members),
        sum(row.unparsed for row in members),
        mean_of([row.mine for row in members]),
        _interval(each) if len(each) == len(keys) else None,
        None,
        mean_of([row.published for row in members]),
    )


def _interval(tasks: Sequence[_Drawn]) -> tuple[float, float] | None:
    return interval_of_mean(np.array([task.scores for task in tasks]), [task.clusters for task in tasks])
