"""Read finished and unfinished runs from their folders. Every command uses :func:`run_folders` to find runs."""

from __future__ import annotations

import gc
import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from audiomarathon.benchmarks import Task, get_task
from audiomarathon.benchmarks.locate import walk
from audiomarathon.costs.cost import Cost, Drops
from audiomarathon.errors import AudioMarathonError, RecordError, told
from audiomarathon.metrics.statistics import Estimate, Resampler, Sums
from audiomarathon.records import Record, Verdict
from audiomarathon.runs.folder import checkpoint_of, read_records, read_run, read_summary
from audiomarathon.runs.scored import judged
from audiomarathon.runs.summary import summarise
from audiomarathon.scoring.scorer import fingerprint_of, sums_of
from audiomarathon.settings import SEED
from audiomarathon.text import counted

_T = TypeVar("_T")

#: Prefix of folders that `audiomarathon reproduce` writes. Its runs have other samples of the same tasks.
REPRODUCED = "reproduce-"


def named(runs: Sequence[Run]) -> str:
    """Name runs in a message: return the folder of the first, and "and N more" if there are several."""
    more = f" and {counted(len(runs) - 1, 'more run')}" if len(runs) > 1 else ""
    return f"{os.path.normpath(str(runs[0].folder))}{more}" if runs else "no run"


@dataclass(frozen=True)
class Run:
    """One run, read from its folder: one task under one setting of one checkpoint.

    Attributes
    ----------
    facts
        The content of `run.json`.
    records, failed
        The samples that the last call of the command selected, as {sample's id: record}: those that were answered, and
        those that failed.
    beyond
        Answered samples that only an earlier call selected, such as with a larger --limit.
    folder
        The run's folder; None for a run that was built in memory.
    """

    facts: Mapping[str, Any]
    records: Mapping[str, Record]
    failed: Mapping[str, Record] = field(default_factory=dict)
    beyond: Mapping[str, Record] = field(default_factory=dict)
    folder: Path | None = None

    @classmethod
    def read(cls, folder: Path) -> Run:
        """Read a run from its folder.

        Raises
        ------
        RecordError
            The folder holds no run, or its files cannot be read, or `run.json` lacks a field that every run has.
        """
        facts = read_run(folder)
        if lacking := [name for name in ("checkpoint", "method", "task") if name not in facts]:
            raise RecordError(f"{folder / 'run.json'}: lacks the field {lacking[0]!r}")
        if not isinstance(facts.get("identity", {}), dict):
            raise RecordError(f"{folder / 'run.json'}: its 'identity' is not a JSON object")
        if not all(isinstance(id_, str) for id_ in facts.get("samples") or ()):
            raise RecordError(f"{folder / 'run.json'}: its 'samples' must be a list of texts")
        by_id = read_records(folder) if (folder / "samples.jsonl").exists() else {}
        wanted = dict.fromkeys(map(str, facts.get("samples", by_id)))
        records = [by_id[id_] for id_ in wanted if id_ in by_id]
        answered, failed = (
            {record.id: record for record in records if record.answered is fine} for fine in (True, False)
        )
        beyond = {id_: record for id_, record in by_id.items() if record.answered and id_ not in wanted}
        return cls(facts, answered, failed, beyond, folder)

    @cached_property
    def whole(self) -> Run:
        """This run with all answered samples in its folder, including samples that only earlier calls selected.

        So a later call with fewer samples does not remove samples from comparisons.
        """
        if not self.beyond:
            return self
        return Run(self.facts, {**self.records, **self.beyond}, self.failed, folder=self.folder)

    @property
    def key(self) -> str:
        """Key of the task, such as `tau` or `lalm/clotho`."""
        return str(self.facts["task"])

    @cached_property
    def task(self) -> Task | None:
        """The task of the run; None if it belongs to a plug-in that is not installed."""
        try:
            return get_task(self.key)
        except AudioMarathonError:
            return None

    @property
    def identity(self) -> Mapping[str, Any]:
        """The facts on which the run's records depend (data, checkpoint, setting, …), from `run.json`."""
        return self.facts.get("identity") or {}

    @property
    def checkpoint(self) -> str:
        """Name of the model's checkpoint."""
        return checkpoint_of(self.facts)

    @property
    def method(self) -> str:
        """Label of the method with its settings, such as `random-0.9-layer2`."""
        return str(self.facts["method"])

    @property
    def expected(self) -> int:
        """Number of samples that the last call of the command selected."""
        return len(self.facts.get("samples", self.records))

    @property
    def control(self) -> str:
        """Kind of audio control ("silence", "30s audio"), or "" for the real audio."""
        control = self.facts.get("control") or {}
        length = f"{control['seconds']:g}s " if control.get("seconds") else ""
        return f"{length}{control.get('kind', '')}".strip()

    @cached_property
    def verdicts(self) -> Mapping[str, Verdict]:
        """The verdicts of the installed version's scorer, as {sample's id: verdict}.

        Samples that cannot be scored are left out, with a warning.

        Raises
        ------
        SettingsError
            The task belongs to a plug-in that is not installed.
        """
        scorer, failures = get_task(self.key).scorer, list[str]()
        verdicts = judged(
            scorer, self.records.values(), self.folder, lambda record, why: failures.append(f"{record.id}: {told(why)}")
        )
        if failures:
            cannot = counted(len(failures), "sample")
            warnings.warn(f"{self.folder}: {cannot} cannot be scored ({failures[0]}); left out", stacklevel=2)
        return verdicts

    @cached_property
    def summary(self) -> Mapping[str, Any] | None:
        """The content of `summary.json`, computed again if the records or the scorer have changed since it was written.

        None if the file is missing, or does not cover the run's samples: after a killed run, it may be the summary of
        an earlier run with fewer samples.
        """
        if self.folder is None or not (self.folder / "summary.json").exists():
            return None
        try:
            content = read_summary(self.folder)
        except RecordError as error:
            again = "the run counts as unfinished; audiomarathon score writes the file again"
            warnings.warn(f"{error}; {again}", stacklevel=2)
            return None
        answered = content.get("n", 0) + content.get("unscored", 0)
        if (content.get("expected"), answered) != (self.expected, len(self.records)):
            return None
        records = [*self.records.values(), *self.failed.values()]
        if self.task is None or content.get("records") == fingerprint_of(self.task.scorer, records):
            return content
        return summarise(self.task, self.facts, records, self.verdicts)

    def check_finished(self) -> Mapping[str, Any]:
        """Return the summary; raise :class:`RecordError` if the run is not finished."""
        if self.summary is None:
            raise RecordError(f"{self.folder} is not finished; run the same command again, or audiomarathon score")
        return self.summary

    @cached_property
    def sums(self) -> Sums:
        """The metrics of this run, such as macro-F1, as sums over its samples, ordered by sample id.

        Tests and intervals resample the sums: see :class:`~audiomarathon.metrics.statistics.Sums`.
        """
        return sums_of(get_task(self.key).scorer, [self.verdicts[id_] for id_ in sorted(self.verdicts)])

    @cached_property
    def headline(self) -> Estimate:
        """The score that tables show first, with its interval as in `summary.json` and its value in each bootstrap
        resample.

        The score is NaN, without an interval, if no sample is scored.
        """
        scorer = get_task(self.key).scorer
        if not self.verdicts:
            return Estimate(math.nan, None)
        return Resampler(self.seed).of_sums(sums_of(scorer, list(self.verdicts.values())))[scorer.figure.name]

    @property
    def seed(self) -> int:
        """The run's seed (setting SEED), which also seeds its intervals."""
        return int((self.facts.get("settings") or {}).get("seed", SEED))

    @cached_property
    def cost(self) -> Cost | None:
        """The sizes of the model, from which FLOPs are computed; None if the run did not record them."""
        return Cost.read(self.facts["cost"]) if self.facts.get("cost") else None

    @cached_property
    def drops(self) -> Drops | None:
        """Where the method drops audio tokens, and which fraction, as :class:`Drops`; None if unknown."""
        return Drops(**self.facts["drops"]) if self.facts.get("drops") else None


