"""VESUS: ten actors read the same phrases in five emotions."""

from __future__ import annotations

import random
import re
from pathlib import Path

from audiomarathon.benchmarks.audiomarathon.vesus import Vesus
from audiomarathon.benchmarks.locate import nearest
from audiomarathon.segment.corpus import Corpus, Group, Row, drawn, question


class VesusCorpus(Corpus):
    """Join clips of one person and emotion. The corpus's "Neutral" is the task's `monotone`."""

    task = "vesus"
    title = "VESUS"
    layout = """\
  Audio/<person>/<Emotion>/<number>.wav     persons 1 to 10; Angry, Fearful, Happy, Neutral, Sad"""
    example = "VESUS/Audio -o data/VESUS"
    seconds = (90.0, 120.0)
    metadata_file = Vesus.metadata_file

    def groups(self) -> list[Group]:
        """Return one group of source clips for each person and emotion."""
        task = Vesus()
        folders = [place for root in self.roots for place in nearest(root, lambda f: any(map(_is_person, f.folders)))]
        groups = []
        for person in sorted(self.the_one(folders, "folder with one folder per person (1 to 10)").iterdir()):
            if not _is_person(person.name):
                continue
            for place in sorted(place for place in person.iterdir() if place.is_dir()):
                emotion = task.label(place.name)
                if emotion not in Vesus.classes:
                    self.left_out.append((self.name(place), "is none of the five emotions"))
                    continue
                number = int(re.findall(r"\d+", person.name)[0])
                groups.append(Group(f"person{number}_{emotion}", place, {"person": number, "emotion": emotion}))
        return sorted(groups, key=lambda group: group.name)

    def rows(self, clip: Row, chance: random.Random) -> list[Row]:
        """Return a list with one row: a question about the clip's emotion, with three wrong options."""
        person, emotion = clip["facts"]["person"], clip["facts"]["emotion"]
        options, letter = drawn(emotion, Vesus.classes, chance)
        shown = [option.capitalize() for option in options]
        facts = {"emotion_label": emotion, "person_id": person, "uniq_id": f"vesus_{Path(clip['path']).stem}"}
        return question(clip, "Which emotion does the speaker express?", shown, letter, **facts)


def _is_person(name: str) -> bool:
    return re.fullmatch(r"(person|actor|p)?[ _-]?\d{1,2}", name, re.IGNORECASE) is not None
