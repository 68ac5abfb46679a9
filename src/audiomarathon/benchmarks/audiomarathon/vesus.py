"""VESUS: which of five emotions does the speaker express?"""

from __future__ import annotations

import re
from pathlib import Path

from audiomarathon.benchmarks.audiomarathon.known_gaps import VESUS
from audiomarathon.benchmarks.multiple_choice import MultipleChoice
from audiomarathon.benchmarks.rows import Row, class_of
from audiomarathon.benchmarks.task import Filters, Loaded, Sample
from audiomarathon.errors import SettingsError

_NOUNS = {"anger": "angry", "happiness": "happy", "sadness": "sad", "fear": "fearful", "neutral": "monotone"}


class Vesus(MultipleChoice):
    """Task: name the emotion that a speaker acts. Samples of one speaker share a cluster.

    The benchmark's public runs leave out the happy samples of persons 2 and 10. If the settings `SKIP_PERSONS` and
    `SKIP_EMOTION` are both set, only these persons' samples of this emotion are left out.
    """

    key = "vesus"
    aliases = ("ER",)
    title = "Emotion recognition"
    known_gaps = VESUS
    metadata_file = "audio_emotion_dataset.json"
    classes = ("angry", "happy", "sad", "fearful", "monotone")

    def label(self, option: str) -> str:
        """Return the emotion that an option names, as an adjective; a noun is replaced (fear → fearful)."""
        label = class_of(option, self.classes)
        return _NOUNS.get(label, label)

    def load(self, folder: Path, filters: Filters = Filters()) -> Loaded:
        """Read the rows as samples. Raise :class:`SettingsError` if `SKIP_EMOTION` names no emotion of this task."""
        if filters.skip_emotion and self.label(filters.skip_emotion) not in self.classes:
            raise SettingsError(f"SKIP_EMOTION={filters.skip_emotion}: unknown; allowed: {', '.join(self.classes)}")
        return super().load(folder, filters)

    def sample(self, row: Row) -> Sample:
        """Turn one row of the metadata file into a sample."""
        person, clip = _number(row.text("person_id")), row.clip("path", "wav", "audio")
        meta = {"person": person, "emotion": self.label(row.text("emotion_label"))}
        return self.build(row, clip, cluster=f"person {person}", own_label="emotion_label", meta=meta)

    def known_gap(self, row: Row, name: str) -> str:
        """Return the name under which the list of known gaps has a row's missing clip; "" if it is not listed.

        Known gaps are clips that the published data is known to lack. The name joins the row's person and emotion to a
        part of the file's name.
        """
        part = re.search(r"(?:sentences|words_phrases)_[0-9]+", name)
        person, emotion = _number(row.text("person_id")), self.label(row.text("emotion_label"))
        return super().known_gap(row, f"person_{person}_{emotion}_{part[0] if part else name}")

    def left_out_by(self, sample: Sample, filters: Filters) -> str:
        """Return the names of the settings that leave a sample out, joined by "and"; "" to keep it.

        A sample is left out only if all settings in use apply to it.
        """
        persons = {_number(person) for person in filters.skip_persons}
        applies = {}
        if persons:
            applies["SKIP_PERSONS"] = sample.meta["person"] in persons
        if filters.skip_emotion:
            applies["SKIP_EMOTION"] = sample.meta["emotion"] == self.label(filters.skip_emotion)
        return " and ".join(applies) if all(applies.values()) else ""


def _number(person: str) -> str:
    """Return a person's number as text: "2" for "person_02" or "2.0", so settings need not copy a file's spelling."""
    digits = re.findall(r"[0-9]+", re.sub(r"\.0*$", "", person.strip()))
    return digits[0].lstrip("0") or "0" if len(digits) == 1 else person.strip()
