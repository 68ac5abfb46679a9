"""VoxCeleb with ages: to which of five age groups does the speaker belong?"""

from __future__ import annotations

import re
from functools import lru_cache

from audiomarathon.benchmarks.audiomarathon.known_gaps import VOX
from audiomarathon.benchmarks.audiomarathon.vox import speaker
from audiomarathon.benchmarks.multiple_choice import MultipleChoice
from audiomarathon.benchmarks.rows import Row, class_of, words_of
from audiomarathon.benchmarks.task import Sample

_NUMBER = re.compile("[0-9]+")
_NAME_AND_RANGE = (str.isalpha, str.isdecimal)


class VoxAge(MultipleChoice):
    """Task: to which of five age groups does the speaker belong? Samples of one speaker share a cluster.

    Files write a group as its name and its range of years in either order, or only one of them; both must agree.
    """

    key = "vox_age"
    aliases = ("SAR", "vox-age", "VoxAge")
    title = "Speaker age recognition"
    known_gaps = VOX
    metadata_file = "age_classification_task_meta.json"
    classes = (
        "Young Adult (18-30)", "Early Career (31-40)", "Mid Career (41-50)", "Senior (51-70)", "Elderly (71+)",
    )  # fmt: skip
    option_count = 5

    def label(self, option: str) -> str:
        """Return the age group that an option names: by its name, by its range of years, or by both if they agree.

        For an option that names no group, return its words, joined by `_`.
        """
        return _group(option)

    def sample(self, row: Row) -> Sample:
        """Turn one row of the metadata file into a sample."""
        clip = row.clip("path", "wav")
        cluster = speaker(row, row.relative(clip))
        return self.build(row, clip, cluster=cluster, meta=row.extras("speaker_age"))


@lru_cache(256)
def _group(option: str) -> str:
    words = set(words_of(option))
    parts = ((group, set(filter(kind, words_of(group)))) for group in VoxAge.classes for kind in _NAME_AND_RANGE)
    meant = {group for group, part in parts if part <= words}
    if len(meant) == 1 and _NUMBER.findall(option) in ([], _NUMBER.findall(next(iter(meant)))):
        return meant.pop()
    return class_of(option, ())
