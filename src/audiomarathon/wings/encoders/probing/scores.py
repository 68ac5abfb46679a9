"""Compute the figure by which probes are validated: accuracy, or for several labels mean average precision."""

from __future__ import annotations

import numpy as np

from audiomarathon.metrics.statistics import Floats
from audiomarathon.wings.encoders.metrics.average_precision import average_precisions
from audiomarathon.wings.encoders.probing.clips import Integers


def figure(scores: Floats, targets: Integers) -> float:
    """Return the accuracy of class scores; for multi-label targets, mean average precision over classes with positives.

    If no class has positives, it is 0.
    """
    if targets.ndim == 1:
        return float((scores.argmax(axis=1) == targets).mean())
    precisions = average_precisions(scores, targets)
    return float(precisions[~np.isnan(precisions)].mean()) if (~np.isnan(precisions)).any() else 0.0


def published_figure(scores: Floats, targets: Integers) -> float:
    """Return the same as :func:`figure`, but classes without positives count as average precision 0, as in X-ARES."""
    if targets.ndim == 1:
        return figure(scores, targets)
    return float(np.nan_to_num(average_precisions(scores, targets)).mean())
