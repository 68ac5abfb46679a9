"""What two systems share of one task: the samples that both answered, and those whose times can be set side by side.

Everything that is said of a setting beside base (a difference, a speed-up, a saving) comes from one :class:`Pairs`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from audiomarathon.benchmarks import Task, get_task
from audiomarathon.benchmarks.registry import weights_of
from audiomarathon.compression.method import Base
from audiomarathon.compression.press import ONE_TOKEN
from audiomarathon.costs.prefill import ideal_speed_up
from audiomarathon.errors import RecordError
from audiomarathon.fingerprint import same
from audiomarathon.metrics.paired import DRAWS, Drawn, Pair, mcnemar
from audiomarathon.metrics.statistics import Estimate, Resampler
from audiomarathon.records import Record, Verdict
from audiomarathon.runs.read import Run
from audiomarathon.runs.summary import busy, foreign_count, note_of
from audiomarathon.scoring.scorer import sums_of
from audiomarathon.text import counted

#: What is compared between runs, and what a record says of it, in seconds; None for one that was not timed.
STAGES: Mapping[str, Callable[[Record], float | None]] = {
    "llm_prefill": lambda record: time_of(record, "llm_prefill"),
    "first_token": lambda record: time_of(record, "prefill"),
    "decode_per_token": lambda record: (record.forced_decode or {}).get("per_token"),
}
AS_BASE = "= base"
ACROSS = "times are of different sessions on the same machine, quiet in both"

_SAME_QUESTION = ("origin", "corpus", "prompts", "max_new_tokens", "data")
_SAID = {"corpus": "words weighed by other references", "origin": "what an imported run was asked is not known"}
_SAME_MACHINE = ("cpu", "threads", "cuda")
_SAME_PRECISION = ("dtype", "attention")


def time_of(record: Record, stage: str) -> float | None:
    """Return the seconds of a stage; None for a record without times."""
    return record.time[stage] if record.time else None


@contextmanager
def _as_written() -> Iterator[None]:
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise RecordError(f"run.json or a record is not as this version writes them ({reason})") from error


@dataclass(frozen=True)
class Pairs:
    """What two runs of one task share.

    Attributes
    ----------
    run, base
        The run, and the one that it is set beside.
    pairs
        The reference's and the own verdict of each sample that both answered, in the order of their ids.
    timed
        The reference's and the own record of those whose times can be set side by side.
    untimed, undecoded
        Why there are none of any stage, or of forced decode; "" where there are some.
    across
        Whether times are of different sessions: see :data:`ACROSS`.
    lost
        Why samples of the run are not among the pairs, with how many; empty where all are.
    """

    task: Task
    run: Run
    base: Run
    pairs: Sequence[tuple[Verdict, Verdict]]
    timed: Sequence[tuple[Record, Record]]
    untimed: str
    undecoded: str
    across: bool = False
    lost: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    @_as_written()
    def of(cls, run: Run, reference: Run) -> Pairs:
        """Pair what two runs answered of a task; of the reference's all that it ever answered.

        Times are of one session, as a sweep takes them, or of different sessions where machine, precision, sharing and
        load agree. Controls are paired with the clips that they were made of, by the samples' names, and without times.

        Raises
        ------
        RecordError
            When they were not asked the same, share no answered sample, or cannot be scored again.
        SettingsError
            When the task is a third party's that is not installed.
        """
        base = reference.whole
        same_audio = run.control == base.control
        asked = _SAME_QUESTION if same_audio else _SAME_QUESTION[:-1]  # a control's clips have names of their own
        own, other = run.identity, base.identity
        if differing := [name for name in asked if own.get(name) != other.get(name)]:
            plain = [_SAID[name] for name in differing if name in _SAID][:1]
            shown = ", ".join(plain or (f"{name} {own.get(name)} and {other.get(name)}" for name in differing))
            raise RecordError(f"not asked the same ({shown})")
        both, lost = _paired(run, base, same_clips=same_audio)
        if not both:
            why = f" ({'; '.join(f'{count} {what}' for what, count in lost.items())})" if lost else ""
            raise RecordError(f"no sample that both answered, having heard the same clip{why}")
        untimed = "times of other audio" if not same_audio else _other_machine(run, base)
        timed, across = ([], False) if untimed else _timed(run, base, both)
        if not untimed and not timed:
            measured = any(a.record.time and b.record.time for a, b in both)
            untimed = _not_across(run, base) if measured else "untimed runs"
        tokens = own.get("decode_tokens"), other.get("decode_tokens")
        undecoded = "" if tokens[0] == tokens[1] else f"{tokens[0]} and {tokens[1]} tokens were forced"
        pairs = cls(get_task(run.key), run, base, both, timed, untimed, undecoded, across, lost)
        _ = pairs.pair  # raises
        if not all(0 <= float(of(one) or 0) < 1e9 for of in STAGES.values() for pair in timed for one in pair):
            raise ValueError("a time that is none")
        return pairs

    def only(self, ids: Collection[str]) -> Pairs:
        """Return what is shared of these samples."""
        pairs = [pair for pair in self.pairs if pair[1].record.id in ids]
        return replace(self, pairs=pairs, timed=[pair for pair in self.timed if pair[1].id in ids])

    @cached_property
    def pair(self) -> Pair:
        """All figures of both systems, by cluster; the headline is the one to judge."""
        scorer = self.task.scorer
        own, other = (sums_of(scorer, [pair[side] for pair in self.pairs]) for side in (1, 0))
        if differing := sorted({*own.names} ^ {*other.names}):
            raise RecordError(f"not scored alike, by other judges for one: only one of both has {', '.join(differing)}")
        return Pair.of(own, other, scorer.figure.name)

    def drawn(self, seed: int, swaps: int = DRAWS) -> Drawn:
        """Draw from the pair, in a stream of the task's own: what else is compared changes nothing."""
        return Drawn.of(self.pair, self._stream(seed), swaps=swaps)

    def differences(self, seed: int) -> dict[str, Estimate]:
        """Return own − reference of every figure with its interval, from the same draws as :meth:`drawn`."""
        return self.pair.differences(self._stream(seed))

    def _stream(self, seed: int) -> np.random.Generator:
        return np.random.default_rng([seed, *self.task.key.encode()])

    @property
    def alike(self) -> str:
        """ "= base" where no reply can differ from base's, "same replies" where none does, "" where some do."""
        if any(own.record.reply != base.record.reply or own.record.reply is None for base, own in self.pairs):
            return ""
        own, of_base = self.run.identity, self.base.method == Base().label
        from_prefill = ONE_TOKEN in note_of(self.run.facts) and all(_one_token(one.record) for _, one in self.pairs)
        fixed = from_prefill and of_base and own.get("checkpoint") == self.base.identity.get("checkpoint")
        return AS_BASE if fixed else "same replies"

    @property
    def mcnemar(self) -> float | None:
        """p of McNemar's exact test; None where samples are not independent, or replies can be partly right."""
        rights = [[self.task.scorer.right(pair[side]) for pair in self.pairs] for side in (1, 0)]
        if self.pair.clusters < len(self.pairs) or None in (*rights[0], *rights[1]):
            return None
        return mcnemar([bool(one) for one in rights[0]], [bool(one) for one in rights[1]])

    @property
    def notes(self) -> list[str]:
        """What a reader of the own score has to know."""
        return [*self.task.scorer.notes([own for _, own in self.pairs]), *filter(None, [note_of(self.run.facts)])]

    @property
    def truncated(self) -> int:
        """How many samples' audio either system cut short."""
        return sum(bool(base.record.truncated or own.record.truncated) for base, own in self.pairs)

    @property
    def unparsed(self) -> int:
        """How many of the own replies could not be read."""
        return sum(self.task.scorer.unparsed(own) for _, own in self.pairs)

    @property
    def cut(self) -> int:
        """How many of the own replies the token limit cut."""
        return sum(own.record.finish == "length" for _, own in self.pairs)

    @property
    def busy(self) -> bool:
        """Whether the machine was busy while the times of either were taken."""
        return any(busy(one.facts, list(one.records.values())) for one in (self.run, self.base))

    @property
    def other_versions(self) -> str:
        """Name the packages of which the two ran other versions; "" where there are none."""
        own, other = ((one.facts.get("environment") or {}).get("packages") or {} for one in (self.run, self.base))
        names = sorted(name for name in {*own, *other} if own.get(name) != other.get(name))
        return ", ".join(f"{name} {own.get(name, 'none')} and {other.get(name, 'none')}" for name in names)


