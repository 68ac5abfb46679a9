"""Base of the nine tasks with lettered options: turn metadata rows into samples, and make the prompt."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from audiomarathon.benchmarks.locate import nearest, the_one
from audiomarathon.benchmarks.rows import (
    MissingClipError,
    Row,
    RowError,
    class_of,
    collect,
    one_line_each,
    read_json,
    read_rows,
    shortened,
    shown,
    words_of,
    write_ascii,
)
from audiomarathon.benchmarks.task import KNOWN_GAPS, Filters, Loaded, Part, Sample, Task
from audiomarathon.records import LETTERS
from audiomarathon.scoring.choice import Choice

INSTRUCTION = "Listen to the audio and answer with the letter of the correct option only."


class MultipleChoice(Task):
    """A task of questions with lettered options, read from one metadata file; a subclass turns a row into a sample.

    Attributes
    ----------
    metadata_file
        Name of the metadata file, by which the task's folder is found.
    rows_key
        Field that holds the rows, if the file's top level is an object; None if it is a list.
    classes
        Names of the classes, as in `Sample.labels`; empty if options are not classes.
    option_count
        Number of options in every row.
    known_gaps
        Names of clips that the published metadata names, but the published data lacks.
    one_class_a_clip
        Whether a clip has exactly one class. If a clip may have several, a row's label that matches no option does not
        contradict the answer.
    """

    metadata_file: ClassVar[str] = ""
    rows_key: ClassVar[str | None] = None
    classes: ClassVar[tuple[str, ...]] = ()
    option_count: ClassVar[int] = 4
    known_gaps: ClassVar[frozenset[str]] = frozenset()
    one_class_a_clip: ClassVar[bool] = True
    max_new_tokens = 16
    scorer = Choice()

    @abstractmethod
    def sample(self, row: Row) -> Sample:
        """Turn one metadata row into a sample, or raise :class:`RowError` with the reason."""

    def label(self, option: str) -> str:
        """Return the class that an option's text stands for."""
        return class_of(option, self.classes)

    def left_out_by(self, sample: Sample, filters: Filters) -> str:
        """Return the name of the setting that leaves this sample out, or "" to keep it."""
        del sample, filters
        return ""

    def known_gap(self, row: Row, name: str) -> str:  # noqa: ARG002
        """Return the name under which `known_gaps` lists a row's missing clip, the file `name`; "" if it does not.

        Known gaps are clips that the published metadata names, but the published data lacks.
        """
        return name if name in self.known_gaps else ""

    def find(self, root: Path) -> Path:
        """Return the folder nearest to the root that has the metadata file."""
        folders = nearest(root, lambda folder: self.metadata_file in folder.files)
        return the_one(self, root, folders, self.metadata_file)

    def load(self, folder: Path, filters: Filters = Filters()) -> Loaded:
        """Read the metadata file's rows as samples; bad rows, and samples that settings leave out, are counted."""
        folder = folder.absolute()
        file = folder / self.metadata_file
        gaps = list[str]()

        def to_sample(row: Row) -> Sample | None:
            try:
                return self.sample(row)
            except MissingClipError as error:
                if not (gap := self.known_gap(row, error.name)):
                    raise
                gaps.append(gap)
                return None

        samples, bad = collect(file, folder, read_rows(file, self.rows_key), to_sample)
        kept, left_out = [], {KNOWN_GAPS: len(gaps)} if gaps else dict[str, int]()
        for sample in samples:
            if setting := self.left_out_by(sample, filters):
                left_out[setting] = left_out.get(setting, 0) + 1
            else:
                kept.append(sample)
        return Loaded(folder, tuple(kept), tuple(bad), left_out, gaps=tuple(gaps))

    def build(
        self,
        row: Row,
        clip: Path,
        options: Sequence[str] = (),
        answer: str = "",
        *,
        identifier: str = "",
        cluster: str = "",
        own_label: str = "",
        meta: Mapping[str, Any] | None = None,
    ) -> Sample:
        """Make a sample from a row's facts, after checking them; raise :class:`RowError` if they are wrong.

        Parameters
        ----------
        row, clip
            The row and its clip.
        options
            Texts of the options. Default: the row's `choice_a`, `choice_b` and so on.
        answer
            The answer as written: a letter or an option's text. Default: the row's `answer_gt`.
        identifier
            The sample's id. Default: the row's `uniq_id`, else the clip's path.
        cluster
            Name of the sample's cluster; samples that are not independent share one. Default: the clip's path.
        own_label
            Name of the row's field that states the clip's class. That class must not contradict the answer.
        meta
            Further entries of `Sample.meta`, besides the time of the event that decides the answer.
        """
        options, answer = options or row.lettered(), answer or row.text("answer_gt")
        if len(options) != self.option_count:
            raise RowError(f"has {len(options)} options, expected {self.option_count}")
        one_line_each(options)
        labels = tuple(self.label(option) for option in options) if self.classes else tuple(LETTERS[: len(options)])
        if len(set(labels)) < len(labels):
            twice = next(label for label in labels if labels.count(label) > 1)
            raise RowError(f"two of the options {_listed(options)} stand for the same class {shown(twice)}")
        letter = self._letter(answer, options)
        written = row.optional(own_label) if own_label else ""
        own_class, right = self.label(written), LETTERS.index(letter)
        if written and own_class != labels[right] and (self.one_class_a_clip or own_class in labels):
            text = shortened(options[right])
            raise RowError(f"{own_label} {shown(written)} contradicts the answer {shown(answer)} ({text})")
        return Sample(
            id=identifier or row.identifier(clip),
            clips=(clip,),
            question=row.text("question"),
            answer=letter,
            cluster=cluster or row.relative(clip),
            options=tuple(options),
            labels=labels,
            meta={**row.extras("event_onset", "event_seconds"), **(meta or {})},
        )

    def _letter(self, answer: str, options: Sequence[str]) -> str:
        """Return the letter of the right option, for an answer written as a letter or as an option's text."""
        bare = answer.strip(" ().").upper()
        letters = LETTERS[: len(options)]
        if len(bare) == 1 and bare in letters:
            return bare
        same = [letter for letter, option in zip(letters, options, strict=True) if words_of(option) == words_of(answer)]
        if not same and self.classes:
            meant = self.label(answer)
            same = [letter for letter, option in zip(letters, options, strict=True) if self.label(option) == meant]
        if len(same) != 1:
            problem = "matches several" if same else "is none"
            raise RowError(f"answer {shown(answer)} {problem} of the options {_listed(options)}")
        return same[0]

    def write_rows(self, part: Part, target: Path) -> None:
        """Write a metadata file with only the rows of the given samples (`part.kept`) to the folder `target`.

        What the original file holds besides rows is copied unchanged.
        """
        if not self.metadata_file:
            return super().write_rows(part, target)
        file, kept = part.loaded.folder / self.metadata_file, {sample.id: sample for sample in part.kept}
        rows = []
        for fields in read_rows(file, self.rows_key):
            try:
                sample_id = self.sample(Row(part.loaded.folder, fields)).id if isinstance(fields, dict) else ""
            except RowError:
                continue
            if (sample := kept.pop(sample_id, None)) is not None:
                name = "audio_path" if "audio_path" in fields else "path"
                # The original path may rely on the names of folders; this path is relative to the task's folder.
                rows.append(part.row(sample, {**fields, name: part.path(sample)}))
        whole = read_json(file)
        return write_ascii(target / file.name, {**whole, self.rows_key: rows} if self.rows_key else rows)

    def prompt(self, sample: Sample) -> str:
        """Return question, lettered options and instruction, separated by blank lines."""
        return lettered(sample)


def lettered(sample: Sample) -> str:
    """Return a prompt: the question (unless it is spoken), lettered options and instruction, parted by blank lines."""
    return "\n\n".join(filter(None, (sample.question, option_lines(sample), INSTRUCTION)))


def option_lines(sample: Sample) -> str:
    """Return the options with their letters, one per line, such as "A. Jazz"."""
    return "\n".join(f"{letter}. {text}" for letter, text in zip(LETTERS, sample.options, strict=False))


def _listed(options: Sequence[str]) -> str:
    return shortened(", ".join(options))
