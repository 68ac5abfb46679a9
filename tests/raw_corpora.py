"""Small raw corpora in the layouts of the ten published corpora, for the builders of `Segment/`.

No two clips of a corpus are alike. Clips last about a second, so tests build clips of seconds where users build
clips of minutes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from audiomarathon.cli.segment import door


class Noise:
    """Seeded noise, different for each clip."""

    def __init__(self) -> None:
        self.made = 0

    def write(self, path: Path, *, rate: int = 16_000, channels: int = 1, seconds: float = 0.0, **form: str) -> Path:
        """Write the next clip, by default of about a second."""
        path.parent.mkdir(parents=True, exist_ok=True)
        frames = round(rate * (seconds or 0.8 + 0.05 * (self.made % 9)))
        self.made += 1
        samples = (np.random.default_rng(self.made).uniform(-0.5, 0.5, frames) * 32_767).astype(np.int16)
        soundfile.write(path, np.stack([samples] * channels, axis=1), rate, **form)
        return path


def tau(root: Path, voice: Noise) -> list[str]:
    """Two scenes in two places; the name of one begins with the name of the other; 48 kHz stereo, as published."""
    lines, number = ["filename\tscene_label\tidentifier\tsource_label"], 40_000
    for scene in ("metro", "metro_station"):
        for place in ("lisbon-1000", "lyon-1001"):
            for _ in range(7):
                name = f"audio/{scene}-{place}-{number}-a.wav"
                voice.write(root / name, rate=48_000, channels=2, seconds=0.9)
                lines.append(f"{name}\t{scene}\t{place}\ta")
                number += 1
    (root / "meta.csv").write_text("\n".join(lines) + "\n")
    return [str(root)]


def gtzan(root: Path, voice: Noise) -> list[str]:
    """Two genres, in Sun's .au at 22.05 kHz."""
    for genre in ("blues", "hiphop"):
        for number in range(11):
            voice.write(root / "genres" / genre / f"{genre}.{number:05d}.au", rate=22_050, format="AU")
    return [str(root / "genres")]


def had(root: Path, voice: Noise) -> list[str]:
    """Genuine and half-truth clips, mixed in one folder; each half-truth has one fake segment in its middle."""
    lines = []
    for number in range(24):
        kind = ("real", "fake")[number % 2]
        name = f"HAD_train_{kind}_{number:08d}"
        voice.write(root / "HAD_train" / "train" / "conbine" / f"{name}.wav", seconds=0.9)
        segments = "0.00-0.90-T 1" if kind == "real" else "0.00-0.30-T/0.30-0.55-F/0.55-0.90-T 0"
        lines.append(f"{name} {segments}")
    (root / "HAD_train" / "HAD_train_label.txt").write_text("\n".join(lines) + "\n")
    return [str(root / "HAD_train")]


def speakers(root: Path, voice: Noise) -> Path:
    for speaker in ("id00012", "id00015", "id00016"):
        for video in ("21Uxsk56VDQ", "2DLq_Kkc1r8"):
            for number in range(5):
                voice.write(root / "dev" / "aac" / speaker / video / f"{number + 1:05d}.wav")
    return root / "dev" / "aac"


def vox(root: Path, voice: Noise) -> list[str]:
    """VoxCeleb2, converted to WAV; its table pads cells, and lacks the third speaker."""
    folder = speakers(root, voice)
    rows = ["VoxCeleb2 ID ,VGGFace2 ID ,Gender ,Set ", "id00012 ,n000012 ,m ,dev ", "id00015 ,n000015 ,f ,dev "]
    (root / "vox2_meta.csv").write_text("\n".join(rows) + "\n")
    return [str(folder)]


def vox_age(root: Path, voice: Noise) -> list[str]:
    """VoxCeleb2 with a table of ages, in which the third speaker is a child."""
    folder = speakers(root, voice)
    (root / "ages.csv").write_text("id,age\nid00012,30\nid00015,31\nid00016,12\n")
    return [str(folder), "--ages", str(root / "ages.csv")]


def librispeech(root: Path, voice: Noise) -> list[str]:
    """Two chapters of one speaker; FLAC."""
    for chapter in ("121123", "121550"):
        place = root / "LibriSpeech" / "test-clean" / "84" / chapter
        lines = []
        for number in range(12):
            name = f"84-{chapter}-{number:04d}"
            voice.write(place / f"{name}.flac")
            lines.append(f"{name} WORD{number} OF {chapter}")
        (place / f"84-{chapter}.trans.txt").write_text("\n".join(lines) + "\n")
    return [str(root / "LibriSpeech" / "test-clean")]


