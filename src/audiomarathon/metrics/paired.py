"""Paired tests: do two settings differ on the same samples by more than chance?

The bootstrap resamples whole clusters (speakers, passages, locations); the permutation test swaps the two settings
within whole clusters. Both need only sums of per-cluster totals, so thousands of draws are one matrix product.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from audiomarathon.metrics.statistics import (
    FEWEST_CLUSTERS,
    Estimate,
    Floats,
    Sums,
    cluster_totals,
    drawn_sums,
    interval_of_mean,
    interval_over,
    span_of,
    wilson_reach,
)

DRAWS = 10_000
ENOUGH = 10  # if this many of DRAWS swaps reach the difference, p is precise
_SMALL = 0.01  # a larger p is not refined
_TILT = 5.0  # standard deviations by which tilted swaps are moved: precise for p from 1e-3 to about 1e-14
Drawing = npt.NDArray[np.integer[Any]]
_BLOCK = 4_000_000  # bytes of drawn weights in memory at a time
_CODES = 1 << 17  # compute equal draws once if at most this many different draws are possible


@dataclass(frozen=True)
class Pair:
    """The results of a setting and of its reference on the same samples, as sums per cluster of dependent samples.

    Attributes
    ----------
    held
        The :attr:`totals` (sums per cluster), stored as bytes if all are counts below 256, since a comparison keeps the
        totals of all its pairs in memory.
    sums
        The setting's :class:`Sums`, emptied of its values per sample. Its function `statistic` computes scores from
        totals, for the setting and for the reference.
    figure
        Index of the tested figure among the statistic's figures.
    """

    held: npt.NDArray[Any]
    sums: Sums
    figure: int

    @property
    def totals(self) -> Floats:
        """Each cluster's sums, shape (clusters, 2 · columns): first the setting's columns, then the reference's."""
        return self.held.astype(np.float64)

    @classmethod
    def of(cls, setting: Sums, reference: Sums, figure: str | None = None) -> Pair:
        """Pair a setting's sums with its reference's, and choose the figure to test (default: the first).

        Both must hold the same units (samples) in the same order.

        Raises
        ------
        ValueError
            When setting and reference differ in the number of units or in their figures.
        """
        if setting.columns.shape != reference.columns.shape or setting.names != reference.names:
            raise ValueError(
                f"not the same samples or figures: shapes {setting.columns.shape}, {reference.columns.shape}"
            )
        totals = cluster_totals(np.hstack([setting.columns, reference.columns]), setting.clusters)
        counts = np.clip(totals, 0, 255).astype(np.uint8)
        sums = replace(setting, columns=setting.columns[:0].copy(), clusters=())
        held = counts if np.array_equal(counts, totals) else totals
        return cls(held, sums, 0 if figure is None else setting.names.index(figure))

    @property
    def clusters(self) -> int:
        """Number of clusters."""
        return len(self.held)

    @property
    def _width(self) -> int:
        return int(self.sums.columns.shape[1])

    @property
    def _figures(self) -> Floats:
        """All figures (scores such as accuracy) on all samples, shape (2, figures).

        The first row has the setting's figures, the second the reference's; columns are in the order of `sums.names`.
        """
        return self.sums.statistic(self.totals.sum(axis=0).reshape(2, self._width))

    @property
    def scores(self) -> tuple[float, float]:
        """(setting's, reference's) value of the tested figure, such as accuracy; NaN if undefined."""
        setting, reference = self._figures[:, self.figure].tolist()
        return setting, reference

    def _apart(self, sums: Floats) -> Floats:
        """Return, for each random draw, the setting's figures (scores) minus the reference's, shape (draws, figures).

        `sums` has the shape (draws, 2 · columns): the setting's sums in each draw, then the reference's.
        """
        return self.sums.statistic(sums[:, : self._width]) - self.sums.statistic(sums[:, self._width :])

    def differences(self, rng: np.random.Generator, draws: int = DRAWS) -> dict[str, Estimate]:
        """Return setting − reference of every figure (score), with its 95 % interval over clusters, as {figure: value}.

        Setting and reference are resampled together, so that the difficulty of shared samples cancels out. If the
        setting has all samples right or all wrong, and so has the reference, no resample varies. Then combine the two
        scores' intervals by R. Newcombe's method (Statistics in Medicine 17, 1998).
        """
        blocks = (_weights(rng, rows, self.clusters) for rows in _blocks(draws, self.clusters))
        drawn = np.concatenate([self._after_draws(block.weights, partial(self._resampled, block)) for block in blocks])
        each = zip(self.sums.names, self._figures.T.tolist(), drawn.T, strict=True)
        ends, counted = self.sums.ends, self.sums.counted
        return {
            name: _difference(setting, reference, column, counted.get(name, self.clusters), ends.get(name, ()))
            for name, (setting, reference), column in each
        }

    @property
    def _exact(self) -> bool:
        """Whether all values are whole numbers below 256, so that their sums are exact in any order of addition."""
        return self.held.dtype == np.uint8

    def _resampled(self, block: _Drawn, weights: Drawing) -> Floats:
        """Return the sums over each resample, shape (draws, 2 · columns): first the setting's, then the reference's.

        A row of `weights` says how often a resample contains each cluster. If `weights` are exactly the draws of
        `block`, the reference's sums are cached.
        """
        if not self._exact or weights is not block.weights:
            return drawn_sums(weights, self.totals)
        sums = np.tile(_sums_of_counts(block, self.held[:, self._width :].tobytes()), 2)
        sums[:, self._differing] = drawn_sums(weights, self.totals[:, self._differing])
        return sums

    @property
    def _differing(self) -> npt.NDArray[np.intp]:
        """Indices of the columns (sums) in which the setting differs from the reference in any cluster."""
        return np.flatnonzero((self.held[:, : self._width] != self.held[:, self._width :]).any(axis=0))

    def flipped(self, rng: np.random.Generator, draws: int = DRAWS) -> Floats:
        """Return the tested difference after swapping setting and reference in random clusters, shape (draws,).

        These values are the permutation test's distribution under the null hypothesis.
        """
        moved = self._moved[self._moved.any(axis=1)]  # skip clusters that a swap does not change
        swaps = (rng.integers(0, 2, (rows, len(moved)), np.int8) for rows in _blocks(draws, len(moved)))
        return np.concatenate([self._swapped(block, moved) for block in swaps])

    @property
    def _moved(self) -> Floats:
        """What swapping setting and reference in each cluster would add to the sums, shape (clusters, 2 · columns)."""
        return np.roll(self.totals, self._width, axis=1) - self.totals

    def _swapped(self, swaps: Drawing, moved: Floats) -> Floats:
        """Return the tested difference after each set of swaps, shape (draws,).

        A row of `swaps` has 1 for each cluster to swap, else 0; `moved` has what swapping each of these clusters adds
        to the sums.
        """
        start = self.totals.sum(axis=0)

        def sums(swaps: Drawing) -> Floats:
            if not self._exact:
                totals: Floats = start + drawn_sums(swaps, moved)
                return totals
            totals, effects = np.tile(start, (len(swaps), 1)), drawn_sums(swaps, moved[:, self._differing])
            totals[:, self._differing] += effects
            totals[:, self._width + self._differing] -= effects
            return totals

        return self._after_draws(swaps, sums)[:, self.figure]

    @property
    def influences(self) -> Floats:
        """Each cluster's contribution to the observed difference (without swaps), to first order, shape (clusters,).

        The contributions are computed halfway between setting and reference, so that swapping a cluster only changes
        its sign.
        """
        half = -self._moved[:, : self._width] / 2
        middle = self.totals.sum(axis=0).reshape(2, self._width).mean(axis=0)
        apart = self.sums.statistic(middle + half) - self.sums.statistic(middle - half)
        return np.nan_to_num(apart[:, self.figure], posinf=0.0, neginf=0.0)

    def tilted(self, rng: np.random.Generator, tilts: Floats, draws: int = DRAWS) -> tuple[Floats, Floats]:
        """Draw random swaps that favour large differences (importance sampling).

        `tilts` has a number for each cluster: the odds that it is not swapped are exp(2 · its tilt). Return two arrays,
        shape (draws,): the tested difference after each draw; and the sum of all clusters' tilts, each negative if the
        cluster was swapped.
        """
        acting = np.flatnonzero(self._moved.any(axis=1))
        acting_tilts, odds = tilts[acting], special.expit(-2 * tilts[acting])
        blocks = [
            (rng.random((rows, len(acting)), np.float32) < odds).view(np.int8) for rows in _blocks(draws, len(acting))
        ]
        values = np.concatenate([self._swapped(block, self._moved[acting]) for block in blocks])
        return values, np.concatenate([acting_tilts.sum() - 2 * (block @ acting_tilts) for block in blocks])

    def _after_draws(self, drawn: Drawing, sums: Callable[[Drawing], Floats]) -> Floats:
        """Return setting − reference of every figure after each random draw (a resample or a swap).

        If few different draws are possible, equal draws are computed only once.

        Parameters
        ----------
        drawn
            How often each draw counts each cluster, shape (draws, clusters).
        sums
            Function that returns the sums for each row of `drawn`.
        """
        columns, kinds = drawn.shape[1], 1 + int(drawn.max(initial=0))
        if kinds**columns > _CODES:
            return self._apart(sums(drawn))
        codes = drawn @ kinds ** np.arange(columns)
        place = np.zeros(kinds**columns, np.intp)
        place[codes] = np.arange(len(codes))
        present = np.flatnonzero(np.bincount(codes))
        distinct = drawn[place[present]]
        place[present] = np.arange(len(present))
        differences: Floats = self._apart(sums(distinct))[place[codes]]
        return differences


