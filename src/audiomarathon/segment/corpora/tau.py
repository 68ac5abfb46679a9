"""TAU Urban Acoustic Scenes, 2019 and 2020 mobile: clips of ten seconds, listed in `meta.csv`."""

from __future__ import annotations

import random
from pathlib import Path, PurePath

from audiomarathon.benchmarks.audiomarathon.tau import Tau
from audiomarathon.errors import DataError
from audiomarathon.segment.corpus import Corpus, Group, Row, Source, below, drawn, question, table

COLUMNS = ("filename", "scene_label", "identifier")


class TauCorpus(Corpus):
    """Join source clips of one scene, place and recording device.

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
    clip = "concatenated_resampled/{scene}-{identifier}-{index}-{device}.wav"

    def groups(self) -> list[Group]:
        """Return one group of source clips for each scene, place and device."""
        groups: dict[str, list[Source]] = {}
        facts: dict[str, dict[str, str]] = {}
        groups_of: dict[Path, str] = {}
        for root in self.roots:
            meta = self.the_one([file for file in below(root, ["meta.csv"]) if file.name == "meta.csv"], "meta.csv")
            for place, row in table(meta, COLUMNS):
                _check(place, row)
                path, scene, identifier = meta.parent / row["filename"], row["scene_label"], row["identifier"]
                device = row.get("source_label") or "a"
                name = f"{scene}-{identifier}-{device}"
                if not path.is_file():
                    self.left_out.append((self.name(path), "is in meta.csv, but the file is missing"))
                elif (before := groups_of.setdefault(path, name)) != name:
                    self.left_out.append((self.name(path), f"is in meta.csv twice: as {before} and as {name}"))
                else:
                    groups.setdefault(name, []).append(Source(path, self.name(path)))
                    facts[name] = {"scene": scene, "identifier": identifier, "device": device}
        return [Group(name, sorted(groups[name], key=lambda s: s.name), facts[name]) for name in sorted(groups)]

    def rows(self, clip: Row, chance: random.Random) -> list[Row]:
        """Return a list with one row: a question about the clip's scene, with three wrong options."""
        scene = clip["facts"]["scene"]
        options, letter = drawn(scene, Tau.classes, chance)
        shown = [option.replace("_", " ").capitalize() for option in options]
        return question(clip, "What is the acoustic scene of this recording?", shown, letter, scene_label=scene)


def _check(place: str, row: Row) -> None:
    if row["scene_label"] not in Tau.classes:
        raise DataError(f"{place}: unknown scene {row['scene_label']!r}; allowed: {', '.join(Tau.classes)}")
    if PurePath(row["filename"]).is_absolute() or ".." in PurePath(row["filename"]).parts:
        raise DataError(f"{place}: {row['filename']!r} lies outside the corpus")
    if "/" in row["identifier"] + row.get("source_label", ""):
        raise DataError(f"{place}: expected no '/' in identifier and source_label, found {row}")