def vesus(root: Path, voice: Noise) -> list[str]:
    """Two speakers, two emotions; folders are named as in the corpus."""
    for person in ("1", "10"):
        for emotion in ("Happy", "Neutral"):
            for number in range(10):
                voice.write(root / "VESUS" / "Audio" / person / emotion / f"{number + 1}.wav", rate=22_050)
    return [str(root / "VESUS" / "Audio")]


EVENTS = (
    "Alarm_bell_ringing", "Blender", "Cat", "Dishes", "Dog", "Electric_shaver_toothbrush", "Frying", "Running_water",
    "Speech", "Vacuum_cleaner",
)  # fmt: skip


def desed(root: Path, voice: Noise) -> list[str]:
    """Soundscapes with one or two events each, all ten classes, at 44.1 kHz; one holds no event."""
    lines = ["filename\tonset\toffset\tevent_label"]
    for number in range(60):
        name = f"Y{number:03d}.wav"
        voice.write(root / "dataset" / "audio" / "validation" / name, rate=44_100, seconds=0.9)
        lines.append(f"{name}\t0.100\t0.300\t{EVENTS[number % 10]}")
        if number % 3 == 0:
            lines.append(f"{name}\t0.400\t0.800\t{EVENTS[(number // 3) % 10]}")
    voice.write(root / "dataset" / "audio" / "validation" / "Ysilent.wav", rate=44_100, seconds=0.9)
    lines.append("Ysilent.wav\t\t\t")
    (table := root / "dataset" / "metadata" / "validation" / "validation.tsv").parent.mkdir(parents=True)
    table.write_text("\n".join(lines) + "\n")
    return [str(root / "dataset")]


PLACES = ("france", "spain", "new york", "york", "italy", "malta", "greece", "poland")


def slue(root: Path, voice: Noise) -> list[str]:
    """Utterances, most with the name of a place. Two of the names share a word."""
    lines = ["id\traw_text\tnormalized_text\tspeaker_id\tsplit\traw_ner\tnormalized_ner"]
    for number in range(16):
        name = f"20131007-0900-PLENARY-19-en_20131007-21:26:{number:02d}_7"
        voice.write(root / "slue-voxpopuli" / "dev" / f"{name}.ogg")
        place = PLACES[number // 2]
        text = f"we are in {place} today"
        entities = f"[['GPE', 10, {len(place)}]]" if number % 4 else "None"
        lines.append(f"{name}\t{text}.\t{text if number % 4 else 'good morning'}\tNone\tdev\t[]\t{entities}")
    (root / "slue-voxpopuli" / "slue-voxpopuli_dev.tsv").write_text("\n".join(lines) + "\n")
    return [str(root / "slue-voxpopuli")]


def race(root: Path, voice: Noise) -> list[str]:
    """Three passages. A script that copies a clip replaces the speech synthesiser."""
    for number, folder in enumerate(("high", "high", "middle")):
        place = root / "RACE" / "test" / folder
        place.mkdir(parents=True, exist_ok=True)
        options = [["It.", "He.", "She.", "They."], ["A reason.", "No reason.", "Both.", "Neither."]]
        passage = {"article": f"Passage {number}. " + "It goes on. " * 5, "questions": ["What goes on?", "Why?"]}
        passage |= {"options": options, "answers": ["A", "D"], "id": f"{folder}{number}.txt"}
        (place / f"{number}.txt").write_text(json.dumps(passage))
    spoken = voice.write(root / "spoken.wav", rate=22_050, seconds=4.0)
    return [str(root / "RACE" / "test"), "--tts", f"sh -c 'test -s {{text}} && cp {spoken} {{out}}'"]


#: Functions that write the raw corpora, by task. Each returns the arguments for the builder's command line.
MAKERS: Mapping[str, Callable[[Path, Noise], list[str]]] = {
    "tau": tau, "gtzan": gtzan, "had": had, "vox": vox, "vox_age": vox_age, "librispeech": librispeech,
    "vesus": vesus, "desed": desed, "slue": slue, "race": race,
}  # fmt: skip


SHORT = ["--min", "3", "--max", "5"]


def built(task: str, raw: list[str], folder: Path, *options: str, code: int = 0) -> Path:
    """Run a builder's command line and check its exit code."""
    short = ["--min", "4", "--max", "4"] if task == "gtzan" else SHORT
    with pytest.raises(SystemExit) as ended:
        door(task, [*raw, "-o", str(folder), *short, *options])
    assert ended.value.code == code
    return folder


def manifest(folder: Path) -> list[dict[str, Any]]:
    """Return the manifest of a built folder: its clips, each with its sources."""
    return [json.loads(line) for line in (folder / "manifest.jsonl").read_text().splitlines()]


def left_out(folder: Path) -> dict[str, str]:
    """Return the sources that a build left out, and why."""
    rows = [json.loads(line) for line in (folder / "left_out.jsonl").read_text().splitlines()]
    return {row["path"]: row["reason"] for row in rows}
