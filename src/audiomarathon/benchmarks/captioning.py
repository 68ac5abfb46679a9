"""Tasks that ask for a caption per clip. A subclass says what the file (table) with the captions looks like."""

from __future__ import annotations

import csv
import unicodedata
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from audiomarathon.benchmarks.locate import nearest, the_one
from audiomarathon.benchmarks.rows import AUDIO_SUFFIXES, RowError, as_csv, clean, natural, one_text, read_csv, shown
from audiomarathon.benchmarks.task import BadRow, Filters, Loaded, Part, Sample, Task, name_id
from audiomarathon.errors import DataError, SettingsError
from audiomarathon.files import open_plain, write_text
from audiomarathon.scoring.caption import Caption

MAX_REFERENCES = 100  # limit of references of an item; the published sets have 5
#: Prompts, by the name for `TASK_PROMPT`. `detail` makes long replies, which CIDEr-D punishes: if references have 11
#: words, its length factor is 0.32 for a reply of 20 words, and 0.007 for 30.
PROMPTS = {
    "detail": "Describe the sound in detail.",
    "short": "Describe the sound in one sentence of 8 to 20 words.",
}

ALL = "all"  # all splits together

Item = tuple[str, tuple[str, ...], tuple[str, ...]]  # id, possible names of its clip, captions


class Captioning(Task):
    """Base of tasks that ask for a caption per clip, scored against several references.

    A subclass says how to read the table, the file with the reference captions. CIDEr-D's document frequencies come
    from the whole split, also in a limited run. If a folder has only a part of the data (`data download --limit`),
    `corpus_<table>` next to the table has all captions.

    Attributes
    ----------
    splits
        File name of each split's table, as {split: file name}; the first split is the default.
    folders
        Folders of the clips, next to the table; `{split}` is the split's name.
    columns
        Columns that a table must have.
    """

    max_new_tokens = 256
    scorer = Caption()
    cuttable = False  # it is unknown which part of a clip a caption describes
    splits: ClassVar[Mapping[str, str]] = {}
    folders: ClassVar[tuple[str, ...]] = ("", "{split}")
    columns: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def items(self, rows: Sequence[Mapping[str, str]]) -> list[Item]:
        """Turn a table's rows into items, (clip's id, possible names of its file, its reference captions)."""

    @abstractmethod
    def rows(self, item: Item) -> list[dict[str, str]]:
        """Turn an item (id, file names, reference captions of a clip) back into rows; the inverse of :meth:`items`."""

    def find(self, root: Path) -> Path:
        """Return the folder nearest to the root that has the table of any split."""
        tables = set(self.splits.values())
        folders = nearest(root, lambda folder: any(self._is_ours(folder.path / name) for name in tables & folder.files))
        return the_one(self, root, folders, next(iter(self.splits.values())))

    def load(self, folder: Path, filters: Filters = Filters()) -> Loaded:
        """Read a split's table, find its clips, and return the samples."""
        split = filters.split or next(iter(self.splits))
        if split not in (*self.splits, ALL):
            raise SettingsError(f"TASK_SPLIT={split}: allowed for {self.key}: {', '.join(self.splits)}, {ALL}")
        question = PROMPTS.get(filters.prompt or "detail", filters.prompt)
        if " " not in question:
            raise SettingsError(f"TASK_PROMPT={question}: allowed for {self.key}: {', '.join(PROMPTS)}, or a sentence")
        folder = folder.absolute()
        samples, bad = dict[str, Sample](), []
        tables = self.tables(folder, split)
        for part, items in tables.items():
            places = [place.format(split=part) for place in self.folders]
            clips, looked = _clips(folder, places), ", ".join(f"{place or '.'}/" for place in places)
            meta = {"split": part, "splits": tuple(tables)}
            for number, item in enumerate(items, start=1):
                try:
                    sample = _sample(item, clips, looked, question, meta)
                    if sample.id in samples:
                        raise RowError(f"duplicate id {shown(sample.id)}")
                    samples[sample.id] = sample
                except RowError as error:
                    bad.append(BadRow(folder / self.splits[part], number, str(error)))
        return Loaded(folder, tuple(sorted(samples.values(), key=lambda sample: natural(sample.id))), tuple(bad))

    def tables(self, folder: Path, split: str) -> dict[str, list[Item]]:
        """Return {split: items in its table's order}; an item is (id, file names, reference captions) of a clip.

        The split `all` means every table in the folder.
        """
        there = [part for part in [*self.splits][::-1] if (folder / self.splits[part]).is_file()]
        parts = there if split == ALL else [split]
        if not {*parts} <= {*there}:
            has = f"it has {', '.join(self.splits[part] for part in there)}" if there else "it has no table of a split"
            get = f"next: audiomarathon data download {self.key} --split {split}"
            raise DataError(f"{self.key}: {folder} has no {self.splits[split]}; {has}; {get}")
        return {part: self.items(self._table(folder / self.splits[part])) for part in parts}

    def prompt(self, sample: Sample) -> str:
        """Return the prompt: only the instruction to describe the sound."""
        return sample.question

    def reference(self, sample: Sample) -> dict[str, Any]:
        """Return {"references": the clip's reference captions}, which the scorer needs."""
        return {"references": list(sample.meta["references"])}

    def corpus(self, loaded: Loaded) -> Sequence[Sequence[str]]:
        """Return the reference captions of every clip of the whole split, even if the clip is missing in the folder."""
        splits = loaded.samples[0].meta["splits"]
        return [list(texts) for split in splits for texts in self.captions(loaded.folder, split)]

    def captions(self, folder: Path, split: str) -> list[tuple[str, ...]]:
        """Return the reference captions of every clip of a split, even if the folder has only a part of the clips."""
        table = folder / self.splits[split]
        whole = table.with_name(f"corpus_{table.name}")
        return [texts for _, _, texts in self.items(self._table(whole if whole.is_file() else table)) if texts]

    def write_rows(self, part: Part, target: Path) -> None:
        """Write the given samples (`part.kept`) as tables, one per split.

        If a table lacks clips of its split, also write the whole split's captions, as `corpus_<table>`.
        """
        for split in part.kept[0].meta["splits"]:
            samples = [sample for sample in part.kept if sample.meta["split"] == split]
            kept = [(sample.id, tuple(sample.meta["names"]), tuple(sample.meta["references"])) for sample in samples]
            self._write(target / self.splits[split], kept)
            if len(corpus := self.captions(part.loaded.folder, split)) > len(kept):
                others = [(f"{number}_0", (str(number),), texts) for number, texts in enumerate(corpus, 1)]
                self._write(target / f"corpus_{self.splits[split]}", others)

    def _write(self, file: Path, items: Sequence[Item]) -> None:
        write_text(file, as_csv([row for item in items for row in self.rows(item)], self.columns))

    def _table(self, file: Path) -> list[dict[str, str]]:
        return [row for _line, row in read_csv(file, self.columns)]

    def _is_ours(self, file: Path) -> bool:
        """Tell whether a file's first line has this task's columns, or the file is empty.

        The name is not enough, since `test.csv` is common. Empty files count because `data download`, before it
        downloads, looks for the task in a folder of empty files with the same names.
        """
        try:
            with open_plain(file) as lines:
                first = lines.readline(10_000).decode("utf-8-sig", "replace")
        except OSError:
            return False
        return not first or set(self.columns) <= set(next(csv.reader([first]), []))


