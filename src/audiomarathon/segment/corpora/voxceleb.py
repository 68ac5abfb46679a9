"""VoxCeleb 1 and 2: interviews, one folder per speaker. The corpus states genders; users must supply ages."""

from __future__ import annotations

import csv
import random
import re
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from audiomarathon.benchmarks.audiomarathon.vox import Vox
from audiomarathon.benchmarks.audiomarathon.vox_age import VoxAge
from audiomarathon.benchmarks.locate import nearest
from audiomarathon.benchmarks.rows import AUDIO_SUFFIXES, read_text
from audiomarathon.errors import DataError
from audiomarathon.segment.corpus import Corpus, Group, Row, below, question

_SPEAKER = re.compile(r"id\d+")
_GENDERS = {"m": "Male", "f": "Female"}
_OLDEST = (30, 40, 50, 70)  # highest age of every age group except the last
_UNKNOWN = "this speaker's class is not in the table"
_CONVERT = "ffmpeg -i 00001.m4a -ac 1 -ar 16000 00001.wav"


class _VoxCeleb(Corpus):
    """Base of the two tasks from VoxCeleb: join clips of one speaker, video after video."""

    seconds = (90.0, 210.0)
    clip = "wav/{name}/{name}_{index:04d}.wav"

    @abstractmethod
    def speakers(self) -> Mapping[str, Any]:
        """Return {speaker's id: gender or age}."""

    def groups(self) -> list[Group]:
        """Return one group of source clips per speaker; a speaker's clips are listed only when needed."""
        folders = []
        for root in self.roots:
            candidates = nearest(root, lambda folder: any(map(_SPEAKER.fullmatch, folder.folders)))
            folder = self.the_one(candidates, "folder with one folder per speaker (id00012)")
            folders += [child for child in folder.iterdir() if _SPEAKER.fullmatch(child.name) and child.is_dir()]
        folders.sort(key=lambda folder: folder.name)
        known = self.speakers()
        self.left_out += [
            (self.name(speaker_folder), _UNKNOWN) for speaker_folder in folders if speaker_folder.name not in known
        ]
        folders = [speaker_folder for speaker_folder in folders if speaker_folder.name in known]
        if folders and not any(below(folders[0], AUDIO_SUFFIXES)):
            m4a = next(below(folders[0], [".m4a"]), None)
            advice = f"{m4a} is AAC, which cannot be read here; convert each clip, as in {_CONVERT}"
            raise DataError(f"{self.title}: {folders[0]}: {advice if m4a else 'no audio'}")
        return [
            Group(
                speaker_folder.name,
                speaker_folder,
                {"speaker": speaker_folder.name, "known": known[speaker_folder.name]},
            )
            for speaker_folder in folders
        ]


class VoxCorpus(_VoxCeleb):
    """Build the task `vox`: what is the speaker's gender?"""

    task = "vox"
    title = "VoxCeleb (gender)"
    layout = f"""\
  vox2_meta.csv (or vox1_meta.csv)       id and gender of each speaker; here, above, or named with --meta
  dev/aac/id00012/<video>/00001.wav      one folder per speaker (VoxCeleb1: wav/id10001/…)
VoxCeleb2 comes as .m4a, which cannot be read here; convert each clip, into the same folder:
  {_CONVERT}"""
    example = "vox2/dev/aac --meta vox2/vox2_meta.csv -o data/Vox"
    metadata_file = Vox.metadata_file
    meta: Annotated[Path | None, typer.Option(help="vox1_meta.csv or vox2_meta.csv (default: searched).")] = None

    def speakers(self) -> Mapping[str, str]:
        """Return {speaker's id: gender}."""
        places = dict.fromkeys(place for root in self.roots for place in (root, *root.parents[:3]))
        near = [file for place in places for file in sorted(place.glob("vox[12]_meta.csv"))]
        genders: dict[str, str] = {}
        for file in [self.meta] if self.meta else near or [self.the_one([], "vox1_meta.csv or vox2_meta.csv")]:
            for row in table(file):
                speaker = next((row[name] for name in row if name.startswith("voxceleb") and name.endswith("id")), "")
                gender = _GENDERS.get(row.get("gender", "").lower()[:1])
                if not speaker or gender is None:
                    raise DataError(
                        f"{file}: expected columns 'VoxCeleb1 ID' (or 2) and 'Gender' (m or f), found {row}"
                    )
                genders[speaker] = gender
        return genders

    def rows(self, clip: Row, chance: random.Random) -> list[Row]:
        """Return a list with one row: a question about the speaker's gender, with options in the published order."""
        del chance
        facts = {"speaker_id_original": clip["facts"]["speaker"], "uniq_id": f"vox_{Path(clip['path']).stem}"}
        asked = "What is the gender of the speaker?"
        return question(clip, asked, ["Male", "Female"], clip["facts"]["known"], **facts)


