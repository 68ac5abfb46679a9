"""From records to `summary.json`: the task's metrics, and what the run took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from audiomarathon.metrics.statistics import mean_of, means_of
from audiomarathon.tasks.task import Task

Record = Mapping[str, Any]


def score_records(task: Task, records: Sequence[Record]) -> list[dict[str, Any]]:
    """Judge stored replies again, without a model; everything else in a record stays as it is.

    A transcript that a family took out of the sentence around it counts in place of the whole reply.
    """
    return [
        dict(record)
        if record.get("error") is not None
        else record | task.score(record.get("transcript", record["reply"]), record["reference"])
        for record in map(dict, records)
    ]


def summarise(
    task: Task, records: Sequence[Record], *, expected: int, seed: int, audio_seconds_per_second: float | None = None
) -> dict[str, Any]:
    """Return the content of `summary.json`.

    Parameters
    ----------
    records
        Scored records of the selected samples, error records included.
    expected
        How many samples the run was to have; fewer, or an error left, makes it incomplete.
    audio_seconds_per_second
        Throughput of an untimed run.
    """
    answered = [record for record in records if record.get("error") is None]
    errors = [record for record in records if record.get("error") is not None]
    metrics = task.summarise(answered, seed=seed) if answered else {"n": 0, "score": None}
    return {
        "task": task.key,
        "headline": task.headline,
        "complete": not errors and len(answered) == expected,
        "expected": expected,
        "errors": len(errors),
        "truncated": sum(bool(record.get("truncated")) for record in answered),
        "cut_by_token_limit": sum(record["finish"] == "length" for record in answered),
        **metrics,
        "audio_seconds": round(sum(record["clip_seconds"] for record in answered), 3),
        "audio_tokens": mean_of([r["audio_tokens"] for r in answered]),
        "kept_audio_tokens": mean_of([r["kept_audio_tokens"] for r in answered]),
        "kv_lengths": means_of([record["kv_lengths"] for record in answered]),
        "kv_bytes": mean_of([r["kv_bytes"] for r in answered]),
        "peak_memory_bytes": max((r["peak_memory_bytes"] or 0 for r in answered), default=0) or None,
        "cost": _cost(answered),
        "timing": _timing(answered, audio_seconds_per_second),
    }


def _cost(records: Sequence[Record]) -> float | None:
    """Return what an endpoint's replies cost together; None where prices or counts are not known."""
    costs = [record.get("cost") for record in records]
    return float(sum(filter(None, costs))) if costs and None not in costs else None


def _timing(records: Sequence[Record], audio_seconds_per_second: float | None) -> dict[str, Any]:
    timed = [record for record in records if record.get("time")]
    if not timed:
        latencies = [record["latency"] for record in records if record.get("latency")]
        seen = {f"{name}_latency_s": _spread([one[name] for one in latencies]) for name in ("first_token", "total")}
        return {"audio_seconds_per_second": audio_seconds_per_second, **(seen if latencies else {})}
    total = [sum(r["time"][stage] for stage in ("load", "preprocess", "prefill", "decode")) for r in timed]
    decode = [(r["time"]["decode"], r["new_tokens"] - 1) for r in timed if r["new_tokens"] > 1]
    forced = [r["forced_decode"]["per_token"] for r in timed if r.get("forced_decode")]
    tokens, seconds = sum(n for _, n in decode), sum(s for s, _ in decode)
    return {
        **{
            f"{stage}_s": _spread([r["time"][stage] for r in timed])
            for stage in ("load", "preprocess", "encoder", "llm_prefill", "prefill", "decode")
        },
        "decode_per_token_s": _spread([s / n for s, n in decode]),
        "forced_decode_per_token_s": _spread(forced),
        "scoring_s": _spread([r["time"]["scoring"] for r in timed if "scoring" in r["time"]]),
        "total_s": _spread(total),
        "tokens_per_second": tokens / seconds if seconds else None,
        "audio_seconds_per_second": sum(r["clip_seconds"] for r in timed) / sum(total),
    }


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {
        "mean": float(np.mean(values)),
        "p50": float(np.percentile(values, 50)),
        "p95": float(np.percentile(values, 95)),
    }