def few(references: Sequence[str]) -> Sequence[str]:
    """Return the references of a clip; raise :class:`RowError` if there are more than `MAX_REFERENCES`.

    The score of human captions is a mean over all pairs of references, so its cost grows with the square of their
    number.
    """
    if len(references) > MAX_REFERENCES:
        raise RowError(f"has {len(references):,} references; allowed: up to {MAX_REFERENCES}")
    return references


def _sample(item: Item, clips: Mapping[str, Path], places: str, question: str, meta: Mapping[str, Any]) -> Sample:
    id_, names, captions = item
    clean(id_, "the clip's name")
    if not captions:
        raise RowError(f"{shown(id_)} has no caption")
    texts = tuple(one_text(clean(text, "a caption"), "caption") for text in few(captions))
    clip = next((clip for name in names for key in _keys(name) if (clip := clips.get(key))), None)
    if clip is None:
        others = f" (also under the names {', '.join(names[1:])})" if len(names) > 1 else ""
        raise RowError(f"clip {shown(id_)} is missing{others} in {places}")
    meta_fields = {"references": texts, "names": names, **meta}
    return Sample(name_id(id_), (clip,), question, "\n".join(texts), name_id(id_), meta=meta_fields)


def _keys(name: str) -> tuple[str, ...]:
    """Return the keys under which a file name is looked up: with and without its suffix, in one Unicode form."""
    plain = unicodedata.normalize("NFC", name)
    stem = plain.rpartition(".")[0] if plain.lower().endswith(AUDIO_SUFFIXES) else plain
    return plain, f"{stem}\0"


def _clips(folder: Path, parts: Sequence[str]) -> dict[str, Path]:
    """Find audio files in the subfolders `parts` of `folder`; return {key of the name (:func:`_keys`): file}."""
    clips: dict[str, Path] = {}
    for part in parts:
        place = folder / part
        for clip in sorted(place.iterdir()) if place.is_dir() else ():
            if clip.name.lower().endswith(AUDIO_SUFFIXES) and not clip.name.startswith(".") and clip.is_file():
                for key in _keys(clip.name):
                    clips.setdefault(key, clip)
    return clips
