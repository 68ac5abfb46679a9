"""What a report says of its runs, as plain data: settings, figures a task and setting, means, scores by duration."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from audiomarathon.errors import RecordError
from audiomarathon.evaluation.savings import Record, Run
from audiomarathon.evaluation.sides import Side
from audiomarathon.metrics.statistics import mean_of
from audiomarathon.report.palette import colour
from audiomarathon.tasks import get_task
from audiomarathon.tasks.registry import GROUPS

OVERALL = "overall"
STAGES = ("load", "preprocess", "encoder", "llm_prefill", "decode")
_DURATION_BIN = 30.0  # seconds


def settings_of(sides: Sequence[Side]) -> list[dict[str, Any]]:
    """Return what is to be known of each setting: its name, method, ratio, colour and machine."""
    several = len({side.checkpoint for side in sides}) > 1
    found = []
    for side in sides:
        facts = next(iter(side.runs.values())).facts
        method, ratio = method_and_ratio(facts.get("identity") or {})
        environment = facts.get("environment") or {}
        found.append(
            {
                "name": side.name(with_checkpoint=several),
                "checkpoint": side.checkpoint,
                "model": facts.get("model"),
                "method": method,
                "line": f"{side.checkpoint} {method}" if several else method,
                "ratio": ratio,
                "colour": colour(method),
                "device": (facts.get("identity") or {}).get("device"),
                "dtype": (facts.get("identity") or {}).get("dtype"),
                "attention": (facts.get("identity") or {}).get("attention"),
                "versions": {k: v for k, v in environment.items() if isinstance(v, (str, int, float))},
                "certified": bool(facts.get("certificate")),
            }
        )
    return found


def method_and_ratio(identity: Mapping[str, Any]) -> tuple[str, float]:
    """Return a setting's method and the fraction of audio that it removes, of joined methods by both together."""
    parts = [identity[name] for name in ("first", "second") if isinstance(identity.get(name), Mapping)]
    if not parts:
        return str(identity.get("method", "?")), float(identity.get("ratio") or 0.0)
    left = float(np.prod([1 - float(part.get("ratio") or 0.0) for part in parts]))
    return "+".join(str(part.get("method")) for part in parts), round(1 - left, 6)


def cells_of(sides: Sequence[Side]) -> list[dict[str, Any]]:
    """Return the figures of each task under each setting; a run without a summary is left out."""
    return [
        _cell(task, index, run, summary)
        for index, side in enumerate(sides)
        for task, run in side.runs.items()
        if (summary := read_summary(side.folders[task])) is not None
    ]


def read_summary(folder: Path) -> dict[str, Any] | None:
    """Read a run's `summary.json`; None while there is none.

    Raises
    ------
    RecordError
        When it cannot be read.
    """
    file = folder / "summary.json"
    if not file.exists():
        return None
    try:
        summary = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecordError(f"{file}: cannot be read: {error}") from error
    if not isinstance(summary, dict):
        raise RecordError(f"{file}: is no summary")
    return summary


def _cell(task: str, setting: int, run: Run, summary: Mapping[str, Any]) -> dict[str, Any]:
    records = list(run.records.values())
    interval = (summary.get("intervals") or {}).get("score") or (None, None)
    return {
        "task": task,
        "setting": setting,
        "n": summary.get("n"),
        "errors": summary.get("errors"),
        "unparsed": summary.get("unparsed"),
        "truncated": summary.get("truncated"),
        "complete": summary.get("complete"),
        "score": summary.get("score"),
        "low": interval[0],
        "high": interval[1],
        "accuracy": summary.get("accuracy"),
        "stages_ms": {stage: _median_ms(records, stage) for stage in (*STAGES, "prefill")},
        "kept": _kept(records),
        "kv_mb": None if summary.get("kv_bytes") is None else summary["kv_bytes"] / 1e6,
        "peak_gb": None if summary.get("peak_memory_bytes") is None else summary["peak_memory_bytes"] / 1e9,
        "durations": list(_by_duration(records)),
        "control": run.facts.get("control"),
    }


def _median_ms(records: Sequence[Record], stage: str) -> float | None:
    values = [record["time"][stage] for record in records if record.get("time") and stage in record["time"]]
    return 1000 * float(np.median(values)) if values else None


def _kept(records: Sequence[Record]) -> float | None:
    audio = [record.get("audio_tokens") for record in records]
    kept = mean_of([record.get("kept_audio_tokens") for record in records])
    return None if kept is None or not sum(filter(None, audio)) else kept / float(np.mean([n or 0 for n in audio]))


def _by_duration(records: Sequence[Record]) -> Iterator[dict[str, Any]]:
    """Yield the mean of each sample's own score (right or wrong; 1 − WER) in bins of half a minute."""
    bins: dict[int, list[float]] = {}
    for record in records:
        if (own := own_score(record)) is not None and record.get("clip_seconds") is not None:
            bins.setdefault(int(record["clip_seconds"] // _DURATION_BIN), []).append(own)
    for place, scores in sorted(bins.items()):
        yield {"from": place * _DURATION_BIN, "n": len(scores), "score": float(np.mean(scores))}


def own_score(record: Record) -> float | None:
    """Return one sample's own score: 1 or 0 for a choice, 1 − WER (at least 0) for a transcript."""
    if "correct" in record:
        return float(bool(record["correct"]))
    words = record.get("words")
    return max(0.0, 1 - record["errors"] / words) if words else None


def means_of(cells: Sequence[Mapping[str, Any]], settings: int) -> list[dict[str, Any]]:
    """Return each setting's mean score over the tasks of a group and over all tasks.

    Tasks are independent, so a mean's interval is the root of their squared half-widths' sum, by their number. A mean
    is given only where the setting has every task of the scope that any setting has: others do not compare.
    """
    tasks = list(dict.fromkeys(cell["task"] for cell in cells))
    scopes = {name: [task for task in tasks if _group(task) == name] for name in GROUPS}
    scopes = {name: members for name, members in scopes.items() if len(members) > 1}
    if len(tasks) > 1:
        scopes[OVERALL] = tasks
    by_place = {(cell["task"], cell["setting"]): cell for cell in cells if cell["score"] is not None}
    return [
        {"scope": scope, "setting": setting, "tasks": len(members), **_mean([by_place[t, setting] for t in members])}
        for scope, members in scopes.items()
        for setting in range(settings)
        if all((task, setting) in by_place for task in members)
    ]


def _group(task: str) -> str:
    from audiomarathon.errors import SettingsError

    try:
        return get_task(task).group
    except SettingsError:  # a third party's, not installed here
        return ""


def _mean(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    score = float(np.mean([cell["score"] for cell in cells]))
    found: dict[str, Any] = {"score": score, "low": None, "high": None}
    if all(cell["low"] is not None for cell in cells):
        found["low"] = score - float(np.sqrt(sum((c["score"] - c["low"]) ** 2 for c in cells))) / len(cells)
        found["high"] = score + float(np.sqrt(sum((c["high"] - c["score"]) ** 2 for c in cells))) / len(cells)
    for name in ("llm_prefill", "prefill"):
        values = [cell["stages_ms"][name] for cell in cells]
        found[f"{name}_ms"] = mean_of(values)
    return found
