"""What a task is: where its samples come from, what the model is asked, and by which scorer replies are judged.

Predicting and scoring are two steps: a scorer sees a stored reply and the record's own reference, never a model, so a
run can be scored again years later on a laptop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from audiomarathon.errors import DataError
from audiomarathon.records import LETTERS, Verdict
from audiomarathon.scoring.scorer import Scorer, sums_of

if TYPE_CHECKING:
    import pandas as pd

    from audiomarathon.audio.decode import Samples

_SEED = 42  # of the intervals of groups


def storable(text: str) -> str:
    """Return a text that UTF-8 can hold: a file name's bytes that are no text (lone surrogates) become escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


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
        For each option the class it stands for (`"metro_station"`), by which macro-F1 is averaged. Tasks whose options
        are no classes (reading comprehension) use the letters themselves.
    answer
        The letter of the right option, "" where none is right; for open tasks the reference text.
    cluster
        What makes samples dependent: the speaker, person, location or clip. Intervals resample whole clusters.
    bundle
        Samples of one bundle only count together: a limited run takes all of them, or none. "" stands alone.
    kind
        By what a limited run is balanced where options are no classes, such as the kind of question.
    meta
        Whatever else the data says about the sample, JSON-compatible (onset of the deciding event, for one).
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

    @property
    def stratum(self) -> str:
        """The class by which a limited run is balanced: the kind, else the label of the right option, else ""."""
        return self.kind or (self.labels[LETTERS.index(self.answer)] if self.options else "")

    @property
    def event(self) -> tuple[float, float] | None:
        """Onset and length of what decides the answer, in seconds of the first clip; None where that is not known."""
        onset, length = self.meta.get("event_onset"), self.meta.get("event_seconds")
        return None if onset is None else (float(onset), float(length or 1.0))

    @property
    def right(self) -> str:
        """The right answer for a reader: `B. Jazz`, or a text; "none" where no option is right."""
        if not self.options or not self.answer:
            return self.answer or "none"
        return f"{self.answer}. {self.options[LETTERS.index(self.answer)]}"


@dataclass(frozen=True)
class BadRow:
    """A row of a task's data that cannot become a sample: which file, which row (1-based; 0 = the file), why."""

    file: Path
    row: int
    reason: str

    def __str__(self) -> str:
        where = f"{self.file}, row {self.row}" if self.row else str(self.file)
        return storable(f"{where}: {self.reason}")


@dataclass(frozen=True)
class Loaded:
    """A task's samples, sorted by id, beside what could not be loaded and what a setting left out.

    Attributes
    ----------
    folder
        The task's own folder, found under the data root.
    left_out
        For each setting that removes samples (`SKIP_PERSONS`, `BALANCE`) how many it removed.
    defects
        By name how many samples have a defect of the data under which they are used all the same.
    """

    folder: Path
    samples: tuple[Sample, ...]
    bad_rows: tuple[BadRow, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    defects: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True)
