"""The interface of a raw corpus: groups of source clips that may be joined, and metadata rows for the joined clips."""

from __future__ import annotations

import csv
import io
import os
import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from audiomarathon.benchmarks.rows import AUDIO_SUFFIXES, natural, read_text
from audiomarathon.errors import DataError
from audiomarathon.files import MAX_OBJECT_BYTES, open_plain, write_json
from audiomarathon.records import LETTERS

Row = dict[str, Any]
DISTRACTORS = 3
AAC_SUFFIXES = (".m4a", ".aac", ".mp4")


@dataclass(frozen=True)
class Source:
    """One clip of a raw corpus, to be joined with others.

    Attributes
    ----------
    path
        The file.
    name
        The file's path within the corpus, used in the manifest.
    facts
        What the corpus states about the clip; copied to the manifest of built clips.
    """

    path: Path
    name: str
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Group:
    """Source clips that may be joined, such as clips of one speaker, of one chapter, or of one scene and place.

    Attributes
    ----------
    name
        Name, unique in the corpus; used in file names.
    sources
        The clips in the order in which they are joined; or a folder, whose clips are listed when they are needed.
    facts
        Facts that all clips of the group share.
    """

    name: str
    sources: Sequence[Source] | Path
    facts: Mapping[str, Any] = field(default_factory=dict)


class Corpus(ABC):
    """A raw corpus, and how to build a task from it.

    A subclass adds command-line options as attributes `Annotated` with typer's `Option`.

    Attributes
    ----------
    task
        Key of the task.
    title
        Name of the corpus.
    layout
        The files that the corpus must have, for the help text.
    example
        Arguments of an example command, for the help text.
    seconds
        Default lengths of the shortest and the longest joined clip.
    rate
        Sampling rate of the output, in Hz.
    gap
        Default silence between two clips, in seconds.
    container
        Format of the joined clips: WAV or FLAC.
    cut
        Whether the last clip may be shortened so that the joined clip has the allowed length.
    shuffled
        Whether clips are joined in a seeded random order.
    spoken
        Whether the audio must first be made by a speech synthesiser, which may fail.
    metadata_file
        Name of the task's metadata file (JSON), or "".
    clip
        Format of a joined clip's path in the task's folder; its fields are the group's `name` and facts, and `index`.
    """

    task: ClassVar[str]
    title: ClassVar[str]
    layout: ClassVar[str]
    example: ClassVar[str]
    seconds: ClassVar[tuple[float, float]]
    rate: ClassVar[int] = 16_000
    gap: ClassVar[float] = 0.25
    container: ClassVar[str] = "WAV"
    cut: ClassVar[bool] = False
    shuffled: ClassVar[bool] = False
    spoken: ClassVar[bool] = False
    metadata_file: ClassVar[str] = ""
    clip: ClassVar[str] = "audio/{name}_{index:04d}.wav"

    def __init__(self, raw: Sequence[Path], seed: int, **options: Any) -> None:
        vars(self).update(options)
        self.roots = [Path(root).absolute() for root in raw]
        self.seed = seed
        #: Settings of this corpus on which the clips' bytes depend.
        self.options: dict[str, Any] = {}
        #: (file, reason) of the files that the reader skipped.
        self.left_out: list[tuple[str, str]] = []

    @abstractmethod
    def groups(self) -> list[Group]:
        """Return the groups of source clips that may be joined, in an order that is the same on every machine."""

    def sources(self, group: Group) -> Sequence[Source]:
        """Return a group's source clips, in the order in which they are joined."""
        if isinstance(group.sources, Path):
            sources = [Source(path, self.name(path)) for path in audio_files(group.sources)]
        else:
            sources = list(group.sources)
        if self.shuffled:
            self.chance("order", group.name).shuffle(sources)
        return sources

    def audio(self, source: Source, scratch: Path) -> Path:
        """Return the audio file of a source clip; a file that must first be made is written to `scratch`."""
        del scratch
        return source.path

    def place(self, group: Group, index: int) -> str:
        """Return the path of the group's joined clip number `index`, relative to the task's folder."""
        return self.clip.format(name=group.name, index=index, **group.facts)

    def rows(self, clip: Row, chance: random.Random) -> list[Row]:
        """Return the task's metadata rows (questions) about a joined clip; [] if no question can be asked.

        `clip` is the joined clip's row of the manifest; `chance` is a seeded random generator.
        """
        del clip, chance
        return []

    def write(self, folder: Path, clips: Iterable[Row]) -> list[tuple[str, str]]:
        """Write the task's metadata; return (path, reason) of each clip about which no question can be asked."""
        rows = {clip["path"]: self.rows(clip, self.chance("question", clip["path"])) for clip in clips}
        write_json(folder / self.metadata_file, self.document([row for of_clip in rows.values() for row in of_clip]))
        return [(path, "no question can be asked about it") for path, of_clip in rows.items() if not of_clip]

    def document(self, rows: list[Row]) -> object:
        """Turn all metadata rows into the content of the metadata file, JSON-compatible."""
        return rows

    def chance(self, *what: str) -> random.Random:
        """Return a random generator for one purpose, seeded with the corpus's seed and the purpose's name `what`."""
        return random.Random("\0".join((str(self.seed), *what)))

    def name(self, path: Path) -> str:
        """Return a file's path within the corpus; if there are several folders, it begins with the folder's number."""
        root = next(root for root in self.roots if path.is_relative_to(root))
        relative = path.relative_to(root).as_posix()
        return relative if len(self.roots) == 1 else f"{self.roots.index(root)}/{relative}"

    def tables(self, columns: Sequence[str], *, only: bool = False) -> list[Path]:
        """Return the paths of the corpus's `.tsv` files that have the given columns.

        With `only`, they must have no other columns, and these in the given order.
        """
        tables = []
        for file in (file for root in self.roots for file in below(root, [".tsv"])):
            try:
                with open_plain(file) as opened:
                    first = opened.readline(MAX_OBJECT_BYTES)
            except OSError as error:
                raise DataError(f"{file}: cannot be read ({error.strerror or error})") from error
            there = first.decode("utf-8-sig", errors="replace").rstrip("\r\n").split("\t")
            if there == list(columns) if only else set(columns) <= set(there):
                tables.append(file)
        return tables

    def the_one(self, candidates: Sequence[Path], what: str, option: str = "") -> Path:
        """Return the only path in `candidates`; raise :class:`DataError` if there is none, or several.

        The message names `what` is searched, and the command-line `option` with which the user can name it.
        """
        places = ", ".join(map(str, self.roots))
        if not candidates:
            raise DataError(f"{self.title}: no {what} under {places}. Expected:\n{self.layout}")
        if len(candidates) > 1:
            several = ", ".join(str(path) for path in candidates[:5])
            advice = f"choose with {option}" if option else "name a folder that holds only one"
            raise DataError(f"{self.title}: expected one {what}, found {len(candidates)}: {several}; {advice}")
        return candidates[0]


