"""A scorer that takes over the scores in another suite's log, under the name "reported"."""

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
"""Prefix of the keys of tasks with a log's own scores, and name of the score in a record's `extra`."""


class Reported(Scorer):
    """Take each sample's score from the log of another suite; the headline score is the mean over samples.

    A verdict has `reported`: the log's score, 0…1, or None if the log has none. The score is in the record's `extra`,
    not in its `reference`, since it differs between two runs with the same questions. `reference["scored_by"]` is the
    score's name in the log.
    """

    key = REPORTED
    figure = Figure(REPORTED, "score as reported by the log")
    needs = ("scored_by",)

    def judge(self, record: Record) -> dict[str, Any]:
        """Return the verdict {"reported": the score that the log has for the sample, or None if it has none}."""
        return {REPORTED: (record.extra or {}).get(REPORTED)}

    def sound(self, verdict: Verdict) -> bool:
        """Tell whether a stored verdict is valid: a score from 0 to 1, or None."""
        return (score := verdict.values.get(REPORTED, "")) is None or (type(score) in (int, float) and 0 <= score <= 1)

    def stamp(self, record: Record) -> str:
        """Return a hash of everything that the record's verdict depends on, the log's score included."""
        both = json.dumps([super().stamp(record), (record.extra or {}).get(REPORTED)])
        return hashlib.sha256(both.encode()).hexdigest()[:16]

    def sums(self, verdicts: Sequence[Verdict]) -> Sums:
        """Return the mean of the log's scores, as sums over samples; samples without a score are left out."""
        return means({REPORTED: [verdict.values[REPORTED] for verdict in verdicts]}, verdicts, shares=True)

    def own_score(self, verdict: Verdict) -> float | None:
        """Return the score that the log has for the sample, 0…1; None if it has none."""
        return cast("float | None", verdict.values[REPORTED])

    def notes(self, verdicts: Sequence[Verdict]) -> list[str]:
        """Return a list of one note: which score was taken from the log, and how many samples have none."""
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
        """Raise :class:`DataError`: a task known only from imported runs has no data."""
        raise DataError(f"{self.key}: has no data; it is known by imported runs only")

    def load(self, folder: Path, filters: Filters = Filters()) -> Loaded:  # noqa: ARG002
        """Raise :class:`DataError`: a task known only from imported runs has no data."""
        return self.find(folder)

    def prompt(self, sample: Sample) -> str:
        """Return the sample's question as the prompt."""
        return sample.question


def on_record(key: str) -> ReportedTask | None:
    """Return the task with this key if it is known from a log's scores (`reported/NAME`); None for any other key."""
    kind, _, name = key.partition("/")
    return ReportedTask(key) if kind == REPORTED and name else None
