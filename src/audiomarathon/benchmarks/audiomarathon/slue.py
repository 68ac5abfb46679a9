"""SLUE: questions about the named entities (persons, places, …) in European Parliament speech."""

from __future__ import annotations

from audiomarathon.benchmarks.audiomarathon.known_gaps import SLUE
from audiomarathon.benchmarks.multiple_choice import MultipleChoice
from audiomarathon.benchmarks.rows import Row
from audiomarathon.benchmarks.task import Sample


class Slue(MultipleChoice):
    """Task: answer questions about named entities in speech. Samples about the same clip share a cluster.

    The options are not classes, so only their letters count.
    """

    key = "slue"
    aliases = ("SER",)
    title = "Speech entity recognition"
    known_gaps = SLUE
    metadata_file = "merged_audio_data.json"

    def sample(self, row: Row) -> Sample:
        """Turn one row of the metadata file into a sample."""
        meta = row.extras("task_name", "dataset_name", "entity_count", "entity_types")
        return self.build(row, row.clip("path", "wav", "audio"), meta=meta)
