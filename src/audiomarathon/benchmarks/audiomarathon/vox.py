"""VoxCeleb: is the speaker a man or a woman?"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from audiomarathon.benchmarks.multiple_choice import MultipleChoice
from audiomarathon.benchmarks.rows import Row
from audiomarathon.benchmarks.task import Sample


class Vox(MultipleChoice):
    """Speaker gender, clustered by speaker. Rows state the answer as the option's text."""

    key = "vox"
    aliases = ("SGR", "Vox_gender")
    title = "Speaker gender recognition"
    metadata_file = "gender_id_task_meta.json"
    classes = ("male", "female")
    option_count = 2

    def sample(self, row: Row) -> Sample:
        """Return the sample of one row."""
        clip = row.clip("path", "wav")
        return self.build(row, clip, cluster=speaker(row, row.relative(clip)))


def speaker(row: Row, clip: str) -> str:
    """Return the row's speaker, else the one in the clip's path (`wav/id10270/…`), else "" (the clip is a cluster)."""
    if named := row.optional("speaker_id_original"):
        return named
    folders = [part for part in PurePosixPath(clip).parts[:-1] if re.fullmatch(r"id[0-9]+", part)]
    return folders[0] if folders else ""
