"""What finished runs say against the ratio: score, LLM prefill and KV cache, a line a method, ready to be drawn."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from audiomarathon.errors import RecordError
from audiomarathon.evaluation.savings import Record, Run, median_interval, savings

QUANTITIES = ("score", "prefill_ms", "speed_up", "kv_mb")


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
    """

    label: str
    method: str
    line: str
    ratio: float
    figures: Mapping[str, Value]
    ideal: float | None = None


@dataclass(frozen=True)
class Panel:
    """All settings of one task (or the mean over tasks) on one checkpoint: one picture."""

    name: str
    title: str
    headline: str
    settings: tuple[Setting, ...]

    @property
    def base(self) -> Setting | None:
        """The reference, if it was run."""
        return next((one for one in self.settings if one.method == "base"), None)

    def lines(self) -> dict[str, list[Setting]]:
        """Return each method's settings by rising ratio; base opens every line, since ratio 0 of any method is base."""
        found: dict[str, list[Setting]] = {}
        for one in sorted(self.settings, key=lambda one: one.ratio):
            if one.method != "base":
                found.setdefault(one.line, [self.base] if self.base else []).append(one)
        return found


@dataclass(frozen=True)
class _Found:
    folder: Path
    run: Run
    summary: Mapping[str, Any]

    @property
    def identity(self) -> Mapping[str, Any]:
        identity: Mapping[str, Any] = self.run.facts["identity"]
        return identity

    @property
    def label(self) -> str:
        return str(self.run.facts["method"])

    @property
    def method(self) -> str:
        parts = [self.identity[name]["method"] for name in ("first", "second") if name in self.identity]
        return "+".join(parts) or str(self.identity["method"])

    def value(self, name: str) -> str:
        """Return a parameter of the method, or of the parts of joined methods, as text."""
        parts = [self.identity[part] for part in ("first", "second") if part in self.identity] or [self.identity]
        return ", ".join(str(part[name]) for part in parts if name in part)

    @property
    def ratio(self) -> float:
        left = 1.0
        for part in (self.identity.get("first"), self.identity.get("second")):
            left *= 1 - part["ratio"] if part else 1.0
        return 1 - left if "first" in self.identity else float(self.identity.get("ratio", 0.0))


def read_panels(paths: Sequence[Path]) -> list[Panel]:
    """Read run folders, or folders that hold some, into one panel a task and checkpoint, and one for the mean.

    Raises
    ------
    RecordError
        When there is no finished run.
    """
    folders = sorted({found.parent for path in paths for found in path.rglob("run.json")})
    folders = [folder for folder in folders if (folder / "summary.json").exists()]  # the others are not finished
    if not folders:
        raise RecordError(f"{', '.join(map(str, paths))}: no finished run there (run.json and summary.json)")
    grouped: dict[tuple[str, str], list[_Found]] = {}
    for folder in folders:
        found = _read(folder)
        if found.summary.get("n"):
            key = (Path(str(found.run.facts.get("checkpoint", ""))).name, str(found.summary["task"]))
            grouped.setdefault(key, []).append(found)
    several = len({checkpoint for checkpoint, _ in grouped}) > 1
    panels: list[Panel] = []
    for checkpoint in dict.fromkeys(checkpoint for checkpoint, _ in grouped):
        suffix = f"-{checkpoint}" if several else ""
        own = [_panel(task, suffix, runs) for (name, task), runs in grouped.items() if name == checkpoint]
        panels += own
        if len(own) > 1 and (mean := mean_panel(own, f"mean{suffix}")):
            panels.append(mean)
    return panels


def _read(folder: Path) -> _Found:
    file = folder / "summary.json"
    try:
        return _Found(folder, Run.read(folder), json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise RecordError(f"{file}: cannot be read: {error}") from error


def _panel(task: str, suffix: str, runs: Sequence[_Found]) -> Panel:
    base = next((found for found in runs if found.method == "base"), None)
    # All that base ever answered: a later, smaller run of it takes nothing from the others.
    reference = Run.read(base.folder, selected=False) if base else None
    settings = []
    for found in runs:
        saved = savings(found.run, reference)
        speed_up = saved["llm_prefill"]
        figures = {"score": Value.of(found.summary["score"], (found.summary.get("intervals") or {}).get("score"))}
        if timed := [record for record in found.run.records.values() if record.get("time")]:
            figures["prefill_ms"] = _prefill(timed)
        if speed_up["measured"]:
            figures["speed_up"] = Value.of(speed_up["measured"], speed_up["interval"])
        if saved["kv_bytes"]:
            figures["kv_mb"] = Value.of(
                saved["kv_bytes"] / 1e6, [end / 1e6 for end in saved["kv_bytes_interval"] or ()]
            )
        line = found.method + "".join(_differing(found, runs))
        settings.append(Setting(found.label, found.method, line, found.ratio, figures, speed_up["ideal"]))
    first = base or runs[0]
    facts, summary = first.run.facts, first.summary
    least, most = (pick(found.summary["n"] for found in runs) for pick in (min, max))
    samples = str(most) if least == most else f"{least}–{most}"  # sweeps of different limits meet in one folder
    title = f"{task} · {facts.get('model', '')} · {samples} samples"
    return Panel(task + suffix, title, str(summary["headline"]), tuple(settings))


def _differing(found: _Found, runs: Sequence[_Found]) -> Iterator[str]:
    """Say which layer and scope a run has, where runs of its method have several."""
    for name in ("layer", "scope"):
        if len({other.value(name) for other in runs if other.method == found.method}) > 1:
            yield f" {name} {found.value(name)}"


def _prefill(records: Sequence[Record]) -> Value:
    """Return the median LLM prefill in milliseconds, with its 95 % interval over clusters."""
    values = np.array([1000 * record["time"]["llm_prefill"] for record in records])
    clusters = [str(record["cluster"]) for record in records]
    return Value.of(float(np.median(values)), median_interval(values, clusters, seed=42))


def mean_panel(panels: Sequence[Panel], name: str) -> Panel | None:
    """Return the mean over tasks of the settings that every task has; None when there are none.

    Tasks are independent, so the mean's interval is the root of the summed squares of theirs, by the number of tasks.
    """
    by_label = [{one.label: one for one in panel.settings} for panel in panels]
    shared = [label for label in by_label[0] if all(label in others for others in by_label)]
    settings = []
    for label in shared:
        each = [settings_of[label] for settings_of in by_label]
        figures = {
            quantity: _mean([one.figures[quantity] for one in each])
            for quantity in QUANTITIES
            if all(quantity in one.figures for one in each)
        }
        ideals = [one.ideal for one in each if one.ideal is not None]
        ideal = float(np.mean(ideals)) if len(ideals) == len(each) else None
        settings.append(Setting(label, each[0].method, each[0].line, each[0].ratio, figures, ideal))
    model = panels[0].title.split(" · ")[1]
    title = f"mean of {len(panels)} tasks · {model}"
    return Panel(name, title, "mean", tuple(settings)) if settings else None


def _mean(values: Sequence[Value]) -> Value:
    mean = float(np.mean([one.value for one in values]))
    below = float(np.sqrt(sum((one.value - one.low) ** 2 for one in values))) / len(values)
    above = float(np.sqrt(sum((one.high - one.value) ** 2 for one in values))) / len(values)
    return Value(mean, mean - below, mean + above)
