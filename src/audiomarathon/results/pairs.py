"""Pair two runs of a task: find the samples that both answered, and those whose times can be compared.

Every difference, speed-up and saving of a setting against base (no compression) comes from one :class:`Pairs`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress
from typing import Any

import numpy as np

from audiomarathon.benchmarks import Task, get_task
from audiomarathon.benchmarks.registry import weights_of
from audiomarathon.compression.method import Base
from audiomarathon.compression.press import ONE_TOKEN
from audiomarathon.costs.cost import LAUNCH_BOUND, flops_of_each, ideal_speed_up
from audiomarathon.errors import RecordError
from audiomarathon.fingerprint import same
from audiomarathon.metrics.betting import Clusters, Decision, clusters_for_power, decide
from audiomarathon.metrics.paired import Drawn, Pair, mcnemar
from audiomarathon.metrics.statistics import Estimate, Floats, Resampler, ratio
from audiomarathon.records import Record, Verdict
from audiomarathon.results.beside import Timed, batched_pairs, other_question, timed_pairs
from audiomarathon.runs.read import Run
from audiomarathon.runs.summary import busy, note_of, samples_a_second, stopped_note
from audiomarathon.scoring.scorer import sums_of
from audiomarathon.text import counted

#: Compared stages, each with a function that returns a record's seconds in this stage; None if it was not timed.
STAGES: Mapping[str, Callable[[Record], float | None]] = {
    "llm_prefill": lambda record: time_of(record, "llm_prefill"),
    "first_token": lambda record: time_of(record, "prefill"),
    "decode_per_token": lambda record: (record.forced_decode or {}).get("per_token"),
}
#: The same stages, computed from the busy or the wall seconds of one call, and its number of decode steps.
_OF_CALL: Mapping[str, Callable[[Mapping[str, float], float], float | None]] = {
    "llm_prefill": lambda seconds, _steps: seconds["llm_prefill"],
    "first_token": lambda seconds, _steps: seconds["encoder"] + seconds["llm_prefill"],
    "decode_per_token": lambda seconds, steps: seconds["decode"] / steps if steps > 0 else None,
}
AS_BASE = "= base"
ONE_GRAPH = "decode ran as a graph in one run, and eagerly in the other"


def time_of(record: Record, stage: str) -> float | None:
    """Return the seconds that a sample spent in a stage; None for an untimed record."""
    return record.time.get(stage) if record.time else None


@contextmanager
def _as_written() -> Iterator[None]:
    """Inside the block, turn errors such as a missing field of `run.json` into a :class:`RecordError`."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise RecordError(f"run.json or a record is not as this version writes them ({reason})") from error


