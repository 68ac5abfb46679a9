"""GTZAN: which of ten genres is this music?"""

from __future__ import annotations

from audiomarathon.benchmarks.multiple_choice import MultipleChoice
from audiomarathon.benchmarks.rows import Row
from audiomarathon.benchmarks.task import Sample


class Gtzan(MultipleChoice):
    """Task: name the genre of a piece of music.

    Options read "Blues" or "Blues - blues"; both stand for the class `blues`.
    """

    key = "gtzan"
    aliases = ("MC",)
    title = "Music genre classification"
    metadata_file = "music_genre_classification_meta.json"
    classes = ("blues", "classical", "country", "disco", "hiphop", "jazz", "metal", "pop", "reggae", "rock")

    def sample(self, row: Row) -> Sample:
        """Turn one row of the metadata file into a sample."""
        return self.build(row, row.clip("path", "wav"), own_label="genre_label")
