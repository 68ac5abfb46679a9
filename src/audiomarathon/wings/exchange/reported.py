"""Use the scores that another suite's log reports as verdicts, under a name that says so."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

from audiomarathon.benchmarks.task import Filters, Loaded, Sample, Task
from audiomarathon.errors import DataError
from audiomarathon.records import Figure, Record, Verdict
from audiomarathon.scoring.scorer import Scorer, means
from audiomarathon.text import counted

if TYPE_CHECKING:
    from audiomarathon.metrics.statistics import Sums

REPORTED = "reported"
"""Prefix of these tasks' keys, and name of the score in a record's `extra`."""


class Reported(Scorer):
    """Takes each sample's score from the log, and the mean over samples as the headline figure.

    A verdict has `reported`: the log's score, 0…1, or None if the log has none. It is in the record's `extra`, since
    it differs between two runs with the same questions. `scored_by` in the reference is its name in the log.
    """

    key = REPORTED
    figure = Figure(REPORTED, "score as reported by the log")
    needs = ("scored_by",)

    def judge(self, record: Record) -> dict[str, Any]:
        """Return the log's score; None if the log has none."""
        return {REPORTED: (record.extra or {}).get(REPORTED)}

    def sound(self, verdict: Verdict) -> bool:
        """Tell whether a stored verdict is a score."""
        return (score := verdict.values.get(REPORTED, "")) is None or (type(score) in (int, float) and 0 <= score <= 1)

    def stamp(self, record: Record) -> str:
        """Return a hash of everything that the record's verdict depends on, the log's score included."""
        both = json.dumps([super().stamp(record), (record.extra or {}).get(REPORTED)])
        return hashlib.sha256(both.encode()).hexdigest()[:16]

    def sums(self, verdicts: Sequence[Verdict]) -> Sums:
        """Return the mean of the scores; samples without a score are left out."""
        return means({REPORTED: [verdict.values[REPORTED] for verdict in verdicts]}, verdicts, shares=True)

    def own_score(self, verdict: Verdict) -> float | None:
        """Return the score that the log has for the sample, 0…1; None if it has none."""
        return cast("float | None", verdict.values[REPORTED])

    def notes(self, verdicts: Sequence[Verdict]) -> list[str]:
        """Return a note that states the source of the scores, and how many samples have none."""
        names = ", ".join({str(verdict.record.reference["scored_by"]): None for verdict in verdicts})
        missing = sum(verdict.values[REPORTED] is None for verdict in verdicts)
        without = f"; {counted(missing, 'sample')} without one left out" if missing else ""
        return [f"scores are those that the log reports ({names}), read as better if higher{without}"]


class ReportedTask(Task):
    """A task known only from imported runs: it has no data, and the log's scores are its verdicts."""

    max_new_tokens = 0
    scorer = Reported()

    def __init__(self, key: str) -> None:
        self.key = key
        self.title = f"{key.partition('/')[2]}, as scored by another suite"

    def find(self, root: Path) -> NoReturn:  # noqa: ARG002
        """Raise :class:`DataError`: such a task has no data."""
        raise DataError(f"{self.key}: has no data; it is known by imported runs only")

    def load(self, folder: Path, filters: Filters = Filters()) -> Loaded:  # noqa: ARG002
        """Raise :class:`DataError`: such a task has no data."""
        return self.find(folder)

    def prompt(self, sample: Sample) -> str:
        """Return the question."""
        return sample.question


def on_record(key: str) -> ReportedTask | None:
    """Return the task with this key if it is a task of reported scores; None for any other key."""
    kind, _, name = key.partition("/")
    return ReportedTask(key) if kind == REPORTED and name else None