@dataclass(frozen=True)
class Pairs:
    """Two runs of one task, paired on samples.

    Attributes
    ----------
    run, base
        The run, and the run it is compared with (the reference).
    pairs
        (reference's verdict, run's verdict) of each sample that both answered and scored, sorted by id.
    timed
        (reference's record, run's record) of the samples with comparable times.
    untimed, undecoded
        Why no times can be compared, and why times of forced decode (of a fixed number of tokens) cannot be compared;
        "" if they can.
    across
        Whether times come from different sessions (calls of a command), under the conditions of
        :data:`~audiomarathon.results.beside.ACROSS`.
    lost
        Number of the run's samples without a pair, as {reason: number}.
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
        """Pair the samples that two runs of a task answered.

        Samples that only earlier calls of the reference's command selected count too.
        :mod:`~audiomarathon.results.beside` decides which scores and times may be compared. A control run (silence,
        noise) is paired with a run on the real clips by sample id, without times.

        Raises
        ------
        RecordError
            When the runs' questions or scoring differ, they share no answered sample, or a field is missing or wrong.
        SettingsError
            When the task belongs to a plug-in that is not installed.
        """
        base = reference.whole
        if why := other_question(run, base):
            raise RecordError(why)
        both, lost = _paired(run, base, same_clips=run.control == base.control)
        if not both:
            why = f" ({'; '.join(f'{count} {what}' for what, count in lost.items())})" if lost else ""
            raise RecordError(f"the two runs have no sample that both answered on the same clip{why}")
        timed, across, untimed = timed_pairs(run, base, [(a.record, b.record) for a, b in both])
        tokens = run.identity.get("decode_tokens"), base.identity.get("decode_tokens")
        undecoded = "" if tokens[0] == tokens[1] else f"forced decode made {tokens[0]} and {tokens[1]} tokens"
        if any(_as_graph(a) != _as_graph(b) for a, b in timed):
            undecoded = undecoded or ONE_GRAPH
        pairs = cls(get_task(run.key), run, base, both, timed, untimed, undecoded, across, lost)
        _ = pairs.pair, [*map(pairs.ratios, STAGES)]  # raises if the two cannot be compared
        return pairs

    def only(self, ids: Collection[str]) -> Pairs:
        """Return a copy with only the samples whose ids are in `ids`.

        If these are all samples, return this object, with its cached results.
        """
        pairs = [pair for pair in self.pairs if pair[1].record.id in ids]
        if len(pairs) == len(self.pairs):
            return self
        return replace(self, pairs=pairs, timed=[pair for pair in self.timed if pair[1].id in ids])

    @cached_property
    def pair(self) -> Pair:
        """Counts and scores of both runs, summed over each cluster of samples, as input of the paired test of the
        score.
        """
        scorer = self.task.scorer
        ours = sums_of(scorer, [verdict for _, verdict in self.pairs])
        whole = len(self.pairs) == len(self.base.verdicts)
        other = self.base.sums if whole else sums_of(scorer, [base for base, _ in self.pairs])
        if differing := sorted({*ours.names} ^ {*other.names}):
            raise RecordError(
                f"the two runs were scored differently, perhaps by other judges (only one has {', '.join(differing)})"
            )
        return Pair.of(ours, other, scorer.figure.name)

    def drawn(self, seed: int) -> Drawn:
        """Return the differences in score in random resamples (for the interval) and after random swaps (for p).

        A swap exchanges the two runs in some clusters of samples. The random stream depends only on seed and task, not
        on other comparisons.
        """
        return Drawn.of(self.pair, self._stream(seed))

    def differences(self, seed: int) -> dict[str, Estimate]:
        """Return {metric: run − reference} for each metric of the task, with intervals from the resamples of
        :meth:`drawn`.
        """
        return self.pair.differences(self._stream(seed))

    def _stream(self, seed: int) -> np.random.Generator:
        return np.random.default_rng([seed, *self.task.key.encode()])

    @property
    def records(self) -> Timed:
        """(reference's record, run's record) of all pairs, timed or not."""
        return [(base.record, verdict.record) for base, verdict in self.pairs]

    def ideals(self, stage: str) -> Floats:
        """Return each timed sample's ideal speed-up of a stage, computed from FLOPs or bytes; NaN if unknown.

        Ideal means: on a machine whose time is proportional to the FLOPs, or for decode to the bytes read. If no sample
        is timed, return the ideal speed-up of every sample. The result is cached, since several rows of a table need
        it.
        """
        if stage not in self._ideals:
            rows = self.timed or self.records
            sides = enumerate((self.base, self.run))
            self._ideals[stage] = _quotients(*(_work(run, [pair[side] for pair in rows], stage) for side, run in sides))
        return self._ideals[stage]

    @cached_property
    def _ideals(self) -> dict[str, Floats]:
        return {}

    def ratios(self, stage: str) -> Floats:
        """Return the reference's seconds in a stage ÷ the run's, for each timed sample; NaN if unknown.

        The result is cached. Stages are those of :data:`STAGES`, such as `llm_prefill`.
        """
        if stage not in self._ratios:
            each = [[*map(STAGES[stage], [pair[side] for pair in self.timed])] for side in (0, 1)]
            base, theirs = (np.array(seconds, dtype=np.float64) for seconds in each)
            for seconds, known in zip(each, (base, theirs), strict=True):
                if np.sum((known >= 0) & (known < 1e9)) < len(seconds) - seconds.count(None):
                    raise ValueError("a time is negative, NaN or above 1e9 s")
            self._ratios[stage] = _quotients(base, theirs)
        return self._ratios[stage]

    @cached_property
    def _ratios(self) -> dict[str, Floats]:
        return {}

    @cached_property
    def _in_batches(self) -> tuple[Timed, str]:
        pairs, why = batched_pairs(self.run, self.base, self.records)
        return ([], ONE_GRAPH) if any(_as_graph(a) != _as_graph(b) for a, b in pairs) else (pairs, why)

    @property
    def batched(self) -> Timed:
        """(reference's record, run's record) of the samples that ran in batches with comparable seconds."""
        return self._in_batches[0]

    @property
    def unbatched(self) -> str:
        """Reason why the seconds of batches may not be compared; "" if they may, or if a run did not run in batches."""
        return self._in_batches[1]

    @cached_property
    def alike(self) -> str:
        """Whether all replies equal the reference's: "= base" if they must, "same replies" if they happen to, else "".

        Replies must be equal if each is one token, which the model chooses in prefill, before the method acts.
        """
        if any(
            verdict.record.reply != base.record.reply or verdict.record.reply is None for base, verdict in self.pairs
        ):
            return ""
        identity, of_base = self.run.identity, self.base.method == Base().label
        from_prefill = ONE_TOKEN in note_of(self.run.facts) and all(
            _one_token(verdict.record) for _, verdict in self.pairs
        )
        fixed = from_prefill and of_base and identity.get("checkpoint") == self.base.identity.get("checkpoint")
        return AS_BASE if fixed else "same replies"

    @cached_property
    def clustered(self) -> Clusters:
        """Differences in score (run − reference), added up over each cluster of samples, for the test of a margin.

        A cluster has dependent samples, such as the questions about one clip. Samples without a score in either run are
        left out. The largest allowed cluster has the size of the task's largest, if the run recorded it, else of the
        largest among the recorded samples, answered or not. If the sweep stopped early, clusters are in the random
        order in which the sweep drew them.
        """
        return self._clustered(None)

    @cached_property
    def worst(self) -> Clusters:
        """Like :attr:`clustered`, but a sample that has a score in only one of the two runs counts as lost by the run.

        Otherwise a setting could become "no worse" by failing on the samples that it would lose.
        """
        return self._clustered(1.0)

    @_as_written()
    def _clustered(self, lost: float | None) -> Clusters:
        own_score, sides = self.task.scorer.own_score, (self.run, self.base)
        known: dict[str, tuple[float, str]] = {}
        scores = [{id_: own_score(verdict) for id_, verdict in side.verdicts.items()} for side in sides]
        records = [{**side.records, **side.failed} for side in sides]
        paired = {verdict.record.id for _, verdict in self.pairs}
        failed = {id_ for id_ in {*records[0]} & {*records[1]} if any(side.get(id_) is None for side in scores)}
        for id_ in sorted(paired | (failed if lost is not None else set())):
            score, base = (side.get(id_) for side in scores)
            if odd := [
                known_score for known_score in (score, base) if known_score is not None and not 0 <= known_score <= 1
            ]:
                raise RecordError(f"{self.task.key}: the score of {id_} is {odd[0]:g}; a margin needs scores in [0, 1]")
            missing = [score, base].count(None)
            if missing == 2 or (missing and lost is None):
                continue
            of_base = (lost or 0.0) if base is None else base
            known[id_] = (score or 0.0) - of_base, records[0][id_].cluster
        asked = {id_: record.cluster for side in (self.run.whole.records, *records) for id_, record in side.items()}
        largest = max(Counter(asked.values()).values(), default=1)
        stop = self.stopping or {}
        stated = [int(facts.get(name) or 1) for facts, name in ((self.run.facts, "largest_cluster"), (stop, "largest"))]
        return Clusters.of(
            [difference for difference, _ in known.values()],
            [cluster for _, cluster in known.values()],
            max(largest, *stated),
            stop.get("order", ()),
        )

    @property
    def stopping(self) -> Mapping[str, Any] | None:
        """The rule by which the run's sweep stopped as soon as a margin was decided; None if it had no such rule."""
        return self.run.facts.get("stopping")

    def decided(self, margin: float) -> Decision:
        """Return the result of testing a margin: does the run lose at most `margin` of score against the reference?"""
        scorer, sides = self.task.scorer, ([pair[side] for pair in self.pairs] for side in (1, 0))
        uncapped, base = (scorer.uncapped(side) for side in sides)
        beside = ", ".join(
            f"{name} {uncapped[name]:.3f}, reference's {base[name]:.3f}" for name in uncapped if name in base
        )
        return decide(
            self.clustered,
            margin,
            worst=self.worst,
            figure=scorer.own_title,
            each=self.stopping is not None,
            beside=beside,
            by_construction=self.alike == AS_BASE and self.run.identity.get("max_new_tokens") == 1,
        )

    def to_settle(self, decision: Decision, seed: int) -> tuple[int, int] | None:
        """Return (number of clusters, number of samples) that would probably settle the test of a margin.

        A margin is an allowed loss of score. If the setting loses nothing, this many samples like these give the
        verdict "no worse" with a probability of 80 %, at the level of one of the decision's tests. None if the number
        is too large to compute.
        """
        like = self.clustered
        count = clusters_for_power(like, decision.margin, alpha=decision.alpha / decision.tests, seed=seed)
        return None if count is None else (count, math.ceil(count * decision.samples / max(1, decision.clusters)))

    @property
    def mcnemar(self) -> float | None:
        """p of McNemar's exact test; None if several samples share a cluster, or replies can be partly right."""
        rights = [[self.task.scorer.right(pair[side]) for pair in self.pairs] for side in (1, 0)]
        if self.pair.clusters < len(self.pairs) or None in (*rights[0], *rights[1]):
            return None
        return mcnemar([bool(right) for right in rights[0]], [bool(right) for right in rights[1]])

    @property
    def notes(self) -> list[str]:
        """Notes for the reader, written by the scorer and the method, and notes on audio beyond the model's limits."""
        facts = self.run.facts
        return [
            *self.task.scorer.notes([verdict for _, verdict in self.pairs]),
            *filter(None, [note_of(facts), stopped_note(facts)]),
            *(
                f"{whose} heard audio beyond the model's positions (BEYOND_LIMITS)"
                for whose, run in (("the reference", self.base), ("the setting", self.run))
                if run.identity.get("beyond_limits")
            ),
        ]

    @cached_property
    def truncated(self) -> int:
        """Number of samples whose audio was truncated in either run."""
        return sum(bool(base.record.truncated or verdict.record.truncated) for base, verdict in self.pairs)

    @cached_property
    def unparsed(self) -> int:
        """Number of the run's replies that could not be parsed."""
        return sum(self.task.scorer.unparsed(verdict) for _, verdict in self.pairs)

    @cached_property
    def cut(self) -> int:
        """Number of the run's replies that the token limit cut."""
        return sum(verdict.record.finish == "length" for _, verdict in self.pairs)

    @cached_property
    def busy(self) -> bool:
        """Whether other programs used the machine while either run was timed."""
        return any(busy(run.facts, list(run.records.values())) for run in (self.run, self.base))

    @property
    def other_versions(self) -> str:
        """Packages whose versions differ between the two runs, with both versions, as text; "" if none do."""
        packages, other = ((run.facts.get("environment") or {}).get("packages") or {} for run in (self.run, self.base))
        names = sorted(name for name in {*packages, *other} if packages.get(name) != other.get(name))
        return ", ".join(f"{name} {packages.get(name, 'none')} and {other.get(name, 'none')}" for name in names)


