"""VoxCeleb: is the speaker a man or a woman?"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from audiomarathon.benchmarks.audiomarathon.known_gaps import VOX
from audiomarathon.benchmarks.multiple_choice import MultipleChoice
from audiomarathon.benchmarks.rows import Row
from audiomarathon.benchmarks.task import Sample


class Vox(MultipleChoice):
    """Task: is the speaker a man or a woman? Samples of one speaker share a cluster.

    Rows state the answer as the option's text.
    """

    key = "vox"
    aliases = ("SGR", "Vox_gender")
    title = "Speaker gender recognition"
    known_gaps = VOX
    metadata_file = "gender_id_task_meta.json"
    classes = ("male", "female")
    option_count = 2

    def sample(self, row: Row) -> Sample:
        """Turn one row of the metadata file into a sample."""
        clip = row.clip("path", "wav")
        return self.build(row, clip, cluster=speaker(row, row.relative(clip)))


def speaker(row: Row, clip: str) -> str:
    """Return the speaker that a row names, so that samples of one speaker share a cluster.

    The name is in the field `speaker_id_original`, else in the clip's path (`wav/id10270/…`). Return "" if neither
    states it; each clip is then a cluster.
    """
    if named := row.optional("speaker_id_original"):
        return named
    folders = [part for part in PurePosixPath(clip).parts[:-1] if re.fullmatch(r"id[0-9]+", part)]
    return folders[0] if folders else ""
