"""What a report says of its runs, as plain data: settings, figures a task and setting, means, scores by duration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from audiomarathon.report.curves import summary_of
from audiomarathon.report.lines import line_of, method_and_ratio
from audiomarathon.report.page_base import Beside, bases_of, identity_of
from audiomarathon.report.palette import colour, marker
from audiomarathon.results.systems import Side
from audiomarathon.runs.read import Record, Run
from audiomarathon.tasks import get_task
from audiomarathon.tasks.registry import GROUPS

OVERALL = "overall"
COMMON = "in common"
STAGES = ("load", "preprocess", "encoder", "llm_prefill", "decode")
_DURATION_BIN = 30.0  # seconds


def settings_of(sides: Sequence[Side]) -> list[dict[str, Any]]:
    """Return what is to be known of each setting: its name, method, ratio, place of its base, looks and machine."""
    several = len({side.checkpoint for side in sides}) > 1
    identities = {index: identity_of(side) for index, side in enumerate(sides)}
    found = []
    for index, (side, base) in enumerate(zip(sides, bases_of(sides), strict=True)):
        facts, identity = next(iter(side.runs.values())).facts, identities[index]
        method, ratio = method_and_ratio(identity)
        line = line_of(
            identity, [identities[i] for i, other in enumerate(sides) if other.checkpoint == side.checkpoint]
        )
        found.append(
            {
                "name": side.name(with_checkpoint=several),
                "checkpoint": side.checkpoint,
                "model": facts.get("model"),
                "method": method,
                "line": replace(side, method=line).name(with_checkpoint=several),
                "ratio": ratio,
                "base": base,
                "control": side.control,
                "colour": colour(method),
                "marker": marker(method),
                "device": identity.get("device"),
                "dtype": identity.get("dtype"),
                "attention": identity.get("attention"),
                "versions": _versions(facts.get("environment") or {}),
                "certified": bool(facts.get("certificate")),
            }
        )
    return found


def _versions(environment: Mapping[str, Any]) -> dict[str, Any]:
    flat = {**environment, **(environment.get("packages") or {})}
    return {name: value for name, value in flat.items() if isinstance(value, (str, int, float))}


def cells_of(sides: Sequence[Side]) -> list[dict[str, Any]]:
    """Return the figures of each task under each setting; what is not finished has only its name."""
    return [
        _cell(task, index, run, summary, side.control)
        for index, side in enumerate(sides)
        for task, run in side.runs.items()
        if (summary := summary_of(side.folders[task], run)) is not None
    ]


def unfinished_of(sides: Sequence[Side], cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the runs that have no figures, for want of a summary of all that they hold."""
    finished = {(cell["task"], cell["setting"]) for cell in cells}
    return [
        {"task": task, "setting": index, "answered": len(run.records), "expected": len(run.facts.get("samples", ()))}
        for index, side in enumerate(sides)
        for task, run in side.runs.items()
        if (task, index) not in finished
    ]


def compared_of(sides: Sequence[Side], cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return each setting beside base, by task and by scope of :func:`scopes_of`."""
    bases = bases_of(sides)
    by_task: dict[tuple[str, int], Beside] = {}
    for cell in cells:
        base = bases[index := cell["setting"]]
        if base != index and cell["score"] is not None:
            by_task[cell["task"], index] = Beside.of(sides[index], None if base is None else sides[base], cell["task"])
    rows = [(task, index, one) for (task, index), one in by_task.items()]
    for scope, members in scopes_of(cells).items():
        for index in dict.fromkeys(index for _, index in by_task):
            each = [by_task[task, index] for task in members if (task, index) in by_task]
            if len(each) == len(members):
                rows.append((scope, index, Beside.over(each)))
    return [{"scope": scope, "setting": index, **one.as_json()} for scope, index, one in rows]


def _cell(task: str, setting: int, run: Run, summary: Mapping[str, Any], control: str) -> dict[str, Any]:
    records = list(run.records.values())
    interval = (summary.get("intervals") or {}).get("score") or (None, None)
    return {
        "task": task,
        "setting": setting,
        "n": summary.get("n"),
        "expected": summary.get("expected"),
        "errors": summary.get("errors"),
        "unparsed": summary.get("unparsed"),
        "truncated": summary.get("truncated"),
        "score": summary.get("score"),
        "low": interval[0],
        "high": interval[1],
        "stages_ms": {stage: _median_ms(records, stage) for stage in (*STAGES, "prefill")},
        "sessions": sorted({str(record.get("session")) for record in records if record.get("time")}),
        "kv_mb": None if summary.get("kv_bytes") is None else summary["kv_bytes"] / 1e6,
        "peak_gb": None if summary.get("peak_memory_bytes") is None else summary["peak_memory_bytes"] / 1e9,
        "durations": list(_by_duration(records)),
        "control": control,
    }


def _median_ms(records: Sequence[Record], stage: str) -> float | None:
    values = [record["time"][stage] for record in records if record.get("time") and stage in record["time"]]
    return 1000 * float(np.median(values)) if values else None


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


def scopes_of(cells: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return which tasks a mean is taken over: of each group, of all, and of those in common.

    Tasks in common are those that every setting has a score of, and are named where they are not all. What runs of
    control variants have does not count, unless there are no others.
    """
    counted = [cell for cell in cells if not cell["control"]] or list(cells)
    tasks = list(dict.fromkeys(cell["task"] for cell in counted))
    scored = {(cell["task"], cell["setting"]) for cell in counted if cell["score"] is not None}
    settings = {cell["setting"] for cell in counted}
    common = [task for task in tasks if all((task, setting) in scored for setting in settings)]
    scopes = {name: [task for task in tasks if _group(task) == name] for name in GROUPS}
    scopes |= {COMMON: common if len(common) < len(tasks) else [], OVERALL: tasks}
    return {name: members for name, members in scopes.items() if len(members) > 1}


def means_of(cells: Sequence[Mapping[str, Any]], settings: int) -> list[dict[str, Any]]:
    """Return each setting's mean score over the tasks of each scope.

    Tasks are independent, so a mean's interval is the root of their squared half-widths' sum, by their number. A mean
    is given only where the setting has every task of the scope: others do not compare.
    """
    by_place = {(cell["task"], cell["setting"]): cell for cell in cells if cell["score"] is not None}
    return [
        {"scope": scope, "setting": setting, **_mean([by_place[task, setting] for task in members])}
        for scope, members in scopes_of(cells).items()
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
    found: dict[str, Any] = {"score": score, "low": None, "high": None, "control": cells[0]["control"]}
    if all(cell["low"] is not None for cell in cells):
        found["low"] = score - float(np.sqrt(sum((c["score"] - c["low"]) ** 2 for c in cells))) / len(cells)
        found["high"] = score + float(np.sqrt(sum((c["high"] - c["score"]) ** 2 for c in cells))) / len(cells)
    return found
