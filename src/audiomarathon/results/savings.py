"""What a setting saves: what its counted FLOPs promise, beside what was measured against base."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from audiomarathon.costs.prefill import ideal_speed_up
from audiomarathon.fingerprint import same
from audiomarathon.metrics.statistics import RESAMPLES, cluster_totals, expanded_tail, mean_of, means_of
from audiomarathon.runs.read import Record, Run

#: What is compared between runs, and what a record says of it, in seconds; None for one that was not timed.
STAGES: Mapping[str, Callable[[Record], float | None]] = {
    "llm_prefill": lambda record: time_of(record, "llm_prefill"),
    "first_token": lambda record: time_of(record, "prefill"),
    "decode_per_token": lambda record: (record.get("forced_decode") or {}).get("per_token"),
}

_PART = 50_000  # weights of resamples at a time, which fit a processor's cache


def savings(run: Run, base: Run | None, *, seed: int = 42) -> dict[str, Any]:
    """Return what a setting saved.

    Every ratio is base ÷ setting, so that above 1 is faster. `measured` is the median over the samples that both
    answered in one session, each against its own base run, with a 95 % interval over clusters; `ideal` the same median
    of what counted FLOPs promise.

    Parameters
    ----------
    base
        The same samples with nothing dropped; without it nothing measured can be compared.
    """
    records = list(run.records.values())
    pairs = [] if base is None else paired(run, base)
    together = in_one_session(pairs)
    compared = [own for _, own in together] or records
    measured = {stage: speed_up(together, of, seed) for stage, of in STAGES.items()}
    measured["llm_prefill"]["ideal"] = ideal_of(run, compared)
    measured["first_token"]["ideal"] = ideal_of(run, compared, encoder=True)
    kept = [r["kept_audio_tokens"] for r in records]
    lengths = [r["kv_lengths"] for r in records if r.get("kv_lengths")]
    scoring = [r["time"]["scoring"] for r in records if r.get("time") and "scoring" in r["time"]]
    audio = sum(r["audio_tokens"] or 0 for r in records)  # an endpoint need not tell
    return {
        "note": run.facts.get("note") or None,
        "kept_ratio": sum(kept) / audio if audio and None not in kept else None,
        "kv_lengths": means_of(lengths),
        "kv_bytes": mean_of([r["kv_bytes"] for r in records]),
        "kv_bytes_interval": mean_interval(records, "kv_bytes", seed),
        "scoring_s": float(np.median(scoring)) if scoring else None,
        "compared_samples": len(together),
        "base_of_another_session": len(pairs) - len(together),
        **measured,
        "kv_bytes_ratio": speed_up(pairs, lambda r: r["kv_bytes"], seed)["measured"],
    }


def paired(run: Run, base: Run, *, same_clips: bool = True) -> list[tuple[Record, Record]]:
    """Return base's and the setting's records of the samples that both answered, having heard the same clips.

    A clip that was replaced between two runs makes another sample of the same name; `same_clips=False` is for controls,
    whose clips were replaced on purpose.
    """
    both = [(base.records[id_], own) for id_, own in run.records.items() if id_ in base.records]
    return [(theirs, own) for theirs, own in both if not same_clips or same(theirs.get("clips"), own.get("clips"))]


def in_one_session(pairs: Sequence[tuple[Record, Record]]) -> list[tuple[Record, Record]]:
    """Return the pairs whose times compare: measured an hour apart, the machine may have been another."""
    return [pair for pair in pairs if pair[0].get("session") == pair[1].get("session")]


def ideal_of(run: Run, records: Sequence[Record], *, encoder: bool = False) -> float | None:
    """Return the median of :func:`ideal_speed_up` over records; None where the run does not say what it costs."""
    cost, drops = run.cost, run.drops
    if cost is None or drops is None or not records or (encoder and cost.encoder_flops_per_second is None):
        return None
    return float(np.median([ideal_speed_up(cost, drops, record, encoder=encoder) for record in records]))


def speed_up(pairs: Sequence[tuple[Record, Record]], of: Callable[[Record], float | None], seed: int) -> dict[str, Any]:
    """Return the median of base ÷ own over the samples, and its interval."""
    return median_ratio([(of(base), of(own), str(own["cluster"])) for base, own in pairs], seed=seed)


def median_ratio(rows: Sequence[tuple[float | None, float | None, str]], *, seed: int) -> dict[str, Any]:
    """Return the median over samples of one quantity ÷ another (`measured`) with a 95 % `interval` over clusters.

    Parameters
    ----------
    rows
        The two quantities of a sample, and its cluster; a sample that lacks one of them is left out.
    """
    ratios = [(above / below, cluster) for above, below, cluster in rows if above and below]
    if not ratios:
        return {"measured": None, "interval": None}
    values = np.array([value for value, _ in ratios])
    return {"measured": float(np.median(values)), "interval": median_interval(values, [c for _, c in ratios], seed)}


def median_interval(values: np.ndarray[Any, Any], clusters: Sequence[str], seed: int) -> list[float] | None:
    """Bootstrap a median over clusters: the expanded percentile interval of `metrics.statistics`."""
    names, codes = np.unique(np.asarray(clusters, dtype=np.str_), return_inverse=True)
    if len(names) < 2:
        return None
    order = np.argsort(values)
    ordered, places = values[order], codes[order]
    medians = []
    for drawn in np.array_split(_draws(len(names), seed), 1 + RESAMPLES * len(values) // _PART):
        weights = np.cumsum(drawn[:, places], axis=1, dtype=np.int32)
        half = weights[:, -1:] / 2
        # Of an even number of samples the median lies between the middle two.
        medians.append((ordered[(weights >= half).argmax(axis=1)] + ordered[(weights > half).argmax(axis=1)]) / 2)
    tail = expanded_tail(len(names))
    low, high = np.quantile(np.concatenate(medians), [tail, 1 - tail]).tolist()
    return [low, high]


@lru_cache(maxsize=8)
def _draws(clusters: int, seed: int) -> np.ndarray[Any, Any]:
    """Return how often each resample drew each cluster; settings of one task, of as many clusters, share the draws."""
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(clusters, np.full(clusters, 1 / clusters), size=RESAMPLES).astype(np.int32)
    drawn.flags.writeable = False
    return drawn


def mean_interval(records: Sequence[Record], name: str, seed: int) -> list[float] | None:
    """Bootstrap a mean over clusters; None where a record lacks the value."""
    rows = [(record[name], 1) for record in records]
    if not rows or any(value is None for value, _ in rows):
        return None
    totals = cluster_totals(rows, [str(record["cluster"]) for record in records])
    if len(totals) < 2:
        return None
    sums = _draws(len(totals), seed) @ totals
    tail = expanded_tail(len(totals))
    low, high = np.quantile(sums[:, 0] / sums[:, 1], [tail, 1 - tail]).tolist()
    return [low, high]


def time_of(record: Record, stage: str) -> float | None:
    """Return the seconds of a stage; None for a record without times."""
    return record["time"][stage] if record.get("time") else None
