"""Compare systems on the samples that both answered: scores, tests and speed-ups, per task and overall.

A system is one method on one model. Each sample of a system is paired with the reference's; intervals and tests treat
a cluster of samples (such as questions about one clip) as one unit (`metrics/paired.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from audiomarathon.benchmarks.registry import weights_of
from audiomarathon.errors import RecordError, SettingsError
from audiomarathon.metrics.betting import Decision, corrected
from audiomarathon.metrics.paired import Drawn, PairedResult, holm, judge
from audiomarathon.results.pairs import AS_BASE, STAGES, Pairs, gains, mean_scores, throughput
from audiomarathon.results.scopes import kind_of, scopes_of
from audiomarathon.results.systems import System, find_reference
from audiomarathon.runs.read import uncollected


@dataclass(frozen=True)
class Comparison:
    """A system (a method on a model) compared with the reference, on one task, a group of tasks, or all tasks.

    Attributes
    ----------
    scope
        A task's key, a group's name, or "overall".
    side
        The system's name.
    tasks
        Keys of the tasks in the scope.
    samples
        Number of samples that both answered.
    truncated, unparsed, cut
        Number of these samples whose audio was truncated for the system or the reference; whose reply by the system
        could not be parsed; whose reply by the system was cut by the token limit.
    timed
        Number of these samples with comparable times.
    score, reference_score
        Headline scores of system and reference on these samples, averaged over tasks; None if a task has no score.
    verdict
        The paired test: difference in score, its interval and p.
    p_adjusted
        p after Holm's correction over all rows of the same kind (tasks, groups, overall).
    mcnemar
        p of McNemar's exact test; None unless the row is one task, every sample is a separate cluster, and every reply
        is right or wrong.
    speed_ups
        For each stage of :data:`STAGES`, the reference's time ÷ the system's (above 1, the system is faster) and its
        ideal, as :func:`~audiomarathon.results.pairs.gains` returns them; None without comparable times.
    untimed
        Why speed-ups (of decode, or of all stages) are missing; "" if none is missing.
    clusters
        Number of clusters of the task that has the fewest.
    alike
        "= base" if the replies must be equal to the reference's, since the method acts only after the only token of a
        reply is chosen; "same replies" if they happen to be equal; else "".
    throughput
        Samples per second of both sides, as :func:`~audiomarathon.results.pairs.throughput` returns them; None without
        comparable batches.
    unbatched
        Why samples per second are missing although both sides ran in batches; "" if they are not missing.
    decision
        Result of the test of a margin (an allowed loss of score); None without a margin, and for means over tasks.
    across, busy
        Whether times come from different sessions, and whether the machine was busy when they were taken.
    """

    scope: str
    side: str
    tasks: tuple[str, ...]
    samples: int
    truncated: int
    unparsed: int
    cut: int
    timed: int
    score: float | None
    reference_score: float | None
    verdict: PairedResult
    p_adjusted: float | None
    mcnemar: float | None
    speed_ups: Mapping[str, Mapping[str, Any] | None]
    untimed: str
    clusters: int = 0
    alike: str = ""
    across: bool = False
    busy: bool = False
    throughput: Mapping[str, float] | None = None
    unbatched: str = ""
    decision: Decision | None = None


def is_clear(row: Comparison) -> bool:
    """Tell whether a system's score differs significantly from the reference's (p < 0.05 after Holm's correction)."""
    return row.p_adjusted is not None and row.p_adjusted < 0.05


@dataclass(frozen=True)
class LeftOut:
    """A system that was not compared, on one task or on any, and the reason.

    Attributes
    ----------
    side
        The system's name.
    task
        The task's key; None or "" if the system was left out on all tasks.
    why
        The reason.
    """

    side: str
    task: str | None
    why: str


@dataclass(frozen=True)
class Compared:
    """All systems compared with a reference.

    Attributes
    ----------
    reference
        The reference's name.
    shared
        The samples of each system paired with the reference's, as {system: {task: pairs}}.
    rows
        The comparisons: for each system, one per task, per group of tasks, and overall.
    left_out
        Systems, tasks and samples that could not be compared.
    seed
        Seed of intervals and tests.
    controls
        Names of the systems that heard control audio (silence or noise in place of the clips).
    """

    reference: str
    shared: Mapping[str, Mapping[str, Pairs]]
    rows: Sequence[Comparison]
    left_out: Sequence[LeftOut]
    seed: int
    controls: frozenset[str]


@uncollected()
def compare(
    systems: Sequence[System],
    reference: System,
    *,
    seed: int = 42,
    more: Mapping[str, Sequence[str]] | None = None,
    stages: Collection[str] = STAGES,
    margins: Mapping[str, float] | None = None,
) -> Compared:
    """Compare each system with the reference, per task, per group of tasks, and overall.

    Overall and group rows average over the tasks that both systems ran. Systems and tasks that cannot be compared
    are left out, with the reason.

    Parameters
    ----------
    more
        Additional means over tasks, as {name of the mean: its tasks}. Only systems that ran all its tasks get the mean.
    stages
        Stages to compute speed-ups of.
    margins
        Allowed losses of score to test, as {task: margin}; the key "" is for all other tasks.

    Raises
    ------
    RecordError
        When nothing can be compared.
    """
    several = len({system.checkpoint for system in systems}) > 1
    name = reference.name(with_checkpoint=several)
    others = {system.name(with_checkpoint=several): system for system in systems if system is not reference}
    shared: dict[str, dict[str, Pairs]] = {}
    left_out = _unanswered(name, reference)
    for other, system in others.items():
        left_out += _unanswered(other, system)
    for other, system in others.items():
        pairs, without = _in_common(other, system, reference, name)
        left_out += without
        if pairs:
            shared[other] = pairs
    if not shared:
        raise RecordError(f"nothing can be compared with {name} ({'; '.join(lines_by_reason(left_out))})")
    rows = _adjusted([row for other, tasks in shared.items() for row in _rows(other, tasks, seed, more or {}, stages)])
    controls = frozenset(other for other, system in others.items() if system.control)
    rows = _decided(rows, {other: tasks for other, tasks in shared.items() if other not in controls}, margins or {})
    return Compared(name, shared, rows, left_out, seed, controls)


def compare_with(
    systems: Sequence[System], name: str | None, *, seed: int = 42, margins: Mapping[str, float] | None = None
) -> Compared:
    """Compare all systems with the one called `name`; without a name, with base (no compression), else with the first.

    Raises
    ------
    SettingsError
        When no system has that name, or there is only one system.
    RecordError
        When nothing can be compared.
    """
    reference = find_reference(systems, name)
    check_margins(margins or {}, systems)
    if len(systems) == 1:
        raise SettingsError(f"found only {reference.method}: compare needs at least two settings")
    return compare(systems, reference, seed=seed, margins=margins)


def check_margins(margins: Mapping[str, float], systems: Sequence[System]) -> None:
    """Raise an error if a margin (an allowed loss of score) is set for a task that no system ran.

    Raises
    ------
    SettingsError
        No system ran a named task; the message names the tasks that were run.
    """
    keys = sorted({key for system in systems for key in system.runs})
    if unknown := [task for task in margins if task and task not in keys]:
        raise SettingsError(f"--margin: no run of {', '.join(unknown)} here; allowed: {', '.join(keys)}")


_FEW = 3  # this many settings are always listed


def lines_by_reason(left_out: Iterable[LeftOut], every: Collection[str] = ()) -> list[str]:
    """Return one line per reason: the systems and tasks that were left out for this reason, then the reason.

    If a line would name all systems in `every`, and these are more than three, it says "all 11 settings" instead.
    """
    by_reason: dict[str, dict[str, list[str]]] = {}
    for omission in left_out:
        by_reason.setdefault(omission.why, {}).setdefault(omission.side, []).extend(
            [omission.task] if omission.task else []
        )
    lines = []
    for why, by_side in by_reason.items():
        by_tasks: dict[str, list[str]] = {}
        for side, tasks in by_side.items():
            by_tasks.setdefault(", ".join(tasks), []).append(side)
        said = {tasks: ", ".join(names) for tasks, names in by_tasks.items()}
        if len({*every}) > _FEW:
            said |= {
                tasks: f"all {len({*names})} settings" for tasks, names in by_tasks.items() if {*names} >= {*every}
            }
        where = "; ".join(names + (f" in {tasks}" if tasks else "") for tasks, names in said.items())
        lines.append(f"{where}: {why}")
    return lines


def _unanswered(name: str, system: System) -> list[LeftOut]:
    """Return a note for each task on which a system has failed or missing samples, with the number of these samples."""
    lacking = {key: run.expected - len(run.records) for key, run in system.runs.items()}
    return [
        LeftOut(name, key, f"{count:,} of {system.runs[key].expected:,} samples failed or not run yet")
        for key, count in lacking.items()
        if count
    ]


def _in_common(name: str, system: System, base: System, of_base: str) -> tuple[dict[str, Pairs], list[LeftOut]]:
    """Pair a system's samples with the reference's.

    Parameters
    ----------
    base, of_base
        The reference, and its name for messages.

    Returns
    -------
    dict
        The pairs, by task.
    list
        The tasks and samples that have no pair, with the reason.
    """
    shared: dict[str, Pairs] = {}
    left_out: list[LeftOut] = []
    for key, run in system.runs.items():
        if key not in base.runs:
            left_out.append(LeftOut(name, key, f"{of_base} was not run on this task"))
            continue
        try:
            shared[key] = Pairs.of(run, base.runs[key])
        except (RecordError, SettingsError) as error:
            left_out.append(LeftOut(name, key, str(error)))
        else:
            left_out += [LeftOut(name, key, f"{count:,} {why}") for why, count in shared[key].lost.items()]
    return shared, left_out


def _rows(
    name: str,
    tasks: Mapping[str, Pairs],
    seed: int,
    more: Mapping[str, Sequence[str]],
    stages: Collection[str],
) -> list[Comparison]:
    """Return the comparisons of a system with the reference: on each task, each group of several tasks, and overall.

    Parameters
    ----------
    tasks
        The pairs of samples, by task.
    more
        Additional means over tasks, as {name of the mean: its tasks}.
    stages
        Stages whose speed-up is computed.
    """
    known = {scope: list(keys) for scope, keys in more.items() if all(key in tasks for key in keys)}
    scopes = {key: [key] for key in tasks} | scopes_of(tasks) | known
    draws = {key: pairs.drawn(seed) for key, pairs in tasks.items()}
    verdicts = {scope: weighed({key: draws[key] for key in keys}, seed) for scope, keys in scopes.items()}
    return [
        row_of(scope, name, [tasks[key] for key in keys], verdicts[scope], seed, stages)
        for scope, keys in scopes.items()
    ]


def weighed(draws: Mapping[str, Drawn], seed: int) -> PairedResult:
    """Return the result of the paired test of the mean over tasks: does a system differ from the reference?

    `draws` holds, for each task, the differences in random resamples and after random swaps. The benchmark gives the
    tasks' weights in the mean.
    """
    weights = weights_of(list(draws))
    return judge([drawn.scaled(weight) for drawn, weight in zip(draws.values(), weights, strict=True)], seed)


def row_of(
    scope: str,
    name: str,
    members: Sequence[Pairs],
    verdict: PairedResult,
    seed: int,
    stages: Collection[str] = STAGES,
) -> Comparison:
    """Make the :class:`Comparison` of the system `name` with the reference, from its samples and the paired test.

    Parameters
    ----------
    members
        The samples paired with the reference's, one :class:`Pairs` per task.
    verdict
        Result of the paired test.
    """
    score, reference_score = mean_scores(members)
    return Comparison(
        scope=scope,
        side=name,
        tasks=tuple(pairs.task.key for pairs in members),
        samples=sum(len(pairs.pairs) for pairs in members),
        truncated=sum(pairs.truncated for pairs in members),
        unparsed=sum(pairs.unparsed for pairs in members),
        cut=sum(pairs.cut for pairs in members),
        timed=sum(len(pairs.timed) for pairs in members),
        score=score,
        reference_score=reference_score,
        verdict=verdict,
        p_adjusted=verdict.p,
        mcnemar=members[0].mcnemar if len(members) == 1 else None,
        speed_ups={stage: gains(members, stage, seed) if stage in stages else None for stage in STAGES},
        untimed="; ".join(
            dict.fromkeys(pairs.untimed or pairs.undecoded for pairs in members if pairs.untimed or pairs.undecoded)
        ),
        clusters=min(pairs.pair.clusters for pairs in members),
        alike=_alike([pairs.alike for pairs in members]),
        across=any(pairs.across for pairs in members),
        busy=any(pairs.timed and pairs.busy for pairs in members),
        throughput=throughput(members),
        unbatched="; ".join(dict.fromkeys(pairs.unbatched for pairs in members if pairs.unbatched)),
    )


def _alike(members: Sequence[str]) -> str:
    """Merge the :attr:`Pairs.alike` of several tasks, which tells whether replies equal the reference's.

    Return "" if a reply differs on a task, "= base" if replies must be equal on all tasks, else "same replies".
    """
    return "" if "" in members else next((text for text in members if text != AS_BASE), AS_BASE)


def _adjusted(rows: Sequence[Comparison]) -> list[Comparison]:
    """Return the comparisons with their p values corrected by Holm, separately for tasks, groups, and overall rows."""
    adjusted = holm_within([(kind_of(row.scope, row.tasks), row.verdict.p) for row in rows])
    return [replace(row, p_adjusted=p) for row, p in zip(rows, adjusted, strict=True)]


def _decided(
    rows: Sequence[Comparison], shared: Mapping[str, Mapping[str, Pairs]], margins: Mapping[str, float]
) -> list[Comparison]:
    """Return copies of the comparisons, each with the result of testing its task's margin (an allowed loss of score).

    p values are corrected for the number of tests, over systems and tasks.
    """
    asked = {
        place: (shared[row.side][row.scope], margin)
        for place, row in enumerate(rows)
        if len(row.tasks) == 1
        and row.side in shared
        and (margin := margins.get(row.scope, margins.get("")))
        and len(shared[row.side][row.scope].clustered.sizes)
    }
    corrections = corrected(
        [pairs.decided(margin) for pairs, margin in asked.values()], [pairs.worst for pairs, _ in asked.values()]
    )
    decisions = dict(zip(asked, corrections, strict=True))
    return [replace(row, decision=decisions.get(place)) for place, row in enumerate(rows)]


def holm_within(tests: Sequence[tuple[str | None, float | None]]) -> list[float | None]:
    """Correct p values by Holm's method, separately for each kind of test.

    Each test is (kind, p). Return the corrected p values in the same order; None for a test without a kind or p.
    """
    corrected_ps: list[float | None] = [None] * len(tests)
    for kind in {kind for kind, _ in tests} - {None}:
        known = {place: p for place, (test_kind, p) in enumerate(tests) if test_kind == kind and p is not None}
        for place, adjusted in zip(known, holm(list(known.values())), strict=True):
            corrected_ps[place] = adjusted
    return corrected_ps
