from dataclasses import replace

import numpy as np
import pytest

from audiomarathon.metrics import statistics
from audiomarathon.metrics.statistics import (
    RESAMPLES,
    Estimate,
    Floats,
    Resampler,
    Statistic,
    Sums,
    cluster_totals,
    expanded_tail,
    interval_of_mean,
    mean_over,
    means_of_items,
    wilson_reach,
)


def mean(sums: Floats) -> Floats:
    return sums[:, :1] / sums[:, 1:]


def cluster_bootstrap(
    totals: Floats, statistic: Statistic, *, seed: int, resamples: int = RESAMPLES
) -> list[tuple[float, float] | None]:
    names = tuple(map(str, range(totals.shape[1] - 1)))
    clusters = tuple(f"{number:05}" for number in range(len(totals)))
    sums = Sums(names, totals, statistic, clusters, dict.fromkeys(names, (0.0, 1.0)))
    return [estimate.interval for estimate in Resampler(seed, resamples).of_sums(sums).values()]


def totals_of(values: np.ndarray, clusters: np.ndarray) -> Floats:
    return cluster_totals(np.column_stack([values, np.ones(len(values))]), [str(cluster) for cluster in clusters])


def test_cluster_totals_are_sums_in_the_order_of_cluster_names() -> None:
    totals = cluster_totals([[1, 10], [2, 20], [4, 40]], ["zoe", "ann", "zoe"])
    assert totals.tolist() == [[2, 20], [5, 50]]


def test_cluster_totals_refuse_a_sample_without_a_cluster() -> None:
    with pytest.raises(ValueError, match="3 samples but 2 clusters"):
        cluster_totals([[1], [2], [3]], ["a", "b"])


def test_the_bootstrap_interval_depends_on_the_seed_but_not_on_the_order_of_samples() -> None:
    rng = np.random.default_rng(0)
    values, clusters = rng.random(60), rng.integers(0, 12, 60)
    (first,) = cluster_bootstrap(totals_of(values, clusters), mean, seed=1)
    (turned,) = cluster_bootstrap(totals_of(values[::-1], clusters[::-1]), mean, seed=1)
    (other,) = cluster_bootstrap(totals_of(values, clusters), mean, seed=2)
    assert first == pytest.approx(turned, abs=1e-12)
    assert first != other


def test_the_median_of_resampled_clusters_does_not_depend_on_sample_order() -> None:
    rng = np.random.default_rng(0)
    values, names = np.repeat(np.arange(10.0), 6) + rng.random(60), np.repeat(list("abcdefghij"), 6)
    order = rng.permutation(60)
    straight, turned = (Resampler(1).median(values[places], names[places]) for places in (np.arange(60), order))
    means = Resampler(1).mean(values.tolist(), names.tolist())
    assert np.array_equal(straight.drawn, turned.drawn)
    assert np.corrcoef(straight.drawn, means.drawn)[0, 1] > 0.7  # both use the same resamples


