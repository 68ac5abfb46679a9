"""A task of your own: is the tone high or low?"""

from __future__ import annotations

from audiomarathon.benchmarks.multiple_choice import MultipleChoice
from audiomarathon.benchmarks.rows import Row
from audiomarathon.benchmarks.task import Sample


class NewName(MultipleChoice):
    """Rows of `newname.json`: {"path", "question", "choice_a", "choice_b", "answer_gt", "take"}.

    Other kinds of task derive from `audiomarathon.benchmarks.task.Task` and name a `scorer`.
    """

    key = "newname"
    title = "High or low tones"
    metadata_file = "newname.json"  # the task's folder is found by this file, anywhere under the data root
    option_count = 2
    classes = ("high", "low")  # the classes that macro-F1 averages over

    def sample(self, row: Row) -> Sample:
        """Return the sample of a row; a missing field or clip is reported with its row."""
        clip = row.clip("path", "wav")
        options = (row.text("choice_a"), row.text("choice_b"))
        take = row.optional("take")  # samples of one take are not independent, so intervals resample whole takes
        return self.build(row, clip, options, row.text("answer_gt"), cluster=take)
