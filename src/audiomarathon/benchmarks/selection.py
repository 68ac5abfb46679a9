"""Choose the samples of a limited run: at random by a seed, and in proportion to classes and clusters.

A larger run contains all samples of a smaller one. A cluster is a set of samples that are not independent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from heapq import heappop, heappush

from audiomarathon.benchmarks.task import Loaded, Sample
from audiomarathon.errors import SettingsError
from audiomarathon.settings import RunSettings


def selected(loaded: Loaded, settings: RunSettings) -> tuple[Sample, ...]:
    """Return the samples of a task that a run with these settings uses; see :func:`select`."""
    ids = settings.samples
    if settings.limit and not ids and loaded.limited is not None:
        ids = tuple(loaded.limited(settings.limit, settings.seed))
    return select(loaded.samples, settings.limit, settings.seed, ids)


def select(samples: Sequence[Sample], limit: int, seed: int, ids: Sequence[str] = ()) -> tuple[Sample, ...]:
    """Return the first `limit` samples of one fixed order (0: all), so that a larger run contains a smaller one.

    At every length n the number of samples of a class with share p lies within 1 of n·p. Within a class, clusters come
    in proportion too: the positions of a cluster's m samples are spread evenly over the order, 1/m apart, from a seeded
    start. Every sample is thus equally likely to be early, so a limited run estimates the whole without bias.

    A bundle (samples that a limited run takes all or none of) is chosen as if it were one sample; the result may
    therefore exceed `limit`.

    Parameters
    ----------
    samples
        A task's samples, in any order; ids are unique.
    limit
        Number of samples to take; 0, or more than exist, takes all.
    seed
        Another seed gives another order.
    ids
        Ids of the samples to take, in this order; then the limit is ignored.

    Raises
    ------
    SettingsError
        The limit is negative, or one of `ids` is unknown.
    """
    if limit < 0:
        raise SettingsError(f"SAMPLE_LIMIT={limit}: must be 0 (all) or more")
    if ids:
        by_id = {sample.id: sample for sample in samples}
        if unknown := [id_ for id_ in ids if id_ not in by_id]:
            raise SettingsError(f"unknown sample id {unknown[0]!r}")
        return tuple(by_id[id_] for id_ in ids)
    bundles: dict[str, list[Sample]] = {}
    for sample in sorted(samples, key=lambda sample: sample.id):
        # A bundle and a sample may have the same name.
        bundles.setdefault(f"b{sample.bundle}" if sample.bundle else f"s{sample.id}", []).append(sample)
    first = [members[0] for members in bundles.values()]  # represents the whole bundle
    whole = {members[0].id: members for members in bundles.values()}
    position = _positions(first, seed)
    strata: dict[str, list[Sample]] = {}
    for sample in sorted(first, key=lambda sample: (position[sample.id], sample.id)):
        strata.setdefault(sample.stratum, []).append(sample)
    order = _interleaved({name: len(members) for name, members in strata.items()}, seed)
    queues = {name: iter(members) for name, members in strata.items()}
    chosen: list[Sample] = []
    for name in order:
        if limit and len(chosen) >= limit:
            break
        chosen += whole[next(queues[name]).id]
    return tuple(chosen)


def draw(seed: int, *what: str) -> float:
    """Return a random-looking number in [0, 1) that depends only on the arguments, not on any global state."""
    digest = hashlib.sha256("\0".join((str(seed), *what)).encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:6], "big") / 2**48  # 48 bits: exact in a float


def _positions(samples: Sequence[Sample], seed: int) -> dict[str, float]:
    """Return where each sample stands in the order of its class, as {sample's id: number in [0, 1)}.

    The samples of each cluster are spread evenly, in a seeded order from a seeded start.
    """
    clusters: dict[str, list[str]] = {}
    for sample in samples:
        clusters.setdefault(sample.cluster, []).append(sample.id)
    positions = {}
    for cluster, ids in clusters.items():
        start = draw(seed, "cluster", cluster)
        ids.sort(key=lambda name: (draw(seed, "sample", name), name))
        positions.update({name: (rank + start) / len(ids) for rank, name in enumerate(ids)})
    return positions


def _interleaved(sizes: dict[str, int], seed: int) -> list[str]:
    """Return the classes' names, each as often as it has samples, in an order whose every prefix is balanced.

    Every prefix holds each class within 1 of its share. The k-th sample (from 0) of a class with N_c of the N samples
    has a window of allowed places (from 0): ⌊k·N/N_c⌋ to ⌈(k+1)·N/N_c⌉ − 1. Each place takes, of the samples whose
    window is open, the one whose window ends first. Then all samples stay in their windows (Baruah et al.,
    Proportionate progress, Algorithmica 1996), and the count of each class differs from its share by less than 1.
    """
    total = sum(sizes.values())
    ties = {name: (draw(seed, "class", name), name) for name in sizes}
    used = dict.fromkeys(sizes, 0)
    waiting = [(0, name) for name in sizes]  # (first allowed place of its next sample, class)
    ready: list[tuple[int, tuple[float, str]]] = []  # (deadline, (tie, class))
    order: list[str] = []
    for place in range(total):
        while waiting and waiting[0][0] <= place:
            _, name = heappop(waiting)
            heappush(ready, (-(-(used[name] + 1) * total // sizes[name]), ties[name]))
        chosen = heappop(ready)[1][1]
        used[chosen] += 1
        order.append(chosen)
        if used[chosen] < sizes[chosen]:
            heappush(waiting, (used[chosen] * total // sizes[chosen], chosen))
    return order
