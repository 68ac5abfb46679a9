"""What two sides share of one task: the samples that both answered, and those whose times can be set side by side."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from audiomarathon.errors import RecordError
from audiomarathon.metrics.paired import Pair, mcnemar
from audiomarathon.results.savings import STAGES, in_one_session, median_ratio, paired
from audiomarathon.results.systems import Side
from audiomarathon.runs.read import Record, Run
from audiomarathon.tasks import Task, get_task

OTHER_SESSION = "times of another session"
_SAME_QUESTION = ("schema_version", "prompts", "max_new_tokens", "data")


@contextmanager
def _as_written() -> Iterator[None]:
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise RecordError(f"run.json or a record is not as this version writes them ({reason})") from error


@dataclass(frozen=True)
class Shared:
    """What two sides share of one task.

    Attributes
    ----------
    pairs
        The reference's and the side's own record of each sample that both answered, in the order of their ids.
    timed
        Those of them whose times can be set side by side.
    untimed, undecoded
        Why there are none of any stage, or of forced decode; "" where there are some.
    """

    task: Task
    pairs: Sequence[tuple[Record, Record]]
    timed: Sequence[tuple[Record, Record]]
    untimed: str
    undecoded: str

    @classmethod
    @_as_written()
    def of(cls, side: Side, reference: Side, key: str, *, across_sessions: bool = False) -> Shared:
        """Pair what two sides answered of a task.

        Times are of one session, as in a sweep's savings, unless other sessions are asked for. Controls are paired with
        the clips that they were made of, by the samples' names, and without times.

        Raises
        ------
        RecordError
            When they were not asked the same, share no answered sample, or cannot be scored again.
        SettingsError
            When the task is a third party's that is not installed.
        """
        run, base = side.runs[key], reference.runs[key]
        own, other = run.facts.get("identity") or {}, base.facts.get("identity") or {}
        same_audio = side.control == reference.control
        asked = _SAME_QUESTION if same_audio else _SAME_QUESTION[:-1]  # a control's clips have names of their own
        if differing := [name for name in asked if own.get(name) != other.get(name)]:
            shown = ", ".join(f"{name} {own.get(name)} and {other.get(name)}" for name in differing)
            raise RecordError(f"not asked the same ({shown})")
        pairs = sorted(paired(run, base, same_clips=same_audio), key=lambda pair: str(pair[1]["id"]))
        if not pairs:
            raise RecordError("no sample that both answered, having heard the same clip")
        untimed = "times of other audio" if not same_audio else _other_machine(run, base)
        measured = [pair for pair in pairs if pair[0].get("time") and pair[1].get("time")]
        timed = [] if untimed else measured if across_sessions else in_one_session(measured)
        if not untimed and not timed:
            untimed = OTHER_SESSION if measured else "untimed runs"
        tokens = own.get("decode_tokens"), other.get("decode_tokens")
        undecoded = "" if tokens[0] == tokens[1] else f"{tokens[0]} and {tokens[1]} tokens were forced"
        shared = cls(get_task(key), pairs, timed, untimed, undecoded)
        _ = shared.pair  # raises
        times = (float(of(one) or 0) for of in STAGES.values() for pair in timed for one in pair)
        if not all(0 <= seconds < 1e9 for seconds in times):
            raise ValueError("a time that is none")
        return shared

    def only(self, ids: Collection[str]) -> Shared:
        """Return what is shared of these samples."""
        pairs, timed = ([pair for pair in each if pair[1]["id"] in ids] for each in (self.pairs, self.timed))
        return replace(self, pairs=pairs, timed=timed)

    @cached_property
    def pair(self) -> Pair:
        """The headline figure of both sides, by cluster."""
        own, other = (self.task.sums([pair[side] for pair in self.pairs]) for side in (1, 0))
        if own is None or other is None:
            raise RecordError("the task does not say how its score adds up")
        figure = "score" if "score" in own.names else self.task.headline
        return Pair.of(own, other, [str(own["cluster"]) for _, own in self.pairs], figure)

    @property
    def mcnemar(self) -> float | None:
        """p of McNemar's exact test; None where samples are not independent, or not right or wrong."""
        if self.pair.clusters < len(self.pairs) or not all("correct" in one for pair in self.pairs for one in pair):
            return None
        return mcnemar(
            [bool(own["correct"]) for _, own in self.pairs], [bool(base["correct"]) for base, _ in self.pairs]
        )

    @property
    def truncated(self) -> int:
        """How many samples' audio either side cut short."""
        return sum(bool(base.get("truncated") or own.get("truncated")) for base, own in self.pairs)


def _other_machine(run: Run, base: Run) -> str:
    """Say why the times of two runs cannot be set side by side, whatever the session; "" where they can."""
    own, other = ((one.facts.get("identity") or {}).get("device") for one in (run, base))
    if own is None or other is None:
        return "untimed runs"
    if own != other:
        return f"times of other devices ({own} and {other})"
    return "" if _sharing(run) == _sharing(base) else "times of workers that shared a GPU, or cores, on one side only"


def _sharing(run: Run) -> set[int]:
    """Return how many of Ray's workers shared a GPU, or a machine's cores, while the run was timed."""
    return {one.get("workers_sharing", 1) for one in run.facts.get("sessions", []) if one.get("samples") != 0}


def mean_scores(members: Sequence[Shared]) -> tuple[float | None, float | None]:
    """Return the mean over tasks of the own and of the reference's score; None where a task has none."""
    own, other = np.mean([one.pair.scores for one in members], axis=0).tolist()
    return (None if math.isnan(own) else own), (None if math.isnan(other) else other)


def speed_up(members: Sequence[Shared], stage: str, seed: int) -> Mapping[str, Any] | None:
    """Return the median of reference ÷ own over the samples of all tasks, with its interval; None where any is untimed.

    Clusters of different tasks are different clusters.
    """
    if any(one.untimed or (stage == "decode_per_token" and one.undecoded) for one in members):
        return None
    of = STAGES[stage]
    rows = [(of(base), of(own), f"{one.task.key}:{own['cluster']}") for one in members for base, own in one.timed]
    found = median_ratio(rows, seed=seed)
    return None if found["measured"] is None else found