def _as_graph(record: Record) -> bool:
    """Tell whether a sample's decode ran as a CUDA graph, which is much faster than the same work done eagerly."""
    return "decode_setup" in (record.forced_decode or record.time or record.batch or {})


def _one_token(record: Record) -> bool:
    """Tell whether a reply is one token, not counting its end token."""
    return record.new_tokens is not None and record.new_tokens - (record.finish == "stop") <= 1


def speed_up(members: Sequence[Pairs], stage: str, seed: int) -> Estimate | None:
    """Return the speed-up of a stage, with its interval; None if a task has no comparable times.

    The speed-up is the median, over the samples of all tasks, of the reference's time ÷ the run's; above 1, the run is
    faster. Clusters of different tasks never count as one cluster, even if their names are equal.

    Parameters
    ----------
    members
        The pairs of samples, one :class:`Pairs` per task.
    """
    ratios = _ratios(members, stage)
    heads = [f"{pairs.task.key}:" if len(members) > 1 else "" for pairs in members]
    named = zip(heads, members, strict=True) if len(ratios) else ()
    clusters = [head + record.cluster for head, pairs_of_task in named for _, record in pairs_of_task.timed]
    return _median(ratios, clusters, seed)


def speed_up_alone(members: Sequence[Pairs], stage: str) -> float | None:
    """Return the same number as :func:`speed_up`, but without the interval, which is slow to compute."""
    ratios = _ratios(members, stage)
    known = ratios[~np.isnan(ratios)]
    return float(np.median(known)) if len(known) else None


