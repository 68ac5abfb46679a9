"""The betting test of a margin: golden values, and simulations of its error rate."""

from __future__ import annotations

import math

import numpy as np
import pytest

from audiomarathon.metrics import betting
from audiomarathon.metrics.betting import NO_WORSE, OPEN, WORSE, Clusters, corrected, decide, fewest


def alone(*differences: float) -> Clusters:
    """Return clusters of one sample each."""
    return Clusters.of(differences, [f"{number:05}" for number in range(len(differences))])


def verdict(clusters: Clusters, margin: float = 0.02, **options: bool) -> str:
    return decide(clusters, margin, figure="accuracy", **options).verdict


def test_the_wealth_of_a_betting_test_equals_a_value_computed_by_hand() -> None:
    """A cluster of two lost samples and a cluster of one unchanged sample, at a margin of 0.1."""
    clusters = Clusters.of([-1, -1, 0], ["a", "a", "b"])
    payoffs = np.array([(-2 + 0.2) / 2, 0.1 / 2]) / 0.9
    each = [weight * np.prod(1 + bet * payoffs) for bet, weight in zip(betting.BETS, betting.WEIGHTS, strict=True)]
    assert np.exp(clusters.log_wealth(0.1))[-1] == pytest.approx(sum(each))


def test_the_wealth_of_a_betting_test_starts_at_one() -> None:
    assert sum(betting.WEIGHTS) == pytest.approx(1)


@pytest.mark.parametrize("worse", [False, True])
def test_betting_wealth_has_no_expected_growth_if_the_true_loss_equals_the_margin(*, worse: bool) -> None:
    """One cluster, which is lost with a probability equal to the margin."""
    lost, kept = (math.exp(alone(change).log_wealth(0.05, worse=worse)[-1]) for change in (-1, 0))
    assert 0.05 * lost + 0.95 * kept == pytest.approx(1)


def test_betting_wealth_stays_finite_after_a_cluster_in_which_every_sample_turned_wrong() -> None:
    assert math.isfinite(alone(-1, *[0] * 9).log_wealth(0.02)[-1])


def test_the_p_value_of_a_betting_test_does_not_depend_on_the_order_of_samples() -> None:
    first, other = alone(-1, 0, 0, 1, 0.5), alone(0, 0.5, 1, 0, -1)
    assert first.p(0.3) == pytest.approx(other.p(0.3))


def test_a_betting_test_takes_clusters_of_samples_in_the_given_random_order() -> None:
    clusters = Clusters.of([0, -1, 1], ["a", "b", "c"], order=["c", "a", "b"])
    assert clusters.totals.tolist() == [1, 0, -1]


def test_a_betting_test_bets_less_on_clusters_of_samples_smaller_than_the_largest() -> None:
    full, half = (Clusters.of([0.0] * 100, [str(n) for n in range(100)], largest) for largest in (1, 2))
    assert full.p(0.02) < half.p(0.02)


@pytest.mark.parametrize(("margin", "clusters"), [(0.02, 149), (0.05, 59), (0.01, 299)])
def test_with_fewer_clusters_than_the_stated_minimum_no_test_could_reach_a_verdict(
    margin: float, clusters: int
) -> None:
    assert betting.fewest_of_any_test(margin) == clusters
    assert (1 - margin) ** clusters <= 0.05 < (1 - margin) ** (clusters - 1)


@pytest.mark.parametrize(("margin", "clusters"), [(0.02, 186), (0.05, 73)])
def test_a_no_worse_verdict_on_identical_replies_needs_a_minimum_number_of_clusters(
    margin: float, clusters: int
) -> None:
    assert fewest(margin) == clusters
    assert verdict(alone(*[0.0] * clusters), margin) == NO_WORSE
    few = decide(alone(*[0.0] * (clusters - 1)), margin, figure="accuracy")
    assert few.verdict == OPEN
    assert few.missing.startswith(f"needs at least {clusters} clusters")


