"""GTZAN: which of ten genres is this music?"""

from __future__ import annotations

from audiomarathon.tasks.multiple_choice import MultipleChoice
from audiomarathon.tasks.rows import Row
from audiomarathon.tasks.task import Sample


class Gtzan(MultipleChoice):
    """Music genres. Options read "Blues" or "Blues - blues"; both stand for the class `blues`."""

    key = "gtzan"
    aliases = ("MC",)
    title = "Music genre classification"
    acronym = "MC"
    group = "audio classification"
    count = 120
    seconds = (240.0, 240.0)
    metadata_file = "music_genre_classification_meta.json"
    classes = ("blues", "classical", "country", "disco", "hiphop", "jazz", "metal", "pop", "reggae", "rock")

    def sample(self, row: Row) -> Sample:
        """Return the sample of one row."""
        clip = row.clip("path", "wav")
        return self.build(row, clip, row.lettered(), row.text("answer_gt"), own_label="genre_label")
