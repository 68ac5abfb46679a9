"""Collect what the report page shows: each system's scores, times and sizes, and the recommendations.

A system is a method on a model, with its runs. Scores, times and sizes are given per task and as means over tasks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from audiomarathon.benchmarks.registry import weights_of
from audiomarathon.errors import RecordError, SettingsError
from audiomarathon.metrics.statistics import mean_of, mean_over
from audiomarathon.records import Record
from audiomarathon.report.charts import STAGES
from audiomarathon.report.render import Kind, Table, with_interval
from audiomarathon.report.styles import lines_of, method_and_ratio
from audiomarathon.report.tables import comparison_row
from audiomarathon.results.beside import LATENCIES, NO_BASE
from audiomarathon.results.best import SETTLE, Ranked, ranking_of
from audiomarathon.results.compare import Compared, Comparison, compare, lines_by_reason
from audiomarathon.results.pairs import AS_BASE, speed_up_alone
from audiomarathon.results.scopes import COMMON, OVERALL, scopes_of
from audiomarathon.results.systems import System, base_of
from audiomarathon.runs.read import Run
from audiomarathon.text import flags_of

_DURATION_BIN = 30.0  # seconds
_PAIRED = {"llm_prefill": "llm_prefill_s", "first_token": "prefill_s"}
_SUMS = ("n", "expected", "errors", "unparsed", "cut_by_token_limit", "truncated")
_TIMES = tuple(f"{stage}_s" for stage in (*STAGES, "prefill"))
_SIZES = ("kv_bytes", "peak_memory_bytes")


@dataclass(frozen=True)
class Setting:
    """A system (a method on a model, with its runs) as shown in pictures and tables.

    Attributes
    ----------
    name
        Name in tables, with the checkpoint if there are several.
    line, method, ratio
        Name of its line in pictures, method (which sets the colour), and fraction of audio tokens removed.
    place, base
        Indices of the system and of its base (no compression) in :attr:`PageData.systems`; `base` is None if there is
        no base.
    """

    name: str
    line: str
    method: str
    ratio: float
    place: int
    base: int | None
    system: System


Place = tuple[str, int]
"""A scope (a task's key, or the name of a mean over tasks) and the index of a system in :attr:`PageData.systems`."""


@dataclass(frozen=True)
class Advice:
    """The recommendation for one checkpoint.

    Attributes
    ----------
    best
        The fastest system that certainly loses at most one point (:attr:`PageData.point`) against base and is certainly
        faster (:meth:`Ranking.doubts`); base if no system is faster. None if nothing can be ranked, or if the samples
        do not decide; `why` gives the reason.
    row
        `best` compared with base; None if it is base.
    other
        The best system except `random`, if `best` is the control `random`.
    samples, tasks
        Number of the samples, and the tasks, on which the systems were ranked.
    left_out
        Systems that could not be ranked, with reasons.
    place
        Index of `best` in :attr:`PageData.systems`.
    margins
        The margins (allowed losses of score) at which `best` was decided to be no worse, as text; "" if no margin was
        requested.
    """

    checkpoint: str
    best: Ranked | None
    row: Comparison | None = None
    other: Ranked | None = None
    samples: int = 0
    tasks: Sequence[str] = ()
    why: str = ""
    left_out: Sequence[str] = ()
    place: int | None = None
    margins: str = ""


@dataclass(frozen=True)
class PageData:
    """The scores, times and sizes of all systems (a method on a model each) on every task and mean over tasks.

    Attributes
    ----------
    seed
        Seed of intervals and tests.
    margins
        Allowed losses of score, as {task: margin}; the key "" is for all other tasks. If any is set, only a setting
        that is decided to be no worse is recommended.
    """

    systems: Sequence[System]
    seed: int = 42
    margins: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def settings(self) -> list[Setting]:
        """All systems as :class:`Setting` objects, which add what pictures and tables need, such as names."""
        several = len({system.checkpoint for system in self.systems}) > 1
        settings, lines = [], dict[int, str]()
        for checkpoint in {system.checkpoint for system in self.systems}:
            members = [place for place, system in enumerate(self.systems) if system.checkpoint == checkpoint]
            lines |= zip(members, lines_of([self.systems[place].identity for place in members]), strict=True)
        for place, system in enumerate(self.systems):
            method, ratio = method_and_ratio(system.identity)
            line = replace(system, method=lines[place]).name(with_checkpoint=several)
            base = base_of(system, self.systems)
            base_place = None if base is None else self.systems.index(base)
            name = system.name(with_checkpoint=several)
            settings.append(Setting(name, line, method, ratio, place, base_place, system))
        return settings

    def only(self, kept: Callable[[Run], bool]) -> PageData:
        """Return the data of those systems of which every run satisfies the function `kept`."""
        systems = [system for system in self.systems if all(map(kept, system.runs.values()))]
        return self if len(systems) == len(self.systems) else replace(self, systems=systems)  # keep the cached figures

    @property
    def runs(self) -> list[Run]:
        """All runs of all systems, system by system."""
        return [run for system in self.systems for run in system.runs.values()]

    @property
    def tasks(self) -> list[str]:
        """Keys of the tasks with a finished run, in the order of the systems' runs."""
        return list(dict.fromkeys(task for task, _ in self._runs))

    @cached_property
    def _runs(self) -> dict[Place, dict[str, Any]]:
        """Each finished run's columns on the page: score, counts, times, sizes and notes, as in :func:`_figures`.

        The result is {(task, index in `systems`): columns}; `systems` has a system for each method on a model.
        """
        return {
            (task, place): _figures(run, run.summary)
            for place, system in enumerate(self.systems)
            for task, run in system.runs.items()
            if run.summary is not None
        }

    @cached_property
    def _scores(self) -> dict[Place, dict[str, Any]]:
        """The part of :attr:`_runs` that has a score, as {(task, index in `systems`): columns for the page}."""
        return {place: row for place, row in self._runs.items() if row["score"] is not None}

    @property
    def unfinished(self) -> list[tuple[str, str, int, int]]:
        """Each unfinished run, as (setting, task, number of answered samples, number of expected samples)."""
        return [
            (self.settings[place].name, task, len(run.records), run.expected)
            for place, system in enumerate(self.systems)
            for task, run in system.runs.items()
            if (task, place) not in self._runs
        ]

    @cached_property
    def scopes(self) -> dict[str, list[str]]:
        """The means over tasks, as {name: its tasks}: one per group, one of all tasks, and one of common tasks.

        Common tasks are those on which all settings have a score; their mean is left out if they are all the tasks.
        Runs on control variants of the data do not count, unless there are no other runs.
        """
        counted = [(task, place) for task, place in self._runs if place in self.charted]
        tasks = list(dict.fromkeys(task for task, _ in counted))
        places = {place for _, place in counted}
        common = [task for task in tasks if all((task, place) in self._scores for place in places)]
        scopes = scopes_of(tasks)
        shared = len(common) < len(tasks) and common in scopes_of(common).values()
        return scopes | {COMMON: common} if shared else scopes

    @cached_property
    def charted(self) -> list[int]:
        """Indices of the systems to draw: all but control runs, which hear other audio; all if there are no others."""
        heard = [place for place, system in enumerate(self.systems) if not system.control]
        return heard or list(range(len(self.systems)))

    @cached_property
    def widest(self) -> str:
        """The task or mean to show first: the mean that most systems have, or "" if there is no score.

        If fewer than half of the systems have any mean over all or common tasks, it is the task that most systems have.
        """

        def has(scope: str) -> int:
            return sum((scope, place) in self.figures for place in self.charted)

        means = [name for name in self.scopes if name.endswith(OVERALL) or name == COMMON]
        wide = [name for name in means if 2 * has(name) >= len(self.charted)]
        best = max(wide or self.tasks, key=has, default="")
        return best if best and has(best) else ""

    @cached_property
    def point(self) -> float:
        """One point of score, the largest loss with which a setting is recommended: a hundredth of the score's range.

        The range is that of the task or mean `widest`.
        """
        members = self.members(self.widest)
        figures = [run.task.scorer.figure for run in self.runs if run.task and run.key in members]
        ranges = (figure.high - figure.low for figure in figures if figure.high is not None and figure.low is not None)
        return max(ranges, default=1.0) / 100

    def members(self, scope: str) -> list[str]:
        """Return the tasks of `scope`: the tasks that a mean averages, or only `scope` itself if it is a task."""
        return self.scopes.get(scope, [scope])

    @cached_property
    def figures(self) -> dict[Place, dict[str, Any]]:
        """Each system's score, times, sizes and comparison with base, on each task and each mean over tasks.

        The result is {(task or mean, index in `systems`): {name: value}}. A system gets a mean only if it has all of
        that mean's tasks.
        """
        figures = dict(self._scores)
        for scope, members in self.scopes.items():
            for place in range(len(self.systems)):
                if all((task, place) in figures for task in members):
                    figures[scope, place] = _mean(members, [figures[task, place] for task in members])
        rows = {}
        for (scope, place), figure_fields in figures.items():
            setting = self.settings[place]
            row = {"scope": scope, "setting": setting.name, **figure_fields, **self._beside(scope, setting)}
            base = figures.get((scope, setting.base or 0), {})
            for stage, name in _PAIRED.items():  # see series.PAIRED
                if (speed := row.get(f"{stage}_speedup")) and base.get(name):
                    row[name] = base[name] / speed
            rows[scope, place] = row
        return rows

    @cached_property
    def beside_base(self) -> tuple[dict[Place, Comparison], dict[Place, str], dict[int, Compared]]:
        """All comparisons with base (no compression), in three dicts.

        The first is {(task or mean, index of the system): comparison}. The second has the reason for each comparison
        that is missing, with the same keys. The third is {index of a base: all comparisons with this base}.
        """
        rows: dict[Place, Comparison] = {}
        why: dict[Place, str] = {}
        compared_with: dict[int, Compared] = {}
        for base in {candidate.base for candidate in self.settings if candidate.base is not None}:
            scored: dict[int, System] = {}
            for setting in self.settings:
                runs = {task: run for task, run in setting.system.runs.items() if (task, setting.place) in self._scores}
                if setting.base == base != setting.place and runs:
                    scored[setting.place] = replace(setting.system, runs=runs)
            if not scored:
                continue
            names = {system.name(with_checkpoint=False): place for place, system in scored.items()}
            try:
                compared = compare(
                    [self.systems[base], *scored.values()],
                    self.systems[base],
                    seed=self.seed,
                    more={COMMON: self.scopes[COMMON]} if COMMON in self.scopes else None,
                    stages=("first_token",),
                    margins=self.margins,
                )
            except (RecordError, SettingsError) as error:
                why |= {(task, place): str(error) for place, system in scored.items() for task in system.runs}
                continue
            compared_with[base] = compared
            rows |= {(row.scope, names[row.side]): row for row in compared.rows}
            for missing in compared.left_out:
                task, side = missing.task, missing.side
                if task is not None and side in names and task not in compared.shared.get(side, {}):
                    why[task, names[side]] = missing.why
        return rows, why, compared_with

    def _beside(self, scope: str, setting: Setting) -> dict[str, Any]:
        """Return the columns that compare a setting with base on a task or mean, as {name: value}.

        If there is no comparison, the only columns are `why` (the reason) and `alone` (whether the setting has no
        base).
        """
        place = setting.place
        rows, why, compared = self.beside_base
        row = rows.get((scope, place))
        if setting.system.is_base:
            return {"is_base": True}
        if row is None or set(row.tasks) != set(self.members(scope)):
            members = self.members(scope)
            reasons = "; ".join(f"{task}: {why[task, place]}" for task in members if (task, place) in why)
            if setting.base is None:
                return {"why": reasons or NO_BASE, "alone": True}
            return {"why": reasons or f"not all of {', '.join(members)} can be compared with base", "alone": False}
        shown = ("difference", "p", "llm_", "first_", "decode_per", "throughput_")
        kept = {name: value for name, value in comparison_row(row).items() if name.startswith(shown)}
        n, timed = self._n(scope, place), row.timed
        few = f"n {timed}" if timed not in (0, n) else ""
        kept["first_token_speedup_said"] = ", ".join(filter(None, [few, kept["first_token_speedup_said"]]))
        assert setting.base is not None
        shared = [compared[setting.base].shared[row.side][task] for task in row.tasks]
        kept["llm_prefill_speedup"] = speed_up_alone(shared, "llm_prefill")
        if as_base := sum(pairs.alike == AS_BASE for pairs in shared):
            some = f" in {as_base} of {len(shared)} tasks" if as_base < len(shared) else ""
            kept["difference_said"] = f"= base by construction{some}"
            kept["difference_mark"] = f"{kept['difference_mark']} remark".strip()  # a CSS class that lets the cell wrap
        if row.samples != n:
            kept["difference_said"] = ", ".join(filter(None, [kept["difference_said"], f"n {row.samples}"]))
        busy = {"busy": True} if row.busy else {}
        whys = {"untimed": row.untimed, "unbatched": row.unbatched}
        return {**kept, **busy, **whys, "shared": row.samples, "timed": timed, "across": row.across}

    def _n(self, scope: str, place: int) -> int:
        """Return the number of samples that a system answered on a scope: a task, or all tasks of a mean.

        `place` is the index of the system.
        """
        return sum(self._runs[task, place]["n"] or 0 for task in self.members(scope) if (task, place) in self._runs)

    @cached_property
    def advice(self) -> list[Advice]:
        """For each checkpoint, a recommendation: the fastest setting that loses at most one point against base."""
        advices = []
        for checkpoint in dict.fromkeys(self.systems[place].checkpoint for place in self.charted):
            bases = [
                setting.place
                for setting in self.settings
                if setting.system.is_base and setting.system.checkpoint == checkpoint
            ]
            bases = [place for place in bases if place in self.charted]
            if not bases:
                advices.append(Advice(checkpoint, None, why="these runs include no base of this checkpoint"))
            for base in bases:
                name = checkpoint if len(bases) == 1 else self.systems[base].name(with_checkpoint=True)
                advices.append(self._advice(name, base))
        return advices

    def _advice(self, name: str, base: int) -> Advice:
        compared = self.beside_base[2].get(base)
        if self.systems[base].control:
            return Advice(name, None, why="control runs are not ranked")
        if compared is None:
            return Advice(name, None, why="no setting can be compared with its base")
        ranking = ranking_of(compared)
        shown = {
            self.systems[place].name(with_checkpoint=False): place
            for scope, place in self.figures
            if scope == self.widest and self.settings[place].base == base
        }
        left_out = lines_by_reason(ranking.left_out)
        if not ranking.candidates:
            return Advice(name, None, why="no setting's times can be compared with base", left_out=left_out)
        points = None if self.margins else self.point
        faster = [
            candidate for candidate in ranking.faster(math.inf if points is None else points) if candidate.name in shown
        ]
        doubts = {candidate.name: ranking.doubts(candidate, points) for candidate in faster}
        settled = [candidate for candidate in faster if not doubts[candidate.name]]
        if faster and not settled:
            open_ = [
                candidate for candidate in faster if not any("worse by more" in why for why in doubts[candidate.name])
            ]
            first = (open_ or faster)[0]
            within = " within 1 point" * (points is not None)
            settle = f"; {SETTLE}" * (points is not None)
            why = f"{first.name} was {first.speed:.2f}× as fast{within}, but {', '.join(doubts[first.name])}{settle}"
            return Advice(name, None, why=why, left_out=left_out)
        best = settled[0] if settled else ranking.candidates[0]
        other = next((candidate for candidate in settled if not candidate.is_random), None) if best.is_random else None
        asked = dict.fromkeys(f"{self.margins.get(task, self.margins.get('', 0)):g}" for task in ranking.ids)
        return Advice(
            name, best, ranking.row(best), other, ranking.samples, list(ranking.ids), "", left_out,
            shown.get(best.name), " or ".join(asked) if self.margins else "",
        )  # fmt: skip


def _figures(run: Run, summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's columns for the page, as {name: value}: score, counts, median times, sizes in bytes, and notes."""
    records = list(run.records.values())
    return {
        **{name: summary.get(name) for name in (*_SUMS, *_SIZES)},
        "n_said": ", ".join(flags_of(summary)),
        **with_interval("score", summary.get("score"), (summary.get("intervals") or {}).get("score")),
        "mean_of": run.headline if summary.get("score") is not None and run.task else None,
        **{name: _median(records, name.removesuffix("_s")) for name in _TIMES},
        "notes": [*(summary.get("notes") or ()), *_waits(summary)],
        "busy": bool(summary.get("busy")),
        "own_scores": own_scores(run),
    }


def _waits(summary: Mapping[str, Any]) -> list[str]:
    """Return [a note with an endpoint's median latencies], since the page has no column for them; [] for other runs."""
    timing = summary.get("timing") or {}
    if not (first := timing.get("first_token_latency_s")) or not (total := timing.get("total_latency_s")):
        return []
    waits = f"first token after {first['p50']:.2f} s, whole reply after {total['p50']:.2f} s (medians)"
    return [f"{waits}; {LATENCIES}"]


def _median(records: Sequence[Record], stage: str) -> float | None:
    values = [record.time[stage] for record in records if record.time and stage in record.time]
    return float(np.median(values)) if values else None


def own_scores(run: Run) -> list[tuple[float, float]]:
    """Return (clip's duration in seconds, score) of each sample of a run that has a score."""
    if run.task is None:
        return []
    scored = ((verdict.record.clip_seconds, run.task.scorer.own_score(verdict)) for verdict in run.verdicts.values())
    return [(seconds, score) for seconds, score in scored if score is not None]


def by_duration(scored: Iterable[tuple[float, float]]) -> list[tuple[float, int, float]]:
    """Average samples' scores in bins of 30 s of clip duration.

    Return (start in seconds, number of samples, mean score) of each bin. `scored` has (clip's duration in seconds,
    score) of each sample.
    """
    bins: dict[int, list[float]] = {}
    for seconds, score in scored:
        place = int(seconds // _DURATION_BIN)
        bins.setdefault(place, []).append(score)
    return [(place * _DURATION_BIN, len(scores), float(np.mean(scores))) for place, scores in sorted(bins.items())]


def _mean(tasks: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the columns of a mean over tasks, from those of each task, as {name: value}.

    Scores are averaged with weights, and get an interval. Times and sizes are averaged without weights, counts added
    up.
    """
    weights = weights_of(list(tasks))
    each = [row["mean_of"] for row in rows if row["mean_of"] is not None]
    interval = mean_over(each, weights).interval if len(each) == len(rows) else None
    summed = {name: sum(row[name] or 0 for row in rows) for name in _SUMS}
    return {
        **summed,
        "n_said": ", ".join(flags_of({**summed, "busy": any(row["busy"] for row in rows)})),
        **with_interval("score", float(np.average([row["score"] for row in rows], weights=weights)), interval),
        **{name: mean_of([row[name] for row in rows]) for name in (*_TIMES, *_SIZES)},
        "notes": list(dict.fromkeys(note for row in rows for note in row["notes"])),
        "busy": any(row["busy"] for row in rows),
        "own_scores": [score for row in rows for score in row["own_scores"]],
    }


def scores_table(data: PageData, figure: str = "score", *, narrow: bool = False) -> Table:
    """Make a table with a row per setting and a column per task, group's mean and overall mean.

    Cells hold scores, or differences from base. The best printed score of a column is marked; control runs (on altered
    audio) are never best.

    Parameters
    ----------
    figure
        What the cells hold: `score`, or `difference` (from base).
    narrow
        Whether to write the ends of intervals with two digits.
    """
    columns = [*data.tasks, *sorted(data.scopes, key=lambda scope: scope.endswith(OVERALL))]
    columns = [scope for scope in columns if any((scope, place) in data.figures for place in range(len(data.systems)))]
    heard = {place for place, system in enumerate(data.systems) if not system.control}
    highest: dict[str, float] = {}
    for (scope, place), figures in data.figures.items():
        if place in heard:
            highest[scope] = max(round(figures["score"], 3), highest.get(scope, -np.inf))
    rows = []
    for place, setting in enumerate(data.settings):
        row: dict[str, Any] = {"setting": setting.name}
        for scope in columns:
            figures = data.figures.get((scope, place), {})
            row |= {f"{scope}{end}": figures.get(f"{figure}{end}") for end in ("", "_low", "_high")}
            row |= {f"{scope}_mark": figures.get("difference_mark", ""), f"{scope}_why": figures.get("why", "")}
            row[f"{scope}_said"] = figures.get("difference_said", "") if figure == "difference" else ""
            if figure == "difference" and setting.system.is_base and figures:
                row[scope] = "base"
            if figure == "score":
                best = place in heard and figures and round(figures["score"], 3) == highest[scope]
                row[f"{scope}_mark"] = "best" if best else ""
        rows.append(row)
    form, ends = (".3f", ".2f") if figure == "score" else ("+.3f", ".2f")
    kinds = {scope: Kind(scope, form, ends=ends if narrow else "") for scope in columns}
    return Table.of(rows, ("setting", *columns), kinds=kinds)
