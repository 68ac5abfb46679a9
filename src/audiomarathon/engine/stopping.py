"""Stop a setting early, as soon as it is decided whether it is at most a margin worse than base.

Base is the run without compression. The margin is the largest loss of score that counts as "no worse". Whole clusters
(samples that depend on each other) run in a seeded random order. After each cluster, the wealth of the betting test
(:mod:`audiomarathon.metrics.betting`) is checked; a check is called a "look". Looks follow the order that was drawn for
the clusters, not the order in which replies arrive, in which short clips would come first. A setting stops when its
wealth reaches the limit; base runs until all other settings have stopped. All of this is computed from the records, so
a resumed run stops at the same place. After a stop, only the bounds of this test are valid: other estimates assume a
fixed number of samples.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from audiomarathon.benchmarks import Sample, Task
from audiomarathon.benchmarks.selection import draw
from audiomarathon.compression.method import Base, Method
from audiomarathon.errors import SettingsError
from audiomarathon.metrics.betting import (
    ALPHA,
    MOST_PLANNED,
    NO_WORSE,
    OPEN,
    POWER,
    WORSE,
    Clusters,
    clusters_for_power,
    fewest,
)
from audiomarathon.runs.folder import Job
from audiomarathon.runs.scored import judged
from audiomarathon.settings import RunSettings
from audiomarathon.text import counted

RULE = "betting on whole clusters in drawn order, a look after each (docs/lossless.md)"


@dataclass(frozen=True)
class Margin:
    """The margins of a sweep's tasks: the largest loss of score against base that counts as no worse.

    `by_task` is {task key: margin}; the key "" is for all other tasks. `tests` is the number of pairs of a setting and
    a task to decide; the level of each test is divided by this number.
    """

    by_task: Mapping[str, float]
    tests: int

    def stopping(
        self,
        task: Task,
        samples: Sequence[Sample],
        seed: int,
        whole: Sequence[Sample] = (),
        jobs: Sequence[Job] = (),
        clips: Mapping[str, str] | None = None,
    ) -> Stopping | None:
        """Return the rule that decides when the settings of a task stop; None if the task has no margin.

        Earlier looks (checks of the test after a cluster of samples) stay valid: clusters of a recorded order come
        first, with their recorded samples, and new clusters follow in seeded order. More samples of a recorded cluster
        would change the earlier looks.

        Parameters
        ----------
        samples, whole
            The samples to run, and all samples of the task, which tell the size of its largest cluster.
        jobs
            The settings with their folders, whose records and `run.json` are read.
        clips
            Current hash of each sample's clips; see :meth:`RunFolder.done`.

        Raises
        ------
        SettingsError
            Earlier looks at a setting used another rule, another order, or clusters that this run leaves out.
        """
        margin = self.by_task.get(task.key, self.by_task.get(""))
        if margin is None:
            return None
        recorded = [_recorded(job) for job in jobs]
        looked = [(job, old) for job, old in zip(jobs, recorded, strict=True) if old and not _is_base(job)]
        most = max((old for _, old in looked), key=lambda old: len(old.get("samples", ())), default={})
        for job, old in looked:
            self._check_looks(job, old, margin, most, {sample.id for sample in samples})
        first, asked = most.get("order", []), set(most.get("samples", ()))
        by_cluster: dict[str, list[Sample]] = {}
        for sample in samples:
            if sample.id in asked or not asked or sample.cluster not in first:
                by_cluster.setdefault(sample.cluster, []).append(sample)
        drawn = sorted(by_cluster, key=lambda name: (draw(seed, "drawn", name), name))
        order = dict.fromkeys([name for name in first if name in by_cluster] + drawn)
        sizes = Counter(sample.cluster for sample in whole or samples)
        largest = max([*sizes.values(), *(int(look.get("largest", 1)) for look in recorded)])
        known = {}
        for job, old in zip(jobs, recorded, strict=True):
            chosen = set(old["before"] if "before" in old else job.folder.run.get("samples", ()))
            known[job.method.label] = frozenset(chosen & job.folder.done(clips) & {sample.id for sample in samples})
        return Stopping(task, margin, self.tests, {name: by_cluster[name] for name in order}, largest, known)

    def _check_looks(
        self, job: Job, old: Mapping[str, Any], margin: float, most: Mapping[str, Any], ids: Collection[str]
    ) -> None:
        """Raise SettingsError if earlier looks (checks of the test) at a setting followed another rule than this run's.

        `old` is the earlier rule, and `most` the rule of the setting with the most samples, both from `run.json`. `ids`
        are the samples that this run selects: it may not leave out a sample of earlier looks.
        """
        there, now = (
            f"margin {bound:g}, α {alpha:g} and {counted(tests, 'test')}"
            for bound, alpha, tests in (
                (old.get("margin", margin), old.get("alpha", ALPHA), old.get("tests", self.tests)),
                (margin, ALPHA, self.tests),
            )
        )
        order, samples = old.get("order", []), old.get("samples", [])
        absent = sum(id_ not in ids for id_ in samples)
        earlier = ""
        if there != now:
            earlier, advice = f"with {there}; now it is {now}", "use the same margin, tasks and methods"
        elif absent:
            earlier = f"with {counted(len(samples), 'sample')}, of which this run leaves out {absent:,}"
            advice = "use the same SAMPLE_LIMIT, or a larger one"
        elif order != most.get("order", [])[: len(order)] or samples != most.get("samples", [])[: len(samples)]:
            earlier, advice = "in another order of clusters than other settings, or with others", "run it without them"
        if earlier:
            raise SettingsError(f"{job.folder.path}: was already tested {earlier}; {advice}, or another RESULTS_DIR")


@dataclass(frozen=True)
class Stopping:
    """The rule that stops the settings of one task.

    A setting stops once the betting test (metrics.betting), checked after each whole cluster of samples, decides
    whether the setting is at most `margin` worse than base (the run without compression). Base stops last.

    Attributes
    ----------
    tests
        Number of pairs of a setting and a task in this sweep: each setting stops at p = α ÷ `tests`, the first step of
        Holm's correction.
    clusters
        The samples of each cluster (samples that depend on each other), in the random order in which clusters run.
    largest
        Number of samples in the whole task's largest cluster.
    known
        Samples that were selected and answered before this run, as {label of the setting: sample ids}: a stop keeps all
        of them.
    """

    task: Task
    margin: float
    tests: int
    clusters: Mapping[str, Sequence[Sample]]
    largest: int
    known: Mapping[str, frozenset[str]] = field(default_factory=dict)
    _sums: dict[tuple[str, str], tuple[float, ...]] = field(default_factory=dict, repr=False, compare=False)

    def rounds(self, jobs: Sequence[Job], at_once: int) -> Iterator[tuple[list[Sample], list[Job]]]:
        """Yield (samples, settings that still have to run on them) until every setting is decided; each pair is one
        round.

        The caller runs a round before it asks for the next. A round has enough clusters for `at_once` samples. Samples
        after a setting's stop are recorded, but do not count for its verdict or its scores.
        """
        order, seen = list(self.clusters.values()), 0
        while seen < len(order):
            active = [job for job in jobs if not self._decided(job, jobs, seen)[1]]
            if all(_is_base(job) for job in active) and len(active) < len(jobs):
                return
            part: list[Sample] = []
            while seen < len(order) and len(part) < max(1, at_once):
                part += order[seen]
                seen += 1
            yield part, active

    def rule(self, job: Job) -> dict[str, Any]:
        """Return the parameters of a setting's early-stopping test, as {name: value}: `margin`, `alpha`, `order`, ….

        `order` lists the clusters in the order in which they are tested. `run.json` stores the parameters; they are
        written before the first reply, so that a killed run keeps them.
        """
        return {
            "rule": RULE,
            "margin": self.margin,
            "figure": self.task.scorer.own_title,
            "alpha": ALPHA,
            "tests": self.tests,
            "order": list(self.clusters),
            "samples": [sample.id for part in self.clusters.values() for sample in part],
            "largest": self.largest,
            "stopped_after": None,
            "verdict": OPEN,
            "before": sorted(self.known.get(job.method.label, ())),
        }

    def outcomes(self, jobs: Sequence[Job]) -> dict[str, dict[str, Any]]:
        """Return where and how each setting was decided, as {label of the setting: fields of its `run.json`}.

        The field `samples` has the ids of the samples up to the stop; `stopping` has the rule, the number of clusters
        and the verdict. Samples after the stop that were selected and answered before this run count too: a stop never
        drops results.
        """
        after = {job.method.label: self._decided(job, jobs, len(self.clusters)) for job in jobs if not _is_base(job)}
        longest = max((count for count, _ in after.values()), default=len(self.clusters))
        outcomes = {}
        for job in jobs:
            label = job.method.label
            count, verdict = after.get(label, (longest, ""))
            samples, known = list[str](), self.known.get(label, frozenset())
            for place, members in enumerate(self.clusters.values()):
                samples += [sample.id for sample in members if place < count or sample.id in known]
            samples += sorted(known.difference(samples))
            everything = len(samples) >= sum(map(len, self.clusters.values()))
            stopped = {
                "stopped_after": len(self.clusters) if everything else count,
                "verdict": verdict or OPEN,
            }
            rule = {name: value for name, value in self.rule(job).items() if name != "before"}
            outcomes[label] = {"samples": samples, "stopping": rule | stopped}
        return outcomes

    def lines(self, jobs: Sequence[Job]) -> list[str]:
        """Return one text line for each setting except base: where the setting stopped, and with which verdict."""
        lines, outcomes = [], self.outcomes(jobs)
        for job in jobs:
            count, verdict = self._decided(job, jobs, len(self.clusters))
            samples = outcomes[job.method.label]["samples"]
            beyond = len(samples) - sum(len(part) for part in list(self.clusters.values())[:count])
            verdict = f"{verdict} by more than {self.margin:g}" if verdict else OPEN
            after = f"after {count:,} of {counted(len(self.clusters), 'cluster')}"
            line = f"{self.task.key}: {job.method.label}: {verdict} {after} ({counted(len(samples), 'sample')})"
            kept = f"; {counted(beyond, 'sample')} beyond were on record already and count too"
            lines += [line + kept * bool(beyond)] * (not _is_base(job))
        return lines

    def differences(self, job: Job, jobs: Sequence[Job], names: Sequence[str], *, worst: bool = False) -> Clusters:
        """Return the differences (a setting's score minus base's), summed within each named cluster, as
        :class:`Clusters`.

        They are the input of the betting test. Base is the run without compression; clusters are samples that depend on
        each other, and they must have run. With `worst`, a sample that has a score under only one of the two settings
        counts as lost: see :attr:`Pairs.worst`.
        """
        base = next(other for other in jobs if _is_base(other))
        sums = np.array([self._summed(job, base, name) for name in names], dtype=np.float64).reshape(-1, 5).T
        totals, sizes = sums[3:5] if worst else sums[:2]
        return Clusters(totals, sizes, self.largest, int(sums[2].sum()))

    def planned(self, jobs: Sequence[Job], seconds_a_reply: float | None, seed: int) -> list[str]:
        """Return lines for a sweep's plan: how many clusters it takes to decide whether each setting loses more than
        the margin.

        The estimate assumes more clusters like the recorded ones. With `seconds_a_reply`, the lines also estimate the
        hours.
        """
        whole = f"here are {counted(len(self.clusters), 'cluster')}"
        least = fewest(self.margin, ALPHA / self.tests)
        lines = [f"margin {self.margin:g}: at least {least:,} clusters even if no reply differs; {whole}"]
        known = [job for job in jobs if _is_base(job) and job.folder.records]
        for job in jobs if known else ():
            ran = [name for name in self.clusters if not _is_base(job) and self._summed(job, known[0], name)[1]]
            if not ran:
                continue
            pilot = self.differences(job, jobs, ran)
            count = clusters_for_power(pilot, self.margin, alpha=ALPHA / self.tests, seed=seed)
            about = (
                f"{job.method.label}: {pilot.discordant} of {counted(len(ran), 'cluster')} on record differ from base;"
            )
            if count is None:
                lines.append(f"{about} more than {MOST_PLANNED:,} such clusters are needed")
                continue
            samples = math.ceil(count * float(pilot.sizes.mean()))
            hours = f", about {2 * samples * seconds_a_reply / 3600:.2g} h with base" if seconds_a_reply else ""
            lines.append(f"{about} {count:,} such clusters ({samples:,} samples{hours}) decide in {POWER:.0%} of cases")
        return [f"{self.task.key}: {line}" for line in lines]

    def _decided(self, job: Job, jobs: Sequence[Job], seen: int) -> tuple[int, str]:
        """Return (number of clusters after which a setting is decided, its verdict: "no worse" or "worse").

        Only the first `seen` clusters are looked at; if they do not decide, return (`seen`, ""). A sample that failed
        under the setting or under base counts as lost for "no worse", and is left out for "worse".
        """
        if _is_base(job):
            return seen, ""
        names = list(self.clusters)[:seen]
        limit = math.log(self.tests / ALPHA)
        looks = {
            name: self.differences(job, jobs, names, worst=name == NO_WORSE).log_wealth(
                self.margin, worse=name == WORSE
            )
            >= limit
            for name in (NO_WORSE, WORSE)
        }
        first = {name: int(rich.argmax()) + 1 for name, rich in looks.items() if rich.any()}
        verdict = min(first, key=lambda name: first[name], default="")
        return (first[verdict], verdict) if verdict else (seen, "")

    def _summed(self, job: Job, base: Job, name: str) -> tuple[float, ...]:
        """Return five numbers about the differences (score of the setting − score of base) of a cluster's samples.

        The first three are the sum of the differences, their number, and whether any is not 0. The last two are sum and
        number if each sample with a score under only one of the two counts as lost.
        """
        if (job.method.label, name) not in self._sums:
            ids = [sample.id for sample in self.clusters[name]]
            sides = [
                {id_: side.folder.records[id_] for id_ in ids if id_ in side.folder.records} for side in (job, base)
            ]
            both, score = {*sides[0]} & {*sides[1]}, self.task.scorer.own_score
            verdicts = [
                judged(self.task.scorer, [record for record in side.values() if record.answered]) for side in sides
            ]
            scores, other = ({id_: score(verdict) for id_, verdict in side.items() if id_ in both} for side in verdicts)
            pairs = [(scores.get(id_), other.get(id_)) for id_ in sorted(both)]
            known = [mine - theirs for mine, theirs in pairs if mine is not None and theirs is not None]
            lost = [
                (mine or 0.0) - (1.0 if theirs is None else theirs)
                for mine, theirs in pairs
                if (mine is None) != (theirs is None)
            ]
            total, count = sum(known), len(known)
            self._sums[job.method.label, name] = total, count, any(known), total + sum(lost), count + len(lost)
        return self._sums[job.method.label, name]


def _recorded(job: Job) -> dict[str, Any]:
    """Return the parameters of the early-stopping test that earlier calls applied to a setting, read from its
    `run.json`; {} if none.
    """
    return (job.folder.run.get("stopping") or {}) if job.folder.records else {}


def without_stopping(job: Job) -> dict[str, Any]:
    """Return {"stopping": parameters of the early-stopping test that an earlier sweep applied to a setting}; {} if
    none.

    A later run of all samples writes them to `run.json`, so that a further sweep knows that the setting was already
    tested. Where the setting stopped is left out.
    """
    old = {name: value for name, value in _recorded(job).items() if name != "before"}
    return {"stopping": old | {"stopped_after": None}} if old else {}


def _is_base(job: Job) -> bool:
    return job.method.label == Base().label


def stop_margin(
    margins: Mapping[str, float], tasks: Sequence[Task], methods: Sequence[Method], settings: RunSettings
) -> Margin:
    """Check the margins of a sweep that stops settings early, and return them.

    `margins` is {task key: largest loss of score against base}; the key "" is for all other tasks.

    Raises
    ------
    SettingsError
        Base or the settings to compare with it are missing, a named task is not run, a task is scored only after the
        run, or attention is to be saved.
    """
    asked = [task for task in tasks if task.key in margins or "" in margins]
    if unknown := [key for key in margins if key and key not in {task.key for task in tasks}]:
        allowed = ", ".join(task.key for task in tasks)
        raise SettingsError(f"--margin: {', '.join(unknown)} is not run; allowed: {allowed}")
    if slow := [task.key for task in asked if not task.scorer.instant]:
        rule = "allowed: tasks that rules score at once"
        raise SettingsError(f"--stop-when-decided: {', '.join(slow)} is scored after the run; {rule}")
    others = [method for method in methods if method.label != Base().label]
    if not others or len(others) == len(methods):
        raise SettingsError("--stop-when-decided compares settings with base; allowed: base and at least one method")
    if settings.save_attn:
        raise SettingsError("--stop-when-decided: SAVE_ATTN=1 needs all samples; allowed: one of the two")
    return Margin(margins, len(asked) * len(others))
