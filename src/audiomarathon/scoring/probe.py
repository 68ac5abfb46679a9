"""Score a probe's predictions: one label per clip, or a score per label.

A reply has one line per training seed; X-ARES' trained probes have five seeds by default.
"""

from __future__ import annotations

import base64
import binascii
from collections import Counter
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import numpy as np

from audiomarathon.records import Figure, Record, Verdict
from audiomarathon.scoring.scorer import Scorer, clusters_of, means

if TYPE_CHECKING:
    from audiomarathon.metrics.statistics import Floats, Sums

#: Keys of `Record.groups`: the release whose probe made the reply, and the clip's part (a split or fold). The release
#: averages over parts.
PROTOCOL, PART = "protocol", "part"


def labels_to_reply(predicted: Sequence[tuple[str, float]], last: Sequence[str] = ()) -> str:
    """Return a reply: a line per seed with the label, its probability, and the last epoch's label if there is one."""
    lines = [[label, f"{probability:.3f}"] for label, probability in predicted]
    return "\n".join("\t".join([*line, *last[place : place + 1]]) for place, line in enumerate(lines))


def scores_to_reply(scores: Floats) -> str:
    """Return a reply: a line per seed, the base64 of the classes' scores in single precision."""
    return "\n".join(base64.b64encode(row.astype("<f4").tobytes()).decode() for row in scores)


def scores_of(record: Record) -> Floats:
    """Decode the scores in a reply, shape (seeds, classes).

    Raises
    ------
    ValueError
        The reply holds no scores.
    """
    try:
        rows = [np.frombuffer(base64.b64decode(line, validate=True), "<f4") for line in record.text.split("\n")]
        return np.array(rows, dtype=np.float64)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"holds no scores of a probe ({error})") from None


def release_notes(verdicts: Sequence[Verdict]) -> list[str]:
    """If the scores come from a published probe, return a note: compare them with its published tables only."""
    release = next(((one.record.groups or {}).get(PROTOCOL) for one in verdicts), None)
    return [f"this probe copies {release}, faults included: compare it with published tables only"] if release else []


def spread(seeds: Sequence[float]) -> dict[str, Any]:
    """Return the score of each training seed, and the seeds' standard deviation; None for one seed."""
    return {"seeds": seeds, "sd": stdev(seeds) if len(seeds) > 1 else None}


class Probed(Scorer):
    """Base of the probe scorers: the mean over clips; for published probes also the mean over parts and a note."""

    def sums(self, verdicts: Sequence[Verdict]) -> Sums:
        """Return the headline figure as a mean over clips."""
        return means({self.figure.name: self._terms(verdicts).tolist()}, verdicts)

    def published(self, verdicts: Sequence[Verdict]) -> Sums | None:
        """Return the unweighted mean over parts for a published probe; None for other probes."""
        from audiomarathon.metrics.statistics import Sums, ratio

        groups = [one.record.groups or {} for one in verdicts]
        if not groups or PROTOCOL not in groups[0]:
            return None
        parts = [group.get(PART, "") for group in groups]
        names, sums = sorted({*parts}), np.empty(len(parts))
        for name in names:  # part by part, since ranks compare clips of one fold only
            own = [place for place, part in enumerate(parts) if part == name]
            sums[own] = self._released([verdicts[place] for place in own])
        hot = np.array([[part == name for name in names] for part in parts], dtype=np.float64)
        columns = np.hstack([hot * sums[:, None], hot])

        def statistic(totals: Floats) -> Floats:
            score, count = np.split(totals, 2, axis=1)
            by_part = ratio(score, count)
            drawn = ~np.isnan(by_part)
            whole: Floats = np.nan_to_num(by_part).sum(axis=1, keepdims=True) / drawn.sum(axis=1, keepdims=True)
            return whole

        name, ends = self.figure.name, {self.figure.name: (0.0, 1.0)}
        return Sums((name,), columns, statistic, clusters_of(verdicts), ends)

    def notes(self, verdicts: Sequence[Verdict]) -> list[str]:
        """If the scores come from a published probe, return a note: compare them with its published tables only."""
        return release_notes(verdicts)

    def _terms(self, verdicts: Sequence[Verdict]) -> Floats:
        """Return each clip's summand in the headline mean, averaged over seeds."""
        return np.array([self.own_score(one) for one in verdicts])

    def _released(self, verdicts: Sequence[Verdict]) -> Floats:
        """Return each clip's summand in the headline mean as the release computes it."""
        return self._terms(verdicts)


