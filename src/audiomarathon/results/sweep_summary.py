"""What a sweep's summary holds: every finished run in the results folder, each beside base of the same task and model.

A summary is made of what is on disk, so that a second sweep into the same folder adds to the first one's summary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from audiomarathon.compression.method import Base
from audiomarathon.engine.run import Result
from audiomarathon.engine.sweep import Swept
from audiomarathon.errors import RecordError, SettingsError
from audiomarathon.fingerprint import same
from audiomarathon.metrics.paired import Pair
from audiomarathon.metrics.statistics import Floats, cluster_bootstrap, cluster_totals
from audiomarathon.results.savings import paired, savings
from audiomarathon.runs.folder import SCHEMA_VERSION, read_summary
from audiomarathon.runs.read import Run
from audiomarathon.tasks import get_task

Key = tuple[str, str]


@dataclass(frozen=True)
class Compared:
    """A finished setting beside base.

    Attributes
    ----------
    savings
        See :func:`audiomarathon.results.savings.savings`.
    against_base
        `samples` that both answered, and each figure's `difference` from base with its `interval`; None without a base
        run that asked the same.
    hits
        Shape (clusters, 3): right replies, base's, and samples, of those that both answered; None for transcription.
    """

    result: Result
    savings: Mapping[str, Any]
    against_base: Mapping[str, Any] | None = None
    hits: Floats | None = None


@dataclass
class Outcome:
    """What a sweep gave, and the finished runs that were there before it.

    Attributes
    ----------
    seed
        Of the intervals.
    groups
        By checkpoint's folder name and task, settings in the order of their names, base first.
    swept
        The sweep's own results and failures.
    """

    seed: int = 42
    groups: dict[Key, list[Compared]] = field(default_factory=dict)
    swept: Swept = field(default_factory=Swept)

    @property
    def checkpoints(self) -> dict[str, list[Compared]]:
        """All settings of all tasks, by checkpoint."""
        found: dict[str, list[Compared]] = {}
        for (checkpoint, _task), settings in self.groups.items():
            found.setdefault(checkpoint, []).extend(settings)
        return found

    def add(self, swept: Swept) -> None:
        """Take in what the sweep gave since the last time."""
        fresh = swept.results[len(self.swept.results) :]
        for folder in {result.folder.parent for result in fresh}:
            self.groups[folder.name, folder.parent.name] = read_group(folder, seed=self.seed)
        self.swept = Swept(list(swept.results), dict(swept.failures))

    def catch_up(self, results: Path, swept: Swept) -> None:
        """Take in all that a sweep gave, and what another sweep into the same folder has finished meanwhile."""
        self.add(swept)
        now = read_outcome(results, seed=self.seed).groups
        self.groups |= {key: group for key, group in now.items() if len(group) > len(self.groups.get(key, ()))}


def read_outcome(results: Path, *, seed: int) -> Outcome:
    """Return the finished runs of a results folder, `<task>/<checkpoint>/<setting>/`; all else is passed over."""
    folders = sorted({file.parents[1] for file in results.glob("*/*/*/run.json")})
    groups = {(folder.name, folder.parent.name): read_group(folder, seed=seed) for folder in folders}
    return Outcome(seed, {key: group for key, group in groups.items() if group})


def read_group(folder: Path, *, seed: int) -> list[Compared]:
    """Return the finished settings of one task on one checkpoint, each beside base."""
    found = dict(_summed(folder))
    of_base = next((path for path, (result, _) in found.items() if result.method == Base().label), None)
    # All that base ever answered: a later, smaller run of it takes nothing from the settings of an earlier one.
    base = None if of_base is None else Run.read(of_base, selected=False)
    whole = [(result, run) for result, run in found.values() if run.sums_up(result.summary)]
    ordered = sorted(whole, key=lambda pair: (pair[0].folder != of_base, pair[0].method))
    return [_compared(result, run, base, seed) for result, run in ordered]


def _summed(folder: Path) -> Iterable[tuple[Path, tuple[Result, Run]]]:
    for file in sorted(folder.glob("*/summary.json")):
        try:
            run = Run.read(file.parent)
            summary = read_summary(file.parent)
        except RecordError:
            continue  # a folder of something else, or one that is damaged: its own next run will say so
        if run.facts.get("schema_version") == SCHEMA_VERSION and run.facts.get("task") == folder.parent.name:
            yield file.parent, (Result(file.parent, str(run.facts["method"]), summary), run)


def _compared(result: Result, run: Run, base: Run | None, seed: int) -> Compared:
    if base is None or not _same_question(run, base):
        return Compared(result, savings(run, None, seed=seed))
    saved = savings(run, base, seed=seed)
    both = paired(run, base)
    if not both:
        return Compared(result, saved)
    try:
        task = get_task(str(run.facts["task"]))
    except SettingsError:  # a third party's, not installed here
        return Compared(result, saved)
    other, own = map(list, zip(*both, strict=True))
    own_sums, base_sums = task.sums(own), task.sums(other)
    if own_sums is None or base_sums is None:
        return Compared(result, saved)
    clusters = [str(record["cluster"]) for record in own]
    figures = Pair.of(own_sums, base_sums, clusters).differences(seed=seed)
    hits = None
    if all("correct" in record for record in [*own, *other]):
        rows = [[a["correct"], b["correct"], 1] for a, b in zip(own, other, strict=True)]
        hits = cluster_totals(rows, clusters)
    return Compared(result, saved, {"samples": len(both), **_with_score(figures, task.headline)}, hits)


def _with_score(figures: dict[str, Any], headline: str) -> dict[str, Any]:
    """Name the headline figure `score` too, as `summary.json` does."""
    return {"score": figures.get("score", figures.get(headline)), **figures}


def _same_question(run: Run, base: Run) -> bool:
    """Whether two runs differ in nothing but the method and what was forced after the reply, by their identities."""
    own, other = run.facts.get("identity") or {}, base.facts.get("identity") or {}
    unasked = ("method", "ratio", "decode_tokens")
    return all(same(own.get(name), value) for name, value in other.items() if name not in unasked)


@dataclass(frozen=True)
class Pooled:
    """A setting's accuracy over the choice tasks of one checkpoint, every sample the same weight, against base."""

    setting: str
    tasks: int
    samples: int
    accuracy: float
    difference: float
    interval: list[float] | None


def pooled_accuracy(settings: Sequence[Compared], *, seed: int) -> list[Pooled]:
    """Return each setting's accuracy over all choice tasks that it shares with base; empty for fewer than two tasks.

    The difference is paired sample by sample; its 95 % interval resamples clusters, of each task its own.
    """
    hits: dict[str, list[Floats]] = {}
    for one in settings:
        if one.hits is not None:
            hits.setdefault(one.result.method, []).append(one.hits)
    pooled = []
    for setting, each in hits.items():
        totals = np.concatenate(each)
        right, base, samples = totals.sum(axis=0).tolist()
        (interval,) = cluster_bootstrap(totals, lambda sums: (sums[:, :1] - sums[:, 1:2]) / sums[:, 2:], seed=seed)
        pooled.append(Pooled(setting, len(each), round(samples), right / samples, (right - base) / samples, interval))
    return pooled if any(one.tasks > 1 for one in pooled) else []
