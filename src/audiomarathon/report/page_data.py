"""What a report says of its runs, as plain data: settings, figures a task and setting, means, scores by duration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from audiomarathon.benchmarks.registry import weights_of
from audiomarathon.errors import RecordError, SettingsError
from audiomarathon.metrics.statistics import mean_over
from audiomarathon.records import Record
from audiomarathon.report.lines import line_of, method_and_ratio
from audiomarathon.report.palette import colour, marker
from audiomarathon.results import scopes
from audiomarathon.results.pairs import Pairs, speed_up
from audiomarathon.results.systems import System, base_of
from audiomarathon.runs.read import Run

COMMON = "in common"
STAGES = ("load", "preprocess", "encoder", "llm_prefill", "decode")
_DURATION_BIN = 30.0  # seconds


def settings_of(systems: Sequence[System]) -> list[dict[str, Any]]:
    """Return what is to be known of each setting: its name, method, ratio, place of its base, looks and machine."""
    several = len({system.checkpoint for system in systems}) > 1
    found = []
    for system in systems:
        facts, identity = next(iter(system.runs.values())).facts, system.identity
        method, ratio = method_and_ratio(identity)
        kin = [other.identity for other in systems if other.checkpoint == system.checkpoint]
        line = replace(system, method=line_of(identity, kin)).name(with_checkpoint=several)
        base = base_of(system, systems)
        found.append(
            {
                "name": system.name(with_checkpoint=several),
                "checkpoint": system.checkpoint,
                "model": facts.get("model"),
                "method": method,
                "line": line,
                "ratio": ratio,
                "base": None if base is None else systems.index(base),
                "control": system.control,
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


def cells_of(systems: Sequence[System]) -> list[dict[str, Any]]:
    """Return the figures of each task under each setting; what is not finished has none."""
    return [
        _cell(task, index, run, run.summary, system.control)
        for index, system in enumerate(systems)
        for task, run in system.runs.items()
        if run.summary is not None
    ]


def unfinished_of(systems: Sequence[System], cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the runs that have no figures, for want of a summary of all that they hold."""
    finished = {(cell["task"], cell["setting"]) for cell in cells}
    return [
        {"task": task, "setting": index, "answered": len(run.records), "expected": run.expected}
        for index, system in enumerate(systems)
        for task, run in system.runs.items()
        if (task, index) not in finished
    ]


@dataclass(frozen=True)
class _Beside:
    """A setting beside base on one task: what they share, or why nothing."""

    pairs: Pairs | None
    why: str = ""

    @property
    def difference(self) -> float | None:
        own, other = self.pairs.pair.scores if self.pairs else (np.nan, np.nan)
        return own - other if np.isfinite(own - other) else None


