"""Score the predictions of a probe (a small model trained on embeddings): a label per clip, or a score per label.

A record's reply holds the predictions, one line per training seed; X-ARES' trained probes have five seeds by default.
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

#: Keys of `Record.groups`: the release of X-ARES whose probe made the predictions, and the clip's part (a split or
#: fold). X-ARES' score is the mean over parts.
PROTOCOL, PART = "protocol", "part"


def labels_to_reply(predicted: Sequence[tuple[str, float]], last: Sequence[str] = ()) -> str:
    """Write a clip's predicted labels as the text of a reply: a line per training seed, with label and probability.

    For a probe trained in epochs, `predicted` has the labels of the epoch with the best validation score, and `last`
    the label that each seed predicts after the last epoch; the seed's line then has this label too.
    """
    lines = [[label, f"{probability:.3f}"] for label, probability in predicted]
    return "\n".join("\t".join([*line, *last[place : place + 1]]) for place, line in enumerate(lines))


def scores_to_reply(scores: Floats) -> str:
    """Write a clip's class scores as the text of a reply: a line per training seed, the base64 of float32 values."""
    return "\n".join(base64.b64encode(row.astype("<f4").tobytes()).decode() for row in scores)


def scores_of(record: Record) -> Floats:
    """Decode the class scores in a record's reply, as :func:`scores_to_reply` wrote them; shape (seeds, classes).

    Raises
    ------
    ValueError
        The reply's text is not such scores.
    """
    try:
        rows = [np.frombuffer(base64.b64decode(line, validate=True), "<f4") for line in record.text.split("\n")]
        return np.array(rows, dtype=np.float64)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"its reply holds no scores of a probe ({error})") from None


def release_notes(verdicts: Sequence[Verdict]) -> list[str]:
    """Return [a note that says so] if the scores come from a copy of a benchmark's published probe; else [].

    The copy has the published probe's faults too, so its scores may be compared with published tables only.
    """
    release = next(((verdict.record.groups or {}).get(PROTOCOL) for verdict in verdicts), None)
    return [f"this probe copies {release}, faults included: compare it with published tables only"] if release else []


def spread(seeds: Sequence[float]) -> dict[str, Any]:
    """Return `seeds`, the score of each training seed, and `sd`, their standard deviation (None for a single seed)."""
    return {"seeds": seeds, "sd": stdev(seeds) if len(seeds) > 1 else None}


class Probed(Scorer):
    """Base of the scorers of probes' predictions; the headline figure is a mean over clips.

    For a published probe (a copy of a benchmark's own probe, such as X-ARES'), scorers also give a note, and the score
    by the benchmark's released code: the mean over parts of the data (splits or folds).
    """

    def sums(self, verdicts: Sequence[Verdict]) -> Sums:
        """Return the sums over clips, as :class:`Sums`, that give the headline score (a mean) and its interval."""
        return means({self.figure.name: self._terms(verdicts).tolist()}, verdicts)

    def published(self, verdicts: Sequence[Verdict]) -> Sums | None:
        """Return a published probe's headline figure by the rules of the benchmark's own code; None for other probes.

        By these rules, the score is computed on each part of the data (split or fold), then averaged without weights.
        """
        from audiomarathon.metrics.statistics import Sums, ratio

        groups = [verdict.record.groups or {} for verdict in verdicts]
        if not groups or PROTOCOL not in groups[0]:
            return None
        parts = [group.get(PART, "") for group in groups]
        names, sums = sorted({*parts}), np.empty(len(parts))
        for name in names:  # part by part, since ranks compare clips of one fold only
            members = [place for place, part in enumerate(parts) if part == name]
            sums[members] = self._released([verdicts[place] for place in members])
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
        """Return [a note to compare scores with published tables only] for a copy of a published probe; else []."""
        return release_notes(verdicts)

    def _terms(self, verdicts: Sequence[Verdict]) -> Floats:
        """Return one value per clip, averaged over training seeds; the mean of these values is the headline figure."""
        return np.array([self.own_score(verdict) for verdict in verdicts])

    def _released(self, verdicts: Sequence[Verdict]) -> Floats:
        """Return one value per clip; their mean is the headline figure by the rules of the benchmark's own code."""
        return self._terms(verdicts)


