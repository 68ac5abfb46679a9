"""Intervals over clusters of dependent samples.

Samples of one speaker, passage or location rise and fall together, so resample whole clusters, never samples. Every
metric of the project is a function of sums over samples (errors, words, hits per class). So a resample is a weighted
sum of per-cluster totals, and thousands of resamples are one matrix product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Statistic = Callable[[Floats], Floats]

RESAMPLES = 2_000
CONFIDENCE = 0.95
FEWEST_CLUSTERS = 3  # clusters needed for the interval of a figure that does not vary
_WEIGHTS_IN_MEMORY = 4_000_000  # 32 MB of resampling weights at a time
_NEAR = 3  # stretches of √n samples: with one sample per cluster, at least 4 standard deviations of a resample's median
_WEIGHTS_KEPT = 16_000_000  # one byte each: enough to cache the draws of 8,000 clusters


@dataclass(frozen=True)
class Sums:
    """Figures of a run, such as scores: sums over samples, and the function (statistic) that turns sums into figures.

    Attributes
    ----------
    names
        Names of the figures.
    columns
        Shape (units, columns): what each unit adds to each sum. A unit is a sample, or a group of samples.
    statistic
        Function that maps sums, shape (n, columns), to figures, shape (n, figures); NaN where a figure is undefined.
    clusters
        Name of each unit's cluster; units that are not independent share one.
    ends
        Each figure's values if all units are wrong and if all are right, such as (0, 1) for accuracy. If a figure
        equals one of these ends in every resample, it gets Wilson's interval, scaled to the distance between the ends.
        A figure with the ends () gets no interval if it does not vary.
    counted
        Number of clusters that a figure uses, for each figure that does not use all clusters.
    rates
        For each figure that is an error rate without an upper bound, or 1 minus such a rate: the name of the rate. Its
        interval is computed on the log scale.
    """

    names: tuple[str, ...]
    columns: Floats
    statistic: Statistic
    clusters: tuple[str, ...] = ()
    ends: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    counted: Mapping[str, int] = field(default_factory=dict)
    rates: Mapping[str, str] = field(default_factory=dict)

    @property
    def totals(self) -> Floats:
        """The sums over each cluster, shape (clusters, columns)."""
        return cluster_totals(self.columns, self.clusters)

    @property
    def figures(self) -> dict[str, float | None]:
        """The figures (such as scores) over all units, as {name: value}; None where undefined."""
        values = self.statistic(self.columns.sum(axis=0, keepdims=True))[0].tolist()
        return {name: None if math.isnan(value) else value for name, value in zip(self.names, values, strict=True)}


@dataclass(frozen=True)
class Estimate:
    """A figure (a score or another number) with its 95 % interval.

    Attributes
    ----------
    value
        The figure; NaN if it is undefined.
    interval
        (low, high); None with fewer than two clusters, or if no resample has a value.
    clusters
        Number of resampled clusters.
    drawn
        The figure in each resample, shape (resamples,), for :func:`mean_over`; empty without resamples.
    """

    value: float
    interval: tuple[float, float] | None
    clusters: int = 0
    drawn: Floats = field(default_factory=lambda: np.empty(0), repr=False, compare=False)

    def scaled(self, factor: float) -> Estimate:
        """Return a copy with figure, interval and resamples multiplied by a factor, such as to change the unit."""
        interval = self.interval and (self.interval[0] * factor, self.interval[1] * factor)
        return replace(self, value=self.value * factor, interval=interval, drawn=self.drawn * factor)

    @property
    def low(self) -> float:
        """Lower end of the interval; if there is no interval, the figure."""
        return min(self.interval[0], self.value) if self.interval else self.value

    @property
    def high(self) -> float:
        """Upper end of the interval; if there is no interval, the figure."""
        return max(self.interval[1], self.value) if self.interval else self.value

    @property
    def fixed(self) -> bool:
        """Whether the figure is the same in every resample."""
        valued = self.drawn[~np.isnan(self.drawn)]
        return len(valued) > 0 and float(np.ptp(valued)) == 0.0

    @property
    def reach(self) -> tuple[float, float]:
        """(Distance from the figure to the lower end of its interval, distance to the upper end)."""
        return self.value - self.low, self.high - self.value


def cluster_totals(values: npt.ArrayLike, clusters: Sequence[str]) -> Floats:
    """Add up the rows of each cluster's samples.

    Parameters
    ----------
    values
        Shape (samples, columns): what each sample adds to each sum.
    clusters
        Name of each sample's cluster.

    Returns
    -------
    ndarray, shape (clusters, columns)
        Sorted by cluster name, so that an interval does not depend on the order of samples.
    """
    rows = np.asarray(values, dtype=np.float64)
    if len(rows) != len(clusters):
        raise ValueError(f"{len(rows)} samples but {len(clusters)} clusters")
    names, codes = np.unique(np.asarray(clusters, dtype=np.str_), return_inverse=True)
    totals = np.zeros((len(names), rows.shape[1]))
    np.add.at(totals, codes, rows)
    return totals


def drawn_sums(drawn: npt.NDArray[Any], totals: Floats) -> Floats:
    """Return the sums over each random draw, shape (draws, columns): the matrix product of `drawn` and `totals`.

    Single precision takes less than half the time, and is used where it is exact: if all values are whole numbers and
    no partial sum reaches 2²⁴.

    Parameters
    ----------
    drawn
        How often each draw contains each cluster, shape (draws, clusters).
    totals
        Shape (clusters, columns).
    """
    most = float(drawn.max(initial=0)) * np.abs(totals).sum(axis=0).max(initial=0)
    kind = np.float32 if most < 2**24 and np.array_equal(totals, np.rint(totals)) else np.float64
    sums: Floats = (drawn.astype(kind) @ totals.astype(kind)).astype(np.float64)
    return sums


def ratio(above: Floats, below: npt.NDArray[Any], otherwise: float = np.nan) -> Floats:
    """Return `above` / `below` where `below` is positive, and `otherwise` elsewhere."""
    quotient: Floats = np.divide(above, below, out=np.full(np.shape(above), otherwise), where=below > 0)
    return quotient


def means_of_items(columns: Mapping[str, Sequence[float | None]], clusters: Sequence[str]) -> Sums:
    """Return the mean of each column over items, as sums that can be resampled; items whose value is None are left out.

    Parameters
    ----------
    columns
        The values of each figure, as {figure's name: one value per item}.
    clusters
        Name of each item's cluster.
    """
    values = np.array(list(columns.values()), dtype=np.float64).T.reshape(len(clusters), len(columns))
    present = ~np.isnan(values)

    def statistic(sums: Floats) -> Floats:
        totals, counts = np.split(sums, 2, axis=1)
        return ratio(totals, counts)

    rows = np.concatenate([np.where(present, values, 0.0), present], axis=1)
    names = np.asarray(clusters, dtype=np.str_)
    counted = {name: len(set(names[has])) for name, has in zip(columns, present.T, strict=True)}
    return Sums(tuple(columns), rows, statistic, tuple(clusters), counted=counted)


class Resampler:
    """Computes intervals by resampling whole clusters. Sums, means and medians are resampled by the same draws.

    An interval is the expanded percentile interval (T. Hesterberg, "What Teachers Should Know About the Bootstrap", The
    American Statistician 69(4), 2015). The plain percentile interval is too narrow, about as a z interval is narrower
    than a t interval. So take the tail at Φ(−√(C/(C−1)) · t) instead of at 2.5 %, for C clusters and the quantile t of
    Student's distribution. BCa would not help: the problem here is few clusters, but BCa corrects skew, by a jackknife
    that is noisy with few clusters. In simulation (tests), the interval contains the truth 93 to 95 % of the time with
    at least 6 clusters, but 75 % with 3, because no resample goes beyond the values of the clusters.

    Error rates are skewed: a few clusters make most errors, and resamples of few clusters rarely hold enough of them.
    So their interval is x · exp(±t · s / x), for the rate x and its standard error s (from the resamples, times
    √(C/(C−1))). With 8 clusters whose rates follow an exponential distribution, it contains the truth in 93 % of cases,
    the expanded percentile interval in 90 %. No method works if rare clusters have most errors, such as replies that
    repeat themselves: see `scripts/measure/measure_coverage.py`, and docs/report.md for its table.

    If all samples are right, or all wrong, no resample varies. Then use Wilson's interval with the number of clusters
    as trials (E. Wilson, J. Am. Stat. Assoc. 22, 1927), or None below three clusters.

    Parameters
    ----------
    seed
        The same data, seed and resamples give the same interval. A sequence of numbers seeds a separate stream.
    """

    def __init__(self, seed: int | Sequence[int], resamples: int = RESAMPLES) -> None:
        self.seed = (seed,) if isinstance(seed, int) else tuple(seed)
        self.resamples = resamples

    def of_sums(self, sums: Sums) -> dict[str, Estimate]:
        """Return each figure of `sums` with its 95 % interval over clusters, as {figure's name: estimate}."""
        estimates = {}
        for name, resampled in zip(sums.names, self.of_totals(sums.totals, sums.statistic), strict=True):
            clusters = sums.counted.get(name, resampled.clusters)
            estimate = replace(resampled, clusters=clusters, interval=None if clusters < 2 else resampled.interval)
            estimates[name] = _at_end(estimate, sums.ends[name]) if name in sums.ends else estimate
        rates = {rate: estimates[rate] for rate in sums.rates.values()}
        for name, rate in sums.rates.items():
            if rates[rate].interval and not rates[rate].fixed:
                low, high = _on_log_scale(rates[rate])
                floor = 0.0 if 0.0 in sums.ends.get(name, ()) else -math.inf
                ends = (low, high) if name == rate else (max(floor, 1 - high), max(floor, 1 - low))
                estimates[name] = replace(estimates[name], interval=ends)
        return estimates

    def of_totals(self, totals: Floats, statistic: Statistic) -> list[Estimate]:
        """Compute figures from the clusters' totals, shape (clusters, columns); return a list, each with its interval.

        `statistic` is the function that maps sums to figures.
        """
        count = len(totals)
        values = statistic(totals.sum(axis=0, keepdims=True))[0].tolist()
        if count < 2:
            return [Estimate(value, None, count) for value in values]
        drawn = np.concatenate([statistic(drawn_sums(weights, totals)) for weights in self._weights(count)])
        return [_estimate(value, column, count) for value, column in zip(values, drawn.T, strict=True)]

    def mean(self, values: Sequence[float], clusters: Sequence[str]) -> Estimate:
        """Return the mean over samples (not over clusters), with its interval."""
        totals = cluster_totals([(value, 1) for value in values], clusters)
        (estimate,) = self.of_totals(totals, lambda sums: sums[:, :1] / sums[:, 1:])
        return replace(estimate, value=float(np.mean(values)))

    def median(self, values: npt.ArrayLike, clusters: Sequence[str]) -> Estimate:
        """Return the median over samples, with its interval."""
        values = np.asarray(values, dtype=np.float64)
        value = float(np.median(values))
        names, codes = np.unique(np.asarray(clusters, dtype=np.str_), return_inverse=True)
        if len(names) < 2:
            return Estimate(value, None, len(names))
        order = np.argsort(values)
        ordered, places = values[order], codes[order]
        middles = np.concatenate([_middles(weights, places) for weights in self._weights(len(names))])
        return _estimate(value, ordered[middles].mean(axis=1), len(names))

    def _weights(self, count: int) -> Iterable[npt.NDArray[Any]]:
        """Yield blocks of resamples: how often each resample contains each cluster, shape (block size, `count`).

        `count` is the number of clusters. The block size is chosen to fit into memory; all blocks together have every
        resample.
        """
        draw = _kept if count * self.resamples <= _WEIGHTS_KEPT else _drawn
        return draw(self.seed, count, self.resamples)


def _middles(weights: npt.NDArray[np.uint8], places: npt.NDArray[np.intp], reach: int = _NEAR) -> npt.NDArray[np.intp]:
    """Find the median of each resample: return the indices of its two middle samples, shape (resamples, 2).

    For an odd number of samples, both are equal. First count the samples in stretches of √n, then search only the
    stretch that holds a middle. Count only the stretches at most `reach` stretches from the middle of all samples; if a
    resample's middle lies outside, repeat with all stretches.

    Parameters
    ----------
    weights
        How often each resample contains each cluster, shape (resamples, clusters).
    places
        Index of the cluster of each sample, in the order of the samples' values, shape (n,).
    """
    size = math.isqrt(len(places)) + 1
    stretches = -(-len(places) // size)
    low, high = max(0, stretches // 2 - reach), min(stretches, stretches // 2 + reach)
    column = np.clip(np.arange(len(places)) // size - low + 1, 0, high - low + 1)  # 0: all before, the last: all after
    counts = np.zeros((weights.shape[1], high - low + 2), np.float32)
    np.add.at(counts, (places, column), 1)
    passed = np.cumsum(weights.astype(np.float32) @ counts, axis=1, dtype=np.float64)
    half = passed[:, -1:] / 2
    lower, upper = (reached(passed, half).sum(axis=1) for reached in (np.less, np.less_equal))
    if reach < stretches and (lower.min() < 1 or upper.max() > high - low):
        return _middles(weights, places, stretches)

    def look(rows: npt.NDArray[np.intp], stretch: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        inside = (stretch[:, None] - 1 + low) * size + np.arange(size)
        held = weights[rows[:, None], places[np.minimum(inside, len(places) - 1)]]
        within = passed[rows, stretch - 1][:, None] + np.cumsum(held, axis=1, dtype=np.int64)
        counted = [reached(within, half[rows]).sum(axis=1) for reached in (np.less, np.less_equal)]
        places_of: npt.NDArray[np.intp] = inside[:, :1] + np.column_stack(counted)
        return places_of

    medians = look(np.arange(len(weights)), lower)
    later = np.flatnonzero(lower != upper)
    medians[later, 1] = look(later, upper[later])[:, 1]
    return medians


def _drawn(seed: tuple[int, ...], count: int, resamples: int) -> Iterator[npt.NDArray[np.uint8]]:
    rng, batch = np.random.default_rng(seed), max(1, _WEIGHTS_IN_MEMORY // count)
    for start in range(0, resamples, batch):
        weights = rng.multinomial(count, np.full(count, 1 / count), size=min(batch, resamples - start))
        yield weights.astype(np.uint8)  # a cluster is drawn once on average and never 256 times


@lru_cache(maxsize=8)
def _kept(seed: tuple[int, ...], count: int, resamples: int) -> tuple[npt.NDArray[np.uint8], ...]:
    """Return all blocks of resamples: how often each resample contains each cluster, shape (block size, `count`).

    `count` is the number of clusters. Results are cached, because all settings of a task have the same number of
    clusters.
    """
    return tuple(_drawn(seed, count, resamples))


def _estimate(value: float, drawn: Floats, clusters: int) -> Estimate:
    valued, tail = drawn[~np.isnan(drawn)], expanded_tail(clusters)
    if not len(valued):
        return Estimate(value, None, clusters)
    low, high = np.quantile(valued, [tail, 1 - tail]).tolist()
    return Estimate(value, (low, high), clusters, drawn)


def _on_log_scale(rate: Estimate) -> tuple[float, float]:
    """Return the interval of a positive error rate that varies over resamples, computed on the log scale.

    :class:`Resampler` gives the formula.
    """
    from scipy import special

    count = rate.clusters
    error = float(np.nanstd(rate.drawn)) * math.sqrt(count / (count - 1))
    reach = float(special.stdtrit(count - 1, (1 + CONFIDENCE) / 2)) * error / rate.value
    return rate.value * math.exp(-reach), rate.value * math.exp(min(reach, 700.0))


def _at_end(estimate: Estimate, ends: Sequence[float]) -> Estimate:
    """Return the estimate, with Wilson's interval if the figure is the same in all resamples and equals one of `ends`.

    Such an end is the value when all is right or all is wrong. A figure that is the same in all resamples gets no
    interval if `ends` is empty, or if the figure equals an end and there are few clusters.
    """
    value = estimate.value
    if not estimate.fixed or (ends and value not in ends):
        return estimate
    if not ends or estimate.clusters < FEWEST_CLUSTERS:
        return replace(estimate, interval=None)
    reach = wilson_reach(estimate.clusters) * span_of(ends)
    # Extend towards the other end. A figure with one end extends away from it: a WER of 0 can only rise.
    rises = value < max(ends) or (len(ends) == 1 and value == 0)
    return replace(estimate, interval=(value, value + reach) if rises else (value - reach, value))


def span_of(ends: Sequence[float]) -> float:
    """Return the distance between a figure's `ends`: its values when all is wrong, and when all is right.

    If only one end is given, return 1.
    """
    return max(ends) - min(ends) or 1.0


def wilson_reach(clusters: int) -> float:
    """Return the width of Wilson's interval if none or all of C = `clusters` trials succeed: z² / (C + z²)."""
    from scipy import special

    z2 = float(special.ndtri((1 + CONFIDENCE) / 2)) ** 2
    return z2 / (clusters + z2)


def mean_of(values: Sequence[float | None]) -> float | None:
    """Return the mean of the values; None if there are no values or one of them is None."""
    present = [value for value in values if value is not None]
    return float(np.mean(present)) if present and len(present) == len(values) else None


def means_of(rows: Sequence[Sequence[float] | None]) -> list[float] | None:
    """Return the mean of each column of the rows; None if there are no rows, a row is None, or their lengths differ."""
    present = [row for row in rows if row is not None]
    alike = len(present) == len(rows) and len({*map(len, present)}) == 1
    return np.mean(present, axis=0).tolist() if alike else None


def expanded_tail(clusters: int) -> float:
    """Return the share of resamples to leave outside each end of an interval: 2.5 % for many clusters, less for few."""
    from scipy import special

    t = special.stdtrit(clusters - 1, (1 + CONFIDENCE) / 2)
    return float(special.ndtr(-math.sqrt(clusters / (clusters - 1)) * t))


def mean_over(tasks: Sequence[Estimate], weights: Sequence[float] | None = None) -> Estimate:
    """Return the mean of a figure over independent tasks, with its interval.

    Tasks with equally many clusters have the same draws, so each task's draws are shuffled first, seeded by its index.

    Parameters
    ----------
    tasks
        The figure of each task.
    weights
        Weights of the tasks, whose mean is 1; None for equal weights.
    """
    if len(tasks) == 1:
        return tasks[0]
    tasks = [task.scaled(weight) for task, weight in zip(tasks, weights or [1.0] * len(tasks), strict=True)]
    apart = [
        replace(task, drawn=np.random.default_rng(place).permutation(task.drawn)) for place, task in enumerate(tasks)
    ]
    return Estimate(float(np.mean([task.value for task in tasks])), interval_over(apart))


def interval_over(tasks: Sequence[Estimate]) -> tuple[float, float] | None:
    """Return the interval of the mean of tasks that were resampled independently; None if a task has no interval.

    Start from :func:`interval_of_mean`, in which a task whose figure does not vary (all samples right) has no width.
    Such a task still has an interval: combine its width with the mean's as the root of the sum of squares.
    """
    if any(task.interval is None or not len(task.drawn) for task in tasks):
        return None
    interval = interval_of_mean(np.array([task.drawn for task in tasks]), [task.clusters for task in tasks])
    reaches = np.array([task.reach for task in tasks if task.fixed]) / len(tasks)
    if interval is None or not len(reaches):
        return interval
    value = float(np.mean([task.value for task in tasks]))
    below, above = np.sqrt(
        np.square([value - interval[0], interval[1] - value]) + np.square(reaches).sum(axis=0)
    ).tolist()
    return value - below, value + above


def interval_of_mean(drawn: Floats, clusters: Sequence[int]) -> tuple[float, float] | None:
    """Return the 95 % interval of a mean of independent figures, none of which shares a cluster with another.

    A figure's variance over resamples is (C − 1) / C of the true variance for C clusters, and is corrected for that.
    The quantile t has Welch and Satterthwaite's degrees of freedom (B. Welch, Biometrika 34, 1947). For one figure,
    this is the expanded percentile interval.

    Parameters
    ----------
    drawn
        Shape (figures, resamples); resamples with a NaN are left out.
    clusters
        Number of each figure's clusters, at least two.
    """
    from scipy import special

    valued = drawn[:, ~np.isnan(drawn).any(axis=0)]
    if not valued.size:
        return None
    counts, spread = np.asarray(clusters, dtype=np.float64), valued.var(axis=1)
    true = spread * counts / (counts - 1)
    if not true.any():
        true = spread = np.ones(len(counts))  # the width is 0 for any tail
    freedom = true.sum() ** 2 / (true**2 / (counts - 1)).sum()
    t = special.stdtrit(freedom, (1 + CONFIDENCE) / 2)
    tail = float(special.ndtr(-math.sqrt(true.sum() / spread.sum()) * t))
    low, high = np.quantile(valued.mean(axis=0), [tail, 1 - tail]).tolist()
    return low, high
