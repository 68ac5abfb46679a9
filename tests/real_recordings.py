"""Data sets of four tasks on disk, made from real recordings.

Music, ambience and 25 s of speech are under `tests/data` (its README has their sources); longer speech is Asterisk's
voice prompts, and short sounds are Sonic Pi's samples (CC0), where those are installed. Each builder writes one task's
folder in the published format and returns it. Joined clips last 90 s or more, except that of the 25 s of speech. They
have a short gap between recordings, and repeat none. JASCO's clips are a prompt over a sound, a few seconds long.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import soundfile
from task_folders import a_row

from audiomarathon.audio.decode import decode
from audiomarathon.benchmarks.rows import as_csv
from audiomarathon.wings.jasco.task import COLUMNS

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts" / "real"))

import speech
from speech import joined, joined_seconds, sentences

RECORDINGS = Path(__file__).parent / "data"
CHAPTER_S = 90

PROMPT_PACKAGES = speech.packages("en")
SAMPLE_PACKAGE = "sonic-pi-samples"
SAMPLE_FOLDER = Path("/usr/share/sonic-pi/samples")
#: Sonic Pi's samples, and what each sounds like.
SOUNDS = {
    "elec_beep": "Beeping of a keypad", "ambi_choir": "A choir singing", "perc_till": "A cash register ringing",
    "vinyl_scratch": "A record being scratched", "loop_3d_printer": "A printer working",
    "loop_safari": "Drums and animal calls", "perc_bell": "A bell ringing", "misc_crow": "A crow cawing",
    "perc_door": "A door closing", "ambi_sauna": "Steam hissing", "drum_roll": "A drum roll",
    "loop_industrial": "Machines of a factory",
}  # fmt: skip
#: What could be answered from the first of them, from a voice that asks for a password, and from both; keywords.
ANSWERS = (
    "They are pressing the keys of a machine.", "They are logging in to an account.",
    "They are withdrawing money from a cash machine.", "cash,withdrawing",
)  # fmt: skip


def recordings(folder: str) -> list[Path]:
    """Return the files of `speech`, `music` or `ambience`, sorted."""
    return sorted((RECORDINGS / folder).glob("*.ogg"))


def prompts(fewest: int = 7) -> Mapping[Path, str]:
    """Return Asterisk's English prompts of at least so many words with their texts; see :func:`speech.prompts`."""
    return speech.prompts("en", fewest)


def chapters() -> list[list[Path]]:
    """Return the first voice prompts as two chapters of 90 s or more. Skip the test if there are too few."""
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
    """Two chapters of speaker 1, each a clip of 90 s or more, and a chapter of speaker 2 of only 26 s."""
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


def build_jasco(folder: Path) -> Path:
    """A clone of JASCO with one clip: a voice prompt over a sound; its answers are made up."""
    if not prompts() or not SAMPLE_FOLDER.is_dir():
        pytest.skip(f"no sounds to mix: apt-get install {PROMPT_PACKAGES} {SAMPLE_PACKAGE}")
    data, (sample, sound) = folder / "dataset" / "v0", next(iter(SOUNDS.items()))
    data.mkdir(parents=True)
    ((path, text),) = [(path, text) for path, text in prompts().items() if path.stem == "agent-pass"]
    speech, noise = decode(path, 16_000), decode(SAMPLE_FOLDER / f"{sample}.flac", 16_000)[:96_000]
    clip = np.zeros(max(16_000 + len(speech), len(noise)), np.float32)
    clip[: len(noise)] += 0.3 * noise / np.abs(noise).max()
    clip[-len(speech) :] += 0.6 * speech / np.abs(speech).max()  # late, as in most clips of JASCO
    soundfile.write(data / "1.wav", clip.clip(-1, 1), 16_000)
    header = ["audio_id", *COLUMNS.values()]
    row = dict(zip(header, ("1", sound, text, *ANSWERS), strict=True))
    (data / "v0.csv").write_text(as_csv([row], header), encoding="utf-8")
    return folder


def build_all(root: Path) -> Path:
    """Put three tasks under one data root; LibriSpeech only where there are voice prompts.

    GTZAN has one clip of all the music, TAU one of all the ambience; its genre and its scene are arbitrary.
    """
    if prompts():
        build_librispeech(root / "librispeech-long")
    genres = ("Classical - classical", "Hip-Hop - hiphop", "Country - country", "Metal - metal")
    scenes, place = ("park", "metro", "metro_station", "bus"), "metro_station-nowhere-1-0-a.wav"
    music = a_row("wav/hiphop_0.wav", "What genre is it?", genres, "B", genre_label="hiphop", uniq_id=0)
    ambience = a_row(place, "Where was this recorded?", scenes, "C", scene_label="metro_station")
    for clip, kind, rate, table, row in (
        ("GTZAN/wav/hiphop_0.wav", "music", 22_050, "music_genre_classification_meta.json", music),
        (f"TAU/concatenated_resampled/{place}", "ambience", 16_000, "acoustic_scene_task_meta.json", ambience),
    ):
        (file := root / clip).parent.mkdir(parents=True)
        soundfile.write(file, joined(recordings(kind), rate), rate)
        (file.parents[1] / table).write_text(json.dumps([row]), encoding="utf-8")
    return root
