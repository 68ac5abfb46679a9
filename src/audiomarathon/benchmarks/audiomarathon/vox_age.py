"""VoxCeleb with ages: to which of five age groups does the speaker belong?"""

from __future__ import annotations

import re
from functools import lru_cache

from audiomarathon.benchmarks.audiomarathon.vox import speaker
from audiomarathon.benchmarks.multiple_choice import MultipleChoice
from audiomarathon.benchmarks.rows import Row, class_of, words_of
from audiomarathon.benchmarks.task import Sample


class VoxAge(MultipleChoice):
    """Speaker age groups, clustered by speaker. Files write a group as name and range in either order, or only one of
    them; name and range must agree.
    """

    key = "vox_age"
    aliases = ("SAR", "vox-age", "VoxAge")
    title = "Speaker age recognition"
    metadata_file = "age_classification_task_meta.json"
    classes = (
        "Young Adult (18-30)", "Early Career (31-40)", "Mid Career (41-50)", "Senior (51-70)", "Elderly (71+)",
    )  # fmt: skip
    option_count = 5

    def label(self, option: str) -> str:
        """Return the age group by its name, its range, or both if they agree; else the text's words."""
        return _group(option)

    def sample(self, row: Row) -> Sample:
        """Return the sample of one row."""
        clip = row.clip("path", "wav")
        cluster = speaker(row, row.relative(clip))
        return self.build(row, clip, cluster=cluster, meta=row.extras("speaker_age"))


@lru_cache(256)
def _group(option: str) -> str:
    words = set(words_of(option))
    told = set()
    for group in VoxAge.classes:
        parts = words_of(group)
        for part in ([p for p in parts if p.isalpha()], [p for p in parts if p.isdecimal()]):
            if set(part) <= words:
                told.add(group)
    if len(told) == 1 and _numbers(option) in ((), _numbers(next(iter(told)))):
        return told.pop()
    return class_of(option, ())


def _numbers(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"[0-9]+", text))
