"""Summarise a sweep: compare every finished run in the results folder with base (no compression) of its task and model.

The summary is made from the runs on disk, so a second sweep into the same folder extends it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from audiomarathon.engine.run import Result
from audiomarathon.engine.sweep import Swept
from audiomarathon.errors import RecordError, SettingsError
from audiomarathon.results.beside import NO_BASE, base_among, is_base
from audiomarathon.results.pairs import Pairs
from audiomarathon.results.savings import savings
from audiomarathon.runs.read import Run, read_runs

Key = tuple[str, str]


@dataclass(frozen=True)
class Finished:
    """A finished run of a setting, compared with base.

    Attributes
    ----------
    savings
        Speed-ups and sizes against base; see :func:`audiomarathon.results.savings.savings`.
    against_base
        {"samples": number of samples that both answered; name of each score, such as "accuracy": its `difference` from
        base and the difference's `interval`}. The headline score is repeated as `score`. None if no base can be
        compared.
    why
        Why there is no comparison; "" if there is one.
    """

    result: Result
    savings: Mapping[str, Any]
    against_base: Mapping[str, Any] | None = None
    why: str = ""


@dataclass
class Outcome:
    """The results of a sweep, and the runs finished before it in the same folder.

    Attributes
    ----------
    seed
        Seed of the intervals.
    groups
        The finished runs, as {(checkpoint, task): runs}; base comes first, then the others by name.
    swept
        The sweep's results and failures.
    tasks
        Tasks that come first in `groups`, in this order.
    """

    seed: int = 42
    groups: dict[Key, list[Finished]] = field(default_factory=dict)
    swept: Swept = field(default_factory=Swept)
    tasks: Sequence[str] = ()

    @property
    def checkpoints(self) -> dict[str, list[Finished]]:
        """The finished runs of all tasks, as {checkpoint: runs}."""
        checkpoints: dict[str, list[Finished]] = {}
        for (checkpoint, _task), settings in self.groups.items():
            checkpoints.setdefault(checkpoint, []).extend(settings)
        return checkpoints

    def add(self, swept: Swept) -> None:
        """Add the results that a sweep has finished since the last call; `swept` holds all its results so far."""
        fresh = swept.results[len(self.swept.results) :]
        for folder in dict.fromkeys(result.folder.parent for result in fresh):
            self.catch_up(folder, swept)
        self.swept = Swept(list(swept.results), dict(swept.failures))

    def catch_up(self, results: Path, swept: Swept) -> None:
        """Read all runs in a results folder again, since another sweep may have finished some there."""

        def place(key: Key) -> tuple[int, str, str]:
            checkpoint, task = key
            return [*self.tasks, task].index(task), task, checkpoint

        groups = self.groups | _groups([results], self.seed)
        self.groups = {key: groups[key] for key in sorted(groups, key=place)}
        self.swept = Swept(list(swept.results), dict(swept.failures))


def read_outcome(results: Path, *, seed: int, tasks: Sequence[str] = ()) -> Outcome:
    """Return the finished runs of a results folder, those of `tasks` first; skip unfinished ones."""
    outcome = Outcome(seed, tasks=tasks)
    outcome.catch_up(results, Swept())
    return outcome


def _groups(paths: Sequence[Path], seed: int) -> dict[Key, list[Finished]]:
    """Compare the finished runs in or under folders with base; return {(checkpoint, task): [:class:`Finished`, …]}."""
    try:
        runs = read_runs(paths)
    except RecordError:
        return {}
    groups: dict[Key, list[Run]] = {}
    for run in runs:
        if not (run.task and run.task.own_command):
            groups.setdefault((run.checkpoint, run.key), []).append(run)
    return {key: finished for key, group in groups.items() if (finished := _beside_base(group, seed))}


def _beside_base(runs: Sequence[Run], seed: int) -> list[Finished]:
    """Return the finished runs of one task and checkpoint, each compared with base (the run without compression).

    Base comes first, then the other settings by name.
    """
    whole = [run for run in runs if run.summary is not None]
    ordered = sorted(whole, key=lambda run: (not is_base(run), run.method))
    return [_finished(run, base_among(run, runs), seed) for run in ordered]


def _finished(run: Run, base: Run | None, seed: int) -> Finished:
    assert run.folder is not None
    assert run.summary is not None
    result = Result(run.folder, run.method, dict(run.summary))
    pairs, why = None, NO_BASE
    if base is not None:
        try:
            pairs = Pairs.of(run, base)
        except (RecordError, SettingsError) as error:  # such as no shared sample
            why = str(error)
    saved = savings(run, pairs, seed=seed)
    if pairs is None:
        return Finished(result, saved, why=why)
    figures = {
        name: {
            "difference": None if math.isnan(difference.value) else difference.value,
            "interval": difference.interval and list(difference.interval),
        }
        for name, difference in pairs.differences(seed).items()
    }
    headline = figures[pairs.task.scorer.figure.name]
    return Finished(result, saved, {"samples": len(pairs.pairs), **figures, "score": headline})