def _quotients(above: Floats, below: Floats) -> Floats:
    """Return the array `above` ÷ `below`; NaN where either is unknown (NaN) or 0."""
    return ratio(above, np.where(above > 0, below, 0.0))


def _ratios(members: Sequence[Pairs], stage: str) -> Floats:
    """Return an array with the reference's time ÷ the run's for each timed sample of all tasks; empty if a task is
    untimed.
    """
    if any(pairs.untimed or (stage == "decode_per_token" and pairs.undecoded) for pairs in members):
        return np.empty(0)
    return np.concatenate([pairs.ratios(stage) for pairs in members])


def median_ratio(rows: Sequence[tuple[float | None, float | None, str]], *, seed: int) -> Estimate | None:
    """Return the median over samples of (first quantity ÷ second), with its interval over clusters.

    None if no sample has both quantities.

    Parameters
    ----------
    rows
        (first quantity, second quantity, cluster) of each sample; samples that lack a quantity are left out.
    """
    ratios = np.array([above / below if above and below else math.nan for above, below, _ in rows], dtype=np.float64)
    return _median(ratios, [cluster for *_, cluster in rows], seed)


def _median(ratios: Floats, clusters: Sequence[str], seed: int) -> Estimate | None:
    known = ~np.isnan(ratios)
    return Resampler(seed).median(ratios[known], list(compress(clusters, known))) if known.any() else None


