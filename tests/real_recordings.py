"""Data sets of four tasks on disk, made from real recordings.

Music, ambience and 25 s of speech are under `tests/data` (its README has their sources); longer speech is Asterisk's
voice prompts, and short sounds are Sonic Pi's samples (CC0), where those are installed. Each builder writes one task's
folder in the published format and returns it. Joined clips are 90 s and longer, except that one, with a short gap
between recordings; none is repeated for length. JASCO's are a prompt over a sound, a few seconds long.
"""

from __future__ import annotations

import csv
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
from audiomarathon.wings.jasco.task import COLUMNS

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts" / "real"))

import speech
from speech import joined, joined_seconds, sentences

RECORDINGS = Path(__file__).parent / "data"
CHAPTER_S = 90

PROMPT_PACKAGES = speech.packages("en")
SAMPLE_PACKAGE = "sonic-pi-samples"
SAMPLE_FOLDER = Path("/usr/share/sonic-pi/samples")
#: A prompt, a sample, what it sounds like; the answers from the sound, from the speech and from both; keywords.
MIXTURES = (
    ("agent-pass", "elec_beep", "Beeping of a keypad", "They are pressing the keys of a machine.",
     "They are logging in to an account.", "They are withdrawing money from a cash machine.", "cash,withdrawing"),
    ("conf-waitforleader", "ambi_choir", "A choir singing", "They are listening to a choir.",
     "They are waiting for a meeting to start.", "They are waiting for the conductor of a choir.", "conductor"),
    ("queue-youarenext", "perc_till", "A cash register ringing", "They are paying in a shop.",
     "They are waiting on the phone.", "They are calling a shop to place an order.", "order,shop"),
    ("vm-savefolder", "vinyl_scratch", "A record being scratched", "They are playing records as a disc jockey.",
     "They are sorting their messages.", "They are archiving recordings from vinyl.", "archiving,vinyl"),
    ("feature-not-avail-line", "loop_3d_printer", "A printer working", "They are printing something.",
     "They are calling a hotline.", "They are trying to fax a document.", "fax"),
    ("tt-monkeysintro", "loop_safari", "Drums and animal calls", "They are making music.",
     "They are talking about missing people.", "They are telling a story of a jungle expedition.", "jungle"),
    ("at-tone-time-exactly", "perc_bell", "A bell ringing", "They are ringing a bell.",
     "They are asking for the time.", "They are setting a watch by a church clock.", "clock,watch"),
    ("check-number-dial-again", "misc_crow", "A crow cawing", "They are watching birds.",
     "They dialled a wrong number.", "They are lost outdoors and calling for help.", "lost,help"),
    ("vm-nobodyavail", "perc_door", "A door closing", "They are closing a door.",
     "They are leaving a message.", "They have left the office for the day.", "left the office"),
    ("conf-onlyperson", "ambi_sauna", "Steam hissing", "They are cooking or ironing.",
     "They are in a telephone conference.", "They are relaxing alone in a sauna.", "sauna"),
    ("vm-rec-name", "drum_roll", "A drum roll", "They are practising the drums.",
     "They are recording a greeting.", "They are introducing themselves on a stage.", "stage"),
    ("status", "loop_industrial", "Machines of a factory", "They are working in a factory.",
     "They are answering the phone at the office.", "They are looking for a worker in the factory.", "worker"),
)  # fmt: skip


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


def build_jasco(folder: Path, clips: int = 12) -> Path:
    """A clone of JASCO with up to twelve clips: a voice prompt over a sound; their answers are made up."""
    if not prompts() or not SAMPLE_FOLDER.is_dir():
        pytest.skip(f"no sounds to mix: apt-get install {PROMPT_PACKAGES} {SAMPLE_PACKAGE}")
    data = folder / "dataset" / "v0"
    data.mkdir(parents=True)
    said = {path.stem: (path, text) for path, text in prompts().items()}
    with (data / "v0.csv").open("w", encoding="utf-8", newline="") as stream:
        out = csv.writer(stream)
        out.writerow(["audio_id", *COLUMNS.values()])
        for number, (prompt, sample, sound, *answers) in enumerate(MIXTURES[:clips], 1):
            path, text = said[prompt]
            speech, noise = decode(path, 16_000), decode(SAMPLE_FOLDER / f"{sample}.flac", 16_000)[:96_000]
            clip = np.zeros(max(16_000 + len(speech), len(noise)), np.float32)
            clip[: len(noise)] += 0.3 * noise / np.abs(noise).max()
            clip[-len(speech) :] += 0.6 * speech / np.abs(speech).max()  # late, as in most of the original's
            soundfile.write(data / f"{number}.wav", clip.clip(-1, 1), 16_000)
            out.writerow([number, sound, text, *answers])
    return folder


def build_all(root: Path) -> Path:
    """Put the three tasks under one data root; LibriSpeech only where there are voice prompts."""
    if prompts():
        build_librispeech(root / "librispeech-long")
    build_gtzan(root / "GTZAN")
    build_tau(root / "TAU")
    return root
