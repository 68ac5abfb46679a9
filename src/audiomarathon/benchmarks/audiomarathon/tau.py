"""TAU: in which of ten kinds of places was this recorded? :class:`MultipleChoice` makes the prompt."""

from __future__ import annotations

import re

from audiomarathon.benchmarks.multiple_choice import MultipleChoice
from audiomarathon.benchmarks.rows import Row
from audiomarathon.benchmarks.task import Sample

# Clips of TAU Urban Acoustic Scenes are named <scene>-<city>-<location>-…
_LOCATION = re.compile(r"([a-z_]+-[a-z]+-[0-9]+)(?![0-9])", re.IGNORECASE)


class Tau(MultipleChoice):
    """Task: name the acoustic scene of a recording.

    The metadata states the question. Samples from one location share a cluster, if the file name states the location.
    """

    key = "tau"
    aliases = ("ASC",)
    title = "Acoustic scene classification"
    metadata_file = "acoustic_scene_task_meta.json"
    classes = (
        "airport", "bus", "metro", "metro_station", "park", "public_square", "shopping_mall",
        "street_pedestrian", "street_traffic", "tram",
    )  # fmt: skip

    def sample(self, row: Row) -> Sample:
        """Turn one row of the metadata file into a sample."""
        clip = row.clip("path", "concatenated_resampled")
        location = _LOCATION.match(clip.stem)
        return self.build(row, clip, cluster=location[1] if location else "", own_label="scene_label")