def _one_token(record: Record) -> bool:
    """Whether a reply is one token, beside the token that ends it."""
    return record.new_tokens is not None and record.new_tokens - (record.finish == "stop") <= 1


def speed_up(members: Sequence[Pairs], stage: str, seed: int) -> Estimate | None:
    """Return the median of reference ÷ own over the samples of all tasks, with its interval; None where any is untimed.

    Clusters of different tasks are different clusters.
    """
    rows = _times(members, stage)
    return None if rows is None else median_ratio(rows, seed=seed)


def speed_up_alone(members: Sequence[Pairs], stage: str) -> float | None:
    """Return the value of :func:`speed_up` without its interval, which takes longer than all else."""
    rows = _times(members, stage) or []
    ratios = [base / own for base, own, _ in rows if base and own]
    return float(np.median(ratios)) if ratios else None


def _times(members: Sequence[Pairs], stage: str) -> list[tuple[float | None, float | None, str]] | None:
    """Return the reference's and the own time of each sample, with its cluster; None where any member is untimed."""
    if any(one.untimed or (stage == "decode_per_token" and one.undecoded) for one in members):
        return None
    of = STAGES[stage]
    return [(of(base), of(own), f"{one.task.key}:{own.cluster}") for one in members for base, own in one.timed]


def median_ratio(rows: Sequence[tuple[float | None, float | None, str]], *, seed: int) -> Estimate | None:
    """Return the median over samples of one quantity ÷ another, with its interval over clusters; None without any.

    Parameters
    ----------
    rows
        The two quantities of a sample, and its cluster; a sample that lacks one of them is left out.
    """
    ratios = [(above / below, cluster) for above, below, cluster in rows if above and below]
    if not ratios:
        return None
    return Resampler(seed).median([value for value, _ in ratios], [cluster for _, cluster in ratios])


