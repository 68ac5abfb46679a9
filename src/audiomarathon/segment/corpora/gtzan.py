"""GTZAN: a thousand music clips of 30 s, one folder per genre."""

from __future__ import annotations

import random
from pathlib import Path

from audiomarathon.benchmarks.audiomarathon.gtzan import Gtzan
from audiomarathon.benchmarks.locate import nearest
from audiomarathon.segment.corpus import Corpus, Group, Row, drawn, question


class GtzanCorpus(Corpus):
    """Join clips of one genre, in random order, to exactly four minutes; the last clip is shortened."""

    task = "gtzan"
    title = "GTZAN"
    layout = """\
  genres/<genre>/<genre>.00000.au   (or genres_original/…/*.wav); ten genres of 100 clips"""
    example = "GTZAN/genres -o data/GTZAN"
    seconds = (240.0, 240.0)
    rate = 22_050
    gap = 0.0
    cut = True
    shuffled = True
    metadata_file = Gtzan.metadata_file
    clip = "wav/{name}.{index:05d}.wav"

    def groups(self) -> list[Group]:
        """Return one group of source clips per genre."""
        folders = [
            place
            for root in self.roots
            for place in nearest(root, lambda f: not set(Gtzan.classes).isdisjoint(f.folders))
        ]
        folder = self.the_one(folders, "folder with one folder per genre")
        genres = [genre for genre in Gtzan.classes if (folder / genre).is_dir()]
        return [Group(genre, folder / genre, {"genre": genre}) for genre in genres]

    def rows(self, clip: Row, chance: random.Random) -> list[Row]:
        """Return a list with one row: a question about the clip's genre, with three wrong options."""
        genre = clip["facts"]["genre"]
        options, letter = drawn(genre, Gtzan.classes, chance)
        shown = [f"{option.capitalize()} - {option}" for option in options]
        name = f"gtzan_{Path(clip['path']).stem}"
        return question(clip, "What is the genre of this music?", shown, letter, genre_label=genre, uniq_id=name)
