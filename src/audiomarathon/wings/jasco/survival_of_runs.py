"""Measure how much of the speech and the sound in JASCO's clips the replies of each pruned run still report."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from audiomarathon.audio.voice_activity import Spans
from audiomarathon.errors import DataError
from audiomarathon.metrics.statistics import Estimate
from audiomarathon.records import Record
from audiomarathon.results.compare import holm_within
from audiomarathon.results.systems import System, base_of
from audiomarathon.runs.record_line import heard_tokens
from audiomarathon.wings.jasco.speech import FIRST, LAST, SPEECH_FILE, read_speech, turned
from audiomarathon.wings.jasco.survival import Reports, measurable, preference, reports, retained

ReportsOf = Callable[[int, tuple[str, ...]], Reports]
TASK = "jasco"
AS_IS, BOTH_ORDERS = "as is", "mean of both"
#: Position of the speech in the clips, as {a run's control: position}.
ORDERS = {"": AS_IS, FIRST: "first", LAST: "last"}


@dataclass(frozen=True)
class Survival:
    """What a setting still reports of the speech and sound that the unpruned model reports.

    One object is one row of the table: for one position of the speech in the clips, or for the mean of both positions.
    "Base" is the run without pruning.

    Attributes
    ----------
    system
        The setting (a model with a method). For the mean of both positions: the one whose clips have the speech first.
    order
        Position of the speech: `as is`, `first`, `last`, or `mean of both`.
    figures
        Base's skill (reported share, corrected for chance) and the share of it that the setting keeps, for speech and
        for sound; see :func:`audiomarathon.wings.jasco.survival.retained`.
    p, p_adjusted
        p of the test that speech and sound are kept equally, and p after Holm's correction over all rows of the
        checkpoint that have `headline`.
    preference
        Share of speech tokens kept ÷ share of all tokens kept; None if unknown.
    kept_tokens, padding_tokens
        Mean number per clip of kept audio tokens, and of tokens of window padding; None if unknown.
    headline
        Whether this row is the one to report: the mean of both positions, if both were run.
    """

    system: System
    order: str
    figures: Mapping[str, Estimate]
    p: float | None
    preference: Estimate | None
    kept_tokens: float | None
    padding_tokens: float | None
    headline: bool
    p_adjusted: float | None = None

    @property
    def measurable(self) -> bool:
        """Whether the unpruned model reports both speech and sound often enough to measure a loss by pruning."""
        return all(measurable(self.figures, name) for name in ("speech", "sound"))


def survivals(systems: Sequence[System], speech: Mapping[str, Spans] | None = None) -> list[Survival]:
    """Return, for each setting, what it still reports of the speech and sound that the unpruned model reports.

    There is one row per setting and position of the speech, and one for the mean of `first` and `last`. The unpruned
    model has rows too.

    Settings are left out if the unpruned model answered none of the same clips.

    Parameters
    ----------
    speech
        Spans of speech in each original clip, as {clip's id: spans}; None reads :data:`SPEECH_FILE` in the runs' data
        folder.
    """
    systems = [system for system in systems if TASK in system.runs and system.control in ORDERS]
    spans = _speech_of(systems) if speech is None else speech
    known = {id(system): system for system in systems}

    @functools.cache  # because base is compared with every setting
    def reports_of(system: int, ids: tuple[str, ...]) -> Reports:
        """Return how much of speech and sound a system's replies to the samples `ids` report; see :func:`reports`.

        A system is a model with a method; `system` is Python's `id()` of its :class:`System`.

        The share reported by chance is estimated from the clips of these samples only.
        """
        return reports(known[system].runs[TASK].records[id_] for id_ in ids)

    survival_rows: list[Survival] = []
    for group in _by_setting(systems):
        bases = ((system, base_of(system, systems)) for system in group)
        pairs = {system.control: (system, base) for system, base in bases if base is not None and _shared(system, base)}
        rows = [_row([pair], reports_of, spans) for pair in pairs.values()]
        if {FIRST, LAST} <= pairs.keys():
            rows.append(_row([pairs[FIRST], pairs[LAST]], reports_of, spans))
        if rows:
            first = next((row for row in rows[::-1] if row.order in (BOTH_ORDERS, AS_IS)), rows[0])
            survival_rows += [replace(row, headline=row is first) for row in rows]
    return _adjusted(survival_rows)


def left_out(systems: Sequence[System]) -> list[str]:
    """Return the names of settings left out of the table: no run of the unpruned model answered the same samples."""
    systems = [system for system in systems if TASK in system.runs and system.control in ORDERS]
    bases = [(system, base_of(system, systems)) for system in systems]
    return [system.name(with_checkpoint=True) for system, base in bases if base is None or not _shared(system, base)]


def _shared(system: System, base: System) -> tuple[str, ...]:
    """Return the ids of the samples that two systems (a setting and base) both answered, about the same clips."""
    ours, theirs = system.runs[TASK].records, base.runs[TASK].records
    return tuple(id_ for id_ in sorted(ours) if id_ in theirs and ours[id_].clips == theirs[id_].clips)


def _by_setting(systems: Sequence[System]) -> list[list[System]]:
    groups: dict[tuple[object, ...], list[System]] = {}
    for system in systems:
        groups.setdefault((system.checkpoint, system.method, system.marks), []).append(system)
    return [sorted(group, key=lambda member: list(ORDERS).index(member.control)) for group in groups.values()]


def _row(pairs: Sequence[tuple[System, System]], reports_of: ReportsOf, spans: Mapping[str, Spans]) -> Survival:
    """Return the :class:`Survival` of a setting, from (setting, base): one pair, or two (speech first, speech last)."""
    shared = [(pruned, base, _shared(pruned, base)) for pruned, base in pairs]
    figures, p = retained([(reports_of(id(pruned), ids), reports_of(id(base), ids)) for pruned, base, ids in shared])
    system = pairs[0][0]
    order = ORDERS[system.control] if len(pairs) == 1 else BOTH_ORDERS
    records = [record for pruned, _base in pairs for record in pruned.runs[TASK].records.values()]
    kept = [record.kept_audio_tokens for record in records if record.kept_audio_tokens is not None]
    padding = float(np.mean([record.window_padding_tokens for record in records])) if records else None
    prefers = None if system.is_base else preference(_kept(records, spans))
    tokens = float(np.mean(kept)) if kept else None
    return Survival(system, order, figures, None if system.is_base else p, prefers, tokens, padding, headline=False)


def _kept(records: Sequence[Record], spans: Mapping[str, Spans]) -> Iterator[tuple[str, np.ndarray, float, Spans]]:
    """Yield (clip, kept flags, clip's seconds, spans of speech) of each record whose clip has speech.

    The kept flags tell for each audio token, except those that only pad the audio tower's window, whether it was kept.
    Records of a pruner combined with a KV-cache press are skipped, since they hold only the pruner's choice.
    """
    for record in records:
        if (speech := spans.get(record.cluster)) and (heard := heard_tokens(record)) is not None:
            yield record.cluster, heard, record.clip_seconds, turned(speech, record.clip_seconds, record.control or "")


def _speech_of(systems: Sequence[System]) -> Mapping[str, Spans]:
    for system in systems:
        file = Path(str(system.runs[TASK].facts.get("data_folder", ""))) / SPEECH_FILE
        if not system.control and file.is_file():
            try:
                return read_speech(file)
            except DataError as error:  # the kept shares do not need the speech times
                warnings.warn(str(error), stacklevel=2)
    return {}


def _adjusted(survival_rows: Sequence[Survival]) -> list[Survival]:
    """Return the rows with p corrected by Holm's method, over the headline rows (those to report) of a checkpoint."""

    def kind(row: Survival) -> str | None:
        return row.system.checkpoint if row.headline and row.measurable else None

    adjusted = holm_within([(kind(row), row.p) for row in survival_rows])
    return [replace(row, p_adjusted=p) for row, p in zip(survival_rows, adjusted, strict=True)]
