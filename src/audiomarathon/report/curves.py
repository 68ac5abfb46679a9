"""What finished runs say against the ratio: score, LLM prefill and KV cache, a line a method, ready to be drawn."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from audiomarathon.errors import RecordError
from audiomarathon.metrics.statistics import mean_of
from audiomarathon.report.lines import conditions, line_of, method_and_ratio
from audiomarathon.results.savings import (
    STAGES,
    ideal_of,
    in_one_session,
    mean_interval,
    median_interval,
    paired,
    speed_up,
)
from audiomarathon.results.systems import control_name, readable, run_folders
from audiomarathon.runs.folder import checkpoint_of, read_summary
from audiomarathon.runs.read import Record, Run

QUANTITIES = ("score", "prefill_ms", "speed_up", "kv_mb")
_SEED = 42  # of the bootstrap


@dataclass(frozen=True)
class Value:
    """A figure with its 95 % interval; low and high are the figure where none is known."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, value: float, interval: Sequence[float] | None = None) -> Value:
        """Make one from a figure and an interval that may be missing or empty."""
        low, high = interval or (value, value)
        return cls(value, min(low, value), max(high, value))


@dataclass(frozen=True)
class Setting:
    """One run: which line it belongs to, where on it, and its figures by name of :data:`QUANTITIES`.

    Attributes
    ----------
    label
        The setting's own name: which ratios, layer and scope exactly. Tasks share a setting by it.
    method
        Key of the method, which decides its colour.
    line
        Name of the line: the method's, with its layer and scope where the runs differ in them.
    ratio
        Fraction of audio removed; of two joined methods, by both together.
    ideal
        LLM prefill speed-up that counted FLOPs promise; None where that is not known.
    conditions
        In what the run differs from the panel's base beside its method (another seed, other prompts); part of `line`.
    """

    label: str
    method: str
    line: str
    ratio: float
    figures: Mapping[str, Value]
    ideal: float | None = None
    conditions: str = ""


@dataclass(frozen=True)
class Panel:
    """All settings of one task (or the mean over tasks) on one checkpoint: one picture."""

    name: str
    title: str
    headline: str
    settings: tuple[Setting, ...]

    @property
    def bases(self) -> dict[str, Setting]:
        """The reference by the conditions under which it ran, "" being those that count as the panel's own."""
        return {one.conditions: one for one in reversed(self.settings) if one.method == "base"}

    def lines(self) -> dict[str, list[Setting]]:
        """Return each method's settings by rising ratio; base under the same conditions opens every line, since ratio 0
        of any method is base."""
        found: dict[str, list[Setting]] = {}
        for one in sorted(self.settings, key=lambda one: one.ratio):
            if one.method != "base":
                opening = self.bases.get(one.conditions)
                found.setdefault(one.line, [opening] if opening else []).append(one)
        return found


@dataclass(frozen=True)
class Finished:
    """A run with its summary."""

    folder: Path
    run: Run
    summary: Mapping[str, Any]

    @property
    def identity(self) -> Mapping[str, Any]:
        """What makes the run this one."""
        identity: Mapping[str, Any] = self.run.facts["identity"]
        return identity

    @property
    def is_base(self) -> bool:
        """Whether nothing is dropped."""
        return method_and_ratio(self.identity)[0] == "base"


def read_panels(paths: Sequence[Path]) -> list[Panel]:
    """Read run folders, or folders that hold some, into one panel a task and checkpoint, and one for the mean.

    Raises
    ------
    RecordError
        When there is no finished run.
    """
    finished = finished_of(readable(paths, run_folders(paths), lambda folder: (folder, Run.read(folder))))
    if not finished:
        raise RecordError(f"{', '.join(map(str, paths))}: no finished run there (run.json and a summary.json of it)")
    return panels_of(finished)


def finished_of(runs: Iterable[tuple[Path, Run]]) -> list[Finished]:
    """Return those runs that have a summary."""
    return [Finished(folder, run, found) for folder, run in runs if (found := summary_of(folder, run)) is not None]


def summary_of(folder: Path, run: Run) -> dict[str, Any] | None:
    """Read a run's `summary.json`; None while there is none, only that of fewer samples, or one that cannot be read."""
    if not (folder / "summary.json").exists():
        return None
    try:
        summary = read_summary(folder)
    except RecordError as error:
        warnings.warn(f"{error}; the run counts as not finished, audiomarathon score writes it again", stacklevel=2)
        return None
    return summary if run.sums_up(summary) else None


def panels_of(runs: Sequence[Finished]) -> list[Panel]:
    """Return a panel a checkpoint, control and task, and of several tasks one for their mean.

    Runs without an answered sample are left out.
    """
    grouped: dict[tuple[str, str], dict[str, list[Finished]]] = {}
    for found in runs:
        if found.summary.get("n"):
            tasks = grouped.setdefault((checkpoint_of(found.run.facts), control_name(found.run.facts)), {})
            tasks.setdefault(str(found.summary["task"]), []).append(found)
    several = len({checkpoint for checkpoint, _ in grouped}) > 1
    panels: list[Panel] = []
    for (checkpoint, control), tasks in grouped.items():
        suffix = "".join(f"-{part.replace(' ', '-')}" for part in (checkpoint if several else "", control) if part)
        own = [_panel(task, suffix, found) for task, found in tasks.items()]
        panels += own
        if len(own) > 1 and (mean := mean_panel(own, f"mean{suffix}")):
            panels.append(mean)
    return panels


