"""Two settings on the same samples: is the difference more than chance?

Everything here works on whole clusters (speakers, passages, locations): the bootstrap resamples them, the permutation
test swaps the two sides of them. Both are sums of per-cluster totals, so thousands of draws are one matrix product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from audiomarathon.metrics.statistics import Floats, Sums, cluster_totals, expanded_tail, resampled

DRAWS = 10_000
_BLOCK = 4_000_000  # numbers of drawn weights in memory at a time


@dataclass(frozen=True)
class Pair:
    """One figure of two settings on the same samples.

    Attributes
    ----------
    own, other
        Shape (clusters, columns): what each cluster adds to the sums that the figure is made of, on either side.
    sums
        Whose statistic makes the figure.
    figure
        Its place among the statistic's figures.
    """

    own: Floats
    other: Floats
    sums: Sums
    figure: int

    @classmethod
    def of(cls, own: Sums, other: Sums, clusters: Sequence[str], figure: str) -> Pair:
        """Pair two sides whose samples are the same, in the same order.

        Raises
        ------
        ValueError
            When the sides differ in shape or in their figures.
        """
        if own.columns.shape != other.columns.shape or own.names != other.names:
            raise ValueError(f"not the same samples: {own.columns.shape} and {other.columns.shape}")
        totals = cluster_totals(np.hstack([own.columns, other.columns]), clusters)
        width = own.columns.shape[1]
        return cls(totals[:, :width], totals[:, width:], own, own.names.index(figure))

    @property
    def clusters(self) -> int:
        """How many clusters there are."""
        return len(self.own)

    @property
    def difference(self) -> float:
        """The figure on the own side, less that on the other."""
        return float(self._differences(np.ones((1, self.clusters)), np.zeros((1, self.clusters)))[0])

    def _differences(self, straight: Floats, swapped: Floats) -> Floats:
        """Return the difference for each row of weights: of clusters as they are, and with their sides swapped."""
        figure = self.sums.statistic
        own = figure(straight @ self.own + swapped @ self.other)[:, self.figure]
        other = figure(straight @ self.other + swapped @ self.own)[:, self.figure]
        return own - other

    def resampled(self, rng: np.random.Generator, draws: int = DRAWS) -> Floats:
        """Return the difference in each of so many bootstrap samples of clusters, shape (draws,)."""
        width, figure = self.own.shape[1], self.sums.statistic

        def difference(sums: Floats) -> Floats:
            return figure(sums[:, :width]) - figure(sums[:, width:])

        return resampled(np.hstack([self.own, self.other]), difference, rng, draws)[:, self.figure]

    def flipped(self, rng: np.random.Generator, draws: int = DRAWS) -> Floats:
        """Return the difference after swapping the sides of clusters at random, shape (draws,)."""
        return np.concatenate(
            [
                self._differences(1.0 - swap, swap)
                for rows in _blocks(draws, self.clusters)
                for swap in [rng.integers(0, 2, size=(rows, self.clusters)).astype(float)]
            ]
        )


@dataclass(frozen=True)
class Verdict:
    """What a comparison says.

    Attributes
    ----------
    difference
        Own less other; of several pairs their mean.
    interval
        95 %, bootstrap over clusters; None with fewer than two clusters in a pair.
    p
        Of the two-sided sign-flip permutation test over clusters.
    """

    difference: float
    interval: tuple[float, float] | None
    p: float


def judge(pairs: Sequence[Pair], *, seed: int, draws: int = DRAWS) -> Verdict:
    """Compare two settings on one task, or on several at once by the mean of the tasks' differences.

    Tasks are independent of each other: each has its own draws. The interval is the expanded percentile interval of
    `statistics.py`. The test swaps the two settings within whole clusters, which under the null hypothesis changes
    nothing (B. Efron and R. Tibshirani, An Introduction to the Bootstrap, 1993, section 15.2, on clusters); its p
    counts the observed labelling as one of the draws, so it is never 0 and holds its level.
    """
    rng = np.random.default_rng(seed)
    found = float(np.mean([pair.difference for pair in pairs]))
    interval = None
    if all(pair.clusters > 1 for pair in pairs):
        resampled = np.mean([pair.resampled(rng, draws) for pair in pairs], axis=0)
        tail = expanded_tail(sum(pair.clusters for pair in pairs))
        low, high = np.quantile(resampled[~np.isnan(resampled)], [tail, 1 - tail])
        interval = (float(low), float(high))
    flipped = np.mean([pair.flipped(rng, draws) for pair in pairs], axis=0)
    as_far = int(np.sum(np.abs(flipped) >= abs(found) - 1e-12))
    return Verdict(found, interval, (1 + as_far) / (1 + draws))


def mcnemar(own: Sequence[bool], other: Sequence[bool]) -> float:
    """Return the exact two-sided p of McNemar's test: of the samples that one side alone got right.

    Only where every sample is a cluster of its own: it takes samples for independent. (Q. McNemar, Psychometrika 12,
    1947; exact by the binomial distribution.)
    """
    gained = sum(a and not b for a, b in zip(own, other, strict=True))
    lost = sum(b and not a for a, b in zip(own, other, strict=True))
    return float(stats.binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p values adjusted for their number, in the order given (S. Holm, Scand. J. Statistics 6, 1979)."""
    order = np.argsort(p_values, kind="stable")
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, place in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[int(place)] = highest
    return adjusted


def _blocks(draws: int, count: int) -> list[int]:
    size = max(1, _BLOCK // count)
    return [min(size, draws - start) for start in range(0, draws, size)]
