"""What to choose: the best score within a latency, or the fastest within a score, of sides that are ranked fairly.

All are ranked on the same samples of the same tasks, the reference among them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from audiomarathon.results.compare import Compared, Comparison, LeftOut, row_of, weighed
from audiomarathon.results.pairs import Pairs, mean_scores, speed_up_alone

Ids = Mapping[str, frozenset[str]]


@dataclass(frozen=True)
class Candidate:
    """A side that can be ranked: its score, and how many times as fast as the reference it is to the first token."""

    name: str
    score: float
    speed: float

    @property
    def is_random(self) -> bool:
        """Whether it is the control that any method has to beat."""
        return any(word.startswith("random-") for word in self.name.split())


@dataclass(frozen=True)
class Field:
    """The sides that can be ranked, and on what.

    Attributes
    ----------
    ids
        By task the samples that all of them answered, and whose times can be set beside the reference's.
    candidates
        The reference is the first.
    left_out
        Sides, or tasks, that are not in it, and why.
    """

    ids: Ids
    candidates: Sequence[Candidate]
    left_out: Sequence[LeftOut]
    _compared: Compared = field(repr=False)

    @property
    def samples(self) -> int:
        """How many there are."""
        return sum(len(ids) for ids in self.ids.values())

    @property
    def reference(self) -> str:
        """What the reference is called."""
        return self._compared.reference

    def best(
        self,
        *,
        latency: float | None = None,
        score: float | None = None,
        points: float | None = None,
        random: bool = True,
        among: Collection[str] | None = None,
    ) -> Candidate | None:
        """Answer what users ask; None when no side will do.

        Parameters
        ----------
        latency
            The best score among the sides that reach the first token in at most this share of the reference's time.
        score
            The fastest to the first token among the sides with at least this share of the reference's score.
        points
            The same among the sides whose score is at most so much below the reference's.
        random
            Whether the control may win.
        among
            Names of those that may; None for all.
        """
        allowed = [
            one for one in self.candidates if (random or not one.is_random) and (among is None or one.name in among)
        ]
        if latency is not None:
            quick = [one for one in allowed if 1 / one.speed <= latency]
            return max(quick, key=lambda one: (one.score, one.speed), default=None)
        assert score is not None or points is not None, "ask for a latency, a score or points"
        least = (self.candidates[0].score if self.candidates else 0.0) * (score or 1.0) - (points or 0.0)
        good = [one for one in allowed if one.score >= least - 1e-12]
        return max(good, key=lambda one: (one.speed, one.score), default=None)

    def row(self, candidate: Candidate) -> Comparison | None:
        """Compare a candidate with the reference on these samples; None for the reference itself."""
        if candidate.name == self._compared.reference:
            return None
        members = _members(self._compared.shared[candidate.name], self.ids)
        verdict = weighed({one.task.key: one.drawn(self._compared.seed) for one in members})
        return row_of("answer", candidate.name, members, verdict, self._compared.seed)


def field_of(compared: Compared) -> Field:
    """Return the sides that can be ranked on the same samples of the same tasks.

    The tasks are those for which tasks × sides that have all of them is largest (of equals the most tasks, then the
    first by name). Of these sides, a few that answered little do not shrink the field for all: samples in common ×
    sides is made large in the same way.
    """
    timed = {
        name: {key: frozenset(own.id for _, own in one.timed) for key, one in shared.items() if one.timed}
        for name, shared in compared.shared.items()
        if name not in compared.controls
    }
    left_out = [LeftOut(name, None, "heard other audio") for name in sorted(compared.controls)]
    tasks = _common_tasks([frozenset(own) for own in timed.values() if own])
    whole: dict[str, Ids] = {}
    for name, own in timed.items():
        shared = compared.shared[name]
        if lacking := [task for task in tasks or shared if task not in own]:
            left_out += [LeftOut(name, task, shared[task].untimed if task in shared else "not run") for task in lacking]
        else:
            whole[name] = {task: own[task] for task in tasks}
    ids, chosen = _common_samples(whole)
    few = "few or no timed samples in common with the others"
    left_out += [LeftOut(name, None, few) for name in whole if name not in chosen]
    others = sorted({task for shared in compared.shared.values() for task in shared} - set(tasks))
    left_out += [
        LeftOut(f"task {task}", None, "not timed under all settings that are ranked") for task in others if tasks
    ]
    return Field(ids, _candidates(compared, ids, chosen), left_out, compared)


def _common_tasks(sets: Sequence[frozenset[str]]) -> list[str]:
    """Return the tasks for which their number × that of the sides that have all of them is largest."""
    closed: set[frozenset[str]] = set()
    for tasks in sets:  # every set that is some sides' intersection
        closed |= {tasks, *(tasks & other for other in closed)}
    order = sorted(closed - {frozenset()}, key=sorted)
    best = max(order, key=lambda tasks: (len(tasks) * sum(tasks <= one for one in sets), len(tasks)), default=())
    return sorted(best)


def _common_samples(sides: Mapping[str, Ids]) -> tuple[Ids, list[str]]:
    """Return the samples, and the sides that have them all, for which their numbers' product is large."""
    largest = (0, 0)
    common: dict[str, frozenset[str]] = {}
    ids: Ids = {}
    names: list[str] = []
    chosen: list[str] = []
    for name in sorted(sides, key=lambda name: -sum(map(len, sides[name].values()))):
        both = {task: common.get(task, own) & own for task, own in sides[name].items()}
        if not all(both.values()):
            continue
        common, names = both, [*names, name]
        size = sum(map(len, both.values())) * len(names), len(names)
        if size >= largest:
            largest, ids, chosen = size, both, names
    return ids, [name for name in sides if name in chosen]


def _candidates(compared: Compared, ids: Ids, chosen: Sequence[str]) -> list[Candidate]:
    found: list[Candidate] = []
    for name in chosen:
        members = _members(compared.shared[name], ids)
        (score, reference_score), speed = mean_scores(members), speed_up_alone(members, "first_token")
        if score is None or reference_score is None or speed is None:
            continue
        if not found:
            found.append(Candidate(compared.reference, reference_score, 1.0))
        found.append(Candidate(name, score, speed))
    return found


def _members(shared: Mapping[str, Pairs], ids: Ids) -> list[Pairs]:
    return [shared[task].only(of_task) for task, of_task in ids.items()]