def gains(members: Sequence[Pairs], stage: str, seed: int) -> dict[str, Any] | None:
    """Return a stage's speed-up as a dict for JSON; None if no times can be compared.

    Keys: `measured` and `interval` (see :func:`speed_up`), `ideal` (see :func:`ideal_gain`), `work` (the median over
    the profiled samples of the reference's busy seconds of the GPU ÷ the run's; None without any), `launch_bound`
    (whether the GPU is busy in less than 60 % of the run's seconds; None if unknown), `chooses_longer` (whether the
    time of choosing tokens turns a gain into a loss: slower than the reference with it, faster without; medians).
    """
    gain = speed_up(members, stage, seed)
    if gain is None:
        return None
    work, shares, of, ideal = list[float](), list[float](), _OF_CALL[stage], ideal_gain(members, stage)
    for base, record in (pair for pairs in members for pair in pairs.timed if pair[0].busy and pair[1].busy):
        busy, before = (side.busy and of(side.busy, side.busy["steps"]) for side in (record, base))
        wall = record.time and of(record.time, (record.new_tokens or 0) - 1)
        if busy and before and wall:
            work.append(before / busy)
            shares.append(busy / wall)
    return {
        "measured": gain.value,
        "interval": list(gain.interval) if gain.interval else None,
        "ideal": ideal,
        "work": float(np.median(work)) if work else None,
        "launch_bound": float(np.median(shares)) < LAUNCH_BOUND if shares else None,
        "chooses_longer": (ideal is None or ideal > 1) and gain.value < 1 < _gain_without_choosing(members, stage),
    }


def _gain_without_choosing(members: Sequence[Pairs], stage: str) -> float:
    """Return the median of the reference's time ÷ (run's time − its time of choosing which tokens to keep).

    0 for decode, in which no tokens are chosen.
    """
    seconds = STAGES[stage]
    ratios = [
        (seconds(base) or 0.0) / rest
        for base, record in (pair for pairs in members for pair in pairs.timed)
        if stage != "decode_per_token" and (rest := (seconds(record) or 0.0) - (time_of(record, "scoring") or 0.0)) > 0
    ]
    return float(np.median(ratios)) if ratios else 0.0