def _panel(task: str, suffix: str, runs: Sequence[Finished]) -> Panel:
    # What most ran under is the panel's own: a stray run of other conditions is what gets marked.
    bases_first = [found for found in runs if found.is_base] or runs
    first = max(bases_first, key=lambda one: sum(not conditions(found.identity, one.identity) for found in runs))
    own = [conditions(found.identity, first.identity) for found in runs]
    _refuse_repeats(runs, own)
    # All that base ever answered: a later, smaller run of it takes nothing from the others.
    bases = {
        under: Run.read(found.folder, selected=False) for found, under in zip(runs, own, strict=True) if found.is_base
    }
    identities = [found.identity for found in runs]
    settings = [
        _setting(found, under, line_of(found.identity, identities), bases.get(under))
        for found, under in zip(runs, own, strict=True)
    ]
    facts, control = first.run.facts, control_name(first.run.facts)
    least, most = (pick(found.summary["n"] for found in runs) for pick in (min, max))
    samples = str(most) if least == most else f"{least}–{most}"  # sweeps of different limits meet in one folder
    heard = [f"control: {control}"] if control else []
    title = " · ".join([task, str(facts.get("model", "")), *heard, f"{samples} samples"])
    return Panel(task + suffix, title, str(first.summary["headline"]), tuple(settings))


def _refuse_repeats(runs: Sequence[Finished], own: Sequence[str]) -> None:
    seen: dict[tuple[str, str], Path] = {}
    for found, under in zip(runs, own, strict=True):
        key = str(found.run.facts["method"]), under
        if key in seen:
            raise RecordError(f"{found.folder}: the same task, checkpoint and setting as {seen[key]}; name one of them")
        seen[key] = found.folder


def _setting(found: Finished, under: str, line: str, base: Run | None) -> Setting:
    """Return one run's place and figures.

    Parameters
    ----------
    under
        Its conditions.
    base
        Base's run under the same conditions.
    """
    records = list(found.run.records.values())
    figures = {"score": Value.of(found.summary["score"], (found.summary.get("intervals") or {}).get("score"))}
    if timed := [record for record in records if record.get("time")]:
        figures["prefill_ms"] = _prefill(timed)
    together = in_one_session(paired(found.run, base)) if base else []
    saved = speed_up(together, STAGES["llm_prefill"], _SEED)
    if saved["measured"]:
        figures["speed_up"] = Value.of(saved["measured"], saved["interval"])
    if kv := mean_of([record["kv_bytes"] for record in records]):
        interval = mean_interval(records, "kv_bytes", _SEED)
        figures["kv_mb"] = Value.of(kv / 1e6, [end / 1e6 for end in interval or ()])
    ideal = ideal_of(found.run, [own for _, own in together] or records)
    method, ratio = method_and_ratio(found.identity)
    full = f"{line} {under}".strip()
    return Setting(str(found.run.facts["method"]), method, full, ratio, figures, ideal, under)


def _prefill(records: Sequence[Record]) -> Value:
    """Return the median LLM prefill in milliseconds, with its 95 % interval over clusters."""
    values = np.array([1000 * record["time"]["llm_prefill"] for record in records])
    clusters = [str(record["cluster"]) for record in records]
    return Value.of(float(np.median(values)), median_interval(values, clusters, seed=_SEED))


def mean_panel(panels: Sequence[Panel], name: str) -> Panel | None:
    """Return the mean over tasks of the settings that every task has; None when there are none.

    Tasks are independent, so the mean's interval is the root of the summed squares of theirs, by the number of tasks.
    """
    by_name = [{(one.label, one.conditions): one for one in panel.settings} for panel in panels]
    shared = [name for name in by_name[0] if all(name in others for others in by_name)]
    settings = []
    for name_of in shared:
        each = [settings_of[name_of] for settings_of in by_name]
        figures = {
            quantity: _mean([one.figures[quantity] for one in each])
            for quantity in QUANTITIES
            if all(quantity in one.figures for one in each)
        }
        ideals = [one.ideal for one in each if one.ideal is not None]
        ideal = float(np.mean(ideals)) if len(ideals) == len(each) else None
        settings.append(replace(each[0], figures=figures, ideal=ideal))
    _task, *about, _samples = panels[0].title.split(" · ")
    title = " · ".join([f"mean of {len(panels)} tasks", *about])
    return Panel(name, title, "mean", tuple(settings)) if settings else None


def _mean(values: Sequence[Value]) -> Value:
    mean = float(np.mean([one.value for one in values]))
    below = float(np.sqrt(sum((one.value - one.low) ** 2 for one in values))) / len(values)
    above = float(np.sqrt(sum((one.high - one.value) ** 2 for one in values))) / len(values)
    return Value(mean, mean - below, mean + above)
