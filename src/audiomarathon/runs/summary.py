"""Build `summary.json` from records and verdicts: the task's metrics, times, memory and cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from audiomarathon.benchmarks.task import KNOWN_GAPS, Task
from audiomarathon.compression.registry import all_methods
from audiomarathon.costs.cost import Drops
from audiomarathon.metrics.betting import NO_WORSE, WORSE
from audiomarathon.metrics.statistics import mean_of, means_of
from audiomarathon.records import Record, Verdict
from audiomarathon.scoring.scorer import figures_of, fingerprint_of
from audiomarathon.settings import SEED
from audiomarathon.text import counted

#: Origins of a run: a text LLM read another model's transcripts; the replies were imported from another program.
CASCADE, IMPORTED = "cascade", "imported"


def summarise(
    task: Task, facts: Mapping[str, Any], records: Sequence[Record], verdicts: Mapping[str, Verdict]
) -> dict[str, Any]:
    """Return the content of a run's `summary.json`, as {field: value}: score, metrics, counts, times.

    Parameters
    ----------
    facts
        The content of `run.json`.
    records
        The records of the selected samples, including failed samples.
    verdicts
        The scorer's verdicts, by sample id; an answered sample without a verdict counts as `unscored`.
    """
    expected = len(facts.get("samples", records))
    answered = [record for record in records if record.answered]
    errors = len(records) - len(answered)
    scored = [verdicts[record.id] for record in answered if record.id in verdicts]
    metrics = figures_of(task.scorer, scored, seed=(facts.get("settings") or {}).get("seed", SEED))
    unscored = {"unscored": len(answered) - len(scored)} if len(scored) < len(answered) else {}
    return {
        "task": task.key,
        "headline": task.scorer.figure.name,
        "figure": asdict(task.scorer.figure),
        "scorer": task.scorer.version,
        "records": fingerprint_of(task.scorer, records),
        "complete": not errors and not unscored and len(answered) == expected,
        "expected": expected,
        "errors": errors,
        **unscored,
        "truncated": sum(bool(record.truncated) for record in answered),
        "cut_by_token_limit": sum(record.finish == "length" for record in answered),
        **{name: count for name, count in _oddities(answered).items() if count},
        **metrics,
        "audio_seconds": round(sum(record.clip_seconds for record in answered), 3),
        "audio_tokens": mean_of([r.audio_tokens for r in answered]),
        "kept_audio_tokens": mean_of([r.kept_audio_tokens for r in answered]),
        **_kept_over_layers(facts, answered),
        "kv_lengths": means_of([record.kv_lengths for record in answered]),
        "kv_bytes": mean_of([r.kv_bytes for r in answered]),
        "peak_memory_bytes": max((r.peak_memory_bytes or 0 for r in answered), default=0) or None,
        "cost": _cost(answered),
        "timing": _timing(answered, _throughput(facts)),
        "notes": [*metrics.get("notes", ()), *filter(None, [note_of(facts), _gaps(facts), stopped_note(facts)])],
        "busy": busy(facts, answered),
        "control": facts.get("control"),
        "bad_rows": len(facts.get("bad_rows", ())),
        **{name: facts.get(name) for name in ("data_samples", "data_expected", "left_out")},
    }


def _oddities(answered: Sequence[Record]) -> dict[str, int]:
    """Return the numbers of unusual replies, as {"empty": n, "refused": n, "filtered": n, "key_masked": n}.

    `filtered` counts replies that the endpoint's server filtered, `key_masked` replies in which the API key was masked.
    """
    return {
        "empty": sum(bool(record.finish) and not record.text.strip() for record in answered),
        "refused": sum(record.finish == "refusal" for record in answered),
        "filtered": sum(record.finish == "content_filter" for record in answered),
        "key_masked": sum(bool(record.key_masked) for record in answered),
    }


def _kept_over_layers(facts: Mapping[str, Any], answered: Sequence[Record]) -> dict[str, float | None]:
    """Return {"kept_over_layers": mean number of audio tokens over samples and layers}, an item of the summary.

    Only a setting that drops tokens in several steps has it; return {} for any other.
    """
    drops, layers = facts.get("drops") or {}, (facts.get("cost") or {}).get("layers")
    if not drops.get("steps") or not layers:
        return {}
    seen = [Drops(**drops).tokens(layers, r.audio_tokens or 0, r.audio_tokens or 0) for r in answered]
    return {"kept_over_layers": mean_of([sum(lengths) / layers for lengths in seen])}


def note_of(facts: Mapping[str, Any]) -> str:
    """Return the note of a run's method on how to read its score and times; "" if there is none.

    Runs of older versions lack the note in `run.json`; the installed method's note is used for them.
    """
    notes = {method.key: method.note for method in all_methods()}
    return str(facts.get("note") or notes.get(str((facts.get("identity") or {}).get("method")), ""))


def stopped_note(facts: Mapping[str, Any]) -> str:
    """Return a note for a run that stopped early because the test of its margin was decided; "" for any other run.

    A margin is an allowed loss of score against base.
    """
    stop = facts.get("stopping") or {}
    after, order = stop.get("stopped_after"), stop.get("order") or ()
    if stop.get("verdict") not in (NO_WORSE, WORSE) or not isinstance(after, int) or after >= len(order):
        return ""
    outcome = f"{stop['verdict']} than base by more than {stop.get('margin')}"
    return (
        f"stopped when it was decided to be {outcome}: scores, differences, intervals and p do not allow for that; the "
        "bounds of compare --margin do"
    )


def _gaps(facts: Mapping[str, Any]) -> str:
    """Return a note on the number of samples left out because the published data lacks their clips; "" if there are
    none.
    """
    count = (facts.get("left_out") or {}).get(KNOWN_GAPS, 0)
    return f"left out {counted(count, 'sample')} ({KNOWN_GAPS})" if isinstance(count, int) and count else ""


def busy(facts: Mapping[str, Any], records: Sequence[Record]) -> bool:
    """Tell whether other programs slowed the run while the records were timed.

    They did if they needed too many CPU cores (:func:`is_busy`) at the start or end of a session (call of a command).
    """
    begun = {str(record.session).partition(" ")[0] for record in records if record.time}
    sessions = [session for session in facts.get("sessions") or () if session.get("started") in begun]
    device = (facts.get("identity") or {}).get("device")
    loads = [(session, session.get(name)) for session in sessions for name in ("load_before", "load_after")]
    return any(is_busy(load, threads_of(session, device)) for session, load in loads)


def threads_of(session: Mapping[str, Any], device: object) -> int:
    """Return how many CPU threads a session keeps busy: those of all workers on a CPU, one if the model is on a GPU."""
    machine = session.get("environment") or {}
    on_cpu = device is not None and device == machine.get("cpu")
    return (machine.get("threads") or 1) * (session.get("workers_sharing") or 1) if on_cpu else 1


def is_busy(load: Mapping[str, Any] | None, threads: int) -> bool:
    """Tell whether the run and other programs together need more CPU threads than there are cores.

    Then they slow each other. On two cores, one other process makes LLM prefill two to five times slower if prefill
    runs in two threads, and not slower if it runs in one thread.

    Parameters
    ----------
    load
        The measured load of the machine; None if unknown.
    threads
        Number of threads of the run.
    """
    return bool(load) and 0 < foreign_count(load) > load.get("cores", math.inf) - threads  # type: ignore[union-attr]


def foreign_count(load: Mapping[str, Any] | None) -> int:
    """Return the mean number of other programs' busy processes, rounded, so that a rarely busy one does not count."""
    return round((load or {}).get("foreign_processes") or 0.0)


