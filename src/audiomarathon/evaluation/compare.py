"""Comparing settings or models on the samples that both answered: scores, tests, speed-ups, per task and overall.

Every difference is paired on samples; its interval and its test work on whole clusters (`metrics/paired.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from audiomarathon.errors import RecordError
from audiomarathon.evaluation.savings import Record, Run, median_ratio, paired
from audiomarathon.evaluation.sides import Side
from audiomarathon.metrics.paired import Pair, Verdict, holm, judge, mcnemar
from audiomarathon.metrics.statistics import Sums
from audiomarathon.tasks import Task, get_task
from audiomarathon.tasks.registry import GROUPS

OVERALL = "overall"
_SAME_QUESTION = ("schema_version", "data", "prompts", "max_new_tokens")
STAGES: Mapping[str, Callable[[Record], float | None]] = {
    "llm_prefill": lambda record: record["time"]["llm_prefill"] if record.get("time") else None,
    "first_token": lambda record: record["time"]["prefill"] if record.get("time") else None,
    "decode_per_token": lambda record: (record.get("forced_decode") or {}).get("per_token"),
}


@dataclass(frozen=True)
class Comparison:
    """One side against the reference, on one task, one group of tasks, or all of them.

    Attributes
    ----------
    scope
        A task's key, a group's name, or "overall".
    samples
        That both answered.
    truncated
        Of those, how many whose audio either side cut short.
    score, reference_score
        Headline scores on those samples; of several tasks their mean.
    p_adjusted
        Holm's, over all rows of the same kind (tasks, groups, overall).
    mcnemar
        p of the exact test, where every sample is a cluster of its own and replies are right or wrong.
    speed_ups
        By stage of :data:`STAGES`: `measured` (median of reference ÷ side, above 1 is faster) and `interval`; None
        where the times cannot be compared.
    """

    scope: str
    side: str
    samples: int
    truncated: int
    score: float
    reference_score: float
    verdict: Verdict
    p_adjusted: float
    mcnemar: float | None
    speed_ups: Mapping[str, Mapping[str, Any] | None]


def compare(sides: Sequence[Side], reference: Side, *, seed: int = 42) -> list[Comparison]:
    """Compare each side with the reference, per task, per group of tasks, and overall.

    The overall row and those of groups average over the tasks that both sides have.

    Raises
    ------
    RecordError
        When a side answered other questions, on other data or under another token limit, or no sample that the
        reference did.
    """
    several = len({side.checkpoint for side in sides}) > 1
    found: list[Comparison] = []
    for side in sides:
        if side is not reference:
            found += _against(side, reference, side.name(with_checkpoint=several), seed)
    for of_kind in (lambda scope: scope == OVERALL, lambda scope: scope in GROUPS, _is_task):
        places = [index for index, row in enumerate(found) if of_kind(row.scope)]
        adjusted = holm([found[index].verdict.p for index in places])
        for index, p in zip(places, adjusted, strict=True):
            found[index] = replace(found[index], p_adjusted=p)
    return found


def _is_task(scope: str) -> bool:
    return scope != OVERALL and scope not in GROUPS


def _against(side: Side, reference: Side, name: str, seed: int) -> list[Comparison]:
    tasks = [_Shared.of(side, reference, key) for key in side.runs if key in reference.runs]
    if not tasks:
        raise RecordError(
            f"{name} and {reference.method} share no task: {', '.join(side.runs)} and {', '.join(reference.runs)}"
        )
    scopes = {shared.task.key: [shared] for shared in tasks}
    groups: dict[str, list[_Shared]] = {}
    for shared in tasks:
        groups.setdefault(shared.task.group, []).append(shared)
    if len(groups) > 1:  # else the group's row is the overall one
        scopes |= {group: members for group, members in groups.items() if len(members) > 1}
    if len(tasks) > 1:
        scopes[OVERALL] = tasks
    return [_row(scope, name, members, seed) for scope, members in scopes.items()]


def _row(scope: str, name: str, members: Sequence[_Shared], seed: int) -> Comparison:
    verdict = judge([one.pair for one in members], seed=seed)
    reference = sum(one.reference_score for one in members) / len(members)
    return Comparison(
        scope=scope,
        side=name,
        samples=sum(len(one.own) for one in members),
        truncated=sum(
            bool(a.get("truncated") or b.get("truncated"))
            for one in members
            for a, b in zip(one.own, one.other, strict=True)
        ),
        score=reference + verdict.difference,
        reference_score=reference,
        verdict=verdict,
        p_adjusted=verdict.p,
        mcnemar=members[0].mcnemar if len(members) == 1 else None,
        speed_ups={stage: _speed_up(members, of, seed) for stage, of in STAGES.items()},
    )


def _speed_up(members: Sequence[_Shared], of: Callable[[Record], float | None], seed: int) -> Mapping[str, Any] | None:
    if not all(one.same_machine for one in members):
        return None
    rows = [
        (of(other), of(own), f"{one.task.key}:{own['cluster']}")
        for one in members
        for own, other in zip(one.own, one.other, strict=True)
    ]
    return median_ratio(rows, seed=seed)


@dataclass(frozen=True)
class _Shared:
    """What two sides share of one task: the records of the samples that both answered, in the same order."""

    task: Task
    own: list[Record]
    other: list[Record]
    same_machine: bool

    @classmethod
    def of(cls, side: Side, reference: Side, key: str) -> _Shared:
        run, base = side.runs[key], reference.runs[key]
        mine, theirs = run.facts.get("identity") or {}, base.facts.get("identity") or {}
        if differing := [name for name in _SAME_QUESTION if mine.get(name) != theirs.get(name)]:
            shown = ", ".join(f"{name} {mine.get(name)} and {theirs.get(name)}" for name in differing)
            raise RecordError(
                f"{side.folders[key]} and {reference.folders[key]} cannot be compared: "
                f"they were not asked the same ({shown})"
            )
        both = sorted(paired(run, base), key=lambda pair: str(pair[1]["id"]))
        if not both:
            raise RecordError(f"{side.folders[key]} and {reference.folders[key]} share no answered sample")
        device = mine.get("device")
        return cls(
            get_task(key),
            [own for _, own in both],
            [theirs for theirs, _ in both],
            device is not None and device == theirs.get("device") and _sharing(run) == _sharing(base),
        )

    def _sums(self, records: Sequence[Record]) -> Sums:
        sums = self.task.sums(records)
        if sums is None:
            raise RecordError(
                f"{self.task.key}: this task does not say how its score adds up, so it cannot be compared"
            )
        return sums

    @cached_property
    def _figure(self) -> str:
        return "score" if self.task.headline == "wer" else self.task.headline

    @cached_property
    def pair(self) -> Pair:
        clusters = [str(record["cluster"]) for record in self.own]
        return Pair.of(self._sums(self.own), self._sums(self.other), clusters, self._figure)

    @property
    def reference_score(self) -> float:
        sums = self._sums(self.other)
        return float(sums.statistic(sums.columns.sum(axis=0, keepdims=True))[0, sums.names.index(self._figure)])

    @property
    def mcnemar(self) -> float | None:
        if self.pair.clusters < len(self.own) or not all("correct" in record for record in (*self.own, *self.other)):
            return None
        return mcnemar([bool(r["correct"]) for r in self.own], [bool(r["correct"]) for r in self.other])


def _sharing(run: Run) -> set[int]:
    """Return how many of Ray's workers shared a GPU, or a machine's cores, while the run was timed."""
    return {one.get("workers_sharing", 1) for one in run.facts.get("sessions", []) if one.get("samples") != 0}


def widest(rows: Iterable[Comparison]) -> list[Comparison]:
    """Return one row a side: over all tasks where it has several, else its one task's."""
    found: dict[str, Comparison] = {}
    for row in rows:
        if row.side not in found or row.scope == OVERALL:
            found[row.side] = row
    return list(found.values())


def best_at(
    rows: Iterable[Comparison], *, latency: float | None = None, score: float | None = None
) -> Comparison | None:
    """Answer what users ask of a comparison, from its widest rows; None when no side will do.

    Parameters
    ----------
    latency
        The best score among the sides that reach the first token in at most this share of the reference's time.
    score
        The fastest to the first token among the sides with at least this share of the reference's score.
    """
    fit = [(row, row.speed_ups["first_token"]) for row in rows]
    timed = [(row, float(speed["measured"])) for row, speed in fit if speed and speed["measured"]]
    if latency is not None:
        quick = [(row, speed) for row, speed in timed if 1 / speed <= latency]
        return max(quick, key=lambda one: (one[0].score, one[1]), default=(None, 0.0))[0]
    assert score is not None, "ask for a latency or for a score"
    good = [(row, speed) for row, speed in timed if row.score >= score * row.reference_score]
    return max(good, key=lambda one: (one[1], one[0].score), default=(None, 0.0))[0]
