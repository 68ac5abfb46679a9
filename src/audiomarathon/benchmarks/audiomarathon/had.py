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
    """Half-truth audio detection. There is no metadata: the folder, `real/` or `fake/`, is the class.

    `BALANCE` keeps as many clips of each class as the smaller one has. The public runs drew clips from an unsorted
    listing, which differs between machines; here all clips are used, and a balanced draw is repeatable.
    """

    key = "had"
    aliases = ("SD",)
    title = "Speech detection (half-truth fakes)"
    classes = ("real", "fake")
    option_count = 2

    def find(self, root: Path) -> Path:
        """Return the folder with `real/` and `fake/`. If only one exists, its parent must be the root or called HAD."""

        def has_one(folder: Folder) -> bool:
            named = not folder.depth or folder.path.name.lower() == self.key
            return named and not folder.folders.isdisjoint(self.classes)

        found = nearest(root, lambda folder: set(self.classes) <= folder.folders) or nearest(root, has_one)
        return the_one(self, root, found, "folder with real/ and fake/")

    def load(self, folder: Path, filters: Filters = Filters()) -> Loaded:
        """List the clips under `real/` and `fake/`; other audio is a bad row, not ignored."""
        folder = folder.absolute()
        events = _events(folder)
        files = [found.path / name for label in self.classes for found in walk(folder / label) for name in found.files]
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
        """Write `events.json` if a clip has an event."""
        rows = [part.row(sample, {"path": part.path(sample), **sample.meta}) for sample in part.kept]
        if any(len(row) > 1 for row in rows):
            write_ascii(target / "events.json", rows)

    def sample(self, row: Row) -> Sample:
        """Return the sample of one clip."""
        path = row.text("path")
        return self.build(row, row.folder / path, ("Real", "Fake"), path.split("/")[0], identifier=path)


def balanced(samples: list[Sample], seed: int) -> list[Sample]:
    """Return a seeded draw with the same number of samples in every class, in the order given."""
    classes: dict[str, list[str]] = {}
    for sample in sorted(samples, key=lambda sample: (draw(seed, "balance", sample.id), sample.id)):
        classes.setdefault(sample.stratum, []).append(sample.id)
    size = min(map(len, classes.values()), default=0)
    drawn = {id_ for ids in classes.values() for id_ in ids[:size]}
    return [sample for sample in samples if sample.id in drawn]


def _events(folder: Path) -> Mapping[str, dict[str, Any]]:
    """Return rows with the time of a clip's fake part, from an optional `events.json` (the mini benchmark has one)."""
    file = folder / "events.json"
    rows = read_rows(file) if file.is_file() else []
    return {row["path"]: row for row in rows if isinstance(row, dict) and isinstance(row.get("path"), str)}
