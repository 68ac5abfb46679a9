"""The figure that penalties and epochs are chosen by: accuracy, or mean average precision of several labels."""

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
    """Return the figure as X-ARES has it: a class without positives counts as an average precision of 0."""
    if targets.ndim == 1:
        return figure(scores, targets)
    return float(np.nan_to_num(average_precisions(scores, targets)).mean())