def _difference(setting: float, reference: float, drawn: Floats, clusters: int, ends: Sequence[float]) -> Estimate:
    """Return the difference setting − reference with its 95 % interval, from its values in resamples of clusters.

    `drawn` holds the difference in each resample; `ends` are the scores if all samples are wrong, and if all are right.
    """
    estimate = Estimate(setting - reference, None, clusters, drawn)
    if clusters < 2 or math.isnan(setting - reference):
        return estimate
    if estimate.fixed and {setting, reference} <= {*ends}:
        span = span_of(ends)
        reach = span * wilson_reach(clusters) * (1.0 if setting == reference else math.sqrt(2))
        wide = max(-span, setting - reference - reach), min(span, setting - reference + reach)
        return replace(estimate, interval=wide if clusters >= FEWEST_CLUSTERS else None)
    return replace(estimate, interval=interval_of_mean(drawn[None], [clusters]))


@dataclass(frozen=True)
class PairedResult:
    """The result of comparing a setting with a reference.

    Attributes
    ----------
    difference
        Setting − reference, or the mean over several pairs. None if a score has no value on these samples; then
        interval and p are None too.
    interval
        95 % bootstrap interval over clusters; None with fewer than two clusters in a pair, or if no resample has a
        value.
    p
        Two-sided p of the permutation test that swaps both settings within clusters; None if no draw has a value.
    undefined_resamples, undefined_swaps
        Number of bootstrap resamples, and of the test's random swaps, that were left out because a score has no value
        on them.
    """

    difference: float | None
    interval: tuple[float, float] | None
    p: float | None
    undefined_resamples: int = 0
    undefined_swaps: int = 0


