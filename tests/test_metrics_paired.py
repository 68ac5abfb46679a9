"""Paired comparisons: golden values, and simulations of an interval's coverage and a test's error rate."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from audiomarathon.metrics import paired
from audiomarathon.metrics.classification import choice_sums, macro_f1
from audiomarathon.metrics.paired import DRAWS, Drawn, Pair, PairedResult, _small_p, holm, judge, mcnemar
from audiomarathon.metrics.statistics import Estimate, Sums, expanded_tail, interval_of_mean, wilson_reach


def mean_sums(values: np.ndarray) -> Sums:
    """Return sums whose only metric is the mean."""
    columns = np.column_stack([values, np.ones(len(values))])
    return Sums(("mean",), columns, lambda sums: sums[:, :1] / sums[:, 1:])


def share_sums(hits: list[int], counted: list[int]) -> Sums:
    """Return sums whose only metric is hits ÷ counted, NaN if nothing counts."""

    def share(sums: np.ndarray) -> np.ndarray:
        return np.divide(sums[:, :1], sums[:, 1:], out=np.full((len(sums), 1), np.nan), where=sums[:, 1:] > 0)

    return Sums(("share",), np.column_stack([hits, counted]).astype(float), share)


def pair_of(sums: Sums, other: Sums, clusters: Sequence[str], figure: str | None = None) -> Pair:
    return Pair.of(replace(sums, clusters=tuple(clusters), ends=dict.fromkeys(sums.names, (0.0, 1.0))), other, figure)


def resampled(pair: Pair, rng: np.random.Generator, draws: int) -> np.ndarray:
    return next(iter(pair.differences(rng, draws).values())).drawn


def verdict(pairs: Sequence[Pair], seed: int = 0, draws: int = DRAWS) -> PairedResult:
    rng = np.random.default_rng(seed)
    return judge([Drawn.of(pair, rng, draws) for pair in pairs])


def compared(ours: np.ndarray, other: np.ndarray, clusters: np.ndarray | None = None, **options: int) -> PairedResult:
    names = [str(name) for name in (range(len(ours)) if clusters is None else clusters)]
    return verdict([pair_of(mean_sums(ours), mean_sums(other), names)], **{"seed": 1, **options})


def test_a_permutation_p_value_is_not_small_if_only_two_permutations_have_a_defined_score() -> None:
    """Only the observed labelling and its opposite have a score: two of 4,096."""

    def extreme(sums: np.ndarray) -> np.ndarray:
        return np.where((sums[:, :1] == 12) | (sums[:, :1] == 0), sums[:, :1] / sums[:, 1:], np.nan)

    ours, other = (Sums(("extreme",), np.column_stack([np.full(12, x), np.ones(12)]), extreme) for x in (1.0, 0.0))
    for seed in (0, 1, 2):
        assert verdict([pair_of(ours, other, list("abcdefghijkl"))], seed).p in (1.0, None)


def test_the_paired_test_computes_repeated_resamples_and_repeated_label_swaps_only_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Six clusters have 462 different resamples and 64 different swaps."""
    ours, seen = mean_sums(np.array([0.1, 0.7, 0.2, 0.9, 1.0, 0.4])), list[int]()
    counting = Sums(ours.names, ours.columns, lambda sums: seen.append(len(sums)) or ours.statistic(sums))
    pair = pair_of(counting, mean_sums(np.arange(6.0)), list("abcdef"))
    drawn = [draw(pair, np.random.default_rng(1), 5_000) for draw in (resampled, Pair.flipped)]
    assert max(seen[:3]) <= 462
    assert max(seen[3:]) <= 64
    monkeypatch.setattr("audiomarathon.metrics.paired._CODES", 0)
    each = [draw(pair, np.random.default_rng(1), 5_000) for draw in (resampled, Pair.flipped)]
    np.testing.assert_allclose(drawn, each, rtol=0, atol=1e-12)


