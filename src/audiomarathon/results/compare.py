"""Comparing settings or models on the samples that both answered: scores, tests, speed-ups, per task and overall.

Every difference is paired on samples; its interval and its test work on whole clusters (`metrics/paired.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from audiomarathon.errors import RecordError, SettingsError
from audiomarathon.metrics.paired import DRAWS, Drawn, Verdict, holm, judge
from audiomarathon.results.savings import STAGES
from audiomarathon.results.shared import Shared, mean_scores, speed_up
from audiomarathon.results.systems import Side
from audiomarathon.runs.read import Run
from audiomarathon.tasks.registry import GROUPS

OVERALL = "overall"
ENOUGH = 10  # of DRAWS swaps reach as far as the difference: p is known, and only a smaller one takes more swaps
SWAPS_A_ROW = 50  # p is never below 1 in the swaps: fewer, and Holm's could not fall below 0.05 in a long table


@dataclass(frozen=True)
class Comparison:
    """One side against the reference, on one task, one group of tasks, or all of them.

    Attributes
    ----------
    scope
        A task's key, a group's name, or "overall".
    tasks
        Their keys.
    samples
        That both answered.
    truncated
        Of those, how many whose audio either side cut short.
    timed
        Of those, how many whose times are set side by side.
    score, reference_score
        Headline scores on those samples, of several tasks their mean; None where one has no value.
    p_adjusted
        Holm's, over all rows of the same kind (tasks, groups, overall).
    mcnemar
        p of the exact test, where every sample is a cluster of its own and replies are right or wrong.
    speed_ups
        By stage of :data:`STAGES`: `measured` (median of reference ÷ side, above 1 is faster) and `interval`; None
        where there are no times that can be compared.
    untimed
        Why speed-ups are withheld, of all stages or of decode; "" where they are not.
    """

    scope: str
    side: str
    tasks: tuple[str, ...]
    samples: int
    truncated: int
    timed: int
    score: float | None
    reference_score: float | None
    verdict: Verdict
    p_adjusted: float | None
    mcnemar: float | None
    speed_ups: Mapping[str, Mapping[str, Any] | None]
    untimed: str


@dataclass(frozen=True)
class LeftOut:
    """A side, or one task of it, that could not be compared, and why."""

    side: str
    task: str | None
    why: str


@dataclass(frozen=True)
class Compared:
    """All sides against one.

    Attributes
    ----------
    reference
        What the side that all others are compared with is called.
    shared
        What each other side has in common with it, by name and task.
    seed
        Of intervals and tests.
    controls
        Names of the sides that heard a control's audio.
    """

    reference: str
    shared: Mapping[str, Mapping[str, Shared]]
    rows: Sequence[Comparison]
    left_out: Sequence[LeftOut]
    seed: int
    controls: frozenset[str]


def compare(sides: Sequence[Side], reference: Side, *, seed: int = 42, across_sessions: bool = False) -> Compared:
    """Compare each side with the reference, per task, per group of tasks, and overall.

    The overall row and those of groups average over the tasks that both sides have. What cannot be compared is left
    out, with the reason.

    Parameters
    ----------
    across_sessions
        Set times of different sessions side by side too; without, only those of one session, as a sweep takes them.

    Raises
    ------
    RecordError
        When nothing can be compared.
    """
    several = len({side.checkpoint for side in sides}) > 1
    # All that it ever answered: a later, smaller run of it takes nothing from the others.
    whole = {task: Run.read(folder, selected=False) for task, folder in reference.folders.items()}
    name, base = reference.name(with_checkpoint=several), replace(reference, runs=whole)
    others = {side.name(with_checkpoint=several): side for side in sides if side is not reference}
    shared: dict[str, dict[str, Shared]] = {}
    left_out: list[LeftOut] = []
    for other, side in [(name, base), *others.items()]:
        left_out += _unanswered(other, side)
    for other, side in others.items():
        found, without = _in_common(other, side, base, name, across_sessions)
        left_out += without
        if found:
            shared[other] = found
    if not shared:
        raise RecordError(f"nothing can be compared with {name}: {'; '.join(told(left_out))}")
    swaps = max(DRAWS, SWAPS_A_ROW * sum(map(len, shared.values())))
    rows = _adjusted([row for other, tasks in shared.items() for row in _rows(other, tasks, seed, swaps)])
    controls = frozenset(other for other, side in others.items() if side.control)
    return Compared(name, shared, rows, left_out, seed, controls)


def told(left_out: Iterable[LeftOut]) -> list[str]:
    """Return a line for each reason, with the sides and tasks that it keeps out."""
    by_reason: dict[str, dict[str, list[str]]] = {}
    for one in left_out:
        by_reason.setdefault(one.why, {}).setdefault(one.side, []).extend([one.task] if one.task else [])
    lines = []
    for why, by_side in by_reason.items():
        by_tasks: dict[str, list[str]] = {}
        for side, tasks in by_side.items():
            by_tasks.setdefault(", ".join(tasks), []).append(side)
        where = "; ".join(", ".join(names) + (f" in {tasks}" if tasks else "") for tasks, names in by_tasks.items())
        lines.append(f"{where}: {why}")
    return lines


def _unanswered(name: str, side: Side) -> list[LeftOut]:
    """Return how many samples that a side's last run of a task selected are errors, or not done yet."""
    wanted = {key: run.facts.get("samples", run.records) for key, run in side.runs.items()}
    lacking = {key: len(set(ids) - set(side.runs[key].records)) for key, ids in wanted.items()}
    return [
        LeftOut(name, key, f"{count:,} of {len(wanted[key]):,} samples, errors or not done yet")
        for key, count in lacking.items()
        if count
    ]