@dataclass(frozen=True)
class Drawn:
    """The difference between a setting and its reference in random resamples and swaps, for :func:`judge` to test.

    Attributes
    ----------
    difference
        Setting − reference with its interval; NaN if a score is undefined.
    flipped
        The difference after each random swap; NaN where a score is undefined.
    pair, weight
        The pair, from which more swaps are drawn if p is small; and the factor that multiplies its differences.
    """

    difference: Estimate
    flipped: Floats
    pair: Pair
    weight: float = 1.0

    def scaled(self, weight: float) -> Drawn:
        """Return a copy whose differences are multiplied by a task's weight in a mean over tasks."""
        return Drawn(self.difference.scaled(weight), self.flipped * weight, self.pair, self.weight * weight)

    @classmethod
    def of(cls, pair: Pair, rng: np.random.Generator, draws: int = DRAWS) -> Drawn:
        """Draw random resamples and swaps of a pair, and compute its difference in each."""
        difference = list(pair.differences(rng, draws).values())[pair.figure]
        return cls(difference, pair.flipped(rng, draws), pair)


def judge(tasks: Sequence[Drawn], seed: int = 0) -> PairedResult:
    """Test whether two settings differ: on one task, or on several tasks by the mean of their differences.

    Return the difference with its interval and p. Tasks are independent, so each has separate draws; all have the same
    number of draws. The interval comes from :func:`~audiomarathon.metrics.statistics.interval_over`. The test swaps the
    two settings within whole clusters, which changes nothing under the null hypothesis (B. Efron and R. Tibshirani, An
    Introduction to the Bootstrap, 1993, section 15.2, on clusters). The observed labelling counts as a draw, so p is
    never 0 and the test keeps its level. Swaps for which a score is undefined are left out and counted; the test keeps
    its level without them.

    As in sequential tests (J. Besag and P. Clifford, Biometrika 78, 1991), p is precise if enough swaps reach the
    difference. If fewer do, p is small, and :func:`_small_p` refines it with the same number of further swaps, drawn by
    `seed`. So a long table, whose correction needs very small p, takes no more swaps per row than a short table.
    """
    difference = float(np.mean([task.difference.value for task in tasks]))
    if math.isnan(difference):
        return PairedResult(None, None, None)
    differences = [task.difference for task in tasks]
    undefined = 0
    if all(difference.clusters > 1 for difference in differences):
        undefined = int(np.isnan([difference.drawn for difference in differences]).any(axis=0).sum())
    interval = differences[0].interval if len(differences) == 1 else interval_over(differences)
    flipped = np.mean([task.flipped for task in tasks], axis=0)
    valued = flipped[~np.isnan(flipped)]
    as_far = int(np.sum(np.abs(valued) >= abs(difference) - 1e-12))
    p = (1 + as_far) / (1 + len(valued)) if len(valued) else None
    if p is not None and as_far < ENOUGH and p < _SMALL:  # not only few because few swaps have a value
        p = _small_p(tasks, difference, np.random.default_rng(seed), len(flipped)) * len(flipped) / len(valued)
    return PairedResult(difference, interval, p, undefined, len(flipped) - len(valued))


