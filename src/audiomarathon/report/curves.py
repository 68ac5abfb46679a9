"""Prepare curves of finished runs, one line per method: score, LLM prefill and KV cache against the ratio.

The ratio is the fraction of the audio tokens that the method removes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from audiomarathon.benchmarks.registry import weights_of
from audiomarathon.errors import RecordError, SettingsError
from audiomarathon.metrics.statistics import Estimate, Resampler, mean_over
from audiomarathon.report.styles import lines_of, method_and_ratio
from audiomarathon.results.beside import ACROSS, apart, base_among, is_base, marks_of_graphs, timed_sessions
from audiomarathon.results.compare import LeftOut
from audiomarathon.results.pairs import Pairs, ideal_of, speed_up
from audiomarathon.results.savings import kv_bytes
from audiomarathon.results.scopes import OVERALL, scopes_of
from audiomarathon.results.systems import twice
from audiomarathon.runs.read import Run, read_runs
from audiomarathon.text import flags_of

QUANTITIES = ("score", "prefill_ms", "speed_up", "kv_mb")
MEAN = "mean score"
_SEED = 42  # seed of the bootstrap


@dataclass(frozen=True)
class Setting:
    """One run in a picture: its line, its ratio, and the values to draw.

    Attributes
    ----------
    label
        The setting's full name, with ratio, layer and scope; equal across tasks.
    method
        Key of the method, which decides its colour.
    line
        Name of the line: the method, with layer and scope if runs differ in them.
    ratio
        Fraction of audio tokens removed; for joined methods, the fraction that both remove together.
    figures
        The run's measured values, as {name in :data:`QUANTITIES`: estimate}.
    ideal
        LLM prefill speed-up computed from FLOPs; None if unknown.
    conditions
        How the run differs from most runs of the panel in seed, prompts, …, such as `seed 7`; "" if it does not. It is
        part of `line`.
    busy
        Whether the machine was busy while the run or its base was timed.
    pairs
        The run's samples paired with base's; None if there is no base.
    """

    label: str
    method: str
    line: str
    ratio: float
    figures: Mapping[str, Estimate]
    ideal: float | None = None
    conditions: str = ""
    busy: bool = False
    pairs: Pairs | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Panel:
    """The data of one picture: all settings of one checkpoint on one task, or their means over tasks.

    Attributes
    ----------
    headline
        Name of the score.
    notes
        Lines below the picture.
    undrawn
        Settings whose times are not drawn, with the reasons.
    """

    name: str
    title: str
    headline: str
    settings: tuple[Setting, ...]
    notes: tuple[str, ...] = ()
    undrawn: tuple[LeftOut, ...] = ()

    @property
    def bases(self) -> dict[str, Setting]:
        """The base runs (no compression), as {conditions (see :class:`Setting`): run}.

        The key "" stands for the panel's usual conditions.
        """
        return {setting.conditions: setting for setting in reversed(self.settings) if setting.method == "base"}

    def lines(self) -> dict[str, list[Setting]]:
        """Return the settings of each line, as {name of the line: settings by rising ratio}.

        Every line starts with base under the same conditions, because any method at ratio 0 is base.
        """
        lines: dict[str, list[Setting]] = {}
        for setting in sorted(self.settings, key=lambda candidate: candidate.ratio):
            if setting.method != "base":
                opening = self.bases.get(setting.conditions)
                lines.setdefault(setting.line, [opening] if opening else []).append(setting)
        return lines


def read_panels(paths: Sequence[Path]) -> list[Panel]:
    """Read run folders, or folders that contain them, and prepare a picture per task and checkpoint, and for the mean.

    Raises
    ------
    RecordError
        When there is no finished run.
    """
    finished = [run for run in read_runs(paths) if run.summary is not None]
    if not finished:
        raise RecordError(
            f"{', '.join(map(str, paths))}: no finished run found (a folder with run.json and summary.json)"
        )
    return panels_of(finished)


def panels_of(runs: Sequence[Run]) -> list[Panel]:
    """Prepare pictures of runs: one per checkpoint, control and task, and for several tasks one of their mean.

    A control is a run on altered audio, such as silence. Runs without answered samples or without a current summary are
    left out.
    """
    grouped: dict[tuple[str, str], dict[str, list[Run]]] = {}
    for run in runs:
        if run.summary and run.summary.get("n"):
            grouped.setdefault((run.checkpoint, run.control), {}).setdefault(run.key, []).append(run)
    several = len({checkpoint for checkpoint, _ in grouped}) > 1
    panels: list[Panel] = []
    for (checkpoint, control), tasks in grouped.items():
        suffix = "".join(f"-{part.replace(' ', '-')}" for part in (checkpoint if several else "", control) if part)
        by_task = {task: _panel(task, suffix, task_runs) for task, task_runs in tasks.items()}
        panels += by_task.values()
        for scope, members in scopes_of(by_task).items():
            if scope.endswith(OVERALL):
                name = f"{scope.removesuffix(OVERALL).strip().replace(' ', '-')}-mean".lstrip("-") + suffix
                panels += filter(None, [mean_panel([by_task[task] for task in members], name, weights_of(members))])
    return panels


def _panel(task: str, suffix: str, runs: Sequence[Run]) -> Panel:
    # The conditions of most runs are the usual ones; runs with other conditions are marked.
    bases = [run for run in runs if is_base(run)]
    first = max(bases or runs, key=lambda base: sum(not apart(run, base) for run in runs))
    as_graph, seen = marks_of_graphs(runs), dict[tuple[str, str], Run]()
    for run in runs:
        under = ", ".join(filter(None, [apart(run, first), as_graph(run)]))
        if (known := seen.setdefault((run.method, under), run)) is not run:
            raise twice(run, known)
    lines = dict(zip(map(id, runs), lines_of([run.identity for run in runs]), strict=True))
    sessions = timed_sessions([first] if bases else runs)
    drawn = sessions if bases or len(sessions) == 1 else set()
    settings = []
    for (_, under), run in seen.items():
        base = base_among(run, bases)
        settings.append(_setting(run, under, lines[id(run)], base, drawn if base or not bases else ()))
    summaries = [run.summary or {} for run in runs]
    counts = sorted({summary["n"] for summary in summaries})
    samples = "–".join(map(str, dict.fromkeys([counts[0], counts[-1]])))  # sweeps of different limits share a folder
    control = [f"control: {first.control}"] if first.control else []
    title = " · ".join([task, str(first.facts.get("model", "")), *control, f"{samples} samples"])
    notes = dict.fromkeys(note for summary in summaries for note in summary.get("notes") or ())
    flags = {run.method: flags_of(summary) for run, summary in zip(runs, summaries, strict=True)}
    flagged = [f"{method}: {', '.join(each)}" for method, each in flags.items() if each]
    paired = [(setting.label, setting.pairs) for setting in settings if setting.pairs]
    undrawn = [LeftOut(label, task, f"no time is drawn: {ACROSS}") for label, pairs in paired if pairs.across]
    undrawn += [LeftOut(label, task, f"no speed-up: {pairs.untimed}") for label, pairs in paired if pairs.untimed]
    return Panel(task + suffix, title, _heading(first), _beside_base(settings), (*notes, *flagged), tuple(undrawn))


def _beside_base(settings: Sequence[Setting]) -> tuple[Setting, ...]:
    """Return copies of the settings, with base's median LLM prefill time ÷ the setting's speed-up as their prefill
    time.

    So the drawn times agree with the speed-ups, which are paired by sample; `series.PAIRED` is the note that says so.
    """
    bases = {point.conditions: point.figures.get("prefill_ms") for point in settings if point.method == "base"}
    replaced = list(settings)
    for place, setting in enumerate(settings):
        base, saved = bases.get(setting.conditions), setting.figures.get("speed_up")
        if setting.method != "base" and base and saved:
            ends = saved.interval and (base.value / saved.interval[1], base.value / saved.interval[0])
            replaced[place] = replace(
                setting, figures={**setting.figures, "prefill_ms": Estimate(base.value / saved.value, ends)}
            )
    return tuple(replaced)


def _heading(run: Run) -> str:
    """Return the name of a run's score, such as macro-F1, even if the plug-in with its task is not installed."""
    summary = run.summary or {}
    return str((summary.get("figure") or {}).get("title") or summary.get("headline", "score"))