@pytest.mark.parametrize(
    ("values", "codes"),
    [
        *((np.round(np.random.default_rng(size).random(size), 2), np.arange(size) % clusters)  # some are equal
          for size, clusters in ((2, 2), (7, 3), (60, 60), (200, 9), (900, 900))),
        (np.arange(900.0), np.arange(900) // 300),  # neighbours only: far from the overall median
    ],
)  # fmt: skip
def test_the_median_of_a_bootstrap_resample_equals_that_of_actually_repeating_its_samples(
    values: np.ndarray, codes: np.ndarray
) -> None:
    (weights,) = Resampler(3, 50)._weights(codes.max() + 1)
    expected = [np.median(np.repeat(values, drawn[codes])) for drawn in weights]
    assert Resampler(3, 50).median(values, [f"{code:03}" for code in codes]).drawn == pytest.approx(expected)


@pytest.mark.parametrize("largest", [1, 255, 1 << 22])
def test_sums_over_bootstrap_resamples_are_as_exact_as_a_double_precision_matrix_product(largest: int) -> None:
    rng = np.random.default_rng(largest)
    drawn, totals = rng.integers(0, 5, (40, 60)).astype(np.uint8), rng.random((60, 3)) * largest
    for columns in (totals, np.ceil(totals)):
        assert np.array_equal(statistics.drawn_sums(drawn, columns), drawn.astype(float) @ columns)


def test_the_bootstrap_of_one_cluster_has_no_interval() -> None:
    assert cluster_bootstrap(totals_of(np.array([0.0, 1.0]), np.array([7, 7])), mean, seed=0) == [None]


def test_the_bootstrap_of_0_and_1_in_two_clusters_has_the_interval_0_to_1() -> None:
    """With 2 clusters, 25 % of the resamples contain only the first cluster, and the expanded tail includes them."""
    (interval,) = cluster_bootstrap(totals_of(np.array([0.0, 1.0]), np.array([0, 1])), mean, seed=0)
    assert interval == (0.0, 1.0)


def test_bootstrap_intervals_use_more_extreme_percentiles_if_there_are_few_clusters() -> None:
    """Φ(−√(C/(C−1)) t): t(0.975, 9) = 2.26216, √(10/9) = 1.05409, Φ(−2.38452) = 0.00855."""
    assert expanded_tail(10) == pytest.approx(0.00855, abs=5e-5)
    assert expanded_tail(100_000) == pytest.approx(0.025, abs=1e-5)


def test_bootstrap_resamples_with_an_undefined_score_are_left_out_of_the_interval() -> None:
    totals = np.array([[0.0, 0.0], [1.0, 2.0], [2.0, 4.0]])

    def ratio(sums: Floats) -> Floats:
        with np.errstate(invalid="ignore"):
            return mean(sums)

    assert cluster_bootstrap(totals, ratio, seed=0) == [(0.5, 0.5)]
    assert cluster_bootstrap(np.zeros((3, 2)), ratio, seed=0) == [None]


def test_bootstrapping_in_batches_gives_the_interval_of_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    totals = totals_of(rng.random(90), rng.integers(0, 30, 90))
    whole = cluster_bootstrap(totals, mean, seed=5)
    monkeypatch.setattr("audiomarathon.metrics.statistics._WEIGHTS_IN_MEMORY", 30 * 7)
    statistics._kept.cache_clear()
    assert cluster_bootstrap(totals, mean, seed=5)[0] == pytest.approx(whole[0], abs=1e-12)


def coverage(clusters: int, per_cluster: int, runs: int, *, as_if_independent: bool = False) -> float:
    """Return the share of intervals that contain the true mean, 0; half of the variance is between clusters."""
    rng = np.random.default_rng(17)
    hit = 0
    for run in range(runs):
        shared = np.repeat(rng.standard_normal(clusters), per_cluster)
        values = shared + rng.standard_normal(len(shared))
        names = np.arange(len(shared)) if as_if_independent else np.repeat(np.arange(clusters), per_cluster)
        (interval,) = cluster_bootstrap(totals_of(values, names), mean, seed=run, resamples=500)
        assert interval is not None
        hit += interval[0] <= 0 <= interval[1]
    return hit / runs


@pytest.mark.parametrize("clusters", [6, 60])
def test_cluster_bootstrap_intervals_cover_the_true_mean_at_about_the_stated_rate(clusters: int) -> None:
    assert 0.91 <= coverage(clusters, 8, runs=200) <= 0.985


def test_intervals_that_ignore_clusters_cover_the_true_mean_too_rarely() -> None:
    assert coverage(20, 8, runs=100, as_if_independent=True) < 0.75


class TestMeansOfTasks:
    def test_the_mean_over_a_single_task_has_the_bootstrap_interval_of_that_task(self) -> None:
        drawn, tail = np.random.default_rng(0).normal(size=(1, 4000)), expanded_tail(7)
        assert interval_of_mean(drawn, [7]) == pytest.approx(tuple(np.quantile(drawn[0], [tail, 1 - tail])))

    def test_resamples_with_an_undefined_score_do_not_change_the_interval_of_a_mean_over_tasks(self) -> None:
        drawn = np.random.default_rng(0).normal(size=(2, 4000))
        holed = np.hstack([drawn, [[np.nan], [0.0]]])
        assert interval_of_mean(holed, [5, 6]) == interval_of_mean(drawn, [5, 6])
        assert interval_of_mean(np.full((2, 9), np.nan), [5, 6]) is None

    def test_constant_bootstrap_draws_give_an_interval_of_zero_width(self) -> None:
        assert interval_of_mean(np.ones((2, 50)), [2, 9]) == (1.0, 1.0)

    @pytest.mark.parametrize("scales", [[1, 1, 1, 1, 1, 1], [1, 1, 1, 2, 1, 1]])
    def test_the_interval_of_a_mean_over_tasks_of_few_clusters_covers_the_true_mean(self, scales: list[int]) -> None:
        """Six tasks of four clusters are not 24 clusters: with 24, intervals covered the mean in 90 % and 88 %."""
        rng, held = np.random.default_rng(1), 0
        for _ in range(200):
            values = rng.normal(0, np.array(scales)[:, None], (6, 4))
            weights = rng.multinomial(4, np.full(4, 0.25), size=(6, 500))
            low, high = interval_of_mean(np.einsum("tdc,tc->td", weights, values) / 4, [4] * 6)
            held += low <= 0 <= high
        assert 0.92 <= held / 200 <= 0.985


class TestWhatDoesNotVary:
    """If all samples are right, or all wrong, resampling does not show the uncertainty."""

    @pytest.mark.parametrize(
        ("value", "expected"), [(1.0, (6 / (6 + 3.8415), 1.0)), (0.0, (0.0, 3.8415 / (6 + 3.8415)))]
    )
    def test_an_accuracy_of_0_or_1_has_wilsons_interval_over_its_clusters_of_samples(
        self, value: float, expected: tuple[float, float]
    ) -> None:
        (interval,) = cluster_bootstrap(totals_of(np.full(12, value), np.arange(12) // 2), mean, seed=0)
        assert interval == pytest.approx(expected, abs=1e-4)

    @pytest.mark.parametrize(
        ("value", "ends", "expected"),
        [
            (10.0, (0.0, 10.0), (6.097, 10.0)), (1.0, (0.0, 10.0), (1.0, 1.0)), (0.0, (0.0,), (0.0, 0.3903)),
            (1.0, (0.0,), (1.0, 1.0)), (1.0, (1.0,), (0.6097, 1.0)), (1.0, (), None),
        ],
    )  # fmt: skip
    def test_only_a_constant_score_at_the_bound_of_its_range_gets_wilsons_interval(
        self, value: float, ends: tuple[float, ...], expected: tuple[float, float] | None
    ) -> None:
        """A share has two bounds. A word error rate has only 0, since it has no maximum. CIDEr-D has none."""
        columns = np.column_stack([np.full(6, value), np.ones(6)])
        sums = Sums(("figure",), columns, mean, tuple("abcdef"), {"figure": ends})
        assert Resampler(0).of_sums(sums)["figure"].interval == (expected and pytest.approx(expected, abs=1e-3))

    def test_clusters_without_a_score_do_not_count_in_the_wilson_interval(self) -> None:
        """Scores with one or two values have no interval. Three values give Wilson's interval for three clusters."""
        columns = {str(n): [1.0] * n + [None] * (20 - n) for n in (1, 2, 3, 20)}
        sums = means_of_items(columns, [str(n) for n in range(20)])
        sums = replace(sums, ends=dict.fromkeys(sums.names, (0.0, 1.0)))
        estimates = Resampler(0).of_sums(sums)
        assert [estimates[name].interval for name in ("1", "2")] == [None, None]
        assert estimates["3"].interval == pytest.approx((1 - wilson_reach(3), 1))
        assert estimates["20"].interval == pytest.approx((1 - wilson_reach(20), 1))
        assert Resampler(0).of_sums(replace(sums, ends={}))["1"].interval is None

    def test_a_constant_score_over_fewer_than_three_clusters_has_no_interval(self) -> None:
        assert cluster_bootstrap(totals_of(np.ones(4), np.arange(4) // 2), mean, seed=0) == [None]

    def test_a_constant_score_without_bounds_has_an_interval_of_zero_width(self) -> None:
        assert Resampler(0).mean([7.0] * 6, list("abcdef")).interval == (7.0, 7.0)
        assert Resampler(0).median([1.0] * 6, list("abcdef")).interval == (1.0, 1.0)

    def test_wilsons_interval_covers_the_true_accuracy_even_if_all_observed_samples_are_right(self) -> None:
        """With six clusters, each right with probability 0.95, three of four runs have only right samples."""
        rng, held = np.random.default_rng(3), 0
        for _ in range(400):
            (interval,) = cluster_bootstrap(
                totals_of((rng.random(6) < 0.95).astype(float), np.arange(6)), mean, seed=0, resamples=200
            )
            held += interval is not None and interval[0] <= 0.95 <= interval[1]
        assert held / 400 > 0.9


class TestMeanOver:
    def tasks(self, rng: np.random.Generator, clusters: int, spread: np.ndarray) -> list[Estimate]:
        """Return tasks with this many clusters and true mean 0; all get the same resamples."""
        each = [rng.normal(0, deviation, clusters) for deviation in spread]
        names = [str(number) for number in range(clusters)]
        return [Resampler(42, 500).mean(values.tolist(), names) for values in each]

    @pytest.mark.parametrize(("clusters", "spread"), [(30, [1, 1, 1, 1]), (6, [1, 3, 1, 1])])
    def test_intervals_of_a_mean_over_tasks_cover_the_true_mean_about_as_often_as_stated(
        self, clusters: int, spread: list[int]
    ) -> None:
        rng, held = np.random.default_rng(5), 0
        for _ in range(200):
            estimate = mean_over(self.tasks(rng, clusters, np.array(spread)))
            held += estimate.low <= 0 <= estimate.high
        assert 0.92 <= held / 200 <= 0.985

    def test_the_interval_of_a_mean_over_nine_equally_uncertain_tasks_is_a_third_as_wide(self) -> None:
        """The interval is a third as wide although the resamples of all nine tasks are the same."""
        values = np.random.default_rng(0).normal(0, 1, 40)
        single = Resampler(1).mean(values.tolist(), [str(number) for number in range(40)])
        many = mean_over([single] * 9)
        assert (many.high - many.low) / (single.high - single.low) == pytest.approx(1 / 3, abs=0.03)

    def test_a_task_of_weight_zero_does_not_change_the_weighted_mean_or_its_interval(self) -> None:
        first, other = (Resampler(seed).mean([0.0, 1.0, 0.0, 0.5], list("abcd")) for seed in (1, 2))
        weighted = mean_over([first, other], [2.0, 0.0])
        assert weighted.value == first.value
        assert weighted.interval == pytest.approx(first.interval)
        assert np.array_equal(first.scaled(2.0).drawn, 2 * first.drawn)

    def test_the_mean_over_one_task_is_the_estimate_of_that_task(self) -> None:
        single = Resampler(1).mean([0.0, 1.0, 0.0], list("abc"))
        assert mean_over([single]) is single

    def test_the_mean_over_tasks_has_no_interval_if_a_task_has_none(self) -> None:
        single = Resampler(1).mean([0.0, 1.0, 0.0], list("abc"))
        assert mean_over([single, Resampler(1).mean([1.0, 1.0], ["a", "a"])]).interval is None

    def test_a_task_with_all_samples_right_still_widens_the_interval_of_the_mean_over_tasks(self) -> None:
        columns = np.column_stack([np.ones(6), np.ones(6)])
        right = Resampler(1).of_sums(Sums(("a",), columns, mean, tuple("abcdef"), {"a": (0.0, 1.0)}))["a"]
        mixed = Resampler(1).mean([0.0, 1.0, 0.0, 1.0, 1.0, 0.0], list("abcdef"))
        fixed = Estimate(1.0, (1.0, 1.0), 6, np.ones(2000))
        assert mean_over([mixed, right]).low < mean_over([mixed, fixed]).low
        both = mean_over([right, right])
        assert both.low == pytest.approx(1 - wilson_reach(6) / 2**0.5)
        assert both.high == 1.0