def test_a_no_worse_verdict_needs_more_clusters_if_they_are_smaller_than_the_largest() -> None:
    clusters = Clusters.of([0.0] * 40, [str(number // 2) for number in range(40)], largest=4)
    needed = decide(clusters, 0.05, figure="accuracy").needed
    assert 2 * 70 < needed < 2 * 90


def test_the_verdict_is_worse_if_replies_turned_wrong_in_most_clusters() -> None:
    assert verdict(alone(*[-1] * 12, *[0] * 8)) == WORSE


def test_the_verdict_is_not_decided_if_replies_turned_wrong_in_only_a_few_clusters() -> None:
    assert verdict(alone(*[-1] * 2, *[0] * 98)) == OPEN


def test_the_verdict_is_no_worse_without_testing_if_a_setting_cannot_change_replies() -> None:
    assert verdict(alone(0, 0), by_construction=True) == NO_WORSE


def test_holm_correction_counts_all_settings_and_tasks() -> None:
    settings = [alone(*[0.0] * 190), alone(*[0.0] * 10), alone(*[0.0] * 300)]
    single = [decide(setting, 0.02, figure="accuracy") for setting in settings]
    assert [decision.verdict for decision in single] == [NO_WORSE, OPEN, NO_WORSE]
    first, _, third = corrected(single, settings)
    assert third.holm_no_worse == pytest.approx(3 * third.p_no_worse)
    assert third.verdict == NO_WORSE
    assert (first.verdict, first.missing) == (OPEN, "no worse if tested alone")


def test_settings_whose_replies_cannot_differ_from_base_do_not_count_in_the_holm_correction() -> None:
    settings = [alone(*[0.0] * 190), alone(0.0)]
    decisions = [decide(settings[0], 0.02, figure=""), decide(settings[1], 0.02, figure="", by_construction=True)]
    assert [decision.tests for decision in corrected(decisions, settings)] == [1, 1]
    assert corrected(decisions, settings)[0].verdict == NO_WORSE


def test_the_reported_smallest_margin_is_the_margin_at_which_the_verdict_changes() -> None:
    clusters = alone(*[-1] * 3, *[0] * 197)
    smallest = decide(clusters, 0.02, figure="accuracy").smallest
    assert verdict(clusters, smallest + 1e-6) == NO_WORSE
    assert verdict(clusters, smallest - 1e-6) == OPEN


def test_the_confidence_bounds_of_a_difference_contain_the_observed_difference() -> None:
    decision = decide(alone(*[-1] * 30, *[1] * 10, *[0] * 160), 0.02, figure="accuracy")
    assert decision.bounds[0] < decision.difference == -0.1 < decision.bounds[1] < 0


def test_testing_many_settings_widens_the_margin_that_each_of_them_supports() -> None:
    settings = [alone(*[0.0] * 200)] * 20
    (first, *_) = corrected([decide(setting, 0.02, figure="accuracy") for setting in settings], settings)
    assert first.smallest < 0.02 < first.smallest_of_all


def test_confidence_bounds_without_samples_cover_every_possible_difference() -> None:
    decision = decide(alone(), 0.02, figure="accuracy")
    assert (decision.verdict, decision.bounds) == (OPEN, (-1.0, 1.0))


def test_more_discordant_replies_need_more_clusters_and_a_wider_margin_needs_fewer() -> None:
    quiet, loud = alone(*[0] * 390, *[1, -1] * 5), alone(*[0] * 320, *[1, -1] * 40)
    counts = [
        betting.clusters_for_power(clusters, margin) for clusters, margin in [(quiet, 0.05), (loud, 0.05), (loud, 0.1)]
    ]
    assert None not in counts
    assert counts[0] < counts[1] > counts[2]


def test_a_test_with_the_planned_number_of_clusters_reaches_a_verdict_in_80_percent_of_cases() -> None:
    rng = np.random.default_rng(3)
    pilot = alone(*[0] * 900, *[1, -1] * 50)
    count = betting.clusters_for_power(pilot, 0.05)
    drawn = rng.choice(pilot.totals, (400, count))
    decided = np.mean(Clusters(drawn, np.ones_like(drawn), 1).p(0.05) <= 0.05)
    assert 0.72 < decided < 0.9


def test_no_cluster_number_is_planned_if_even_the_largest_allowed_one_has_too_little_power(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(betting, "MOST_PLANNED", 1000)
    assert betting.clusters_for_power(alone(*[1, -1] * 20), 0.01) is None


def lossy(
    rng: np.random.Generator, runs: int, clusters: int, loss: float, discordance: float, most: int = 20
) -> Clusters:
    """Draw settings with a mean loss of `loss`, in clusters of unequal sizes; some clusters change as a whole."""
    sizes = rng.integers(1, most + 1, (runs, clusters)).astype(float)
    alike = rng.random((runs, clusters)) < 0.3  # all samples of such a cluster change alike
    kinds = [(discordance + loss) / 2, (discordance - loss) / 2]
    lost, gained, _ = np.moveaxis(rng.multinomial(sizes.astype(int), [*kinds, 1 - discordance]), -1, 0)
    whole = rng.choice([-1.0, 1.0, 0.0], p=[*kinds, 1 - discordance], size=sizes.shape) * sizes
    return Clusters(np.where(alike, whole, gained - lost), sizes, most)


@pytest.mark.parametrize("clusters", [8, 40, 200])
@pytest.mark.parametrize(("margin", "discordance"), [(0.02, 0.02), (0.05, 0.15)])
@pytest.mark.parametrize("worse", [False, True])
def test_testing_after_each_cluster_keeps_the_error_of_the_sequential_test_at_about_5_percent(
    clusters: int, margin: float, discordance: float, *, worse: bool
) -> None:
    """At a true loss equal to the margin, in clusters of unequal sizes."""
    simulated = lossy(np.random.default_rng(clusters), 1000, clusters, margin, discordance)
    once, each = (np.mean(simulated.p(margin, worse=worse, each=stepwise) <= 0.05) for stepwise in (False, True))
    assert once <= each < 0.065  # 5 % and two standard errors


@pytest.mark.parametrize(("margin", "discordance"), [(0.05, 0.05), (0.05, 0.3), (0.1, 0.1)])
def test_the_sequential_test_needs_at_most_1_6_times_the_samples_of_a_fixed_size_test(
    margin: float, discordance: float
) -> None:
    """The fixed test is a z test with known variance, the same level and 80 % power; the mean loss is 0."""
    fixed = (1.645 + 0.842) ** 2 * discordance / margin**2
    drawn = np.random.default_rng(0).choice(
        [-1.0, 1.0, 0.0], p=[discordance / 2, discordance / 2, 1 - discordance], size=(300, int(4 * fixed))
    )
    decided = Clusters(drawn, np.ones_like(drawn), 1).log_wealth(margin) >= math.log(20)
    stopped = np.where(decided.any(axis=1), decided.argmax(axis=1) + 1, drawn.shape[1])
    assert np.median(stopped) <= 1.6 * fixed