class Classified(Probed):
    """Score one predicted label per clip by accuracy.

    A verdict has `right`: for each training seed, whether its predicted label is right. If the reply also has labels
    predicted after the last training epoch, the verdict has `last`: whether each of those is right.
    """

    key = "label"
    figure = Figure("accuracy", "accuracy")
    needs = ("answer", "classes")

    def judge(self, record: Record) -> dict[str, Any]:
        """Return {"right": for each training seed, whether its predicted label is right}.

        If the reply also has labels of the last training epoch, the dict has `last`: whether each of those is right.
        """
        rows, answer = [line.split("\t") for line in record.text.split("\n")], record.reference["answer"]
        last = [row[2] == answer for row in rows if len(row) > 2]
        return {"right": [row[0] == answer for row in rows], **({"last": last} if last else {})}

    def summary(self, verdicts: Sequence[Verdict]) -> dict[str, Any]:
        """Return details for a run's summary, as a dict.

        Keys: `seeds` (accuracy of each training seed) and `sd` (their standard deviation; None for a single seed),
        `last_epoch` (accuracy of the labels predicted after the last epoch; None without such labels), `classes`
        (number of classes) and `majority` (accuracy of always predicting the most frequent label).
        """
        answers = Counter(verdict.record.reference["answer"] for verdict in verdicts)
        by_part = [[verdict.values for verdict in part] for part in _parts(verdicts)]
        many = len(verdicts[0].values["right"])
        seeds = [fmean(fmean(verdict["right"][seed] for verdict in part) for part in by_part) for seed in range(many)]
        last = "last" in verdicts[0].values
        return {
            **spread(seeds),
            "last_epoch": fmean(fmean(fmean(verdict["last"]) for verdict in part) for part in by_part)
            if last
            else None,
            "classes": verdicts[0].record.reference["classes"],
            "majority": answers.most_common(1)[0][1] / len(verdicts),
        }

    def chance(self, verdicts: Sequence[Verdict]) -> float | None:
        """Return the expected accuracy of guessing a label: 1 / number of classes."""
        return 1 / verdicts[0].record.reference["classes"] if verdicts else None

    def own_score(self, verdict: Verdict) -> float:
        """Return the share of training seeds that predict the clip's right label."""
        return fmean(verdict.values["right"])

    def right(self, verdict: Verdict) -> bool | None:
        """Return whether the clip's predicted label is right; None if there are several training seeds."""
        return verdict.values["right"][0] if len(verdict.values["right"]) == 1 else None

    def shown(self, verdict: Verdict) -> str:
        """Return as text the first training seed's label with its probability, and the right label if it differs."""
        label, probability, *_ = verdict.record.text.split("\n")[0].split("\t")
        answer = verdict.record.reference["answer"]
        return f"right: {label} ({probability})" if label == answer else f"{label} ({probability}), not {answer}"

    def sound(self, verdict: Verdict) -> bool:
        """Tell whether a stored verdict (the scored reply) has one value for each line (training seed) of the reply."""
        right = verdict.values.get("right")
        return isinstance(right, list) and len(right) == verdict.record.text.count("\n") + 1


