"""Compute the validation figure: accuracy, or mean average precision for several labels."""

from __future__ import annotations

import numpy as np

from audiomarathon.metrics.average_precision import average_precisions
from audiomarathon.metrics.statistics import Floats
from audiomarathon.probing.clips import Integers


def figure(scores: Floats, targets: Integers) -> float:
    """Return the accuracy of class scores; with multi-label targets the mean over classes that have positives.

    Without any positive it is 0.
    """
    if targets.ndim == 1:
        return float((scores.argmax(axis=1) == targets).mean())
    found = average_precisions(scores, targets)
    return float(found[~np.isnan(found)].mean()) if (~np.isnan(found)).any() else 0.0


def published_figure(scores: Floats, targets: Integers) -> float:
    """Return the figure as X-ARES computes it: classes without positives count as average precision 0."""
    if targets.ndim == 1:
        return figure(scores, targets)
    return float(np.nan_to_num(average_precisions(scores, targets)).mean())
