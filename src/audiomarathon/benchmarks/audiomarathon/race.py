"""RACE: questions on an English exam's passage, read aloud."""

from __future__ import annotations

from typing import Any

from audiomarathon.benchmarks.multiple_choice import MultipleChoice
from audiomarathon.benchmarks.rows import Row, RowError, clean
from audiomarathon.benchmarks.task import Sample


class Race(MultipleChoice):
    """Task: answer questions on a passage read aloud. Samples about the same passage share a cluster."""

    key = "race"
    aliases = ("SCR",)
    title = "Speech content reasoning"
    metadata_file = "race_benchmark.json"

    def sample(self, row: Row) -> Sample:
        """Turn one row of the metadata file into a sample."""
        clip = row.clip("audio_path", "wav", "audio")
        options = row.fields.get("options")
        if not isinstance(options, list) or not all(isinstance(option, str) for option in options):
            raise RowError("field 'options' must be a list of texts")
        passage = row.relative(clip)
        meta: dict[str, Any] = row.extras("article_id", "question_idx")
        if difficulty := next((part for part in passage.split("/") if part in ("high", "middle")), ""):
            meta["difficulty"] = difficulty
        return self.build(
            row,
            clip,
            [clean(option, "an option") for option in options],
            row.text("answer"),
            identifier=f"{passage}#{row.text('question_idx')}",
            cluster=passage,
            meta=meta,
        )
