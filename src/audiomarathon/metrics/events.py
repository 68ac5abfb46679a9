"""Events in time: F1 of counts, segments in which a label counts once, and onsets within a tolerance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from audiomarathon.metrics.statistics import Floats, ratio

_EPSILON = 1e-9  # seconds


def f1(counts: npt.ArrayLike) -> Floats:
    """Return F1 of true positives, false positives and false negatives, shape (..., 3); NaN where all are 0."""
    hits, extra, missed = np.moveaxis(np.asarray(counts, dtype=np.float64), -1, 0)
    return ratio(2 * hits, 2 * hits + extra + missed)


def mean_f1(counts: npt.ArrayLike, *, macro: bool) -> Floats:
    """Return the mean F1 of the labels that occur, or the F1 of all labels together.

    Parameters
    ----------
    counts
        Shape (..., labels, 3).

    Returns
    -------
    Shape (...); NaN where no label occurs.
    """
    each = np.asarray(counts, dtype=np.float64)
    each = each if macro else each.sum(axis=-2, keepdims=True)
    there = each[..., 0] + each[..., 2] > 0
    total, many = np.where(there, np.nan_to_num(f1(each)), 0.0).sum(axis=-1), there.sum(axis=-1)
    return ratio(total, many)


def segments(frames: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    """Return the maximum of each segment of `size` frames, shape (segments, labels); frames left at the end are lost.

    X-ARES counts so; sed_eval (A. Mesaros et al., Applied Sciences 6, 2016) keeps the rest.
    """
    many = len(frames) // size
    found: npt.NDArray[Any] = frames[: many * size].reshape(many, size, frames.shape[1]).max(axis=1)
    return found


def counts_of(predicted: npt.NDArray[np.bool_], true: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Return true positives, false positives and false negatives of each label, shape (labels, 3)."""
    return np.stack(
        [(predicted & true).sum(axis=0), (predicted & ~true).sum(axis=0), (~predicted & true).sum(axis=0)]
    ).T


def onset_counts(predicted: Sequence[float], true: Sequence[float], tolerance: float) -> tuple[int, int, int]:
    """Match onsets of one label, each once, and return the counts. Both in seconds, sorted.

    Taking the earliest pair that fits gives the most pairs, since the tolerance is the same for all.
    """
    hits = here = there = 0
    while here < len(predicted) and there < len(true):
        late = predicted[here] - true[there]
        fits = abs(late) <= tolerance + _EPSILON
        hits += fits
        here += fits or late < 0
        there += fits or late > 0
    return hits, len(predicted) - hits, len(true) - hits