class Classified(Probed):
    """Accuracy. Per seed, a verdict tells whether the label and the last epoch's label are right."""

    key = "label"
    figure = Figure("accuracy", "accuracy")
    needs = ("answer", "classes")

    def judge(self, record: Record) -> dict[str, Any]:
        """Return for each seed whether the label is right, and whether the last epoch's label is right."""
        rows, answer = [line.split("\t") for line in record.text.split("\n")], record.reference["answer"]
        last = [row[2] == answer for row in rows if len(row) > 2]
        return {"right": [row[0] == answer for row in rows], **({"last": last} if last else {})}

    def summary(self, verdicts: Sequence[Verdict]) -> dict[str, Any]:
        """Return the seeds' spread, the last epoch's score, and the score of always predicting the most frequent
        label."""
        answers = Counter(one.record.reference["answer"] for one in verdicts)
        by_part = [[one.values for one in part] for part in _parts(verdicts)]
        many = len(verdicts[0].values["right"])
        seeds = [fmean(fmean(one["right"][seed] for one in part) for part in by_part) for seed in range(many)]
        last = "last" in verdicts[0].values
        return {
            **spread(seeds),
            "last_epoch": fmean(fmean(fmean(one["last"]) for one in part) for part in by_part) if last else None,
            "classes": verdicts[0].record.reference["classes"],
            "majority": answers.most_common(1)[0][1] / len(verdicts),
        }

    def chance(self, verdicts: Sequence[Verdict]) -> float | None:
        """Return 1 / number of classes."""
        return 1 / verdicts[0].record.reference["classes"] if verdicts else None

    def own_score(self, verdict: Verdict) -> float:
        """Return the share of seeds whose label is right."""
        return fmean(verdict.values["right"])

    def right(self, verdict: Verdict) -> bool | None:
        """Return whether the label is right; None with several seeds."""
        return verdict.values["right"][0] if len(verdict.values["right"]) == 1 else None

    def shown(self, verdict: Verdict) -> str:
        """Return the first seed's label with its probability, and the right label."""
        label, probability, *_ = verdict.record.text.split("\n")[0].split("\t")
        answer = verdict.record.reference["answer"]
        return f"right: {label} ({probability})" if label == answer else f"{label} ({probability}), not {answer}"

    def sound(self, verdict: Verdict) -> bool:
        """Tell whether each seed has a verdict."""
        right = verdict.values.get("right")
        return isinstance(right, list) and len(right) == verdict.record.text.count("\n") + 1


class Tagged(Probed):
    """Mean average precision; a clip can have several labels."""

    key = "tags"
    figure = Figure("map", "mAP")
    needs = ("answer", "positives", "classes")
    modules = ("audiomarathon.metrics.average_precision",)

    def judge(self, record: Record) -> dict[str, Any]:
        """Return the average precision of a clip's labels, per seed."""
        from audiomarathon.metrics.average_precision import average_precisions

        scores = scores_of(record)
        if scores.shape[1] != record.reference["classes"]:
            raise ValueError(f"holds {scores.shape[1]} scores; there are {record.reference['classes']} labels")
        if not record.reference["positives"]:
            return {"ranked": None}  # no label to rank
        return {"ranked": average_precisions(scores.T, np.tile(_hot(record)[:, None], len(scores))).tolist()}

    def summary(self, verdicts: Sequence[Verdict]) -> dict[str, Any]:
        """Return the number of labels, the number of labels with clips, and the seeds' spread."""
        positives = {place for one in verdicts for place in one.record.reference["positives"]}
        parts = [self._by_seed(part) for part in _parts(verdicts)]
        return {
            "classes": verdicts[0].record.reference["classes"],
            "classes_with_clips": len(positives),
            **spread(np.mean(parts, axis=0).tolist()),
        }

    def own_score(self, verdict: Verdict) -> float | None:
        """Return the average precision of the clip's labels; None for a clip without labels."""
        return None if verdict.values["ranked"] is None else fmean(verdict.values["ranked"])

    def shown(self, verdict: Verdict) -> str:
        """Return the clip's average precision as text."""
        ranked = self.own_score(verdict)
        labels = verdict.record.reference["answer"]
        return "no labels" if ranked is None else f"labels ranked with precision {ranked:.2f}: {labels}"

    def _by_seed(self, verdicts: Sequence[Verdict]) -> Floats:
        """Return each seed's mean average precision; for a published probe, a label without clips counts 0."""
        from audiomarathon.metrics.average_precision import average_precisions

        scores, targets = _scores_and_targets(verdicts)
        found = np.array([average_precisions(seed, targets) for seed in scores])
        released = PROTOCOL in (verdicts[0].record.groups or {})
        values: Floats = np.nan_to_num(found).mean(axis=1) if released else np.nanmean(found, axis=1)
        return values

    def _terms(self, verdicts: Sequence[Verdict]) -> Floats:
        """Return each clip's summand in the mean over the labels that have clips, averaged over seeds."""
        from audiomarathon.metrics.average_precision import parts_in_mean

        scores, targets = _scores_and_targets(verdicts)
        values: Floats = np.mean([parts_in_mean(seed, targets) for seed in scores], axis=0)
        return values

    def _released(self, verdicts: Sequence[Verdict]) -> Floats:
        targets = np.array([_hot(one.record) for one in verdicts])
        values: Floats = self._terms(verdicts) * targets.any(axis=0).mean()  # a label without clips counts 0
        return values


def _parts(verdicts: Sequence[Verdict]) -> list[list[Verdict]]:
    """Return the verdicts grouped by part for a published probe, else one group."""
    found: dict[str, list[Verdict]] = {}
    for one in verdicts:
        groups = one.record.groups or {}
        found.setdefault(groups.get(PART, "") if PROTOCOL in groups else "", []).append(one)
    return list(found.values())


def _scores_and_targets(verdicts: Sequence[Verdict]) -> tuple[Floats, Any]:
    """Return scores, shape (seeds, clips, classes), and labels as 0 or 1, shape (clips, classes)."""
    scores = np.stack([scores_of(one.record) for one in verdicts], axis=1)
    return scores, np.array([_hot(one.record) for one in verdicts])


def _hot(record: Record) -> Any:
    hot = np.zeros(record.reference["classes"], np.int64)
    hot[record.reference["positives"]] = 1
    return hot
