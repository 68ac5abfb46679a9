"""Accuracy and macro-F1 of multiple-choice replies. An unparsed reply is wrong, never left out.

`truth` holds the class of each sample's right option, `predicted` the class that the reply chose, or None.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from audiomarathon.metrics.statistics import Floats, Sums, ratio

Labels = Sequence[str]
Predictions = Sequence[str | None]


def accuracy(truth: Labels, predicted: Predictions) -> float:
    """Return the share of samples whose prediction equals the truth."""
    _check(truth, predicted)
    return sum(right == chosen for right, chosen in zip(truth, predicted, strict=True)) / len(truth)


def macro_f1(truth: Labels, predicted: Predictions) -> float:
    """Return F1 averaged over the classes in `truth`, with equal weights.

    A prediction of None is a false negative of the true class, but no false positive. A class that occurs only
    in `predicted` lowers the true class's recall, but has no F1 in the average (unlike in scikit-learn).
    """
    table = per_class(truth, predicted)
    return float(sum(row["f1"] for row in table.values()) / len(table))


def per_class(truth: Labels, predicted: Predictions) -> dict[str, dict[str, Any]]:
    """Return `precision`, `recall`, `f1`, `support` and `unparsed` of each class in `truth`, as {class: figures}.

    `precision` is None for a class never predicted (its F1 is 0). `support` is the number of the class's samples,
    `unparsed` the number of these whose reply chose no option. Classes are sorted by name.
    """
    _check(truth, predicted)
    table: dict[str, dict[str, Any]] = {}
    pairs, supports, times = Counter(zip(truth, predicted, strict=True)), Counter(truth), Counter(predicted)
    for label in sorted(supports):
        hits, support, chosen_times = pairs[label, label], supports[label], times[label]
        table[label] = {
            "precision": hits / chosen_times if chosen_times else None,
            "recall": hits / support,
            "f1": 2 * hits / (support + chosen_times),
            "support": support,
            "unparsed": pairs[label, None],
        }
    return table


def choice_details(truth: Labels, predicted: Predictions) -> dict[str, Any]:
    """Return {"per_class": …, "as_published": …} for a run's summary: the results of the functions with these names."""
    if not truth:
        return {"per_class": {}, "as_published": None}
    return {"per_class": per_class(truth, predicted), "as_published": as_published(truth, predicted)}


def as_published(truth: Labels, predicted: Predictions) -> dict[str, Any] | None:
    """Return accuracy and F1 by AudioMarathon's released code, for comparison with its paper's table only.

    The keys are `n`, `accuracy`, `macro_f1` and `weighted_f1`. The released code first drops the samples with an
    unparsed reply: `n` is the number of samples left, and the result is None if none is left. `macro_f1` averages over
    all classes in the truth or the predictions, `weighted_f1` by support, both as in scikit-learn. The release used
    `macro_f1` for some tasks and `weighted_f1` for others.
    """
    kept = [(right, chosen) for right, chosen in zip(truth, predicted, strict=True) if chosen is not None]
    if not kept:
        return None
    right, chosen = [pair[0] for pair in kept], [pair[1] for pair in kept]
    table = per_class(right, chosen)
    return {
        "n": len(kept),
        "accuracy": accuracy(right, chosen),
        "macro_f1": sum(row["f1"] for row in table.values()) / len({*right, *chosen}),
        "weighted_f1": sum(row["f1"] * row["support"] for row in table.values()) / len(kept),
    }


def choice_sums(truth: Labels, predicted: Predictions, strict: Sequence[bool], clusters: Sequence[str] = ()) -> Sums:
    """Return accuracy, strict accuracy and macro-F1 as sums over samples, which can be resampled.

    Parameters
    ----------
    truth, predicted
        For each sample, class of the right option, and of the option that the reply chose (None: unparsed).
    strict
        Whether the reply is exactly the right letter or the complete right option.
    clusters
        Name of each sample's cluster; intervals resample whole clusters.
    """
    _check(truth, predicted, strict)
    labels = sorted(set(truth))
    is_class, chooses_class = _one_hot(truth, labels), _one_hot(predicted, labels)
    exact = np.asarray(strict, dtype=np.float64)
    columns = np.column_stack([is_class * chooses_class, is_class, chooses_class, exact, np.ones(len(truth))])

    def statistic(sums: Floats) -> Floats:
        hits, support, chosen = np.split(sums[:, :-2], 3, axis=1)
        n = sums[:, -1]
        present = support > 0  # average over the classes in the resample
        f1 = ratio(2 * hits, support + chosen, 0.0)
        return np.stack([hits.sum(axis=1) / n, sums[:, -2] / n, f1.sum(axis=1) / present.sum(axis=1)], axis=1)

    names = ("accuracy", "strict_accuracy", "macro_f1")
    return Sums(names, columns, statistic, tuple(clusters), dict.fromkeys(names, (0.0, 1.0)))


def published_choice_sums(truth: Labels, predicted: Predictions, clusters: Sequence[str] = ()) -> Sums:
    """Return macro-F1 and weighted F1 by AudioMarathon's released code, as sums over samples that can be resampled.

    As in :func:`as_published`, samples with an unparsed reply do not count: they add 0 to every sum.
    """
    labels = sorted({*truth, *(chosen for chosen in predicted if chosen is not None)})
    parsed = [None if chosen is None else right for right, chosen in zip(truth, predicted, strict=True)]
    is_class, chooses = _one_hot(parsed, labels), _one_hot(predicted, labels)

    def statistic(sums: Floats) -> Floats:
        hits, support, chosen = np.split(sums, 3, axis=1)
        seen = support + chosen > 0
        f1 = ratio(2 * hits, support + chosen, 0.0)
        return np.stack([ratio(f1.sum(1), seen.sum(1)), ratio((f1 * support).sum(1), support.sum(1))], axis=1)

    columns = np.hstack([is_class * chooses, is_class, chooses])
    names = ("macro_f1", "weighted_f1")
    return Sums(names, columns, statistic, tuple(clusters), dict.fromkeys(names, (0.0, 1.0)))


def _one_hot(values: Predictions, labels: Labels) -> Floats:
    """Return an array of shape (values, labels): 1 where a value equals a label, else 0."""
    places: dict[str | None, int] = {label: place for place, label in enumerate(labels)}
    rows = np.eye(len(labels) + 1, len(labels))  # the last: equals no label
    columns: Floats = rows[[places.get(value, -1) for value in values]]
    return columns


def _check(truth: Labels, *others: Sequence[object]) -> None:
    if not truth:
        raise ValueError("no samples to score")
    if any(len(other) != len(truth) for other in others):
        raise ValueError(f"{len(truth)} truths, but {[len(other) for other in others]} predictions or flags")
