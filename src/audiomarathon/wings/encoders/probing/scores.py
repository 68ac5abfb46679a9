"""Compute the validation score of a probe: accuracy, or mean average precision if clips can have several labels."""

from __future__ import annotations

import numpy as np

from audiomarathon.metrics.statistics import Floats
from audiomarathon.wings.encoders.metrics.average_precision import average_precisions
from audiomarathon.wings.encoders.probing.clips import Integers


def figure(scores: Floats, targets: Integers) -> float:
    """Return the accuracy of class scores; for multi-label targets, mean average precision over classes with positives.

    If no class has positives, return 0.
    """
    if targets.ndim == 1:
        return float((scores.argmax(axis=1) == targets).mean())
    precisions = average_precisions(scores, targets)
    return float(precisions[~np.isnan(precisions)].mean()) if (~np.isnan(precisions)).any() else 0.0


def published_figure(scores: Floats, targets: Integers) -> float:
    """Return the validation score as X-ARES does: in mean average precision, a class without positives counts 0."""
    if targets.ndim == 1:
        return figure(scores, targets)
    return float(np.nan_to_num(average_precisions(scores, targets)).mean())
