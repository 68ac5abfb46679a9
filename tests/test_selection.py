"""Samples of limited runs: seeded, nested, in proportion by class at every length, spread over clusters."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audiomarathon.benchmarks.selection import select
from audiomarathon.benchmarks.task import LETTERS, Sample
from audiomarathon.errors import SettingsError


def sample(name: str, label: int = 0, cluster: str = "") -> Sample:
    labels = tuple(f"class {letter}" for letter in LETTERS)
    return Sample(name, (Path(name),), "?", LETTERS[label], cluster or name, options=labels, labels=labels)


populations = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 9)), max_size=70).map(
    lambda facts: [sample(f"s{i}", label, f"cluster {cluster}") for i, (label, cluster) in enumerate(facts)]
)


@given(populations, st.integers(0, 5), st.integers(1, 90), st.integers(0, 90))
def test_a_smaller_sample_limit_selects_a_prefix_of_the_samples_of_a_larger_limit(
    samples: list[Sample], seed: int, limit: int, more: int
) -> None:
    smaller, larger = select(samples, limit, seed), select(samples, limit + more, seed)
    assert len(smaller) == min(limit, len(samples))
    assert larger[: len(smaller)] == smaller


@given(populations, st.integers(0, 5))
def test_selection_loses_and_repeats_no_sample(samples: list[Sample], seed: int) -> None:
    assert sorted(s.id for s in select(samples, 0, seed)) == sorted(s.id for s in samples)
    assert select(samples, len(samples) + 1, seed) == select(samples, 0, seed)


def test_a_limit_selects_the_same_samples_as_in_earlier_versions() -> None:
    """Other samples would need new runs in every results folder, and give other scores."""
    samples = [sample(f"s{i}", i % 3, f"cluster {i % 5}") for i in range(40)]
    samples += [sample(f"t{i}", 5, f"c{i}") for i in range(3)]
    chosen = [chosen_sample.id for chosen_sample in select(samples, 12, 42)]
    assert chosen == ["s6", "s14", "s10", "s3", "s2", "s31", "s24", "s35", "s22", "s21", "s38", "s7"]


@given(populations, st.integers(0, 5), st.randoms())
def test_selection_does_not_depend_on_the_order_of_the_input(samples: list[Sample], seed: int, random: object) -> None:
    shuffled = list(samples)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert select(shuffled, 0, seed) == select(samples, 0, seed)


@given(populations, st.integers(0, 5))
def test_every_selection_prefix_holds_each_class_in_proportion_within_one_sample(
    samples: list[Sample], seed: int
) -> None:
    order = select(samples, 0, seed)
    sizes = Counter(s.stratum for s in samples)
    seen: Counter[str] = Counter()
    for length, chosen in enumerate(order, start=1):
        seen[chosen.stratum] += 1
        for stratum, size in sizes.items():
            assert abs(seen[stratum] - length * size / len(samples)) < 1


@given(st.integers(2, 12), st.integers(2, 8), st.integers(0, 20))
def test_each_of_equally_large_clusters_is_selected_once_before_any_is_selected_twice(
    clusters: int, size: int, seed: int
) -> None:
    samples = [sample(f"{c}-{i}", 0, f"cluster {c}") for c in range(clusters) for i in range(size)]
    order = select(samples, 0, seed)
    for start in range(0, len(order), clusters):
        assert len({s.cluster for s in order[start : start + clusters]}) == clusters


def test_samples_of_large_and_small_clusters_are_selected_equally_often() -> None:
    """Over many seeds, samples of large and of small clusters are taken equally often: a third of the time."""
    samples = [sample(f"big-{i}", 0, "big") for i in range(20)] + [sample(f"lone-{i}") for i in range(10)]
    taken = Counter(s.id for seed in range(600) for s in select(samples, 10, seed))
    lone = sum(count for name, count in taken.items() if name.startswith("lone")) / (600 * 10)
    assert 0.29 < lone < 0.38
    assert set(taken) == {s.id for s in samples}


def test_selections_with_different_seeds_hold_different_samples() -> None:
    samples = [sample(f"s{i}", i % 3) for i in range(60)]
    assert len({tuple(s.id for s in select(samples, 20, seed)) for seed in range(10)}) == 10


def test_a_negative_sample_limit_is_refused() -> None:
    with pytest.raises(SettingsError, match="SAMPLE_LIMIT=-1"):
        select([], -1, 42)


def test_only_the_named_sample_ids_are_selected_in_the_order_named() -> None:
    samples = [sample(name) for name in "abc"]
    assert [chosen_sample.id for chosen_sample in select(samples, 1, 0, ("c", "a"))] == ["c", "a"]
    with pytest.raises(SettingsError, match="unknown sample id 'x'"):
        select(samples, 0, 0, ("a", "x"))