def below(root: Path, suffixes: Sequence[str]) -> Iterator[Path]:
    """Yield the files under a folder whose names end with one of `suffixes`, sorted by name, folder by folder.

    A folder that symbolic links reach a second time is not read again, so that no clip is used twice.
    """
    if not root.is_dir():
        raise DataError(f"{root} is not a folder")
    seen = {str(above) for above in root.resolve().parents}
    for place, folders, files in os.walk(root, followlinks=True):
        if (real := os.path.realpath(place)) in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if name.lower().endswith(tuple(suffixes)) and not name.startswith("."):
                if name != name.encode(errors="replace").decode():
                    raise DataError(f"{place}: the file name {name!r} is not UTF-8; rename it")
                yield Path(place, name)


def audio_files(folder: Path) -> list[Path]:
    """Return the audio files under a folder, sorted naturally by path (2 before 10).

    AAC files without a converted copy are included: they cannot be read, so the builder reports them by name.
    """
    files = list(below(folder, AUDIO_SUFFIXES))
    converted = {path.with_suffix("") for path in files}
    files += [path for path in below(folder, AAC_SUFFIXES) if path.with_suffix("") not in converted]
    return sorted(files, key=lambda path: natural(str(path)))


def table(file: Path, columns: Sequence[str], *, exact: bool = False) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield (place, row) for each row of a tab-separated table; `place` is "FILE, line N", for error messages.

    Parameters
    ----------
    exact
        Keep fields exactly as written, with quotes and with surrounding blanks.

    Raises
    ------
    DataError
        The table cannot be read, or lacks one of the columns.
    """
    reader = csv.DictReader(
        io.StringIO(read_text(file)), delimiter="\t", quoting=csv.QUOTE_NONE if exact else csv.QUOTE_MINIMAL
    )
    if not set(columns) <= set(reader.fieldnames or ()):
        raise DataError(f"{file}: expected the tab-separated columns {', '.join(columns)}")
    for number, row in enumerate(reader, start=2):
        fields = {name: text or "" for name, text in row.items() if name}
        yield f"{file}, line {number}", fields if exact else {name: text.strip() for name, text in fields.items()}


def question(clip: Row, text: str, options: Sequence[str], answer: str, **facts: Any) -> list[Row]:
    """Return a list with one metadata row about a clip: question, options (`choice_a`, …), answer, and `facts`."""
    choices = {f"choice_{letter.lower()}": option for letter, option in zip(LETTERS, options, strict=False)}
    return [{"path": clip["path"], "question": text, **choices, "answer_gt": answer, **facts}]


def drawn(answer: str, others: Sequence[str], chance: random.Random) -> tuple[list[str], str]:
    """Draw three wrong options from `others`, add `answer`; return (options in random order, letter of `answer`)."""
    options = [answer, *chance.sample(sorted(set(others) - {answer}), DISTRACTORS)]
    chance.shuffle(options)
    return options, LETTERS[options.index(answer)]
