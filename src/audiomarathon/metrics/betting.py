"""Test a margin by betting: is a setting no worse than base (no compression) by more than, say, 0.02?

A margin is an allowed loss of score. A bettor starts with a wealth of 1 and bets, cluster by cluster, against the
hypothesis that the setting loses the margin or more. If the hypothesis is true, the wealth is a supermartingale: the
probability that it ever reaches 1/α is at most α, for any number of clusters, however few samples differ, and however
often the wealth is checked (J. Ville, 1939). A t interval or a bootstrap has no such guarantee here: without a lost
sample there is no variance to divide by.

For cluster j with n_j samples and differences d in [−1, 1] (setting − base), the payoff is X_j = (Σ d + m · n_j) ÷ N,
with the margin m and the largest allowed cluster size N. The hypothesis is E[X] ≤ 0 over the population of clusters:
the mean difference over *samples* of that population, E[Σ d] ÷ E[n], is −m or less. N must not depend on replies, nor a
bet on n_j. A fraction g of the largest allowed bet multiplies the wealth by 1 + g · X_j ÷ (1 − m), never below 0.

The bets are those of I. Waudby-Smith and A. Ramdas, "Estimating means of bounded random variables by betting" (Journal
of the Royal Statistical Society B 86, 2024; arXiv 2010.09686): a capital process 1 + λ · X with a diversified bettor
("dKelly"), the weighted mean wealth of bettors with one constant fraction each (T. Cover, Universal portfolios, 1991).
Its next bet is the mean of the fractions weighted by their wealth so far, so it depends on earlier clusters only. We
prefer it to their plug-in rule aGRAPA because the final wealth is then the same in every order of clusters, so nobody
can try seeds until the verdict fits. :data:`BETS` and :data:`WEIGHTS` were chosen by simulation before any real data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from audiomarathon.metrics.paired import holm
from audiomarathon.metrics.statistics import Floats

ALPHA = 0.05
POWER = 0.8
NO_WORSE, WORSE, OPEN = "no worse", "worse", "not decided"
#: Fractions of the largest allowed bet, and the starting wealth of each.
BETS = (0.02, 0.04, 0.08, 0.16, 0.32, 0.6, 1.0)
WEIGHTS = (0.05, 0.05, 0.05, 0.08, 0.12, 0.25, 0.4)
MOST_PLANNED = 20_000  # clusters
_MOST_CLUSTERS = 10_000_000
_STEPS = 40  # number of steps of a bisection: to 1e-12


@dataclass(frozen=True)
class Clusters:
    """Differences of a setting from base (no compression), added up per cluster of samples.

    Attributes
    ----------
    totals, sizes
        Shape (clusters,), or (runs, clusters) for simulations: the sum of the differences, each in [−1, 1], and the
        number of samples. Clusters are in the order in which they were drawn, if the wealth is checked after each.
    largest
        The largest allowed number of samples of a cluster, known before any reply.
    discordant
        Number of clusters with a sample whose score differs.
    """

    totals: Floats
    sizes: Floats
    largest: int
    discordant: int = 0

    @classmethod
    def of(
        cls, differences: Sequence[float], clusters: Sequence[str], largest: int = 0, order: Sequence[str] = ()
    ) -> Clusters:
        """Make clusters from single samples: per cluster, add up the differences (setting − base) and count samples.

        Parameters
        ----------
        differences, clusters
            Difference of each sample, and name of its cluster.
        largest
            Largest allowed size of a cluster; it is raised to the largest size found here.
        order
            Names of clusters in the order to use; clusters that are not in it come last, sorted by name.
        """
        place = {name: number for number, name in enumerate(order)}
        names = sorted(set(clusters), key=lambda name: (place.get(name, len(place)), name))
        numbers = {name: number for number, name in enumerate(names)}
        codes = np.array([numbers[cluster] for cluster in clusters], dtype=np.intp)
        sizes, totals, differing = (
            np.bincount(codes, weights, len(names)).astype(np.float64)
            for weights in (None, np.asarray(differences, np.float64), np.asarray(differences) != 0)
        )
        return cls(totals, sizes, max(largest, int(sizes.max(initial=1))), int(np.count_nonzero(differing)))

    def log_wealth(self, margin: float, *, worse: bool = False) -> Floats:
        """Return the logarithm of the bettor's wealth after each cluster, in the shape of `totals`.

        A high wealth is evidence that the setting loses less than `margin` against base, where `margin` lies between −1
        and 1; with `worse`, that it loses more than the margin.
        """
        sign = -1.0 if worse else 1.0
        payoffs = sign * (self.totals + margin * self.sizes) / self.largest / (1 - sign * margin)
        wealth = np.full(np.shape(payoffs), -np.inf)
        with np.errstate(divide="ignore"):  # a bettor who stakes all may lose all
            for bet, weight in zip(BETS, WEIGHTS, strict=True):
                steps = np.log1p(np.maximum(bet * payoffs, -1.0))
                wealth = np.logaddexp(wealth, math.log(weight) + np.cumsum(steps, axis=-1))
        return wealth

    def p(self, margin: float, *, worse: bool = False, each: bool = False) -> Floats:
        """Return the p value of the test: 1 ÷ the final wealth, at most 1; shape () or (runs,).

        With `each`, the wealth is checked after every cluster: p is 1 ÷ the highest wealth after any cluster.
        """
        wealth = self.log_wealth(margin, worse=worse)
        if not wealth.shape[-1]:
            return np.ones(wealth.shape[:-1])
        last: Floats = wealth.max(axis=-1) if each else wealth[..., -1]
        return np.asarray(np.exp(-np.maximum(last, 0.0)))

    def bound(self, alpha: float, *, worse: bool = False, each: bool = False) -> float:
        """Return the smallest margin at which the test says "no worse", at confidence 1 − `alpha`.

        With `worse`, return the largest margin at which it says "worse by more than the margin". The wealth changes
        monotonically with the margin, so bisection finds the bound. The result is 1 (or −1 with `worse`) if the data
        support no margin. See :meth:`p` for `each`.
        """
        low, high = -1.0, 1.0
        for _ in range(_STEPS):
            middle = (low + high) / 2
            if (float(self.p(middle, worse=worse, each=each)) <= alpha) == worse:
                low = middle
            else:
                high = middle
        return low if worse else high


@dataclass(frozen=True)
class Decision:
    """The result of testing a margin (an allowed loss of score), for one setting on one task.

    Attributes
    ----------
    figure
        Name of the score whose differences are tested, such as "accuracy".
    margin, alpha
        The margin, and the level of each of the two tests.
    difference
        Mean over samples of setting − base.
    bounds
        Lower and upper bound of the difference, each at confidence 1 − α. With `each`, they are valid after every
        check.
    p_no_worse, p_worse
        p of the test for "no worse by more than the margin", and for "worse by more".
    holm_no_worse, holm_worse
        The same p values after Holm's correction over settings and tasks; the verdict uses these.
    tests
        Number of settings × tasks in the correction.
    samples, clusters, discordant
        Number of samples, of clusters, and of clusters with a sample whose score differs from base's.
    needed
        Fewest clusters like these with which this test can say "no worse" if no sample is lost.
    smallest, smallest_of_all
        Smallest margin at which the test says "no worse", at confidence 1 − α and at 1 − α ÷ `tests`.
    each
        Whether the wealth was checked after every cluster, so that sampling could stop early.
    beside
        Text with numbers that `difference` does not show: samples without a score, and error rates of setting and base
        that a score from 0 to 1 hides.
    by_construction
        Whether the setting's replies must equal base's, because of how the method works: there is nothing to test.
    """

    figure: str
    margin: float
    alpha: float
    difference: float
    bounds: tuple[float, float]
    p_no_worse: float
    p_worse: float
    holm_no_worse: float
    holm_worse: float
    tests: int
    samples: int
    clusters: int
    discordant: int
    needed: int
    smallest: float
    smallest_of_all: float
    each: bool = False
    beside: str = ""
    by_construction: bool = False

    @property
    def verdict(self) -> str:
        """ "no worse" or "worse" (than base, by more than the margin), or "not decided"."""
        if self.by_construction or self.holm_no_worse <= self.alpha:
            return NO_WORSE
        return WORSE if self.holm_worse <= self.alpha else OPEN

    @property
    def missing(self) -> str:
        """Text on how much data an undecided test needs; "" if the test is decided, or if the need is unknown."""
        if self.verdict != OPEN:
            return ""
        if self.clusters < self.needed:
            least = fewest_of_any_test(self.margin, self.alpha)
            return f"needs at least {self.needed:,} clusters, any test {least:,}"
        alone = {NO_WORSE: self.p_no_worse, WORSE: self.p_worse}
        return next((f"{name} if tested alone" for name, p in alone.items() if p <= self.alpha), "")


def decide(
    clusters: Clusters,
    margin: float,
    *,
    figure: str,
    alpha: float = ALPHA,
    worst: Clusters | None = None,
    each: bool = False,
    beside: str = "",
    by_construction: bool = False,
) -> Decision:
    """Return the result of two tests: does a setting lose at most `margin` of score against base, or does it lose more?

    Parameters
    ----------
    clusters
        The differences (setting − base), per cluster.
    margin
        The allowed loss of score.
    worst
        The same differences, but a sample with a score on only one side counts as lost; "no worse" must be true with
        these.
    """
    worst = worst or clusters
    low, high = worst.bound(alpha, each=each), clusters.bound(alpha, worse=True, each=each)
    no_worse = float(worst.p(margin, each=each))
    worse = float(clusters.p(margin, worse=True, each=each))
    lost = int(worst.sizes.sum()) - int(clusters.sizes.sum())
    if lost:
        beside = ", ".join([f"{lost} without a score count as lost", *filter(None, [beside])])
    samples = int(clusters.sizes.sum())
    difference = float(clusters.totals.sum()) / samples if samples else math.nan
    return Decision(
        figure, margin, alpha, difference, (-low, -high), no_worse, worse, no_worse, worse, 1, samples,
        len(clusters.sizes), clusters.discordant, fewest(margin, alpha, clusters), low, low, each, beside,
        by_construction,
    )  # fmt: skip


def corrected(decisions: Sequence[Decision], clusters: Sequence[Clusters]) -> list[Decision]:
    """Return the decisions of several settings and tasks with Holm's correction, for each of the two verdicts.

    Decisions whose replies must equal base's are not tests, and do not count.

    Parameters
    ----------
    clusters
        The differences from which each decision was made.
    """
    tested = [place for place, decision in enumerate(decisions) if not decision.by_construction]
    no_worse = dict(zip(tested, holm([decisions[place].p_no_worse for place in tested]), strict=True))
    worse = dict(zip(tested, holm([decisions[place].p_worse for place in tested]), strict=True))
    return [
        replace(
            decision,
            holm_no_worse=no_worse[place],
            holm_worse=worse[place],
            tests=len(tested),
            smallest_of_all=clusters[place].bound(decision.alpha / len(tested), each=decision.each),
        )
        if place in no_worse
        else decision
        for place, decision in enumerate(decisions)
    ]


def fewest_of_any_test(margin: float, alpha: float = ALPHA) -> int:
    """Return the fewest clusters with which a valid test at level α can say "no worse" for a margin m.

    A margin is an allowed loss of score. The number is ln(1/α) ÷ −ln(1 − m). If each cluster is lost with probability
    m, none of C clusters is lost with probability (1 − m)^C. A test that says "no worse" after C clusters without a
    loss is wrong that often, which must be at most α.
    """
    return math.ceil(math.log(1 / alpha) / -math.log1p(-margin) - 1e-9)


def fewest(margin: float, alpha: float = ALPHA, like: Clusters | None = None) -> int:
    """Return the fewest clusters with which :class:`Clusters` can say "no worse" if no sample is lost or gained.

    The number is above that of :func:`fewest_of_any_test`, because a bettor who does not know how many clusters differ
    cannot stake all. The number is even higher if clusters (with the sizes of `like`) are smaller than the largest.
    """
    shares = np.ones(1) if like is None or not len(like.sizes) else like.sizes / like.largest
    return _first(lambda count: _without_loss(count, margin, shares) >= math.log(1 / alpha))


def _without_loss(count: int, margin: float, shares: Floats) -> float:
    """Return the logarithm of the bettor's wealth after `count` clusters in which setting and base do not differ.

    `shares` are the clusters' sizes as shares of the largest size; the wealth uses the mean growth over them.
    """
    growth = [float(np.mean(np.log1p(bet * margin / (1 - margin) * shares))) for bet in BETS]
    return float(np.logaddexp.reduce(np.log(WEIGHTS) + count * np.asarray(growth)))


def _first(enough: Callable[[int], bool]) -> int:
    """Return the smallest whole number from 1 on for which `enough` is true; it must be true for all larger ones."""
    high = 1
    while not enough(high) and high < _MOST_CLUSTERS:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def clusters_for_power(
    pilot: Clusters, margin: float, *, alpha: float = ALPHA, power: float = POWER, seed: int = 0, runs: int = 200
) -> int | None:
    """Return how many clusters give "no worse" with probability `power`, if the setting loses nothing.

    The clusters are simulated: drawn with replacement from those of `pilot` (a run with fewer clusters), each with a
    random sign of its differences, so that the mean difference is 0 and as many clusters differ as in the pilot. One
    more cluster, with one sample that differs, stands for differences that a small pilot may have missed. The test is
    applied once, at the end.

    Returns
    -------
    int or None
        None if :data:`MOST_PLANNED` clusters are not enough.
    """
    rng = np.random.default_rng(seed)
    totals, sizes = np.append(pilot.totals, 1.0), np.append(pilot.sizes, np.mean(pilot.sizes))
    count = fewest(margin, alpha, pilot)
    while count <= MOST_PLANNED:
        drawn = rng.integers(0, len(totals), (runs, min(MOST_PLANNED, 2 * count)))
        signed = totals[drawn] * rng.choice([-1.0, 1.0], drawn.shape)
        wealth = Clusters(signed, sizes[drawn], pilot.largest).log_wealth(margin)
        short = np.flatnonzero((wealth >= math.log(1 / alpha)).mean(axis=0) < power)
        if short[-1] < wealth.shape[1] - 1:  # a single cluster never decides
            return int(short[-1]) + 2
        count *= 2
    return None