def _setting(run: Run, under: str, line: str, base: Run | None, sessions: Collection[str]) -> Setting:
    """Compute the values of one run that pictures show; return the :class:`Setting` to draw.

    Parameters
    ----------
    under
        The run's conditions (see :attr:`Setting.conditions`).
    line
        Name of its line without the conditions.
    base
        Run of base (no compression) with the same conditions; None if there is none.
    sessions
        The sessions whose times the picture shows: base's sessions; without base, the single session of all runs.
    """
    records = list(run.records.values())
    summary = run.summary or {}
    ends = (summary.get("intervals") or {}).get("score")
    figures = {}
    if summary.get("score") is not None:
        estimate = run.headline if run.task else Estimate(summary["score"], None)
        figures["score"] = replace(estimate, value=summary["score"], interval=tuple(ends) if ends else None)
    try:
        pairs = Pairs.of(run, base) if base else None
    except (RecordError, SettingsError):
        pairs = None
    timed = [(1000 * record.time["llm_prefill"], record.cluster) for record in records if record.time]
    beside = base is None or (pairs is not None and not pairs.untimed and not pairs.across)
    if timed and beside and timed_sessions([run]) & {*sessions}:
        figures["prefill_ms"] = Resampler(_SEED).median([ms for ms, _ in timed], [cluster for _, cluster in timed])
        if pairs and (saved := speed_up([pairs], "llm_prefill", _SEED)):
            figures["speed_up"] = saved
    if cache := kv_bytes(run, _SEED):
        figures["kv_mb"] = cache.scaled(1e-6)
    ideal = ideal_of(run, [record for _, record in pairs.timed] if pairs and pairs.timed else records)
    method, ratio = method_and_ratio(run.identity)
    is_busy = bool(summary.get("busy")) or bool(pairs and pairs.timed and pairs.busy)
    return Setting(run.method, method, f"{line} {under}".strip(), ratio, figures, ideal, under, is_busy, pairs)


