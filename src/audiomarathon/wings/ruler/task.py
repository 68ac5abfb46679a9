"""The ruler's tasks: one for each question."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from audiomarathon.audio.decode import Samples, decode
from audiomarathon.benchmarks.benchmark import Benchmark
from audiomarathon.benchmarks.multiple_choice import MultipleChoice
from audiomarathon.benchmarks.questions.questions import Questions
from audiomarathon.benchmarks.rows import Row, RowError
from audiomarathon.benchmarks.task import Loaded, Sample, Variation
from audiomarathon.errors import DataError
from audiomarathon.wings.ruler.grid import QUESTIONS

#: {group by which scores are split: its column in a row}; a cell of the heat map is a length and a place.
GROUPS = {"minutes": "minutes", "place": "place", "needles": "needle_count", "dB": "snr_db"}


class Ruler(MultipleChoice):
    """Questions about words and bells planted at known seconds of a clip.

    The score is accuracy, not macro-F1, since the options are not classes.

    `data controls --control no-needle` writes the same backgrounds with the same lengths without needles; `--durations
    30` writes the same needles in 30 s of the same background.
    """

    scorer = Questions()
    own_controls = ("no-needle",)
    group_fields = tuple(GROUPS)
    source = "make it with: audiomarathon ruler DIR"
    version = "1"

    def __init__(self, question: str) -> None:
        self.key, self.title = f"ruler/{question}", QUESTIONS[question]

    @property
    def metadata_file(self) -> str:  # type: ignore[override]
        """Name of the JSON file with the task's rows."""
        return f"{self.key.replace('/', '_')}.json"

    def sample(self, row: Row) -> Sample:
        """Turn one row into a sample; its cluster (samples that depend on each other) is its background."""
        try:
            spans = [(float(start), float(length)) for start, length in row.fields.get("needles") or ()]
        except (TypeError, ValueError):
            raise RowError("field 'needles' must be a list of [start, length] in seconds") from None
        groups = {name: row.text(column) for name, column in GROUPS.items()}
        meta = {**groups, "spans": spans, **row.extras("background_alone")}
        built = self.build(row, row.clip("path"), cluster=row.text("background"), meta=meta)
        return replace(built, kind=f"{groups['minutes']} min, {groups['place']}")

    def reference(self, sample: Sample) -> dict[str, Any]:
        """Return the facts that scoring needs, as for any task, and `needles`, absent in clips without needles.

        `needles` lists [start, end] in seconds of each needle (planted word or bell) that decides the answer.
        """
        onset, _ = sample.event or (None, None)
        ends = [[onset + start, onset + start + length] for start, length in sample.meta["spans"] if onset is not None]
        return super().reference(sample) | ({"needles": ends} if ends else {})

    def vary(self, loaded: Loaded, control: str) -> Mapping[str, Variation]:
        """Return {sample's id: how to change the sample} for the control `no-needle`, an altered copy of the data.

        The changed clip has only the background, without words and bells, at the same length.
        """
        clips = {sample.id: loaded.folder / str(sample.meta.get("background_alone")) for sample in loaded.samples}
        if missing := [clip for clip in clips.values() if not clip.is_file()]:
            raise DataError(f"{missing[0]}: is missing; make the ruler again with audiomarathon ruler, then {control}")
        gone = {"event_onset": None, "event_seconds": None}
        return {id_: Variation(partial(_instead, clip), gone) for id_, clip in clips.items()}


def _instead(clip: Path, _heard: Samples, rate: int) -> Samples:
    return decode(clip, rate)


RULER = Benchmark("ruler", "Does a model find a word or a bell anywhere in up to an hour?", (*map(Ruler, QUESTIONS),))
