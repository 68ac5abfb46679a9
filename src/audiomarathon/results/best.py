"""Find the best-scoring system within a limit on latency, or the fastest one that reaches a score.

A system is a model with a method. All systems and the reference are ranked on the same samples of the same tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from audiomarathon.metrics.betting import MOST_PLANNED, OPEN, POWER, WORSE
from audiomarathon.results.compare import Compared, Comparison, LeftOut, row_of, weighed
from audiomarathon.results.pairs import AS_BASE, Pairs, mean_scores, speed_up_alone

SETTLE = "more samples, timed beside base on a quiet machine, would settle it"
"""Advice to print after the doubts that :meth:`Ranking.doubts` returns."""

Ids = Mapping[str, frozenset[str]]


@dataclass(frozen=True)
class Ranked:
    """A system (a model with a method) in a ranking, with its score and its speed-up.

    The speed-up is the reference's time to first token ÷ the system's; above 1, the system is faster.
    """

    name: str
    score: float
    speed: float

    @property
    def is_random(self) -> bool:
        """Whether the method is the control `random`, which drops random tokens; any method should beat it."""
        return any(word.startswith("random-") for word in self.name.split())


@dataclass(frozen=True)
class Ranking:
    """The systems that can be ranked fairly, and the samples they are ranked on.

    Attributes
    ----------
    ids
        Ids of the samples used, as {task: ids}: all ranked systems answered them, with times comparable to the
        reference's.
    candidates
        The ranked systems; the reference comes first.
    left_out
        Systems or tasks that cannot be ranked, with the reason.
    """

    ids: Ids
    candidates: Sequence[Ranked]
    left_out: Sequence[LeftOut]
    _compared: Compared = field(repr=False)

    @property
    def samples(self) -> int:
        """Number of samples on which the systems are ranked."""
        return sum(len(ids) for ids in self.ids.values())

    @property
    def reference(self) -> str:
        """Name of the system that the others are compared with."""
        return self._compared.reference

    def best(self, *, latency: float | None = None, score: float | None = None, random: bool = True) -> Ranked | None:
        """Return the best system that meets one condition (`latency` or `score`); None if no system does.

        Parameters
        ----------
        latency
            Choose the highest score among systems that take at most this share of the reference's time to first token.
        score
            Choose the fastest system that reaches at least this share of the reference's score.
        random
            Whether the control `random` may win.
        """
        allowed = [candidate for candidate in self.candidates if random or not candidate.is_random]
        if latency is not None:
            quick = [candidate for candidate in allowed if 1 / candidate.speed <= latency]
            return max(quick, key=lambda candidate: (candidate.score, candidate.speed), default=None)
        assert score is not None, "give latency or score"
        least = (self.candidates[0].score if self.candidates else 0.0) * score
        good = [candidate for candidate in allowed if candidate.score >= least - 1e-12]
        return max(good, key=lambda candidate: (candidate.speed, candidate.score), default=None)

    def faster(self, points: float) -> list[Ranked]:
        """Return the systems that are faster than the reference and score at most `points` lower, fastest first.

        On a scale from 0 to 1, 0.01 is one point.
        """
        least = (self.candidates[0].score if self.candidates else 0.0) - points - 1e-12
        good = [
            candidate for candidate in self.candidates[1:] if candidate.score >= least and round(candidate.speed, 2) > 1
        ]  # as printed
        return sorted(good, key=lambda candidate: (-candidate.speed, -candidate.score))

    def doubts(self, candidate: Ranked, points: float | None = None) -> list[str]:
        """Return the reasons why the samples do not show that a system is faster than the reference and as good.

        [] if nothing is doubtful. If margins (allowed losses of score) are tested, each of the ranking's tasks must
        have the verdict "no worse".

        Parameters
        ----------
        points
            The largest allowed loss of score, which the interval must rule out; None allows any loss.
        """
        if (row := self.row(candidate)) is None:
            return []
        speed, loss = (row.speed_ups["first_token"] or {}).get("interval"), row.verdict.interval
        doubts = {
            "its times come from another session than base's": row.across,
            "the machine was busy": row.busy,
            "the speed-up has no interval": speed is None,
            "the speed-up's interval includes 1": speed is not None and speed[0] <= 1,
        }
        if points is not None and row.alike != AS_BASE:  # such a reply cannot differ from base's
            doubts["the score has no interval"] = loss is None
            doubts["the score's interval allows a larger loss"] = loss is not None and loss[0] < -points - 1e-12
        return [*(why for why, holds in doubts.items() if holds), *self._undecided(candidate)]

    def _undecided(self, candidate: Ranked) -> list[str]:
        """Return the tasks' reasons why a system is not known to be no worse than the reference.

        A reason is that the test of a margin (allowed loss of score) is undecided or lost, or that no margin is set. []
        if all tests find it no worse, or if no margins are tested.
        """
        rows = {row.scope: row for row in self._compared.rows if row.side == candidate.name and len(row.tasks) == 1}
        if all(row.decision is None for row in self._compared.rows):
            return []
        whys = []
        for task in self.ids:
            if (decision := rows[task].decision) is None:
                whys.append(f"no margin is set for {task}")
            elif decision.verdict == WORSE:
                whys.append(f"it is worse by more than {decision.margin:g} in {task}")
            elif decision.verdict == OPEN:
                needed = self._compared.shared[candidate.name][task].to_settle(decision, self._compared.seed)
                count = f"{needed[1]:,} samples like these" if needed else f"no {MOST_PLANNED:,} clusters like these"
                whys.append(
                    f"{task} does not decide whether it loses more than {decision.margin:g} ("
                    f"{decision.samples:,} samples; {count} would settle it in {POWER:.0%} of cases)"
                )
        return whys

    def row(self, candidate: Ranked) -> Comparison | None:
        """Return the :class:`Comparison` of a system with the reference, on the samples that all ranked systems
        answered.

        None for the reference itself.
        """
        if candidate.name == self._compared.reference:
            return None
        members = _members(self._compared.shared[candidate.name], self.ids)
        seed, shared = self._compared.seed, self._compared.shared[candidate.name]
        if all(pairs is shared[task] for pairs, task in zip(members, self.ids, strict=True)):  # the row has all samples
            for row in self._compared.rows:
                if row.side == candidate.name and row.tasks == tuple(self.ids):
                    return replace(row, scope="answer", p_adjusted=row.verdict.p, decision=None)
        verdict = weighed({pairs.task.key: pairs.drawn(seed) for pairs in members}, seed)
        return row_of("answer", candidate.name, members, verdict, seed)


def ranking_of(compared: Compared) -> Ranking:
    """Rank the systems that can be ranked on the same samples of the same tasks.

    First choose tasks: the set with the largest product of the number of its tasks and the number of systems that have
    times for all of them (if equal: more tasks, then by name). Then choose systems: those with the largest product of
    the number of common samples and the number of systems. So a few incomplete systems do not shrink the ranking.
    """
    timed = {
        name: {key: frozenset(record.id for _, record in pairs.timed) for key, pairs in shared.items() if pairs.timed}
        for name, shared in compared.shared.items()
        if name not in compared.controls
    }
    left_out = [LeftOut(name, None, "heard control audio, not the real clips") for name in sorted(compared.controls)]
    tasks = _common_tasks([frozenset(task_ids) for task_ids in timed.values() if task_ids])
    whole: dict[str, Ids] = {}
    for name, by_task in timed.items():
        shared = compared.shared[name]
        if lacking := [task for task in tasks or shared if task not in by_task]:
            left_out += [LeftOut(name, task, shared[task].untimed if task in shared else "not run") for task in lacking]
        else:
            whole[name] = {task: by_task[task] for task in tasks}
    ids, chosen = _common_samples(whole)
    few = "few or no timed samples shared with the others"
    left_out += [LeftOut(name, None, few) for name in whole if name not in chosen]
    others = sorted({task for shared in compared.shared.values() for task in shared} - set(tasks))
    left_out += [LeftOut(f"task {task}", None, "not timed for all ranked settings") for task in others if tasks]
    return Ranking(ids, _ranked(compared, ids, chosen), left_out, compared)


def _common_tasks(sets: Sequence[frozenset[str]]) -> list[str]:
    """Return the set of tasks that maximises (number of its tasks) × (number of systems that have all of them).

    Parameters
    ----------
    sets
        The tasks of each system.
    """
    closed: set[frozenset[str]] = set()
    for tasks in sets:  # all intersections of the systems' task sets
        closed |= {tasks, *(tasks & other for other in closed)}
    order = sorted(closed - {frozenset()}, key=sorted)
    best = max(
        order,
        key=lambda tasks: (len(tasks) * sum(tasks <= timed_tasks for timed_tasks in sets), len(tasks)),
        default=(),
    )
    return sorted(best)


def _common_samples(sides: Mapping[str, Ids]) -> tuple[Ids, list[str]]:
    """Choose systems so that the number of samples that all answered, times the number of systems, is large.

    Parameters
    ----------
    sides
        The samples of each system, as {system: {task: ids}}.

    Returns
    -------
    dict
        Ids of the samples that all chosen systems answered, by task.
    list
        Names of the chosen systems.
    """
    largest = (0, 0)
    common: dict[str, frozenset[str]] = {}
    ids: Ids = {}
    names: list[str] = []
    chosen: list[str] = []
    for name in sorted(sides, key=lambda name: -sum(map(len, sides[name].values()))):
        both = {task: common.get(task, sample_ids) & sample_ids for task, sample_ids in sides[name].items()}
        if not all(both.values()):
            continue
        common, names = both, [*names, name]
        size = sum(map(len, both.values())) * len(names), len(names)
        if size >= largest:
            largest, ids, chosen = size, both, names
    return ids, [name for name in sides if name in chosen]


def _ranked(compared: Compared, ids: Ids, chosen: Sequence[str]) -> list[Ranked]:
    """Return a list of :class:`Ranked`: the reference, then the chosen systems, with score and speed-up on the samples
    `ids`.
    """
    ranked: list[Ranked] = []
    for name in chosen:
        members = _members(compared.shared[name], ids)
        (score, reference_score), speed = mean_scores(members), speed_up_alone(members, "first_token")
        if score is None or reference_score is None or speed is None:
            continue
        if not ranked:
            ranked.append(Ranked(compared.reference, reference_score, 1.0))
        ranked.append(Ranked(name, score, speed))
    return ranked


def _members(shared: Mapping[str, Pairs], ids: Ids) -> list[Pairs]:
    """Return a list with one :class:`Pairs` per task: a system's samples paired with the reference's, only those in
    `ids`.
    """
    return [shared[task].only(of_task) for task, of_task in ids.items()]