def throughput(members: Sequence[Pairs]) -> dict[str, float] | None:
    """Return how many samples per second one GPU answers, as a dict for JSON; None if a task has no comparable batches.

    Keys: `measured` (the run's rate ÷ the reference's), `samples_per_second` and `base_samples_per_second`, over the
    same samples, and the size of each side's largest batch (`batch`, `base_batch`). There is no interval: the samples
    of a batch share one measurement.
    """
    if not members or not all(pairs.batched for pairs in members):
        return None
    base, setting_records = ([pair[side] for pairs in members for pair in pairs.batched] for side in (0, 1))
    rates = [samples_a_second(records) or math.nan for records in (base, setting_records)]
    most = [
        max(float(record.batch["samples"]) for record in records if record.batch) for records in (base, setting_records)
    ]
    return {
        "measured": rates[1] / rates[0],
        "samples_per_second": rates[1],
        "base_samples_per_second": rates[0],
        "batch": most[1],
        "base_batch": most[0],
    }


def ideal_gain(members: Sequence[Pairs], stage: str) -> float | None:
    """Return the ideal (computed) speed-up of a stage, as the median over samples; None if a run lacks its costs.

    For prefill, the speed-up is the reference's FLOPs ÷ the run's. For decode, it is the bytes that a step reads
    (weights and KV cache), the reference's ÷ the run's, for one sample (times are taken with batch size 1).
    """
    ideals = np.concatenate([np.empty(0), *(pairs.ideals(stage) for pairs in members)])
    return float(np.median(ideals)) if len(ideals) and not np.isnan(ideals).any() else None


def _work(run: Run, records: Sequence[Record], stage: str) -> Floats:
    """Return what a stage costs for each sample: FLOPs of prefill, or bytes that a decode step reads; shape (samples,).

    NaN if unknown.
    """
    cost, drops, whole = run.cost, run.drops, stage == "first_token"
    if cost and cost.weight_bytes is not None and stage == "decode_per_token":
        each = (math.nan if record.kv_bytes is None else cost.step_bytes(record.kv_bytes) for record in records)
        return np.fromiter(each, np.float64)
    if (
        cost is None
        or drops is None
        or stage == "decode_per_token"
        or (whole and cost.encoder_flops_per_second is None)
    ):
        return np.full(len(records), math.nan)
    return flops_of_each(cost, drops, records, encoder=whole)


def ideal_of(run: Run, records: Sequence[Record], *, encoder: bool = False) -> float | None:
    """Return a run's ideal speed-up: FLOPs without compression ÷ FLOPs with its method, as the median over records.

    None if the run does not record its costs. With `encoder`, the FLOPs of the audio encoder count too (see
    :func:`ideal_speed_up`).
    """
    cost, drops = run.cost, run.drops
    if cost is None or drops is None or not records or (encoder and cost.encoder_flops_per_second is None):
        return None
    return float(np.median([ideal_speed_up(cost, drops, record, encoder=encoder) for record in records]))


def mean_scores(members: Sequence[Pairs]) -> tuple[float | None, float | None]:
    """Return (the run's, the reference's) mean score over tasks; (None, None) if a task has no score."""
    weights = weights_of([pairs.task.key for pairs in members])
    score, other = np.average([pairs.pair.scores for pairs in members], axis=0, weights=weights).tolist()
    return (None if math.isnan(score) else score), (None if math.isnan(other) else other)


def _paired(run: Run, base: Run, *, same_clips: bool) -> tuple[list[tuple[Verdict, Verdict]], dict[str, int]]:
    """Pair the verdicts on the samples that both runs answered; count the samples without a partner.

    A sample with a score in only one run is not paired, since the means must be over the same samples. With
    `same_clips`, samples with different clips in the two runs are not paired either (controls replace clips on
    purpose).

    Returns
    -------
    list
        (reference's verdict, run's verdict) of each sample.
    dict
        Number of unpaired samples, as {reason: number}.
    """
    scorer, pairs, lost = get_task(run.key).scorer, [], Counter[str]()
    for id_, verdict in run.verdicts.items():
        theirs = base.verdicts.get(id_)
        if theirs is None:
            lost[f"of {counted(len(run.verdicts), 'sample')} not answered by the reference"] += 1
        elif same_clips and not same(theirs.record.clips, verdict.record.clips):
            lost["samples had another clip in the reference"] += 1
        elif [scorer.own_score(side) for side in (theirs, verdict)].count(None) == 1:
            lost["samples had a score under only one of the two"] += 1
        else:
            pairs.append((theirs, verdict))
    return sorted(pairs, key=lambda pair: pair[1].record.id), dict(lost)
