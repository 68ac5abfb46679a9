"""Compute Pearson's correlation from sums over items, so that a bootstrap of groups of items needs only their sums."""

from __future__ import annotations

import numpy as np

from audiomarathon.metrics.statistics import Floats

_ROUNDING = 1e-12  # a variance below this share of the mean square counts as 0


def moment_columns(predicted: Floats, true: Floats) -> Floats:
    """Return [1, p, t, p², t², p · t] for each prediction p and true value t, shape (..., 6).

    :func:`pearson` needs only the sums of these values over items.
    """
    return np.stack([np.ones_like(true), predicted, true, predicted**2, true**2, predicted * true], axis=-1)


def pearson(sums: Floats) -> Floats:
    """Return Pearson's r, shape (...), from sums of :func:`moment_columns` over items, shape (..., 6).

    Constant predictions have r = 0; with constant true values, r is NaN.
    """
    n, p, t, pp, tt, pt = np.moveaxis(np.asarray(sums, dtype=np.float64), -1, 0)
    spread, wanted = n * pp - p * p, n * tt - t * t
    varies = (spread > _ROUNDING * n * pp) & (wanted > _ROUNDING * n * tt)
    quotient = np.divide(n * pt - p * t, np.sqrt(np.abs(spread * wanted)), out=np.zeros_like(n), where=varies)
    r: Floats = np.where(wanted > _ROUNDING * n * tt, quotient.clip(-1, 1), np.nan)
    return r
