"""Paired comparisons: golden values, and simulations of what an interval and a test promise."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from audiomarathon.metrics.classification import choice_sums, macro_f1
from audiomarathon.metrics.paired import Pair, Verdict, holm, judge, mcnemar
from audiomarathon.metrics.statistics import Sums


def mean_sums(values: np.ndarray) -> Sums:
    """Sums whose one figure is the mean."""
    columns = np.column_stack([values, np.ones(len(values))])
    return Sums(("mean",), columns, lambda sums: sums[:, :1] / sums[:, 1:])


def compared(own: np.ndarray, other: np.ndarray, clusters: np.ndarray | None = None, **options: int) -> Verdict:
    names = [str(name) for name in (range(len(own)) if clusters is None else clusters)]
    return judge([Pair.of(mean_sums(own), mean_sums(other), names, "mean")], **{"seed": 1, **options})


class TestDifference:
    def test_is_own_less_other(self) -> None:
        assert compared(np.array([1.0, 1, 0, 1]), np.array([0.0, 1, 0, 0])).difference == pytest.approx(0.5)

    def test_of_macro_f1_is_that_of_the_two_figures(self) -> None:
        truth = ["a", "a", "b", "b", "c", "c"]
        own, other = ["a", "b", "b", "b", None, "c"], ["a", "a", "a", "b", "c", "a"]
        pair = Pair.of(choice_sums(truth, own, [False] * 6), choice_sums(truth, other, [False] * 6), truth, "macro_f1")
        assert pair.difference == pytest.approx(macro_f1(truth, own) - macro_f1(truth, other))

    def test_over_tasks_is_the_mean_of_theirs_whatever_their_size(self) -> None:
        small = Pair.of(mean_sums(np.ones(4)), mean_sums(np.zeros(4)), list("abcd"), "mean")
        large = Pair.of(mean_sums(np.zeros(40)), mean_sums(np.zeros(40)), [str(i) for i in range(40)], "mean")
        assert judge([small, large], seed=0).difference == pytest.approx(0.5)

    def test_sides_of_other_samples_are_refused(self) -> None:
        with pytest.raises(ValueError, match="not the same samples"):
            Pair.of(mean_sums(np.ones(3)), mean_sums(np.ones(4)), list("abc"), "mean")


class TestSignFlip:
    def test_p_is_that_of_all_swaps_counted_one_by_one(self) -> None:
        own, other = np.array([3.0, 1, 2, 5, 0, 4, 2, 1]), np.array([1.0, 1, 0, 2, 1, 1, 2, 0])
        observed = abs((own - other).mean())
        signs = list(itertools.product([1, -1], repeat=8))
        exact = np.mean([abs(np.mean(s * (own - other))) >= observed - 1e-12 for s in signs])
        assert compared(own, other, draws=40_000).p == pytest.approx(exact, abs=0.01)

    def test_agrees_with_scipys_permutation_test(self) -> None:
        rng = np.random.default_rng(3)
        own, other = rng.normal(0.3, 1, 30), rng.normal(0, 1, 30)
        expected = stats.permutation_test(
            (own, other), lambda a, b: np.mean(a - b), permutation_type="samples", n_resamples=20_000, rng=rng
        ).pvalue
        assert compared(own, other, draws=20_000).p == pytest.approx(expected, abs=0.015)

    def test_swaps_whole_clusters(self) -> None:
        """Four speakers of 50 equal samples are four facts: p cannot fall below 2 / 2^4."""
        own, other = np.ones(200), np.zeros(200)
        assert compared(own, other, np.repeat(range(4), 50)).p > 0.1
        assert compared(own, other).p < 0.001

    def test_no_difference_at_all(self) -> None:
        same = np.array([1.0, 0, 1])
        assert compared(same, same).p == 1.0

    @pytest.mark.parametrize("clustered", [False, True])
    def test_keeps_its_level_under_the_null(self, clustered: bool) -> None:
        rng = np.random.default_rng(5)
        size, runs = (5 if clustered else 1), 400
        hits = 0
        for _ in range(runs):
            shift = np.repeat(rng.normal(0, 1, 30), size)  # what a speaker does to one setting, not to the other
            own, other = rng.normal(0, 1, 30 * size) + shift, rng.normal(0, 1, 30 * size)
            hits += compared(own, other, np.repeat(range(30), size), draws=300).p <= 0.05
        assert 0.02 <= hits / runs <= 0.08

    def test_has_more_power_than_an_unpaired_test(self) -> None:
        rng = np.random.default_rng(6)
        paired = unpaired = 0
        for _ in range(100):
            hardness = rng.normal(0, 2, 60)
            own, other = hardness + rng.normal(0.3, 0.5, 60), hardness + rng.normal(0, 0.5, 60)
            paired += compared(own, other, draws=300).p <= 0.05
            unpaired += stats.ttest_ind(own, other).pvalue <= 0.05
        assert paired > 80
        assert unpaired < 30


class TestInterval:
    def test_covers_the_truth_as_often_as_it_says(self) -> None:
        """Accuracy of 250 samples in 50 clusters, 2,000 runs."""
        rng = np.random.default_rng(7)
        clusters = np.repeat(range(50), 5)
        held = 0
        for _ in range(2000):
            skill = np.repeat(rng.beta(4, 2, 50), 5)  # mean 2/3
            found = compared((rng.random(250) < skill).astype(float), np.zeros(250), clusters, draws=400)
            held += found.interval[0] <= 2 / 3 <= found.interval[1]
        assert 0.93 <= held / 2000 <= 0.97

    def test_one_cluster_has_none(self) -> None:
        assert compared(np.ones(3), np.zeros(3), np.array(["a", "a", "a"])).interval is None


class TestMcNemar:
    def test_worked_out_by_hand(self) -> None:
        """5 gained, 1 lost: 2 · (1 + 6) / 2^6."""
        own = [True] * 5 + [False] + [True] * 10
        other = [False] * 5 + [True] + [True] * 10
        assert mcnemar(own, other) == pytest.approx(14 / 64)

    def test_without_discordant_samples(self) -> None:
        assert mcnemar([True, False], [True, False]) == 1.0


class TestHolm:
    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            ([0.01, 0.04, 0.03], [0.03, 0.06, 0.06]),  # statsmodels.stats.multitest.multipletests(…, method="holm")
            ([0.5, 0.001], [0.5, 0.002]),
            ([0.9, 0.8], [1.0, 1.0]),
            ([], []),
        ],
    )
    def test_golden(self, given: list[float], expected: list[float]) -> None:
        assert holm(given) == pytest.approx(expected)
