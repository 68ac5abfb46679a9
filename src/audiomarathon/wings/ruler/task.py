"""The ruler's four tasks: which word is said, how often the bell rings, which word is first, which follows the bell."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from audiomarathon.audio.decode import Samples, decode
from audiomarathon.benchmarks.multiple_choice import MultipleChoice
from audiomarathon.benchmarks.questions.questions import Questions
from audiomarathon.benchmarks.rows import Row, RowError
from audiomarathon.benchmarks.task import Loaded, Sample, Variation
from audiomarathon.errors import DataError

WITHOUT = "no-needle"
#: Columns of a row by the group that they are; a cell of the heat map is a length and a place.
GROUPS = {"minutes": "minutes", "place": "place", "needles": "needle_count", "dB": "snr_db"}


class Ruler(MultipleChoice):
    """A question about words and bells at a known second of a clip; its options are no classes, so it has an accuracy.

    `data controls --control no-needle` gives the same backgrounds at the same lengths without needles; `--durations 30`
    the same needles in 30 s of the same background.
    """

    scorer = Questions()
    own_controls = (WITHOUT,)
    group_fields = tuple(GROUPS)
    source = "make it with: audiomarathon ruler DIR"
    version = "1"

    def sample(self, row: Row) -> Sample:
        """Turn one row into a sample; its cluster is its background."""
        needles = row.fields.get("needles")
        if not isinstance(needles, list) or not all(_is_span(one) for one in needles):
            raise RowError("field 'needles' must be a list of [start, length] in seconds")
        groups = {name: row.text(column) for name, column in GROUPS.items()}
        meta = {**groups, "needle_spans": needles, **row.extras("background_alone")}
        built = self.build(row, row.clip("path"), cluster=row.text("background"), meta=meta)
        return Sample(**{**vars(built), "kind": f"{groups['minutes']} min, {groups['place']}"})

    def reference(self, sample: Sample) -> dict[str, Any]:
        """Return the facts for scoring, and the (start, end) in seconds of the needles that decide the answer."""
        found = super().reference(sample)
        if sample.event is None:
            return found
        onset = sample.event[0]
        spans = [[onset + start, onset + start + length] for start, length in sample.meta["needle_spans"]]
        return {**found, "needles": spans}

    def vary(self, loaded: Loaded, control: str) -> Mapping[str, Variation]:
        """Return the clip's background alone, of the same length, for each sample."""
        found = {}
        gone = {"event_onset": None, "event_seconds": None}
        for sample in loaded.samples:
            clip = loaded.folder / str(sample.meta.get("background_alone"))
            if not clip.is_file():
                raise DataError(f"{clip}: is missing; make the ruler again with audiomarathon ruler, then {control}")
            found[sample.id] = Variation(partial(_instead, clip=clip), gone)
        return found


def _instead(_heard: Samples, rate: int, *, clip: Any) -> Samples:
    return decode(clip, rate)


def _is_span(one: Any) -> bool:
    return isinstance(one, list) and len(one) == 2 and all(isinstance(end, int | float) for end in one)


class Word(Ruler):
    """Which of four words is said?"""

    key = "ruler/word"
    title = "Needle: which word is said"
    metadata_file = "ruler_word.json"


class Count(Ruler):
    """How often does the bell ring?"""

    key = "ruler/count"
    title = "Needle: how often the bell rings"
    metadata_file = "ruler_count.json"


class Order(Ruler):
    """Which of the words comes first?"""

    key = "ruler/order"
    title = "Needle: which word comes first"
    metadata_file = "ruler_order.json"


class After(Ruler):
    """Which word follows the bell?"""

    key = "ruler/after"
    title = "Needle: which word follows the bell"
    metadata_file = "ruler_after.json"
