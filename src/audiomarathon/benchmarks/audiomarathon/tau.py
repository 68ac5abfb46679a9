"""TAU: in which of ten places was this recorded?"""

from __future__ import annotations

import re

from audiomarathon.benchmarks.multiple_choice import MultipleChoice
from audiomarathon.benchmarks.rows import Row
from audiomarathon.benchmarks.task import Sample

# scene-city-location-…, the naming of the TAU Urban Acoustic Scenes clips
_LOCATION = re.compile(r"([a-z_]+-[a-z]+-[0-9]+)(?![0-9])", re.IGNORECASE)


class Tau(MultipleChoice):
    """Acoustic scenes. The metadata states the question; the cluster is the location, if the file name states it."""

    key = "tau"
    aliases = ("ASC",)
    title = "Acoustic scene classification"
    metadata_file = "acoustic_scene_task_meta.json"
    classes = (
        "airport", "bus", "metro", "metro_station", "park", "public_square", "shopping_mall",
        "street_pedestrian", "street_traffic", "tram",
    )  # fmt: skip

    def sample(self, row: Row) -> Sample:
        """Return the sample of one row."""
        clip = row.clip("path", "concatenated_resampled")
        location = _LOCATION.match(clip.stem)
        return self.build(row, clip, cluster=location[1] if location else "", own_label="scene_label")