def mean_panel(panels: Sequence[Panel], name: str, weights: Sequence[float] | None = None) -> Panel | None:
    """Prepare a picture of means over tasks; None if no setting was run on every task. Other settings are left out.

    Intervals treat tasks as independent (:func:`~audiomarathon.metrics.statistics.mean_over`).
    """
    by_setting: dict[tuple[str, str], list[Setting]] = {}
    for setting in (panel_setting for panel in panels for panel_setting in panel.settings):
        by_setting.setdefault((setting.label, setting.conditions), []).append(setting)
    settings = []
    for each in by_setting.values():
        if len(each) < len(panels):
            continue
        figures = {
            quantity: mean_over([member.figures[quantity] for member in each], weights if quantity == "score" else None)
            for quantity in QUANTITIES
            if all(quantity in member.figures for member in each)
        }
        pairs = [member.pairs for member in each if member.pairs]
        if "speed_up" in figures and (saved := speed_up(pairs, "llm_prefill", _SEED)):
            figures["speed_up"] = saved  # over the samples of all tasks, as in `compare`
        ideals = [member.ideal for member in each if member.ideal is not None]
        ideal = float(np.mean(ideals)) if len(ideals) == len(each) else None
        settings.append(replace(each[0], figures=figures, ideal=ideal, busy=any(member.busy for member in each)))
    _task, *about, _samples = panels[0].title.split(" · ")
    title = " · ".join([f"mean of {len(panels)} tasks", *about])
    undrawn = tuple(reason for panel in panels for reason in panel.undrawn)
    return Panel(name, title, MEAN, _beside_base(settings), undrawn=undrawn) if settings else None