class VoxAgeCorpus(_VoxCeleb):
    """Build the task `vox_age`: to which age group does the speaker belong?"""

    task = "vox_age"
    title = "VoxCeleb (age)"
    layout = """\
  ages.csv                               one line per speaker: id,age (VoxCeleb has no ages)
  dev/aac/id00012/<video>/00001.wav      one folder per speaker; convert VoxCeleb2's .m4a (Vox2_task.py --help)"""
    example = "vox2/dev/aac --ages ages.csv -o data/Vox_age"
    metadata_file = VoxAge.metadata_file
    ages: Annotated[Path, typer.Option(help="CSV table of speaker ids and ages.")]

    def speakers(self) -> Mapping[str, int]:
        """Return {speaker's id: age}; speakers under 18 belong to no age group and are left out."""
        ages_by_speaker: dict[str, int] = {}
        for number, cells in enumerate(_cells(self.ages), start=1):
            if number == 1 and not any(cell.replace(".", "").isdecimal() for cell in cells):
                continue  # a header
            speaker = next((cell for cell in cells if _SPEAKER.fullmatch(cell)), None)
            age = next((cell for cell in cells if re.fullmatch(r"\d{1,3}(\.\d+)?", cell)), None)
            if speaker is None or age is None:
                raise DataError(f"{self.ages}, line {number}: expected a speaker's id and age, found {','.join(cells)}")
            if ages_by_speaker.setdefault(speaker, int(float(age))) != int(float(age)):
                raise DataError(
                    f"{self.ages}, line {number}: speaker {speaker} occurs twice; "
                    f"the first age is {ages_by_speaker[speaker]}"
                )
        return {speaker: age for speaker, age in ages_by_speaker.items() if age >= 18}

    def rows(self, clip: Row, chance: random.Random) -> list[Row]:
        """Return a list with one row: a question about the speaker's age group, with options in the published order."""
        del chance
        age = clip["facts"]["known"]
        answer = VoxAge.classes[sum(age > oldest for oldest in _OLDEST)]
        facts = {"speaker_id_original": clip["facts"]["speaker"], "uniq_id": f"vox_age_{Path(clip['path']).stem}"}
        asked = "To which age group does the speaker belong?"
        return question(clip, asked, VoxAge.classes, answer, speaker_age=age, **facts)


def table(file: Path) -> list[dict[str, str]]:
    """Return the rows of a metadata table as {lower-case column name: text}.

    VoxCeleb1's table is separated by tabs, VoxCeleb2's by commas and blanks.
    """
    header, *rows = _cells(file)
    names = [name.lower() for name in header]
    return [dict(zip(names, row, strict=False)) for row in rows]


def _cells(file: Path) -> list[list[str]]:
    if not (lines := read_text(file).splitlines()):
        raise DataError(f"{file}: is empty")
    delimiter = "\t" if "\t" in lines[0] else ","
    return [[cell.strip() for cell in row] for row in csv.reader(lines, delimiter=delimiter) if row]
