"""What a task is: where its samples come from, what the model is asked, how a reply is judged.

Predicting and scoring are two steps: :meth:`Task.score` sees a stored reply and the record's own reference, never a
model, so a run can be scored again years later on a laptop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from audiomarathon.metrics.statistics import Sums

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


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
        The letter of the right option; for transcription the reference text.
    cluster
        What makes samples dependent: the speaker, person, location or clip. Intervals resample whole clusters.
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

    @property
    def stratum(self) -> str:
        """The class by which a limited run is balanced: the label of the right option, or "" for open tasks."""
        return self.labels[LETTERS.index(self.answer)] if self.options else ""


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
    """

    folder: Path
    samples: tuple[Sample, ...]
    bad_rows: tuple[BadRow, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True)
class Filters:
    """Settings that leave samples out, off by default."""

    skip_persons: tuple[str, ...] = ()
    skip_emotion: str = ""
    balance: bool = False
    seed: int = 42


class Task(ABC):
    """One of the benchmark's tasks. Instances hold no state; a task is one small file under `tasks/`.

    Class attributes say what the published table says: `key` (folder-safe name), `aliases` (other names users type),
    `title` (what the model does), `acronym` (the paper's), `group` (`"speech content"`, `"audio classification"` or
    `"speaker"`), `count` and `seconds` (expected samples and clip duration range), `max_new_tokens`, `headline`
    (`"macro_f1"` or `"wer"`), and `transcription` (whether its prompt asks for a transcript).
    """

    key: str
    aliases: tuple[str, ...] = ()
    title: str
    acronym: str
    group: str
    count: int
    seconds: tuple[float, float]
    max_new_tokens: int
    headline: str
    transcription: bool = False

    @abstractmethod
    def find(self, root: Path) -> Path:
        """Return the task's folder under a data root, or raise :class:`~audiomarathon.errors.DataError`."""

    @abstractmethod
    def load(self, folder: Path, filters: Filters = Filters()) -> Loaded:
        """Read every row under the task's own folder; bad rows are reported, never silently dropped."""

    @abstractmethod
    def prompt(self, sample: Sample) -> str:
        """Return what the model is asked, as plain text; the model family wraps it in its chat template."""

    @abstractmethod
    def score(self, reply: str, reference: Mapping[str, Any]) -> dict[str, Any]:
        """Judge one stored reply.

        Parameters
        ----------
        reply
            The model's text, raw.
        reference
            What :meth:`reference` returned for the sample, as stored in its record.

        Returns
        -------
        dict
            The verdict's fields of the record. Choice: `parsed` (a letter or None), `rule`, `correct`, `strict`.
            Transcription: `errors`, `words`, `substitutions`, `deletions`, `insertions`, `insertion_loop`.
        """

    @abstractmethod
    def summarise(self, records: Sequence[Mapping[str, Any]], *, seed: int = 42) -> dict[str, Any]:
        """Turn scored records (without error records) into the metrics of `summary.json`."""

    def sums(self, records: Sequence[Mapping[str, Any]]) -> Sums | None:  # noqa: ARG002
        """Return the metrics of scored records as sums over samples, for paired comparisons; None: none are made.

        Figures are named as in `summary.json`; `headline` is to be among them.
        """
        return None

    def published_sums(self, records: Sequence[Mapping[str, Any]]) -> Sums | None:  # noqa: ARG002
        """Return the score as the benchmark's release counted it, as sums; None for tasks that it did not have."""
        return None

    def reference(self, sample: Sample) -> dict[str, Any]:
        """Return what scoring needs to know of a sample; it is stored in the record so that scoring needs no data."""
        if not sample.options:
            return {"answer": sample.answer}
        return {"answer": sample.answer, "options": list(sample.options), "labels": list(sample.labels)}