def _in_common(
    name: str, side: Side, base: Side, of_base: str, across_sessions: bool
) -> tuple[dict[str, Shared], list[LeftOut]]:
    """Return by task what a side shares with the reference, and what cannot be compared."""
    shared: dict[str, Shared] = {}
    left_out: list[LeftOut] = []
    for key in side.runs:
        if key not in base.runs:
            left_out.append(LeftOut(name, key, f"{of_base} did not run it"))
            continue
        try:
            shared[key] = Shared.of(side, base, key, across_sessions=across_sessions)
        except (RecordError, SettingsError) as error:
            left_out.append(LeftOut(name, key, str(error)))
    return shared, left_out


def _rows(name: str, tasks: Mapping[str, Shared], seed: int, swaps: int) -> list[Comparison]:
    """Return a side's row of each task, of each group of which it has several tasks, and of all tasks."""
    scopes = {key: [key] for key in tasks}
    groups: dict[str, list[str]] = {}
    for key, shared in tasks.items():
        groups.setdefault(shared.task.group, []).append(key)
    if len(groups) > 1:  # else the group's row is the overall one
        scopes |= {group: members for group, members in groups.items() if len(members) > 1}
    if len(tasks) > 1:
        scopes[OVERALL] = list(tasks)
    draws = {key: drawn(shared, seed, DRAWS) for key, shared in tasks.items()}
    more = functools.cache(lambda key: drawn(tasks[key], seed, swaps))
    rows = []
    for scope, keys in scopes.items():
        verdict = judge([draws[key] for key in keys])
        if swaps > DRAWS and verdict.p is not None and verdict.p * DRAWS < ENOUGH:
            verdict = judge([more(key) for key in keys])
        rows.append(row_of(scope, name, [tasks[key] for key in keys], verdict, seed))
    return rows


def drawn(shared: Shared, seed: int, swaps: int = DRAWS) -> Drawn:
    """Draw from a task's pair, in a stream of the task's own: what else is compared changes nothing."""
    return Drawn.of(shared.pair, np.random.default_rng([seed, *shared.task.key.encode()]), swaps=swaps)


def row_of(scope: str, name: str, members: Sequence[Shared], verdict: Verdict, seed: int) -> Comparison:
    """Return what a side's comparison with the reference on these tasks holds, its verdict given."""
    score, reference_score = mean_scores(members)
    return Comparison(
        scope=scope,
        side=name,
        tasks=tuple(one.task.key for one in members),
        samples=sum(len(one.pairs) for one in members),
        truncated=sum(one.truncated for one in members),
        timed=sum(len(one.timed) for one in members),
        score=score,
        reference_score=reference_score,
        verdict=verdict,
        p_adjusted=verdict.p,
        mcnemar=members[0].mcnemar if len(members) == 1 else None,
        speed_ups={stage: speed_up(members, stage, seed) for stage in STAGES},
        untimed="; ".join(
            dict.fromkeys(one.untimed or one.undecoded for one in members if one.untimed or one.undecoded)
        ),
    )


def _adjusted(rows: Sequence[Comparison]) -> list[Comparison]:
    """Return the rows with Holm's p, each kind of rows for itself."""
    found = list(rows)
    for kind in ("task", "group", OVERALL):
        places = [index for index, row in enumerate(found) if _kind(row.scope) == kind]
        known = [(index, p) for index in places if (p := found[index].verdict.p) is not None]
        for (index, _), p in zip(known, holm([p for _, p in known]), strict=True):
            found[index] = replace(found[index], p_adjusted=p)
    return found


def _kind(scope: str) -> str:
    return OVERALL if scope == OVERALL else "group" if scope in GROUPS else "task"
