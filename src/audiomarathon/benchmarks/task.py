"""The interface of tasks: a task has samples, prompts, and a scorer of the replies.

Predicting and scoring are two steps: a scorer gets a stored reply and the record's reference, never a model, so a run
can be scored again years later on a laptop.
"""

from __future__ import annotations

import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from audiomarathon.errors import DataError
from audiomarathon.records import LETTERS, Verdict
from audiomarathon.scoring.scorer import Scorer, cells, sums_of
from audiomarathon.settings import SEED

if TYPE_CHECKING:
    import pandas as pd

    from audiomarathon.audio.decode import Samples

#: Reason in :attr:`Loaded.left_out` for samples whose clip the published data is known to lack.
KNOWN_GAPS = "known gaps of the published data"


def storable(text: str) -> str:
    """Make a text storable in UTF-8: lone surrogates, from file names that are not UTF-8, become escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def name_id(name: str) -> str:
    """Return the sample id for a file or row with this name; it is the same in a run and in an import.

    White space stays as it is, since it tells names apart (Clotho has names that begin with a space). Accents are
    composed (NFC), since file systems and tables write the same name in two forms.
    """
    return storable(unicodedata.normalize("NFC", name))


@dataclass(frozen=True)
class Sample:
    """One question about one or more clips.

    Attributes
    ----------
    id
        Stable and unique within its task; it does not depend on where the data root lies.
    clips
        Absolute paths of the audio, in the order in which the prompt presents them.
    question
        The task's question, without options and without instruction.
    options
        Texts of the options in the order A, B, …; empty for open tasks.
    labels
        Class of each option (`"metro_station"`), for macro-F1. If options are not classes (reading comprehension), the
        letters are the labels.
    answer
        Letter of the right option, "" if none is right; for open tasks the reference text.
    cluster
        Name of the speaker, person, location or clip that makes samples dependent on each other. Intervals resample
        whole clusters.
    bundle
        Samples of one bundle belong together: a limited run takes all of them or none. "" for a single sample.
    kind
        Category for balancing a limited run if options are not classes, such as the kind of question.
    meta
        Further facts of the sample, JSON-compatible, such as the onset of the event that decides the answer.
    row
        Number of its row among the rows of the task's files, from 1; 0 if the task has no rows.
    """

    id: str
    clips: tuple[Path, ...]
    question: str
    answer: str
    cluster: str
    options: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    bundle: str = ""
    kind: str = ""
    row: int = field(default=0, compare=False)

    @property
    def stratum(self) -> str:
        """Category for balancing a limited run: the kind, else the label of the right option, else ""."""
        return self.kind or (self.labels[LETTERS.index(self.answer)] if self.options else "")

    @property
    def event(self) -> tuple[float, float] | None:
        """Onset and length (seconds) of the event in the first clip that decides the answer; None if unknown."""
        onset, length = self.meta.get("event_onset"), self.meta.get("event_seconds")
        return None if onset is None else (float(onset), float(length or 1.0))

    @property
    def right(self) -> str:
        """The right answer as text for readers: `B. Jazz`, or a reference text; "none" if no option is right."""
        if not self.options or not self.answer:
            return self.answer or "none"
        return f"{self.answer}. {self.options[LETTERS.index(self.answer)]}"


@dataclass(frozen=True)
class BadRow:
    """A row of metadata that cannot become a sample: its file, its number (from 1; 0: the whole file), the reason."""

    file: Path
    row: int
    reason: str

    def __str__(self) -> str:
        where = f"{self.file}, row {self.row}" if self.row else str(self.file)
        return storable(f"{where}: {self.reason}")


@dataclass(frozen=True)
class Loaded:
    """A task's samples, sorted by id, with the rows that cannot become samples, and counts of left-out samples.

    Attributes
    ----------
    folder
        The task's own folder, found under the data root.
    left_out
        Number of samples left out for each reason, as {reason: number}: a setting (`SKIP_PERSONS`, `BALANCE`), or a
        clip that the published data is known to lack.
    defects
        Number of samples with each known defect of the data; these samples are used all the same.
    gaps
        Names of the clips that the published data is known to lack; `left_out` counts their samples.
    limited
        Function that returns the ids of a limited run from its limit and seed, for a task to which
        :func:`~audiomarathon.benchmarks.selection.select` does not apply; else None.
    """

    folder: Path
    samples: tuple[Sample, ...]
    bad_rows: tuple[BadRow, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    defects: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    gaps: tuple[str, ...] = ()
    limited: Callable[[int, int], Sequence[str]] | None = None


@dataclass(frozen=True)
class Part:
    """The samples of a task that :meth:`Task.write_rows` writes into another folder, and changes to their rows.

    Attributes
    ----------
    loaded
        The task's data.
    kept
        The samples to write.
    changes
        Fields to set in samples' rows, as {sample's id: {field: value}}; the value None removes a field.
    paths
        Paths of samples' clips in the target folder, as {sample's id: paths}; by default as in the task's folder.
    """

    loaded: Loaded
    kept: Sequence[Sample]
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: MappingProxyType({}))
    paths: Mapping[str, Sequence[str]] = field(default_factory=lambda: MappingProxyType({}))

    def clips(self, sample: Sample) -> list[str]:
        """Return the paths of a sample's clips in the target folder, in order."""
        return list(self.paths.get(sample.id) or (relative(self.loaded, clip) for clip in sample.clips))

    def path(self, sample: Sample) -> str:
        """Return the path of a sample's only clip in the target folder."""
        return self.clips(sample)[0]

    def row(self, sample: Sample, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a sample's row with its `changes` applied; a field changed to None is left out."""
        changes = self.changes.get(sample.id, {})
        both = {**fields, **changes}
        return {name: value for name, value in both.items() if name not in changes or value is not None}


@dataclass(frozen=True)
class Variation:
    """How one sample is changed in a control variant (an altered copy of its task's data).

    Attributes
    ----------
    audio
        Function that makes audio of the same length from a clip's audio and sampling rate. None removes the clip.
    fields
        Fields to set in the sample's row; `controls.jsonl` repeats them.
    """

    audio: Callable[[Samples, int], Samples] | None
    fields: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


def relative(loaded: Loaded, clip: Path) -> str:
    """Return a clip's path within its task's folder."""
    return clip.relative_to(loaded.folder).as_posix()


@dataclass(frozen=True)
class Filters:
    """Settings that decide which of a task's samples a run uses.

    Attributes
    ----------
    skip_persons, skip_emotion, balance, seed
        Values of the settings of the same names (`SKIP_PERSONS`, …), which leave samples out; by default none.
    split
        Part of the data; "" is the task's default.
    prompt
        Name of one of the task's prompts; "" is the default.
    """

    skip_persons: tuple[str, ...] = ()
    skip_emotion: str = ""
    balance: bool = False
    seed: int = SEED
    split: str = ""
    prompt: str = ""


class Task(ABC):
    """One task of a benchmark. Instances hold no state; a task is one small file.

    Attributes
    ----------
    key
        Name on the command line, and folder of its results: `tau`, or `lalm/clotho` for a task of another benchmark.
    aliases
        Other names on the command line.
    title
        One line about the task.
    max_new_tokens
        Token limit of a reply.
    scorer
        Scores the replies.
    transcribes
        Whether the model is asked only for a transcript; some families have a special prompt for that.
    language
        Language of the speech, as a code of ISO 639-1; models that transcribe may need it.
    cuttable
        Whether the answer stays right for a part of a clip, so that `data controls` may shorten clips.
    own_controls
        Names of controls (altered copies of the data) of this task only, besides those that `data controls` makes for
        every task.
    own_command
        Command that runs the task, if `audiomarathon run` cannot, since its records are not replies of models. The
        benchmark with this command also compares and reports its runs.
    download
        Size and licence of the task's data, if `data download` fetches them from a separate source.
    group_fields
        Fields of `Sample.meta` that every record stores, so that figures by group need no data.
    version
        Version of the data, and the published scoring rule if there is one. Runs of different versions are not mixed.
    source
        How to get the data, in the imperative; "" if `data download` fetches it.
    """

    key: str
    aliases: tuple[str, ...] = ()
    title: str
    max_new_tokens: int
    scorer: Scorer
    transcribes: bool = False
    language: str = "en"
    cuttable: bool = True
    own_controls: tuple[str, ...] = ()
    own_command: str = ""
    download: tuple[str, ...] = ()
    group_fields: tuple[str, ...] = ()
    version: str = ""
    source: str = ""

    @property
    def owner(self) -> Task:
        """The task whose data folder this task reads: itself, unless its samples ask about another task's clips."""
        return self

    @abstractmethod
    def find(self, root: Path) -> Path:
        """Return the task's folder under a data root, or raise :class:`~audiomarathon.errors.DataError`."""

    @abstractmethod
    def load(self, folder: Path, filters: Filters = Filters()) -> Loaded:
        """Read every row in the task's folder as a sample.

        Rows that cannot become samples are reported in the result.
        """

    @abstractmethod
    def prompt(self, sample: Sample) -> str:
        """Return the prompt for a sample as plain text; the model family adds its chat template."""

    def write_rows(self, part: Part, target: Path) -> None:  # noqa: ARG002
        """Write the metadata of the given samples (`part.kept`) into the folder `target`; the caller writes the clips.

        Raises
        ------
        DataError
            The task cannot be written, such as a plug-in's task that lacks this method.
        """
        raise DataError(f"{self.key}: this task cannot be written: its package lacks the method Task.write_rows")

    def vary(self, loaded: Loaded, control: str) -> Mapping[str, Variation]:  # noqa: ARG002
        """Return how a control changes each sample, as {sample's id: change}.

        A control is an altered copy of the data; `control` is one of `own_controls`. Samples of one clip need equal
        changes, because the clip is changed once for all of them.
        """
        raise DataError(f"{self.key}: has no control {control!r}; its own: {', '.join(self.own_controls) or 'none'}")

    def reference(self, sample: Sample) -> dict[str, Any]:
        """Return what scoring needs to know about a sample: {"answer": …}, and `options` and `labels` if it has
        options.

        The record of the sample stores it, so that scoring needs no data.
        """
        if not sample.options:
            return {"answer": sample.answer}
        return {"answer": sample.answer, "options": list(sample.options), "labels": list(sample.labels)}

    def corpus(self, loaded: Loaded) -> Sequence[Sequence[str]]:  # noqa: ARG002
        """Return the reference texts of every sample of the task, if the scorer weights words by them; else ().

        A run's records would not do, since they hold only the references of samples that ran.
        """
        return ()

    def too_few(self, loaded: Loaded) -> str:
        """Return why the data have too few samples to be scored; "" if they have enough."""
        few = len(self.corpus(loaded)) == 1
        return "has 1 item; CIDEr-D needs the references of at least 2 items to weigh words" if few else ""

    def groups(self, sample: Sample) -> dict[str, str] | None:
        """Return the values of `group_fields` by which reports group a sample, as {field: value}; None without any."""
        return {name: str(sample.meta.get(name, "")) for name in self.group_fields} or None

    def frames(self, verdicts: Mapping[str, Sequence[Verdict]]) -> Mapping[str, pd.DataFrame]:
        """Return tables for the task's section of the report, as {title: table}.

        The tables are those of the scorer, and one of the headline score for each field that groups samples.

        Parameters
        ----------
        verdicts
            The verdicts of each setting, as {setting: verdicts}.
        """
        groups = {
            f"{self.scorer.figure.title} by {name}": _by_group(self.scorer, verdicts, name)
            for name in self.group_fields
        }
        return {**self.scorer.frames(verdicts), **groups}


def _by_group(scorer: Scorer, verdicts: Mapping[str, Sequence[Verdict]], name: str) -> pd.DataFrame:
    """Return a table of the headline score, with its interval, by group of samples; it has one row per setting.

    Samples with the same value of the field `name` are a group.
    """
    import pandas as pd

    from audiomarathon.metrics.statistics import Resampler

    rows = []
    for setting, of_setting in verdicts.items():
        row: dict[str, Any] = {"setting": setting}
        groups: dict[str, list[Verdict]] = {}
        for verdict in of_setting:
            groups.setdefault((verdict.record.groups or {}).get(name) or "none", []).append(verdict)
        for group, members in sorted(groups.items()):
            figure = Resampler(SEED).of_sums(sums_of(scorer, members))[scorer.figure.name]
            row |= cells(group, figure) | {f"{group}_said": f"n {len(members)}"}
        rows.append(row)
    return pd.DataFrame(rows, dtype=object)
