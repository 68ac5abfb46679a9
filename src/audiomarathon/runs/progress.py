"""How a run stands while it is still going: what is done, what failed, and a running score with an interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from audiomarathon.metrics.statistics import CONFIDENCE, cluster_totals
from audiomarathon.tasks import Task


@dataclass(frozen=True)
class Standing:
    """Where one setting of one task stands.

    Attributes
    ----------
    answered, errors, expected
        Samples with a reply, samples on record as failed, and samples in all.
    score
        The headline score of the samples answered so far; None without any.
    interval
        Its 95 % interval, see :func:`quick_interval`.
    """

    expected: int
    answered: int = 0
    errors: int = 0
    unparsed: int = 0
    score: float | None = None
    interval: tuple[float, float] | None = None

    @property
    def complete(self) -> bool:
        """Whether every sample is answered."""
        return self.answered == self.expected and not self.errors

    def score_text(self) -> str:
        """Return the score as text, such as `0.833 [0.500, 1.000]`."""
        if self.score is None:
            return "–"
        return f"{self.score:.3f} " + ("[–]" if self.interval is None else "[{:.3f}, {:.3f}]".format(*self.interval))


def standing_of(task: Task | None, records: Sequence[Mapping[str, Any]], expected: int) -> Standing:
    """Return where a setting stands, from its records with the verdicts that are in them.

    There is no score without a task, nor of records that are not as this version writes them: to look at a run must
    never end it.
    """
    answered = [record for record in records if record.get("error") is None]
    unparsed = sum("parsed" in record and record["parsed"] is None for record in answered)
    try:
        score, interval = (None, None) if task is None or not answered else quick_score(task, answered)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
        score, interval = None, None
    return Standing(expected, len(answered), len(records) - len(answered), unparsed, score, interval)


def quick_score(task: Task, records: Sequence[Mapping[str, Any]]) -> tuple[float | None, tuple[float, float] | None]:
    """Return the headline score of answered records and an interval that is quick to have.

    The interval is Student's t over a jackknife that leaves out whole clusters, cut to 0…1: a thousandth of the
    bootstrap's work, from which it differs little once there are some ten clusters. `summary.json` has the bootstrap's.
    None with fewer than two clusters.
    """
    sums = task.sums(records)
    if sums is None:
        return None, None
    place = sums.names.index("score" if "score" in sums.names else task.headline)
    totals = cluster_totals(sums.columns, [str(record["cluster"]) for record in records])
    whole = totals.sum(axis=0, keepdims=True)
    score = float(sums.statistic(whole)[0, place])
    if not math.isfinite(score):
        return None, None
    count = len(totals)
    if count < 2:
        return score, None
    without = sums.statistic(whole - totals)[:, place]
    if not np.isfinite(without).all():
        return score, None
    error = math.sqrt((count - 1) / count * float(np.square(without - without.mean()).sum()))
    reach = float(special.stdtrit(count - 1, (1 + CONFIDENCE) / 2)) * error
    return score, (max(0.0, score - reach), min(1.0, score + reach))
