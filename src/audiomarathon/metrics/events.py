"""F1 of events in time, by segments or by onsets within a tolerance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from audiomarathon.metrics.statistics import Floats, ratio

_EPSILON = 1e-9  # seconds


def f1(counts: npt.ArrayLike) -> Floats:
    """Return F1 from true positives, false positives and false negatives, shape (..., 3); NaN if all are 0."""
    hits, extra, missed = np.moveaxis(np.asarray(counts, dtype=np.float64), -1, 0)
    return ratio(2 * hits, 2 * hits + extra + missed)


def mean_f1(counts: npt.ArrayLike, *, macro: bool) -> Floats:
    """Return the mean F1 over the labels that occur in the truth; without `macro`, the F1 of all labels pooled.

    Parameters
    ----------
    counts
        Shape (..., labels, 3).

    Returns
    -------
    Shape (...); NaN if no label occurs.
    """
    labels = np.asarray(counts, dtype=np.float64)
    labels = labels if macro else labels.sum(axis=-2, keepdims=True)
    occurs = labels[..., 0] + labels[..., 2] > 0
    return ratio(np.where(occurs, np.nan_to_num(f1(labels)), 0.0).sum(axis=-1), occurs.sum(axis=-1))


def segments(frames: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    """Return the maximum of each segment of `size` frames, shape (segments, labels); drop an incomplete last segment.

    X-ARES does the same; sed_eval (A. Mesaros et al., Applied Sciences 6, 2016) keeps the incomplete segment.
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
    """Match sorted onsets (seconds) of one label, each at most once; return TP, FP and FN as :func:`counts_of`.

    Matching the earliest fitting pair first gives the most pairs, because all pairs have the same tolerance.
    """
    hits = here = there = 0
    while here < len(predicted) and there < len(true):
        late = predicted[here] - true[there]
        fits = abs(late) <= tolerance + _EPSILON
        hits += fits
        here += fits or late < 0
        there += fits or late > 0
    return hits, len(predicted) - hits, len(true) - hits
