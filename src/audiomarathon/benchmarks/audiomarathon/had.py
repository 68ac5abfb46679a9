"""HAD: is the speech real, or were parts of it replaced by fakes?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from audiomarathon.benchmarks.locate import Folder, nearest, the_one, walk
from audiomarathon.benchmarks.multiple_choice import MultipleChoice
from audiomarathon.benchmarks.rows import Row, collect, natural, read_rows, write_ascii
from audiomarathon.benchmarks.selection import draw
from audiomarathon.benchmarks.task import BadRow, Filters, Loaded, Part, Sample
from audiomarathon.errors import DataError

_OTHER_AUDIO = (".flac", ".mp3", ".ogg", ".opus", ".m4a", ".aac", ".aif", ".aiff", ".wma")
QUESTION = "Is the speech in this audio real, or does it contain fake parts?"


class Had(MultipleChoice):
    """Task: is the speech real, or partly faked (half-truth audio detection)?

    There is no metadata file: a clip's class is its folder, `real/` or `fake/`. The setting `BALANCE` keeps the same
    number of clips of each class, as many as the smaller class has. The benchmark's public runs took clips from an
    unsorted file listing, which differs between machines; here all clips are used, and a balanced choice is repeatable.
    """

    key = "had"
    aliases = ("SD",)
    title = "Speech detection (half-truth fakes)"
    classes = ("real", "fake")
    option_count = 2

    def find(self, root: Path) -> Path:
        """Return the folder that holds both `real/` and `fake/`.

        If there is none, return a folder with only one of the two, provided that it is the root or is called HAD.
        """

        def has_one(folder: Folder) -> bool:
            named = not folder.depth or folder.path.name.lower() == self.key
            return named and not folder.folders.isdisjoint(self.classes)

        folders = nearest(root, lambda folder: set(self.classes) <= folder.folders) or nearest(root, has_one)
        return the_one(self, root, folders, "folder with real/ and fake/")

    def load(self, folder: Path, filters: Filters = Filters()) -> Loaded:
        """List the WAV clips under `real/` and `fake/` as samples.

        Other audio files become bad rows (rows that give no sample).
        """
        folder = folder.absolute()
        events = _events(folder)
        files = [
            subfolder.path / name
            for label in self.classes
            for subfolder in walk(folder / label)
            for name in subfolder.files
        ]
        clips = [file.relative_to(folder).as_posix() for file in files if file.suffix.lower() == ".wav"]
        others = sorted(file for file in files if file.suffix.lower() in _OTHER_AUDIO)
        if not clips and not others:
            raise DataError(f"{folder}: no WAV files under real/ or fake/")
        rows = [events.get(clip, {}) | {"path": clip, "question": QUESTION} for clip in sorted(clips, key=natural)]
        samples, bad = collect(folder, folder, rows, self.sample)
        bad += [BadRow(file, 0, f"is a {file.suffix[1:].upper()}, expected WAV") for file in others]
        kept = balanced(samples, filters.seed) if filters.balance else samples
        left_out = {"BALANCE": len(samples) - len(kept)} if filters.balance else {}
        return Loaded(folder, tuple(kept), tuple(bad), MappingProxyType(left_out))

    def write_rows(self, part: Part, target: Path) -> None:
        """Write `events.json` with the time of the fake part in each sample's clip, if it is known for any sample."""
        rows = [part.row(sample, {"path": part.path(sample), **sample.meta}) for sample in part.kept]
        if any(len(row) > 1 for row in rows):
            write_ascii(target / "events.json", rows)

    def sample(self, row: Row) -> Sample:
        """Turn the row of one clip into a sample."""
        path = row.text("path")
        clip = row.folder / path
        return self.build(row, clip, ("Real", "Fake"), path.split("/")[0], identifier=row.relative(clip))


def balanced(samples: list[Sample], seed: int) -> list[Sample]:
    """Choose the same number of samples of every class, at random by `seed`; keep the order of `samples`."""
    classes: dict[str, list[str]] = {}
    for sample in sorted(samples, key=lambda sample: (draw(seed, "balance", sample.id), sample.id)):
        classes.setdefault(sample.stratum, []).append(sample.id)
    size = min(map(len, classes.values()), default=0)
    drawn = {id_ for ids in classes.values() for id_ in ids[:size]}
    return [sample for sample in samples if sample.id in drawn]


def _events(folder: Path) -> Mapping[str, dict[str, Any]]:
    """Return the rows of `events.json`, as {path of the clip: row}; a row holds the time of the clip's fake part.

    The file is optional; the mini benchmark has one.
    """
    file = folder / "events.json"
    rows = read_rows(file) if file.is_file() else []
    return {row["path"]: row for row in rows if isinstance(row, dict) and isinstance(row.get("path"), str)}