def _small_p(tasks: Sequence[Drawn], difference: float, rng: np.random.Generator, draws: int) -> float:
    """Return the two-sided p of a difference that few random swaps reach, by importance sampling.

    Each cluster keeps its label (is not swapped) with odds that grow with its influence on the mean difference. A draw
    counts by its probability under fair swaps ÷ its probability here, and so does the observed labelling. So p keeps
    its level for any number of draws and any odds (M. Harrison, Biometrika 99, 2012, section 2). The odds do not depend
    on the observed labelling. Swapping all clusters only changes the difference's sign, so one tail is enough.
    """
    shares = [task.pair.influences * task.weight / len(tasks) for task in tasks]
    spread = math.sqrt(sum(float(np.square(share).sum()) for share in shares))
    scale = _TILT / spread if spread else 0.0
    drawn = [task.pair.tilted(rng, share * scale, draws) for task, share in zip(tasks, shares, strict=True)]
    differences = np.mean([values * task.weight for (values, _), task in zip(drawn, tasks, strict=True)], axis=0)
    linear = np.sum([scores for _, scores in drawn], axis=0)
    reached = linear[np.abs(differences) >= abs(difference) - 1e-12]
    observed = sum(float(share.sum()) for share in shares) * scale
    constant = sum(float(_log_cosh(share * scale).sum()) for share in shares)
    weights = np.exp(constant - _log_cosh(np.append(reached, observed)))
    return min(1.0, float(weights.sum()) / (1 + draws))


