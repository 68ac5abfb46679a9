"""Compute what a setting saves: ideally, by counted FLOPs, and measured, against base (no compression)."""

from __future__ import annotations

from typing import Any

import numpy as np

from audiomarathon.metrics.statistics import Estimate, Resampler, mean_of, means_of
from audiomarathon.results.pairs import STAGES, Pairs, gains, ideal_gain, ideal_of, median_ratio, throughput
from audiomarathon.runs.read import Run
from audiomarathon.runs.summary import note_of


def savings(run: Run, pairs: Pairs | None, *, seed: int = 42) -> dict[str, Any]:
    """Return what a setting saves, as a dict for its summary.

    Keys: each stage of :data:`STAGES` with its speed-up, `kept_ratio` (share of audio tokens kept), `kv_bytes` (size of
    the KV cache), `kv_bytes_ratio` (base's size ÷ the setting's), `throughput`, reasons for missing values (such as
    `untimed`).

    Every speed-up is base ÷ setting, so above 1 the setting is faster; see :func:`~audiomarathon.results.pairs.gains`.
    Without comparable times, the ideal speed-ups of prefill use all samples.

    Parameters
    ----------
    pairs
        The run's samples paired with base's; None if there is no base, which leaves out measured savings.
    """
    records = list(run.records.values())
    timed = [record for _, record in pairs.timed] if pairs else []
    compared = timed or records
    names = ("measured", "interval", "work", "launch_bound", "chooses_longer")
    nothing: dict[str, Any] = dict.fromkeys(names)
    by_stage = {stage: (gains([pairs], stage, seed) if pairs else None) or dict(nothing) for stage in STAGES}
    by_stage["llm_prefill"].setdefault("ideal", ideal_of(run, compared))
    by_stage["first_token"].setdefault("ideal", ideal_of(run, compared, encoder=True))
    by_stage["decode_per_token"].setdefault("ideal", ideal_gain([pairs], "decode_per_token") if pairs else None)
    kept = [r.kept_audio_tokens for r in records]
    scoring = [r.time["scoring"] for r in records if r.time and "scoring" in r.time]
    audio = sum(r.audio_tokens or 0 for r in records)  # endpoints may not report it
    cache = kv_bytes(run, seed)
    sizes = [(a.record.kv_bytes, b.record.kv_bytes, b.record.cluster) for a, b in (pairs.pairs if pairs else ())]
    ratio = median_ratio(sizes, seed=seed)
    return {
        "note": note_of(run.facts) or None,
        "kept_ratio": sum(filter(None, kept)) / audio if audio and None not in kept else None,
        "kv_lengths": means_of([r.kv_lengths for r in records if r.kv_lengths]),
        "kv_bytes": mean_of([r.kv_bytes for r in records]),
        "kv_bytes_interval": list(cache.interval) if cache and cache.interval else None,
        "scoring_s": float(np.median(scoring)) if scoring else None,
        "compared_samples": len(timed),
        **{name: getattr(pairs, name) if pairs else None for name in ("untimed", "undecoded", "unbatched")},
        "across_sessions": bool(pairs and pairs.across),
        **by_stage,
        "kv_bytes_ratio": ratio.value if ratio else None,
        "throughput": throughput([pairs]) if pairs else None,
    }


def kv_bytes(run: Run, seed: int) -> Estimate | None:
    """Return the mean size of a run's KV caches in bytes, with its interval over samples; None if a record lacks the
    size.
    """
    values = [record.kv_bytes for record in run.records.values()]
    if not values or None in values:
        return None
    clusters = [record.cluster for record in run.records.values()]
    return Resampler(seed).mean([float(value or 0) for value in values], clusters)