def _throughput(facts: Mapping[str, Any]) -> float | None:
    """Return how many seconds of audio an untimed run processed per second; None if unknown.

    Only sessions that ran this setting alone count: in other sessions, several settings shared the time.
    """
    if (facts.get("identity") or {}).get("origin") == CASCADE:
        return None  # its sessions leave out the transcription
    sessions = facts.get("sessions") or ()
    alone = [session for session in sessions if session.get("wall_s") and session.get("settings_side_by_side") == 1]
    wall = sum(session["wall_s"] for session in alone)
    return sum(session["audio_s"] for session in alone) / wall if wall else None


def samples_a_second(records: Sequence[Record]) -> float | None:
    """Return how many samples a run in batches answered per GPU second; None for any other run.

    The seconds are those of audio tower, LLM prefill and decode. Decoding and preparing clips runs beside the GPU's
    work, so it is left out. Each record of a batch counts for an equal share of the batch's seconds.
    """
    batches = [record.batch for record in records if record.batch]
    stages = ("encoder", "llm_prefill", "decode", "decode_setup")
    seconds = sum(
        batch["devices"] * sum(batch.get(stage, 0) for stage in stages) / batch["samples"] for batch in batches
    )
    return len(batches) / seconds if seconds else None


def _cost(records: Sequence[Record]) -> float | None:
    """Return the total cost of an endpoint's replies; None if the cost of a reply is unknown."""
    costs = [record.cost for record in records]
    return float(sum(filter(None, costs))) if costs and None not in costs else None


def _timing(records: Sequence[Record], audio_seconds_per_second: float | None) -> dict[str, Any]:
    timed = [(record, dict(record.time)) for record in records if record.time]
    if not timed:
        latencies = [record.latency for record in records if record.latency]
        seen = {
            f"{name}_latency_s": _spread([latency[name] for latency in latencies]) for name in ("first_token", "total")
        }
        rate = {"samples_per_second": throughput} if (throughput := samples_a_second(records)) else {}
        return {"audio_seconds_per_second": audio_seconds_per_second, **rate, **(seen if latencies else {})}
    total = [
        sum(time[stage] for stage in ("load", "preprocess", "prefill", "decode")) + time.get("decode_setup", 0)
        for _, time in timed
    ]
    decode = [(time["decode"], tokens - 1) for record, time in timed if (tokens := record.new_tokens or 0) > 1]
    setups = [time["decode_setup"] for _, time in timed if "decode_setup" in time]
    forced = [record.forced_decode["per_token"] for record, _ in timed if record.forced_decode]
    tokens, seconds = sum(n for _, n in decode), sum(s for s, _ in decode)
    return {
        **{
            f"{stage}_s": _spread([time[stage] for _, time in timed])
            for stage in ("load", "preprocess", "encoder", "llm_prefill", "prefill", "decode")
        },
        "decode_per_token_s": _spread([s / n for s, n in decode]),
        "forced_decode_per_token_s": _spread(forced),
        **({"decode_setup_s": _spread(setups)} if setups else {}),
        "scoring_s": _spread([time["scoring"] for _, time in timed if "scoring" in time]),
        "total_s": _spread(total),
        "tokens_per_second": tokens / seconds if seconds else None,
        "audio_seconds_per_second": sum(record.clip_seconds for record, _ in timed) / sum(total),
    }


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    p50, p95 = np.percentile(values, [50, 95])
    return {"mean": float(np.mean(values)), "p50": float(p50), "p95": float(p95)}