def _log_cosh(values: Floats) -> Floats:
    logarithms: Floats = np.logaddexp(values, -values) - math.log(2)
    return logarithms


def mcnemar(setting: Sequence[bool], reference: Sequence[bool]) -> float:
    """Return the exact two-sided p of McNemar's test on samples that only one of two settings got right.

    Each list says which samples a setting got right. Use the test only if every sample is a separate cluster, because
    it assumes independent samples. (Q. McNemar, Psychometrika 12, 1947; exact by the binomial distribution.)
    """
    gained = sum(a and not b for a, b in zip(setting, reference, strict=True))
    lost = sum(b and not a for a, b in zip(setting, reference, strict=True))
    return min(1.0, 2 * float(special.bdtr(min(gained, lost), gained + lost, 0.5)))


def sign_flip(values: Floats, rng: np.random.Generator, draws: int = DRAWS) -> float | None:
    """Test whether independent values have mean 0; return the two-sided p of the sign-flip test.

    None for fewer than two values, or if a value is NaN.
    """
    if len(values) < 2 or np.isnan(values).any():
        return None
    signs = rng.integers(0, 2, (draws, len(values))) * 2.0 - 1
    reached = np.abs(signs @ values) >= abs(values.sum()) * (1 - 1e-12)
    return float((1 + reached.sum()) / (1 + draws))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p values after S. Holm's correction for multiple tests, in the given order.

    Scandinavian Journal of Statistics 6, 1979.
    """
    order = np.argsort(p_values, kind="stable")
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, place in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[int(place)] = highest
    return adjusted


def _blocks(draws: int, count: int) -> Iterator[int]:
    size = max(1, _BLOCK // max(1, count))
    yield from (min(size, draws - start) for start in range(0, draws, size))


@dataclass(frozen=True, eq=False)
class _Drawn:
    """How often each resample contains each cluster, shape (rows, count), and the generator's state after the draws."""

    weights: Drawing
    after: str


def _weights(rng: np.random.Generator, rows: int, count: int) -> _Drawn:
    """Draw `rows` resamples of `count` clusters: how often each resample contains each cluster."""
    drawing = _drawn(json.dumps(rng.bit_generator.state), rows, count)
    rng.bit_generator.state = json.loads(drawing.after)
    return drawing


@lru_cache(maxsize=32)  # up to _BLOCK bytes each
def _drawn(state: str, rows: int, count: int) -> _Drawn:
    """Draw resamples as :func:`_weights` does, with a generator in the state `state` (JSON text).

    Results are cached, because all comparisons use the same draws.
    """
    rng = np.random.default_rng()
    rng.bit_generator.state = json.loads(state)
    drawn = rng.integers(0, count, (rows, count)) + count * np.arange(rows)[:, None]
    # A cluster is drawn once on average and never 256 times, so uint8 is enough.
    weights = np.bincount(drawn.ravel(), minlength=rows * count).reshape(rows, count).astype(np.uint8)
    weights.flags.writeable = False
    return _Drawn(weights, json.dumps(rng.bit_generator.state))


@lru_cache(maxsize=32)
def _sums_of_counts(drawn: _Drawn, counts: bytes) -> Floats:
    """Add up whole numbers below 256 over the clusters of each resample; return the sums, shape (draws, columns).

    `counts` are the clusters' numbers as bytes, cluster by cluster. Results are cached for all settings that have the
    same reference.
    """
    count = drawn.weights.shape[1]
    return drawn_sums(drawn.weights, np.frombuffer(counts, np.uint8).reshape(count, -1).astype(np.float64))
