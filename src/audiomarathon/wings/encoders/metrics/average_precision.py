"""Compute average precision as scikit-learn does, and split its mean over classes into one value per clip."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from audiomarathon.metrics.statistics import Floats

Integers = npt.NDArray[np.integer[Any]]


def average_precisions(scores: Floats, targets: Integers) -> Floats:
    """Return each class's average precision, as scikit-learn's `average_precision_score` computes it.

    Parameters
    ----------
    scores, targets
        Shape (items, classes). Targets are 0 or 1. Items with equal scores share a rank.

    Returns
    -------
    Shape (classes,), NaN for a class without positives.
    """
    return np.array([precision for precision, _ in _ranked_classes(scores, targets)])


def parts_in_mean(scores: Floats, targets: Integers) -> Floats:
    """Split the mean average precision (mAP) into one value per item, so that it can be resampled like a mean.

    The mean of the values is the mAP over the classes with positives.

    An item's value is mAP + n · ∂mAP/∂w, where n is the number of items and w the item's weight (infinitesimal
    jackknife; L. Jaeckel, Bell Laboratories memorandum 72-1215-11, 1972). To first order, the mean of resampled values
    equals the mAP of the resampled items. In simulation (tests), 93 to 97 % of the bootstrap intervals of these values
    contain the true mAP.

    Returns
    -------
    Shape (items,); all NaN if no class has a positive.
    """
    present = [ranked for ranked in _ranked_classes(scores, targets) if not np.isnan(ranked[0])]
    if not present:
        return np.full(len(scores), np.nan)
    precisions, influences = zip(*present, strict=True)
    values: Floats = np.mean(precisions) + len(scores) * np.mean(influences, axis=0)
    return values


def _ranked_classes(scores: Floats, targets: Integers) -> list[tuple[float, Floats]]:
    each = zip(np.asarray(scores, dtype=np.float64).T, np.asarray(targets).T, strict=True)
    return [_ranked(*columns) for columns in each]


def _ranked(scores: Floats, targets: Integers) -> tuple[float, Floats]:
    """Return one class's average precision, and its derivative by each item's weight, shape (items,).

    `scores` and `targets` (0 or 1) have the shape (items,). The average precision is Σₖ Tₖ (Hₖ / Nₖ) / Σₖ Tₖ. Tₖ counts
    the positives at the k-th distinct score from the top; of the Nₖ items with that score or a higher one, Hₖ are
    positive.
    """
    positives = targets.sum()
    if not positives:
        return np.nan, np.zeros(len(scores))
    order = np.argsort(-scores, kind="stable")
    right = targets[order].astype(np.float64)
    last = np.append(scores[order][1:] != scores[order][:-1], True)
    rank = np.append(0, np.cumsum(last)[:-1])  # rank of each item; equal scores share a rank
    among = np.flatnonzero(last) + 1.0
    hits = np.cumsum(right)[last]
    gained = np.diff(hits, prepend=0.0)
    value = (gained * hits / among).sum() / positives
    reached = np.cumsum((gained / among)[::-1])[::-1]  # an item counts in its rank and in all lower ranks
    lost = np.cumsum((gained * hits / among**2)[::-1])[::-1]
    influence = np.empty(len(scores))
    influence[order] = (right * (hits / among + reached - value)[rank] - lost[rank]) / positives
    return float(value), influence
