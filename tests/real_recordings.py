"""Data sets of three tasks on disk, made from real recordings.

Music, ambience and 25 s of speech are under `tests/data` (its README has their sources); longer speech is Asterisk's
voice prompts, and short sounds are Sonic Pi's samples (CC0), where those are installed. Each builder writes one task's
folder in the published format and returns it. Joined clips are 90 s and longer, except that one, with a short gap
between recordings; none is repeated for length.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import soundfile
from task_folders import a_row

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts" / "real"))

import speech
from speech import joined, joined_seconds, sentences

RECORDINGS = Path(__file__).parent / "data"
CHAPTER_S = 90

PROMPT_PACKAGES = speech.packages("en")
SAMPLE_PACKAGE = "sonic-pi-samples"
SAMPLE_FOLDER = Path("/usr/share/sonic-pi/samples")
#: What each of Sonic Pi's samples sounds like.
SAMPLES = {
    "elec_beep": "Beeping of a keypad", "ambi_choir": "A choir singing", "perc_till": "A cash register ringing",
    "vinyl_scratch": "A record being scratched", "loop_3d_printer": "A printer working",
    "loop_safari": "Drums and animal calls", "perc_bell": "A bell ringing", "misc_crow": "A crow cawing",
    "perc_door": "A door closing", "ambi_sauna": "Steam hissing", "drum_roll": "A drum roll",
    "loop_industrial": "Machines of a factory",
}  # fmt: skip


def recordings(folder: str) -> list[Path]:
    """Return the files of `speech`, `music` or `ambience`, sorted."""
    return sorted((RECORDINGS / folder).glob("*.ogg"))


def prompts(fewest: int = 7) -> Mapping[Path, str]:
    """Return Asterisk's English prompts of at least so many words with their texts; see :func:`speech.prompts`."""
    return speech.prompts("en", fewest)


def chapters() -> list[list[Path]]:
    """Return the first prompts in two chapters of 90 s and more; skip the test where there are none."""
    chapter_files: list[list[Path]] = [[], []]
    parts = iter(prompts())
    for chapter in chapter_files:
        while not chapter or joined_seconds(chapter) < CHAPTER_S:
            part = next(parts, None)
            if part is None:
                pytest.skip(f"no voice prompts for clips of {CHAPTER_S} s: apt-get install {PROMPT_PACKAGES}")
            chapter.append(part)
    return chapter_files


def librispeech_text(text: str) -> str:
    """Spell a sentence as LibriSpeech does: capitals and apostrophes, nothing else."""
    return " ".join(re.sub(r"[^A-Z' ]+", " ", text.upper()).split())


def build_librispeech(folder: Path) -> Path:
    """Two chapters of speaker 1, a clip of 90 s and more each, and one of speaker 2, of whom there are only 26 s."""
    first, second = chapters()
    texts = {**prompts(), **sentences()}
    for speaker, chapter, paths in (("1", "1", first), ("1", "2", second), ("2", "1", list(sentences()))):
        place = folder / "dev-clean" / speaker / chapter
        place.mkdir(parents=True)
        clip = f"{speaker}-{chapter}-0000"
        soundfile.write(place / f"{clip}.flac", joined(paths, 16_000), 16_000)
        text = " ".join(librispeech_text(texts[path]) for path in paths)
        (place / f"{speaker}-{chapter}.trans.txt").write_text(f"{clip} {text}\n", encoding="utf-8")
    return folder


def build_gtzan(folder: Path) -> Path:
    """One clip of all the music, 22.05 kHz; its genre is arbitrary."""
    (folder / "wav").mkdir(parents=True)
    soundfile.write(folder / "wav" / "hiphop_0.wav", joined(recordings("music"), 22_050), 22_050)
    choices = ("Classical - classical", "Hip-Hop - hiphop", "Country - country", "Metal - metal")
    row = a_row("wav/hiphop_0.wav", "What is the genre of this music?", choices, "B", genre_label="hiphop", uniq_id=0)
    (folder / "music_genre_classification_meta.json").write_text(json.dumps([row]), encoding="utf-8")
    return folder


def build_tau(folder: Path) -> Path:
    """One clip of all the ambience, 16 kHz; its scene is arbitrary."""
    (folder / "concatenated_resampled").mkdir(parents=True)
    name = "metro_station-nowhere-1-0-a.wav"
    soundfile.write(folder / "concatenated_resampled" / name, joined(recordings("ambience"), 16_000), 16_000)
    choices = ("park", "metro", "metro_station", "bus")
    row = a_row(name, "Where was this recorded?", choices, "C", scene_label="metro_station")
    (folder / "acoustic_scene_task_meta.json").write_text(json.dumps([row]), encoding="utf-8")
    return folder


def build_all(root: Path) -> Path:
    """Put the three tasks under one data root; LibriSpeech only where there are voice prompts."""
    if prompts():
        build_librispeech(root / "librispeech-long")
    build_gtzan(root / "GTZAN")
    build_tau(root / "TAU")
    return root
