import numpy as np
import pytest

from audiomarathon.metrics.statistics import (
    Floats,
    cluster_bootstrap,
    cluster_totals,
    expanded_tail,
    interval_of_mean,
)


def mean(sums: Floats) -> Floats:
    return sums[:, :1] / sums[:, 1:]


def totals_of(values: np.ndarray, clusters: np.ndarray) -> Floats:
    return cluster_totals(np.column_stack([values, np.ones(len(values))]), [str(cluster) for cluster in clusters])


def test_totals_are_summed_within_clusters_in_the_order_of_their_names() -> None:
    totals = cluster_totals([[1, 10], [2, 20], [4, 40]], ["zoe", "ann", "zoe"])
    assert totals.tolist() == [[2, 20], [5, 50]]


def test_totals_refuse_samples_without_a_cluster() -> None:
    with pytest.raises(ValueError, match="3 samples but 2 clusters"):
        cluster_totals([[1], [2], [3]], ["a", "b"])


def test_the_interval_depends_on_the_seed_and_not_on_the_order_of_samples() -> None:
    rng = np.random.default_rng(0)
    values, clusters = rng.random(60), rng.integers(0, 12, 60)
    (first,) = cluster_bootstrap(totals_of(values, clusters), mean, seed=1)
    (turned,) = cluster_bootstrap(totals_of(values[::-1], clusters[::-1]), mean, seed=1)
    (other,) = cluster_bootstrap(totals_of(values, clusters), mean, seed=2)
    assert first == pytest.approx(turned, abs=1e-12)
    assert first != other


def test_one_cluster_has_no_interval() -> None:
    assert cluster_bootstrap(totals_of(np.array([0.0, 1.0]), np.array([7, 7])), mean, seed=0) == [None]


def test_two_clusters_give_the_whole_range() -> None:
    """With 2 clusters 25 % of the resamples hold one of them twice, and the expanded tail reaches them."""
    (interval,) = cluster_bootstrap(totals_of(np.array([0.0, 1.0]), np.array([0, 1])), mean, seed=0)
    assert interval == [0.0, 1.0]


def test_the_tail_widens_as_clusters_get_few() -> None:
    """Φ(−√(C/(C−1)) t): t(0.975, 9) = 2.26216, √(10/9) = 1.05409, Φ(−2.38452) = 0.00855."""
    assert expanded_tail(10) == pytest.approx(0.00855, abs=5e-5)
    assert expanded_tail(100_000) == pytest.approx(0.025, abs=1e-5)


def test_a_resample_without_a_value_is_left_out() -> None:
    totals = np.array([[0.0, 0.0], [1.0, 2.0], [2.0, 4.0]])

    def ratio(sums: Floats) -> Floats:
        with np.errstate(invalid="ignore"):
            return mean(sums)

    assert cluster_bootstrap(totals, ratio, seed=0) == [[0.5, 0.5]]
    assert cluster_bootstrap(np.zeros((3, 2)), ratio, seed=0) == [None]


def test_batches_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    totals = totals_of(rng.random(90), rng.integers(0, 30, 90))
    whole = cluster_bootstrap(totals, mean, seed=5)
    monkeypatch.setattr("audiomarathon.metrics.statistics._WEIGHTS_IN_MEMORY", 30 * 7)
    assert cluster_bootstrap(totals, mean, seed=5)[0] == pytest.approx(whole[0], abs=1e-12)


def coverage(clusters: int, per_cluster: int, runs: int, *, as_if_independent: bool = False) -> float:
    """Share of runs whose interval holds the true mean, 0; half of a sample's variance is its cluster's."""
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


@pytest.mark.parametrize("clusters", [6, 20, 60])
def test_intervals_hold_the_truth_about_as_often_as_they_say(clusters: int) -> None:
    assert 0.91 <= coverage(clusters, 8, runs=300) <= 0.985


def test_without_clusters_they_would_not() -> None:
    assert coverage(20, 8, runs=150, as_if_independent=True) < 0.75


class TestMeansOfTasks:
    def test_of_one_figure_it_is_the_expanded_percentile_interval(self) -> None:
        drawn, tail = np.random.default_rng(0).normal(size=(1, 4000)), expanded_tail(7)
        assert interval_of_mean(drawn, [7]) == pytest.approx(tuple(np.quantile(drawn[0], [tail, 1 - tail])))

    def test_resamples_without_a_value_are_left_out(self) -> None:
        drawn = np.random.default_rng(0).normal(size=(2, 4000))
        holed = np.hstack([drawn, [[np.nan], [0.0]]])
        assert interval_of_mean(holed, [5, 6]) == interval_of_mean(drawn, [5, 6])
        assert interval_of_mean(np.full((2, 9), np.nan), [5, 6]) is None

    def test_without_spread_it_has_no_width(self) -> None:
        assert interval_of_mean(np.ones((2, 50)), [2, 9]) == (1.0, 1.0)

    @pytest.mark.parametrize("scales", [[1, 1, 1, 1, 1, 1], [1, 1, 1, 2, 1, 1]])
    def test_tasks_of_few_clusters_do_not_pass_for_many(self, scales: list[int]) -> None:
        """Six tasks of four clusters are not 24 clusters: taken for those, intervals held 90 % and 88 %."""
        rng, held = np.random.default_rng(1), 0
        for _ in range(400):
            values = rng.normal(0, np.array(scales)[:, None], (6, 4))
            weights = rng.multinomial(4, np.full(4, 0.25), size=(6, 500))
            low, high = interval_of_mean(np.einsum("tdc,tc->td", weights, values) / 4, [4] * 6)
            held += low <= 0 <= high
        assert 0.92 <= held / 400 <= 0.985