class Tagged(Probed):
    """Score predictions for clips that can have several labels, by mean average precision (mAP) over the labels."""

    key = "tags"
    figure = Figure("map", "mAP")
    needs = ("answer", "positives", "classes")
    modules = ("audiomarathon.wings.encoders.metrics.average_precision",)

    def judge(self, record: Record) -> dict[str, Any]:
        """Return `ranked`: each training seed's average precision of the clip's labels; None if it has no labels."""
        from audiomarathon.wings.encoders.metrics.average_precision import average_precisions

        scores = scores_of(record)
        if scores.shape[1] != record.reference["classes"]:
            raise ValueError(f"its reply holds {scores.shape[1]} scores, not {record.reference['classes']}")
        if not record.reference["positives"]:
            return {"ranked": None}  # no label to rank
        return {"ranked": average_precisions(scores.T, np.tile(_hot(record)[:, None], len(scores))).tolist()}

    def summary(self, verdicts: Sequence[Verdict]) -> dict[str, Any]:
        """Return details for a run's summary, as a dict.

        Keys: `classes` (number of the task's labels), `classes_with_clips` (number of labels that at least one scored
        clip has), `seeds` (mAP of each training seed) and `sd` (their standard deviation; None for a single seed).
        """
        positives = {place for verdict in verdicts for place in verdict.record.reference["positives"]}
        parts = [self._by_seed(part) for part in _parts(verdicts)]
        return {
            "classes": verdicts[0].record.reference["classes"],
            "classes_with_clips": len(positives),
            **spread(np.mean(parts, axis=0).tolist()),
        }

    def own_score(self, verdict: Verdict) -> float | None:
        """Return the average precision of ranking the clip's labels, averaged over seeds; None without labels."""
        return None if verdict.values["ranked"] is None else fmean(verdict.values["ranked"])

    def shown(self, verdict: Verdict) -> str:
        """Return as text the average precision with which the clip's labels are ranked, and the labels."""
        ranked = self.own_score(verdict)
        labels = verdict.record.reference["answer"]
        return "no labels" if ranked is None else f"labels ranked with precision {ranked:.2f}: {labels}"

    def _by_seed(self, verdicts: Sequence[Verdict]) -> Floats:
        """Return the mean average precision of each training seed.

        For a copy of a published probe, a label without clips counts 0.
        """
        from audiomarathon.wings.encoders.metrics.average_precision import average_precisions

        scores, targets = _scores_and_targets(verdicts)
        precisions = np.array([average_precisions(seed, targets) for seed in scores])
        released = PROTOCOL in (verdicts[0].record.groups or {})
        values: Floats = np.nan_to_num(precisions).mean(axis=1) if released else np.nanmean(precisions, axis=1)
        return values

    def _terms(self, verdicts: Sequence[Verdict]) -> Floats:
        """Return one value per clip, averaged over training seeds; their mean is the mAP over the labels that occur."""
        from audiomarathon.wings.encoders.metrics.average_precision import parts_in_mean

        scores, targets = _scores_and_targets(verdicts)
        values: Floats = np.mean([parts_in_mean(seed, targets) for seed in scores], axis=0)
        return values

    def _released(self, verdicts: Sequence[Verdict]) -> Floats:
        targets = np.array([_hot(verdict.record) for verdict in verdicts])
        values: Floats = self._terms(verdicts) * targets.any(axis=0).mean()  # a label without clips counts 0
        return values


def _parts(verdicts: Sequence[Verdict]) -> list[list[Verdict]]:
    """Return a published probe's verdicts (scored clips) as one list per part (split or fold).

    For other probes, return a single list of all verdicts.
    """
    by_part: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        groups = verdict.record.groups or {}
        by_part.setdefault(groups.get(PART, "") if PROTOCOL in groups else "", []).append(verdict)
    return list(by_part.values())


def _scores_and_targets(verdicts: Sequence[Verdict]) -> tuple[Floats, Any]:
    """Return (predicted scores, shape (seeds, clips, classes); true labels as 0 or 1, shape (clips, classes))."""
    scores = np.stack([scores_of(verdict.record) for verdict in verdicts], axis=1)
    return scores, np.array([_hot(verdict.record) for verdict in verdicts])


def _hot(record: Record) -> Any:
    hot = np.zeros(record.reference["classes"], np.int64)
    hot[record.reference["positives"]] = 1
    return hot