def measured(found: Estimate | None) -> dict[str, Any] | None:
    """Return a speed-up as JSON has it: `measured` and `interval`."""
    if found is None:
        return None
    return {"measured": found.value, "interval": list(found.interval) if found.interval else None}


def ideal_of(run: Run, records: Sequence[Record], *, encoder: bool = False) -> float | None:
    """Return the median of :func:`ideal_speed_up` over records; None where the run does not say what it costs."""
    cost, drops = run.cost, run.drops
    if cost is None or drops is None or not records or (encoder and cost.encoder_flops_per_second is None):
        return None
    return float(np.median([ideal_speed_up(cost, drops, record, encoder=encoder) for record in records]))


def mean_scores(members: Sequence[Pairs]) -> tuple[float | None, float | None]:
    """Return the mean over tasks of the own and of the reference's score; None where a task has none."""
    weights = weights_of([one.task.key for one in members])
    own, other = np.average([one.pair.scores for one in members], axis=0, weights=weights).tolist()
    return (None if math.isnan(own) else own), (None if math.isnan(other) else other)


def _paired(run: Run, base: Run, *, same_clips: bool) -> tuple[list[tuple[Verdict, Verdict]], dict[str, int]]:
    """Return base's and the run's verdicts of the samples that both answered, and why others have no pair.

    A clip that was replaced between two runs makes another sample of the same name; controls' clips were replaced on
    purpose.
    """
    found, lost = [], Counter[str]()
    for id_, own in run.verdicts.items():
        theirs = base.verdicts.get(id_)
        if theirs is None:
            lost[f"of {counted(len(run.verdicts), 'sample')} not answered by the reference"] += 1
        elif same_clips and not same(theirs.record.clips, own.record.clips):
            lost["samples heard other clips"] += 1
        else:
            found.append((theirs, own))
    return sorted(found, key=lambda pair: pair[1].record.id), dict(lost)


def _timed(run: Run, base: Run, both: Sequence[tuple[Verdict, Verdict]]) -> tuple[list[tuple[Record, Record]], bool]:
    """Return the records whose times can be set side by side, and whether they are of different sessions."""
    measured = [(a.record, b.record) for a, b in both if a.record.time and b.record.time]
    together = [pair for pair in measured if pair[0].session == pair[1].session]
    if together or not measured:
        return together, False
    return ([], False) if _not_across(run, base) else (measured, True)


def _not_across(run: Run, base: Run) -> str:
    """Say why times of different sessions of two runs cannot be set side by side; "" where they can."""
    own, other = (list(_sessions(one).values()) for one in (run, base))
    machines = [[(one.get("environment") or {}).get(name) for name in _SAME_MACHINE] for one in (*own, *other)]
    if not own or not other or None in machines[0][:2] or any(machine != machines[0] for machine in machines):
        return "times of another session, on another machine or one that is not on record"
    if any(run.identity.get(name) != base.identity.get(name) for name in _SAME_PRECISION):
        return "times of another session, in another precision"
    loads = [session.get(name) or {} for session in (*own, *other) for name in ("load_before", "load_after")]
    if any(load.get("foreign_processes") is None for load in loads):
        return "times of another session, of which the machine's load is not on record"
    if any(map(foreign_count, loads)):  # within a session settings take turns; across sessions nothing evens out
        return "times of another session, on a machine that others used"
    return ""


def _sessions(run: Run) -> dict[str, Mapping[str, Any]]:
    """Return the sessions that answered what the run holds, by when they began."""
    begun = {str(record.session).partition(" ")[0] for record in run.records.values() if record.session}
    return {one["started"]: one for one in run.facts.get("sessions") or () if one.get("started") in begun}


def _other_machine(run: Run, base: Run) -> str:
    """Say why the times of two runs cannot be set side by side, whatever the session; "" where they can."""
    own, other = (one.identity.get("device") for one in (run, base))
    if own is None or other is None:
        return "untimed runs"
    if own != other:
        return f"times of other devices ({own} and {other})"
    return "" if _sharing(run) == _sharing(base) else "times of workers that shared a GPU, or cores, on one side only"


def _sharing(run: Run) -> set[int]:
    """Return how many of Ray's workers shared a GPU, or a machine's cores, while the run was timed."""
    return {one.get("workers_sharing", 1) for one in run.facts.get("sessions", []) if one.get("samples") != 0}
