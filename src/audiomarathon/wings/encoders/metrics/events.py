"""Compute F1 of detected sound events: over segments of time, or over onsets within a tolerance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from audiomarathon.metrics.statistics import Floats, ratio

_EPSILON = 1e-9  # seconds


def f1(counts: npt.ArrayLike) -> Floats:
    """Return F1 from counts of shape (..., 3): true positives, false positives, false negatives. NaN if all are 0."""
    hits, extra, missed = np.moveaxis(np.asarray(counts, dtype=np.float64), -1, 0)
    return ratio(2 * hits, 2 * hits + extra + missed)


def mean_f1(counts: npt.ArrayLike, *, macro: bool) -> Floats:
    """Return the mean F1 of the labels that occur in the truth; if `macro` is false, F1 of all labels' summed counts.

    Parameters
    ----------
    counts
        True positives, false positives and false negatives of each label, shape (..., labels, 3).

    Returns
    -------
    Shape (...); NaN if no label occurs in the truth.
    """
    labels = np.asarray(counts, dtype=np.float64)
    labels = labels if macro else labels.sum(axis=-2, keepdims=True)
    occurs = labels[..., 0] + labels[..., 2] > 0
    return ratio(np.where(occurs, np.nan_to_num(f1(labels)), 0.0).sum(axis=-1), occurs.sum(axis=-1))


def segments(frames: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    """Split frames into segments of `size` frames, and return each label's maximum in each segment.

    Frames have the shape (frames, labels), the result (segments, labels). An incomplete last segment is dropped, as in
    X-ARES; sed_eval (A. Mesaros et al., Applied Sciences 6, 2016) keeps it.
    """
    many = len(frames) // size
    maxima: npt.NDArray[Any] = frames[: many * size].reshape(many, size, frames.shape[1]).max(axis=1)
    return maxima


def counts_of(predicted: npt.NDArray[np.bool_], true: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Count true positives, false positives and false negatives of each label, shape (labels, 3).

    `predicted` and `true` have the shape (frames, labels), or (segments, labels).
    """
    return np.stack(
        [(predicted & true).sum(axis=0), (predicted & ~true).sum(axis=0), (~predicted & true).sum(axis=0)]
    ).T


def onset_counts(predicted: Sequence[float], true: Sequence[float], tolerance: float) -> tuple[int, int, int]:
    """Match predicted and true onsets of a label; return (true positives, false positives, false negatives).

    Onsets are sorted times in seconds. Two onsets match if they differ by at most `tolerance`; each is matched at most
    once. Matching the earliest fitting pair first gives the most pairs, because the tolerance is the same for all
    pairs.
    """
    hits = here = there = 0
    while here < len(predicted) and there < len(true):
        late = predicted[here] - true[there]
        fits = abs(late) <= tolerance + _EPSILON
        hits += fits
        here += fits or late < 0
        there += fits or late > 0
    return hits, len(predicted) - hits, len(true) - hits
