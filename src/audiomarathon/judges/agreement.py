"""Measure how well judges agree: Krippendorff's alpha of all judges; Cohen's kappa and plain agreement of each pair."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

Scale = Literal["nominal", "ordinal"]


def agreement(values: Mapping[str, Sequence[Any]], scale: Scale) -> dict[str, Any]:
    """Return how well judges agree on one kind of value, such as a rating.

    Parameters
    ----------
    values
        For each judge by name, its value for each item (reply); None if missing.
    scale
        With "ordinal", alpha compares values by rank, and kappa gets quadratic weights.

    Returns
    -------
    dict
        `n` (number of items with values of two or more judges), `alpha`, and `pairs`: for each pair `A / B` of judges,
        `n` (items that both judged), `agree` (share of equal values) and `kappa`. An undefined figure is None, such as
        kappa if both judges always give the same value.
    """
    items = [item for item in zip(*values.values(), strict=True) if sum(value is not None for value in item) > 1]
    pairs = {}
    for (judge_a, values_a), (judge_b, values_b) in itertools.combinations(values.items(), 2):
        both = [(a, b) for a, b in zip(values_a, values_b, strict=True) if a is not None and b is not None]
        pairs[f"{judge_a} / {judge_b}"] = {
            "n": len(both),
            "agree": float(np.mean([a == b for a, b in both])) if both else None,
            "kappa": cohen_kappa([a for a, _ in both], [b for _, b in both], scale),
        }
    return {"n": len(items), "alpha": krippendorff_alpha(items, scale), "pairs": pairs}


def krippendorff_alpha(items: Sequence[Sequence[Any]], scale: Scale) -> float | None:
    """Return Krippendorff's alpha of judges' values; None if all values are equal.

    Each item is a reply, and lists each judge's value of it, or None if the judge gave none.
    """
    levels = sorted({value for item in items for value in item if value is not None})
    if len(levels) < 2:
        return None
    import krippendorff

    places = {level: place for place, level in enumerate(levels)}
    data = [[places.get(value, np.nan) for value in item] for item in items]
    return float(krippendorff.alpha(np.array(data, float).T, level_of_measurement=scale))


def cohen_kappa(first: Sequence[Any], second: Sequence[Any], scale: Scale = "nominal") -> float | None:
    """Return Cohen's kappa of two judges' values, with quadratic weights for an ordinal scale; None if undefined.

    For numbers, weights use the values themselves: ratings 0 and 2 are two apart, even if nobody gave a 1.
    """
    levels = sorted({*first, *second})
    if len(levels) < 2:
        return None
    places = {level: place for place, level in enumerate(levels)}
    counts = np.zeros((len(levels), len(levels)))
    np.add.at(counts, ([places[value] for value in first], [places[value] for value in second]), 1)
    are_numbers = all(isinstance(level, (int, float)) for level in levels)
    numbers = np.array(levels if are_numbers else range(len(levels)), float)
    apart = numbers[:, None] - numbers[None, :]
    weights = (apart != 0).astype(float) if scale == "nominal" else apart**2
    chance = np.outer(counts.sum(1), counts.sum(0)) / counts.sum()
    expected = (weights * chance).sum()
    return float(1 - (weights * counts).sum() / expected) if expected else None