def test_comparing_many_settings_with_one_reference_resamples_the_reference_only_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A column that a setting shares with the reference is not summed again either."""
    clusters, counted, sums = [f"c{number}" for number in range(40)], list[int](), paired.drawn_sums
    right, *settings = (np.random.default_rng(0).random((4, 40)) < 0.5).astype(float)
    monkeypatch.setattr(paired, "drawn_sums", lambda drawn, sides: counted.append(sides.shape[1]) or sums(drawn, sides))

    def drawn(scale: float) -> list[np.ndarray]:
        pairs = [pair_of(mean_sums(each * scale), mean_sums(right * scale), clusters) for each in settings]
        return [resampled(pair, np.random.default_rng(7), 50) for pair in pairs]

    together = drawn(1)
    assert counted == [2, 1, 1, 1]  # right replies and counts of the reference, then right replies of each setting
    assert np.allclose(drawn(0.5), np.array(together) / 2)  # halves are no counts, so all columns are summed
    assert counted[4:] == [4, 4, 4]


def test_bootstrap_resamples_drawn_in_successive_blocks_differ_from_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice, since the draws of a seed are kept for the next setting."""
    pair = pair_of(mean_sums(np.arange(6.0)), mean_sums(np.ones(6)), list("abcdef"))
    monkeypatch.setattr("audiomarathon.metrics.paired._BLOCK", 6 * 50)
    for _ in range(2):
        drawn = resampled(pair, np.random.default_rng(1), 100)
        assert not np.array_equal(drawn[:50], drawn[50:])


class TestDifference:
    def test_the_paired_difference_is_the_first_systems_score_minus_the_second_systems_score(self) -> None:
        assert compared(np.array([1.0, 1, 0, 1]), np.array([0.0, 1, 0, 0])).difference == pytest.approx(0.5)

    def test_the_difference_of_macro_f1_compares_the_macro_f1_of_each_run_and_not_single_samples(self) -> None:
        truth = ["a", "a", "b", "b", "c", "c"]
        ours, other = ["a", "b", "b", "b", None, "c"], ["a", "a", "a", "b", "c", "a"]
        pair = pair_of(choice_sums(truth, ours, [False] * 6), choice_sums(truth, other, [False] * 6), truth, "macro_f1")
        assert pair.scores == pytest.approx((macro_f1(truth, ours), macro_f1(truth, other)))

    def test_the_difference_over_tasks_is_the_unweighted_mean_of_the_task_differences(self) -> None:
        small = pair_of(mean_sums(np.ones(4)), mean_sums(np.zeros(4)), list("abcd"), "mean")
        large = pair_of(mean_sums(np.zeros(40)), mean_sums(np.zeros(40)), [str(i) for i in range(40)], "mean")
        assert verdict([small, large]).difference == pytest.approx(0.5)

    def test_a_paired_comparison_of_systems_with_different_samples_is_refused(self) -> None:
        with pytest.raises(ValueError, match="not the same samples"):
            pair_of(mean_sums(np.ones(3)), mean_sums(np.ones(4)), list("abc"), "mean")


