"""TAU Urban Acoustic Scenes, 2019 and 2020 mobile: clips of ten seconds, listed in `meta.csv`."""

from __future__ import annotations

import csv
import random
from collections.abc import Iterator
from pathlib import Path, PurePath

from audiomarathon.benchmarks.audiomarathon.tau import Tau
from audiomarathon.errors import DataError
from audiomarathon.segment.corpus import Corpus, Group, Row, Source, below, choices, drawn

COLUMNS = ("filename", "scene_label", "identifier", "source_label")


class TauCorpus(Corpus):
    """Join clips of one scene, place and device.

    The scene comes from the label column, because file names are ambiguous (`metro` and `metro_station`). Devices are
    kept apart because in the mobile set they recorded the same moment side by side.
    """

    task = "tau"
    title = "TAU Urban Acoustic Scenes"
    layout = """\
  meta.csv        tab-separated: filename  scene_label  identifier (city-location)  source_label (device)
  audio/*.wav     named in the filename column as audio/…, such as audio/metro_station-lisbon-1000-40000-a.wav"""
    example = "TAU-urban-acoustic-scenes-2019-development -o data/TAU"
    seconds = (90.0, 210.0)
    gap = 0.0
    cut = True
    metadata_file = Tau.metadata_file

    def groups(self) -> list[Group]:
        """Return a group for each scene, place and device."""
        groups: dict[str, list[Source]] = {}
        facts: dict[str, dict[str, str]] = {}
        groups_of: dict[Path, str] = {}
        for root in self.roots:
            meta = self.the_one([file for file in below(root, ["meta.csv"]) if file.name == "meta.csv"], "meta.csv")
            for row in _rows(meta):
                path, scene = meta.parent / row["filename"], row["scene_label"]
                device = row["source_label"] or "a"
                if not path.is_file():
                    self.left_out.append((self.name(path), "is in meta.csv, but the file is missing"))
                    continue
                name = f"{scene}-{row['identifier']}-{device}"
                if groups_of.setdefault(path, name) != name:
                    self.left_out.append(
                        (self.name(path), f"is in meta.csv twice: as {groups_of[path]}, and as {name}")
                    )
                    continue
                groups.setdefault(name, []).append(Source(path, self.name(path)))
                facts[name] = {"scene": scene, "identifier": row["identifier"], "device": device}
        return [Group(name, sorted(groups[name], key=lambda s: s.name), facts[name]) for name in sorted(groups)]

    def place(self, group: Group, index: int) -> str:
        """Return `scene-city-location-number-device`, named as in the corpus."""
        facts = group.facts
        return f"concatenated_resampled/{facts['scene']}-{facts['identifier']}-{index}-{facts['device']}.wav"

    def rows(self, clip: Row, chance: random.Random) -> list[Row]:
        """Ask for the scene; three options are wrong."""
        scene = clip["facts"]["scene"]
        options, letter = drawn(scene, Tau.classes, chance)
        return [
            {
                "path": clip["path"],
                "scene_label": scene,
                "question": "What is the acoustic scene of this recording?",
                **choices([option.replace("_", " ").capitalize() for option in options]),
                "answer_gt": letter,
            }
        ]


def _rows(meta: Path) -> Iterator[dict[str, str]]:
    with meta.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, delimiter="\t")
        if not set(COLUMNS[:3]) <= set(reader.fieldnames or ()):
            raise DataError(f"{meta}: expected the tab-separated columns {', '.join(COLUMNS)}")
        for number, row in enumerate(reader, start=2):
            if row["scene_label"] not in Tau.classes:
                allowed = ", ".join(Tau.classes)
                raise DataError(f"{meta}, line {number}: unknown scene {row['scene_label']!r}; allowed: {allowed}")
            told = {column: (row.get(column) or "").strip() for column in COLUMNS}
            if PurePath(told["filename"]).is_absolute() or ".." in PurePath(told["filename"]).parts:
                raise DataError(f"{meta}, line {number}: {told['filename']!r} lies outside the corpus")
            if "/" in told["identifier"] + told["source_label"]:
                raise DataError(f"{meta}, line {number}: expected no '/' in identifier and source_label, found {told}")
            yield told
