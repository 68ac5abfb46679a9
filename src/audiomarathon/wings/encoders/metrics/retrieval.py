"""Compute retrieval metrics: ranks of the relevant items, recall at k, and mean average precision at k."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from audiomarathon.metrics.statistics import Floats


def places_of(scores: Floats, relevant: Sequence[int]) -> list[int]:
    """Return the ranks of the relevant items when all items are sorted by score, counted from 1, in ascending order.

    Among equal scores, irrelevant items rank first. Otherwise constant scores would seem perfect.
    """
    relevant_scores = np.sort(scores[list(relevant)])[::-1]
    others = np.sort(np.delete(scores, list(relevant)))
    ahead = len(others) - np.searchsorted(others, relevant_scores)
    return [int(many) + place for place, many in enumerate(ahead, start=1)]


def recall(queries: Sequence[Sequence[int]], k: int) -> float:
    """Return recall at k: the share of queries with a relevant item among the first k.

    A query is given as the ranks of its relevant items.
    """
    return float(np.mean([min(places) <= k for places in queries]))


def average_precision(queries: Sequence[Sequence[int]], k: int) -> float:
    """Return mean average precision at k: average precision at k, averaged over queries.

    A query is given as the ranks of its relevant items. An item with a rank beyond k adds 0, but counts in the mean.
    """
    precisions = [
        np.mean([n / place if place <= k else 0.0 for n, place in enumerate(sorted(places), start=1)])
        for places in queries
    ]
    return float(np.mean(precisions))