class Part:
    """Some samples of a task, to be written into another folder in the task's own format.

    Attributes
    ----------
    kept
        The samples.
    changes
        By sample the fields to set in its row; None takes a field away.
    paths
        By sample, where each of its clips lies in the target; default: where it lies in the task's folder.
    """

    loaded: Loaded
    kept: Sequence[Sample]
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: MappingProxyType({}))
    paths: Mapping[str, Sequence[str]] = field(default_factory=lambda: MappingProxyType({}))

    def clips(self, sample: Sample) -> list[str]:
        """Return where a sample's clips lie in the target, in their order."""
        return list(self.paths.get(sample.id) or (relative(self.loaded, clip) for clip in sample.clips))

    def path(self, sample: Sample) -> str:
        """Return where a sample's only clip lies in the target."""
        return self.clips(sample)[0]

    def row(self, sample: Sample, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return a sample's fields with its changes."""
        changes = self.changes.get(sample.id, {})
        both = {**fields, **changes}
        return {name: value for name, value in both.items() if name not in changes or value is not None}


@dataclass(frozen=True)
class Variation:
    """A sample under one of its task's own controls.

    Attributes
    ----------
    audio
        Makes the audio from the clip's samples and their rate, as long as it was; None: the sample has no clip.
    fields
        To set in the sample's row; `controls.jsonl` repeats them.
    """

    audio: Callable[[Samples, int], Samples] | None
    fields: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


def relative(loaded: Loaded, clip: Path) -> str:
    """Return where a clip lies in its task's folder."""
    return clip.relative_to(loaded.folder).as_posix()


@dataclass(frozen=True)
class Filters:
    """Settings that decide what a task's samples are.

    Attributes
    ----------
    skip_persons, skip_emotion, balance, seed
        What is left out; off by default.
    split
        Part of the data; "" is the task's default.
    prompt
        Which of the task's prompts; "" is its default.
    """

    skip_persons: tuple[str, ...] = ()
    skip_emotion: str = ""
    balance: bool = False
    seed: int = 42
    split: str = ""
    prompt: str = ""


class Task(ABC):
    """One task of a benchmark. Instances hold no state; a task is one small file.

    Attributes
    ----------
    key
        What users type, and the folder of its results: `tau`, or `lalm/clotho` for a task of another benchmark.
    aliases
        Other names that users type.
    title
        What the model does.
    max_new_tokens
        Token limit of a reply.
    scorer
        Judges the replies.
    transcribes
        Whether the model is asked for a transcript and nothing else, for which some families have a form of their own.
    cuttable
        Whether a part of a clip still has a right answer, so that `data controls` may shorten it.
    own_controls
        Controls of this task alone, beside those that `data controls` makes of every task.
    probed
        Whether encoders are probed on it, and no model is asked.
    group_fields
        Which of `Sample.meta` go into every record, so that figures can be broken down by them without the data.
    version
        Of the data and its published rule, where they have one: runs of two versions do not mix.
    source
        How to get the data, in the imperative; "" where `data download` knows, or nobody.
    """

    key: str
    aliases: tuple[str, ...] = ()
    title: str
    max_new_tokens: int
    scorer: Scorer
    transcribes: bool = False
    cuttable: bool = True
    own_controls: tuple[str, ...] = ()
    probed: bool = False
    group_fields: tuple[str, ...] = ()
    version: str = ""
    source: str = ""

    @abstractmethod
    def find(self, root: Path) -> Path:
        """Return the task's folder under a data root, or raise :class:`~audiomarathon.errors.DataError`."""

    @abstractmethod
    def load(self, folder: Path, filters: Filters = Filters()) -> Loaded:
        """Read every row under the task's own folder; bad rows are reported, never silently dropped."""

    @abstractmethod
    def prompt(self, sample: Sample) -> str:
        """Return what the model is asked, as plain text; the model family wraps it in its chat template."""

    def write_rows(self, part: Part, target: Path) -> None:  # noqa: ARG002
        """Write the metadata of some samples into a folder; clips are the caller's to put there.

        Raises
        ------
        DataError
            The task does not say how: a third party's, for one.
        """
        raise DataError(f"{self.key}: a third party's task, whose files only its package can write")

    def vary(self, loaded: Loaded, control: str) -> Mapping[str, Variation]:  # noqa: ARG002
        """Return every sample, by id, under one of `own_controls`; samples of one clip share its audio."""
        raise DataError(f"{self.key}: has no control {control!r}")

    def reference(self, sample: Sample) -> dict[str, Any]:
        """Return what scoring needs to know of a sample; it is stored in the record so that scoring needs no data."""
        if not sample.options:
            return {"answer": sample.answer}
        return {"answer": sample.answer, "options": list(sample.options), "labels": list(sample.labels)}

    def corpus(self, loaded: Loaded) -> Sequence[Sequence[str]]:  # noqa: ARG002
        """Return the reference texts of each item of the whole data, where the scorer weighs words by them."""
        return ()

    def groups(self, sample: Sample) -> dict[str, str] | None:
        """Return by what a sample's record can be told from others; None where the task names no such fields."""
        return {name: str(sample.meta.get(name, "")) for name in self.group_fields} or None

    def frames(self, verdicts: Mapping[str, Sequence[Verdict]]) -> Mapping[str, pd.DataFrame]:
        """Return tables of the task's own section of the page, by title: its scorer's, and the score by each group.

        Parameters
        ----------
        verdicts
            By the name of the setting.
        """
        groups = {
            f"{self.scorer.figure.title} by {name}": _by_group(self.scorer, verdicts, name)
            for name in self.group_fields
        }
        return {**self.scorer.frames(verdicts), **groups}


def _by_group(scorer: Scorer, verdicts: Mapping[str, Sequence[Verdict]], name: str) -> pd.DataFrame:
    """Return the headline of each group of samples, with its interval, a row a setting."""
    import pandas as pd

    from audiomarathon.metrics.statistics import Resampler

    rows = []
    for setting, own in verdicts.items():
        row: dict[str, Any] = {"setting": setting}
        groups: dict[str, list[Verdict]] = {}
        for one in own:
            groups.setdefault((one.record.groups or {}).get(name) or "none", []).append(one)
        for group, members in sorted(groups.items()):
            figure = Resampler(_SEED).of_sums(sums_of(scorer, members))[scorer.figure.name]
            low, high = figure.interval or (None, None)
            row |= {
                group: figure.value,
                f"{group}_low": low,
                f"{group}_high": high,
                f"{group}_said": f"n {len(members)}",
            }
        rows.append(row)
    return pd.DataFrame(rows, dtype=object)
