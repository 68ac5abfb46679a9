"""SLUE: questions about the named entities in European Parliament speech."""

from __future__ import annotations

from audiomarathon.tasks.multiple_choice import MultipleChoice
from audiomarathon.tasks.rows import Row
from audiomarathon.tasks.task import Sample


class Slue(MultipleChoice):
    """Named-entity questions. Options are no classes; the clip is the cluster."""

    key = "slue"
    aliases = ("SER",)
    title = "Speech entity recognition"
    acronym = "SER"
    group = "speech content"
    count = 490
    seconds = (165.0, 300.0)
    metadata_file = "merged_audio_data.json"

    def sample(self, row: Row) -> Sample:
        """Return the sample of one row."""
        clip = row.clip("path", "wav", "audio")
        meta = row.extras("task_name", "dataset_name", "entity_count", "entity_types")
        return self.build(row, clip, row.lettered(), row.text("answer_gt"), meta=meta)
