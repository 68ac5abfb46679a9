"""Data sets of three tasks on disk, joined from the real recordings under `tests/data` (its README has their sources).

Each builder writes one task's folder in the published format and returns it. Joined clips are 90 s and longer, with a
short gap between recordings; none is repeated to reach a length.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import soundfile

from audiomarathon.audio import decode

RECORDINGS = Path(__file__).parent / "data"
GAP_S = 0.25

# Consecutive sentences of one book, in two halves of 101 s and 121 s.
CHAPTERS = (
    tuple(f"LJ001-{number:04d}" for number in range(1, 16)),
    tuple(f"LJ001-{number:04d}" for number in range(16, 33)),
)
SECOND_SPEAKER = tuple(f"sense-and-sensibility-{number}" for number in ("0870", "0880", "0890", "0920", "0930"))


def recordings(folder: str) -> list[Path]:
    """Return the files of `speech`, `music` or `ambience`, sorted."""
    return sorted((RECORDINGS / folder).glob("*.ogg"))


def transcripts() -> dict[str, str]:
    """Return the text of each file in `speech`, as published with it."""
    lines = (RECORDINGS / "speech" / "transcripts.tsv").read_text(encoding="utf-8").splitlines()
    return {name: text for name, _, text in (line.partition("\t") for line in lines)}


def librispeech_text(text: str) -> str:
    """Spell a sentence as LibriSpeech does: capitals and apostrophes, nothing else."""
    return " ".join(re.sub(r"[^A-Z' ]+", " ", text.upper()).split())


def joined(paths: Sequence[Path], sampling_rate: int) -> np.ndarray:
    gap = np.zeros(round(GAP_S * sampling_rate), np.float32)
    parts = [part for path in paths for part in (decode(path, sampling_rate), gap)]
    return np.concatenate(parts[:-1])


def joined_seconds(paths: Sequence[Path]) -> float:
    """Return how long the joined clip has to be, from the recordings' own headers."""
    return sum(soundfile.info(path).duration for path in paths) + GAP_S * (len(paths) - 1)


def speech(names: Sequence[str]) -> list[Path]:
    return [RECORDINGS / "speech" / f"{name}.ogg" for name in names]


def build_librispeech(folder: Path, *, second_speaker: bool = False) -> Path:
    """Two chapters of speaker 1, a clip of 90 s and more each; on request speaker 2, of whom there are only 26 s."""
    chapters = {("1", str(number)): names for number, names in enumerate(CHAPTERS, 1)}
    if second_speaker:
        chapters["2", "1"] = SECOND_SPEAKER
    texts = transcripts()
    for (speaker, chapter), names in chapters.items():
        place = folder / "dev-clean" / speaker / chapter
        place.mkdir(parents=True)
        clip = f"{speaker}-{chapter}-0000"
        soundfile.write(place / f"{clip}.flac", joined(speech(names), 16_000), 16_000)
        text = " ".join(librispeech_text(texts[name]) for name in names)
        (place / f"{speaker}-{chapter}.trans.txt").write_text(f"{clip} {text}\n", encoding="utf-8")
    return folder


def build_gtzan(folder: Path) -> Path:
    """One clip of all the music, 22.05 kHz; its genre is arbitrary."""
    (folder / "wav").mkdir(parents=True)
    soundfile.write(folder / "wav" / "hiphop_0.wav", joined(recordings("music"), 22_050), 22_050)
    row = {
        "path": "wav/hiphop_0.wav",
        "question": "What is the genre of this music?",
        "choice_a": "Classical - classical",
        "choice_b": "Hip-Hop - hiphop",
        "choice_c": "Country - country",
        "choice_d": "Metal - metal",
        "answer_gt": "B",
        "genre_label": "hiphop",
        "uniq_id": 0,
    }
    (folder / "music_genre_classification_meta.json").write_text(json.dumps([row]), encoding="utf-8")
    return folder


def build_tau(folder: Path) -> Path:
    """One clip of all the ambience, 16 kHz; its scene is arbitrary."""
    (folder / "concatenated_resampled").mkdir(parents=True)
    name = "metro_station-nowhere-1-0-a.wav"
    soundfile.write(folder / "concatenated_resampled" / name, joined(recordings("ambience"), 16_000), 16_000)
    row = {
        "path": name,
        "scene_label": "metro_station",
        "question": "Where was this recorded?",
        "choice_a": "park",
        "choice_b": "metro",
        "choice_c": "metro_station",
        "choice_d": "bus",
        "answer_gt": "C",
    }
    (folder / "acoustic_scene_task_meta.json").write_text(json.dumps([row]), encoding="utf-8")
    return folder


def build_all(root: Path) -> Path:
    """Put the three tasks under one data root."""
    build_librispeech(root / "librispeech-long")
    build_gtzan(root / "GTZAN")
    build_tau(root / "TAU")
    return root
