"""Pearson's correlation from sums over items, so that resamples of clusters need no items."""

from __future__ import annotations

import numpy as np

from audiomarathon.metrics.statistics import Floats

_ROUNDING = 1e-12  # a variance below this share of the mean square is none


def moment_columns(predicted: Floats, true: Floats) -> Floats:
    """Return what each item adds to the sums 1, p, t, p², t² and pt, shape (..., 6)."""
    return np.stack([np.ones_like(true), predicted, true, predicted**2, true**2, predicted * true], axis=-1)


def pearson(sums: Floats) -> Floats:
    """Return Pearson's r of sums of :func:`moment_columns`, shape (...).

    Predictions that do not vary have r = 0; where the truth does not vary there is no r: NaN.
    """
    n, p, t, pp, tt, pt = np.moveaxis(np.asarray(sums, dtype=np.float64), -1, 0)
    spread, wanted = n * pp - p * p, n * tt - t * t
    varies = (spread > _ROUNDING * n * pp) & (wanted > _ROUNDING * n * tt)
    found = np.divide(n * pt - p * t, np.sqrt(np.abs(spread * wanted)), out=np.zeros_like(n), where=varies)
    r: Floats = np.where(wanted > _ROUNDING * n * tt, found.clip(-1, 1), np.nan)
    return r