class TestDifferences:
    """Differences of all metrics at once, as in a sweep's summary."""

    def estimate_difference(self, scores: np.ndarray, base: np.ndarray, names: list[str], seed: int = 0) -> Estimate:
        pair = pair_of(mean_sums(scores), mean_sums(base), names)
        return pair.differences(np.random.default_rng(seed))["mean"]

    def test_difficulty_that_both_systems_share_cancels_out_in_the_paired_difference(self) -> None:
        """Samples differ widely in difficulty, but the first side is always 0.1 better."""
        hard = np.random.default_rng(0).standard_normal(40) * 10
        difference = self.estimate_difference(hard + 0.1, hard, [str(number // 4) for number in range(40)])
        assert difference.value == pytest.approx(0.1)
        assert difference.interval == pytest.approx((0.1, 0.1))

    def test_the_interval_of_a_difference_is_computed_from_the_per_sample_differences(self) -> None:
        rng = np.random.default_rng(1)
        scores, base, names = rng.random(40), rng.random(40), [str(n) for n in rng.integers(0, 10, 40)]
        difference = self.estimate_difference(scores, base, names, seed=3)
        expected = self.estimate_difference(scores - base, np.zeros(40), names, seed=3)
        assert difference.value == pytest.approx((scores - base).mean())
        assert difference.interval == pytest.approx(expected.interval)
        tail = expanded_tail(difference.clusters)
        assert difference.interval == pytest.approx(tuple(np.quantile(difference.drawn, [tail, 1 - tail])))

    def test_a_paired_difference_over_a_single_cluster_of_samples_has_no_interval(self) -> None:
        difference = self.estimate_difference(np.ones(2), np.array([0.0, 1.0]), ["a", "a"])
        assert (difference.value, difference.interval) == (0.5, None)

    def test_the_paired_difference_is_undefined_if_one_of_the_two_scores_is_undefined(self) -> None:
        pair = pair_of(share_sums([1, 0], [0, 0]), share_sums([0, 0], [0, 0]), ["a", "b"])
        assert np.isnan(pair.differences(np.random.default_rng(0))["share"].value)

    @pytest.mark.parametrize(("right", "base", "reach"), [(1, 1, 1.0), (0, 0, 1.0), (1, 0, 2**0.5)])
    def test_the_difference_between_runs_with_all_right_or_all_wrong_has_newcombes_interval(
        self, right: int, base: int, reach: float
    ) -> None:
        difference = self.estimate_difference(np.full(6, float(right)), np.full(6, float(base)), list("abcdef"))
        wide = reach * wilson_reach(6)
        assert difference.interval == pytest.approx((max(-1, right - base - wide), min(1, right - base + wide)))
        assert self.estimate_difference(np.full(2, float(right)), np.full(2, float(base)), list("ab")).interval is None


class TestUndefined:
    """A metric without a value for some samples, resamples or swaps."""

    def test_a_comparison_with_an_undefined_score_gives_no_difference_interval_or_p_value(self) -> None:
        pair = pair_of(share_sums([1, 0], [0, 0]), share_sums([0, 0], [0, 0]), ["a", "b"], "share")
        assert verdict([pair]) == PairedResult(None, None, None)

    def test_undefined_resamples_are_left_out_of_the_interval_and_counted(self) -> None:
        """Only one of four clusters has counts: (3/4)^4 = 32 % of resamples miss it."""
        pair = pair_of(share_sums([1, 0, 0, 0], [2, 0, 0, 0]), share_sums([2, 0, 0, 0], [2, 0, 0, 0]), list("abcd"))
        result = verdict([pair], draws=4000)
        assert result.undefined_resamples == pytest.approx(0.316 * 4000, abs=120)
        assert result.interval == pytest.approx((-0.5, -0.5))

    def test_label_swaps_that_leave_a_score_undefined_are_left_out_of_the_p_value(self) -> None:
        """One side counts only in a and b, the other only in c and d. Both have a value in 14 of 16 swaps."""
        sums, other = share_sums([1, 1, 0, 0], [1, 1, 0, 0]), share_sums([0, 0, 0, 0], [0, 0, 1, 1])
        labellings = list(itertools.product([0, 1], repeat=4))
        exact = [_apart(np.array(swap)) for swap in labellings]
        valued = [difference for difference in exact if difference is not None]
        result = verdict([pair_of(sums, other, list("abcd"))], draws=8000)
        assert result.undefined_swaps == pytest.approx(8000 * (1 - len(valued) / 16), abs=250)
        assert result.p == pytest.approx(np.mean([abs(difference) >= 1 for difference in valued]), abs=0.02)

    def test_an_undefined_task_score_leaves_the_difference_over_tasks_undefined(self) -> None:
        none = pair_of(share_sums([1, 0], [0, 0]), share_sums([0, 0], [0, 0]), ["a", "b"])
        some = pair_of(mean_sums(np.ones(4)), mean_sums(np.zeros(4)), list("abcd"))
        assert verdict([none, some]).difference is None


def _apart(swap: np.ndarray) -> float | None:
    """Return the difference under one swap in the case above, computed cluster by cluster."""
    right, count = np.array([[1, 1, 0, 0], [0, 0, 0, 0]]), np.array([[1, 1, 0, 0], [0, 0, 1, 1]])
    ours = [(table[0] * (1 - swap) + table[1] * swap).sum() for table in (right, count)]
    other = [(table[1] * (1 - swap) + table[0] * swap).sum() for table in (right, count)]
    return ours[0] / ours[1] - other[0] / other[1] if ours[1] and other[1] else None


class TestSignFlip:
    def test_the_sign_flip_test_gives_the_exact_p_over_all_sign_flips(self) -> None:
        ours, other = np.array([3.0, 1, 2, 5, 0, 4, 2, 1]), np.array([1.0, 1, 0, 2, 1, 1, 2, 0])
        observed = abs((ours - other).mean())
        signs = list(itertools.product([1, -1], repeat=8))
        exact = np.mean([abs(np.mean(s * (ours - other))) >= observed - 1e-12 for s in signs])
        assert compared(ours, other, draws=40_000).p == pytest.approx(exact, abs=0.01)

    @pytest.mark.parametrize("values", [[1.0], [1.0, np.nan]])
    def test_the_sign_flip_test_gives_no_p_for_a_single_value_or_a_nan(self, values: list[float]) -> None:
        assert paired.sign_flip(np.array(values), np.random.default_rng(1)) is None

    def test_the_sign_flip_test_gives_about_the_p_of_scipys_permutation_test(self) -> None:
        rng = np.random.default_rng(3)
        ours, other = rng.normal(0.3, 1, 30), rng.normal(0, 1, 30)
        expected = stats.permutation_test(
            (ours, other), lambda a, b: np.mean(a - b), permutation_type="samples", n_resamples=20_000, rng=rng
        ).pvalue
        assert compared(ours, other, draws=20_000).p == pytest.approx(expected, abs=0.015)

    def test_the_sign_flip_test_swaps_whole_clusters_and_not_single_samples(self) -> None:
        """Four speakers with 50 equal samples are four observations, so p cannot fall below 2 / 2^4."""
        ours, other = np.ones(200), np.zeros(200)
        assert compared(ours, other, np.repeat(range(4), 50)).p > 0.1
        assert compared(ours, other).p < 0.001

    @pytest.mark.parametrize(("size", "gained"), [(40, 34), (100, 80), (1000, 600)])
    def test_a_tiny_p_of_the_sign_flip_test_equals_that_of_the_binomial_test(self, size: int, gained: int) -> None:
        """p is 8e-6 to 3e-10, so none of 10,000 random swaps would reach the difference."""
        ours = np.array([1.0] * gained + [0.0] * (size - gained))
        assert compared(ours, 1 - ours).p == pytest.approx(stats.binomtest(gained, size).pvalue, rel=0.15)

    def test_a_small_p_for_macro_f1_over_two_tasks_equals_the_exact_p_over_all_label_swaps(self) -> None:
        rng = np.random.default_rng(0)
        truths = rng.choice(list("abc"), (2, 11))
        sides = [[choice_sums(list(t), list(g), [False] * 11) for t, g in zip(truths, s, strict=True)]
                 for s in (truths, np.roll(truths, 4, axis=1))]  # fmt: skip
        pairs = [pair_of(sums, other, list("abcdefghijk"), "macro_f1") for sums, other in zip(*sides, strict=True)]
        each = [
            pair._swapped(np.array(list(itertools.product([0, 1], repeat=11)), np.int8), pair._moved) for pair in pairs
        ]
        mean = np.add.outer(*each) / 2
        exact = np.mean(np.abs(mean) >= abs(mean[0, 0]) - 1e-12)
        assert exact < 1e-3
        assert verdict(pairs).p == pytest.approx(exact, rel=0.15)

    def test_a_small_p_of_the_sign_flip_test_is_above_zero_for_every_seed(self) -> None:
        """The observed labelling counts even if no draw reaches the difference."""
        pair = pair_of(mean_sums(np.ones(30)), mean_sums(np.zeros(30)), [str(number) for number in range(30)])
        drawn = Drawn.of(pair, np.random.default_rng(0), 10)
        assert all(_small_p([drawn], 1.0, np.random.default_rng(seed), 1) > 0 for seed in range(30))

    def test_p_of_the_sign_flip_test_is_1_without_any_difference(self) -> None:
        same = np.array([1.0, 0, 1])
        assert compared(same, same).p == 1.0

    @pytest.mark.parametrize("size", [1, 5])
    def test_the_sign_flip_test_rejects_a_true_null_hypothesis_in_about_5_percent_of_cases(self, size: int) -> None:
        """Clusters of `size` samples share a speaker's effect on one setting, which the other does not have."""
        rng, hits, naive, runs = np.random.default_rng(5), 0, 0, 250
        for _ in range(runs):
            ours = rng.normal(0, 1, 30 * size) + np.repeat(rng.normal(0, 1, 30), size)
            other = rng.normal(0, 1, 30 * size)
            hits += compared(ours, other, np.repeat(range(30), size), draws=300).p <= 0.05
            naive += size > 1 and compared(ours, other, draws=300).p <= 0.05
        assert 0.02 <= hits / runs <= 0.08
        assert size == 1 or naive / runs > 0.15  # a test that assumes independent samples

    def test_the_sign_flip_test_rejects_a_true_null_of_macro_f1_over_two_tasks_in_about_5_percent(self) -> None:
        """Two tasks with three classes, in clusters of three samples. Both settings guess at random."""
        rng, hits, names = np.random.default_rng(8), 0, [str(number // 3) for number in range(36)]
        for _ in range(200):
            truths, guesses = rng.choice(list("abc"), (2, 36)), rng.choice(list("abc"), (2, 2, 36))
            sides = [
                [choice_sums(list(t), list(g), [False] * 36) for t, g in zip(truths, s, strict=True)] for s in guesses
            ]
            pairs = [pair_of(sums, other, names, "macro_f1") for sums, other in zip(*sides, strict=True)]
            hits += verdict(pairs, draws=200).p <= 0.05
        assert 0.02 <= hits / 200 <= 0.085

    def test_the_sign_flip_test_finds_a_difference_more_often_than_an_unpaired_test(self) -> None:
        rng = np.random.default_rng(6)
        paired = unpaired = 0
        for _ in range(100):
            hardness = rng.normal(0, 2, 60)
            ours, other = hardness + rng.normal(0.3, 0.5, 60), hardness + rng.normal(0, 0.5, 60)
            paired += compared(ours, other, draws=300).p <= 0.05
            unpaired += stats.ttest_ind(ours, other).pvalue <= 0.05
        assert paired > 80
        assert unpaired < 30


class TestInterval:
    def test_the_interval_covers_the_true_accuracy_in_about_95_percent_of_runs(self) -> None:
        """Accuracy of 250 samples in 50 clusters, 1,000 runs."""
        rng = np.random.default_rng(7)
        names = [str(name) for name in np.repeat(range(50), 5)]
        held = 0
        for _ in range(1000):
            skill = np.repeat(rng.beta(4, 2, 50), 5)  # mean 2/3
            sums = mean_sums((rng.random(250) < skill).astype(float))
            drawn = resampled(pair_of(sums, mean_sums(np.zeros(250)), names), rng, 400)
            low, high = interval_of_mean(drawn[None], [50])
            held += low <= 2 / 3 <= high
        assert 0.93 <= held / 1000 <= 0.97

    def test_the_interval_of_one_cluster_of_samples_is_missing(self) -> None:
        assert compared(np.ones(3), np.zeros(3), np.array(["a", "a", "a"])).interval is None


class TestMcNemar:
    @pytest.mark.parametrize(
        ("gained", "lost", "expected"),
        [
            (5, 1, 2 * (1 + 6) / 2**6),
            # statsmodels 0.15.0: mcnemar([[10, gained], [lost, 10]], exact=True).pvalue
            (12, 4, 0.076812744140625),
            (0, 7, 0.015625),
            (20, 9, 0.06142834573984146),
            (3, 3, 1.0),
        ],
    )
    def test_p_values_of_mcnemars_test_equal_golden_values(self, gained: int, lost: int, expected: float) -> None:
        ours = [True] * gained + [False] * lost + [True, False] * 5
        other = [False] * gained + [True] * lost + [True, False] * 5
        assert mcnemar(ours, other) == pytest.approx(expected)

    def test_p_of_mcnemars_test_is_1_without_discordant_samples(self) -> None:
        assert mcnemar([True, False], [True, False]) == 1.0


class TestHolm:
    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            # statsmodels 0.15.0: multipletests(given, method="holm")[1]
            ([0.01, 0.04, 0.03], [0.03, 0.06, 0.06]),
            ([0.5, 0.001], [0.5, 0.002]),
            ([0.9, 0.8], [1.0, 1.0]),
            ([0.012, 0.03, 0.001, 0.2, 0.03], [0.048, 0.09, 0.005, 0.2, 0.09]),
            ([], []),
        ],
    )
    def test_p_values_adjusted_by_holm_equal_golden_values(self, given: list[float], expected: list[float]) -> None:
        assert holm(given) == pytest.approx(expected)