def compared_of(systems: Sequence[System], cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return each setting beside base, by task and by scope of :func:`scopes_of`."""
    by_task: dict[tuple[str, int], _Beside] = {}
    for cell in cells:
        system = systems[cell["setting"]]
        base = base_of(system, systems)
        if system is not base and cell["score"] is not None:
            by_task[cell["task"], cell["setting"]] = _beside(system, base, cell["task"])
    rows = [(task, index, {task: one}) for (task, index), one in by_task.items()]
    for scope, members in scopes_of(cells).items():
        for index in dict.fromkeys(index for _, index in by_task):
            each = {task: by_task[task, index] for task in members if (task, index) in by_task}
            if len(each) == len(members):
                rows.append((scope, index, each))
    return [{"scope": scope, "setting": index, **_over(each)} for scope, index, each in rows]


def _beside(system: System, base: System | None, task: str) -> _Beside:
    if base is None or task not in base.runs:
        return _Beside(None, "base was not run under the same conditions")
    try:
        return _Beside(Pairs.of(system.runs[task], base.runs[task]))
    except (RecordError, SettingsError) as error:
        return _Beside(None, str(error))


def _over(tasks: Mapping[str, _Beside]) -> dict[str, Any]:
    """Return what the page reads of a setting beside base on tasks; what one of them cannot say, they cannot together.

    `sooner` is the median of base's time to first token ÷ the setting's, over the samples of all tasks.
    """
    pairs = [one.pairs for one in tasks.values() if one.pairs]
    why = {task: one.why or ("no score" if one.difference is None else "") for task, one in tasks.items()}
    untimed = {task: one.why or (one.pairs.untimed if one.pairs else "") for task, one in tasks.items()}
    said = ["; ".join(f"{task}: {text}" for task, text in each.items() if text) for each in (why, untimed)]
    weighed = zip(tasks.values(), weights_of(list(tasks)), strict=True)
    differences = [one.difference * weight for one, weight in weighed if one.difference is not None]
    sooner = None if said[1] else speed_up(pairs, "first_token", seed=42)
    return {
        "difference": None if said[0] else float(np.mean(differences)),
        "shared": sum(len(one.pairs) for one in pairs),
        "sooner": sooner.value if sooner else None,
        "timed": sum(len(one.timed) for one in pairs) if sooner else 0,
        "across": bool(sooner) and any(one.across for one in pairs),
        "busy": bool(sooner) and any(one.busy for one in pairs),
        "why": said[0],
        "untimed": said[1],
    }


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
        "cut": summary.get("cut_by_token_limit"),
        "truncated": summary.get("truncated"),
        "notes": summary.get("notes") or [],
        "busy": bool(summary.get("busy")),
        "score": summary.get("score"),
        "low": interval[0],
        "high": interval[1],
        "mean_of": run.headline if summary.get("score") is not None and run.task else None,
        "stages_ms": {stage: _median_ms(records, stage) for stage in (*STAGES, "prefill")},
        "sessions": sorted({str(record.session) for record in records if record.time}),
        "kv_mb": None if summary.get("kv_bytes") is None else summary["kv_bytes"] / 1e6,
        "peak_gb": None if summary.get("peak_memory_bytes") is None else summary["peak_memory_bytes"] / 1e9,
        "durations": list(_by_duration(run)) if run.task else [],
        "control": control,
    }


def _median_ms(records: Sequence[Record], stage: str) -> float | None:
    values = [record.time[stage] for record in records if record.time and stage in record.time]
    return 1000 * float(np.median(values)) if values else None


def _by_duration(run: Run) -> Iterator[dict[str, Any]]:
    """Yield the mean of each sample's own score in bins of half a minute."""
    assert run.task is not None
    bins: dict[int, list[float]] = {}
    for verdict in run.verdicts.values():
        place = int(verdict.record.clip_seconds // _DURATION_BIN)
        bins.setdefault(place, []).append(run.task.scorer.own_score(verdict))
    for place, scores in sorted(bins.items()):
        yield {"from": place * _DURATION_BIN, "n": len(scores), "score": float(np.mean(scores))}


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
    found = scopes.scopes_of(tasks)
    if 1 < len(common) < len(tasks) and len(scopes.scopes_of(common)) > 0:
        found |= {COMMON: common}
    return found


def means_of(cells: Sequence[Mapping[str, Any]], settings: int) -> list[dict[str, Any]]:
    """Return each setting's mean score over the tasks of each scope, with its interval.

    A mean is given only where the setting has every task of the scope: others do not compare.
    """
    by_place = {(cell["task"], cell["setting"]): cell for cell in cells if cell["score"] is not None}
    return [
        {"scope": scope, "setting": setting, **_mean([by_place[task, setting] for task in members])}
        for scope, members in scopes_of(cells).items()
        for setting in range(settings)
        if all((task, setting) in by_place for task in members)
    ]


def _mean(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    weights = weights_of([cell["task"] for cell in cells])
    each = [cell["mean_of"] for cell in cells if cell["mean_of"] is not None]
    low, high = (mean_over(each, weights).interval if len(each) == len(cells) else None) or (None, None)
    score = float(np.average([cell["score"] for cell in cells], weights=weights))
    return {"score": score, "low": low, "high": high, "control": cells[0]["control"]}
