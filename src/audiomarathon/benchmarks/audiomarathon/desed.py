"""DESED: which domestic sound event, such as a barking dog, occurs in the clip?"""

from __future__ import annotations

from audiomarathon.benchmarks.multiple_choice import MultipleChoice
from audiomarathon.benchmarks.rows import Row, RowError, clean, shortened
from audiomarathon.benchmarks.task import Sample
from audiomarathon.records import LETTERS


class Desed(MultipleChoice):
    """Task: name a domestic sound event in a clip.

    The metadata file holds its rows in the field `tasks`. The options of a row are an object with letters as keys.
    """

    key = "desed"
    aliases = ("SED",)
    title = "Sound event detection"
    metadata_file = "desed_sound_event_detection_task.json"
    rows_key = "tasks"
    one_class_a_clip = False
    classes = (
        "alarm_bell_ringing", "blender", "cat", "dishes", "dog", "electric_shaver_toothbrush", "frying",
        "running_water", "speech", "vacuum_cleaner",
    )  # fmt: skip

    def sample(self, row: Row) -> Sample:
        """Turn one row of the metadata file into a sample."""
        choices = row.fields.get("choices")
        if not isinstance(choices, dict):
            raise RowError("field 'choices' must be an object with letters as keys and options as values")
        letters = sorted(choices)
        if letters != list(LETTERS[: len(letters)]) or not all(isinstance(text, str) for text in choices.values()):
            raise RowError(
                f"choices must be texts under the letters A, B, …, found {shortened(', '.join(map(repr, letters)))}"
            )
        options = [clean(choices[letter], f"choice {letter}") for letter in letters]
        meta = row.extras("task_type", "all_events", "primary_event")
        return self.build(row, row.clip("path", "wav", "audio"), options, own_label="correct_event", meta=meta)