def run_folders(paths: Sequence[Path]) -> list[Path]:
    """Return the run folders in or under some paths, each only once; sorted within each path.

    Folders that the command `reproduce` wrote are left out, unless a path names one.

    Raises
    ------
    RecordError
        A path is not a folder, or none of the paths holds a run.
    """
    folders: dict[Path, Path] = {}
    for path in paths:
        if not path.is_dir():
            raise RecordError(f"{path}: no such folder")
        root = path.absolute()
        for folder in sorted(
            (directory for directory in walk(root) if holds_run(directory.path)), key=lambda run_folder: run_folder.path
        ):
            apart = any(part.startswith(REPRODUCED) for part in folder.path.relative_to(root).parts)
            if not apart:
                folders.setdefault(folder.path.resolve(), folder.path)  # by target: a link to a run is not a second run
    if not folders:
        raise RecordError(f"{', '.join(map(str, paths))}: no run there (no run.json in or under it)")
    return list(folders.values())


def holds_run(folder: Path) -> bool:
    """Tell whether a folder is a run folder: it has a `run.json` or at least records."""
    file = folder / "samples.jsonl"
    return (folder / "run.json").exists() or (file.exists() and file.stat().st_size > 0)


@contextmanager
def uncollected() -> Iterator[None]:
    """Inside the block, turn off Python's cyclic garbage collector.

    The collector would look through all records again and again, though records hold no cycles.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


@uncollected()
def read_runs(paths: Sequence[Path], beside: Callable[[Path], Path | None] = lambda _folder: None) -> list[Run]:
    """Read the runs in or under folders. Skip a damaged run with a warning, unless `paths` names its own folder.

    Parameters
    ----------
    beside
        Function that is called with each run's folder, and returns the folder of a further run to read, such as a
        control to compare it with, or None.

    Raises
    ------
    RecordError
        There is no run, or a run whose path was given is damaged.
    """
    folders = run_folders(paths)
    known = {folder.resolve(): folder for folder in folders}
    for folder in folders:
        if (more := beside(folder)) is not None:
            known.setdefault(more.resolve(), more)
    return list(readable(paths, known.values(), Run.read))


def readable(paths: Sequence[Path], folders: Iterable[Path], read: Callable[[Path], _T]) -> Iterator[_T]:
    """Call `read` on each run folder and yield its result. Skip a damaged run with a warning, unless it is in `paths`.

    Raises
    ------
    RecordError
        A run in `paths` is damaged.
    """
    named = {path.resolve() for path in paths}
    for folder in folders:
        try:
            yield read(folder)
        except RecordError as error:
            if folder.resolve() in named:
                raise
            warnings.warn(f"left out: {error}", stacklevel=2)
