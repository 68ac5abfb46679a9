"""Tiny data sets of all ten tasks on disk, in the formats of the published files; clips are one second of tone.

A builder a task, each of which writes the task's own folder and returns it; `build_all` puts the ten under one root.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import soundfile

RATE = 16000

SCENES = (
    "airport", "bus", "metro", "metro_station", "park", "public_square", "shopping_mall", "street_pedestrian",
    "street_traffic", "tram",
)  # fmt: skip
AGES = (
    ("Young Adult (18-30)", 25),
    ("Early Career (31-40)", 35),
    ("Mid Career (41-50)", 45),
    ("Senior (51-70)", 60),
    ("Elderly (71+)", 80),
)


def write_clip(path: Path, *, rate: int = RATE, seconds: float = 1.0, hertz: float = 440.0) -> Path:
    """Write a tone, as WAV or FLAC by the path's suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    time = np.arange(int(rate * seconds)) / rate
    soundfile.write(path, 0.1 * np.sin(2 * np.pi * hertz * time), rate)
    return path


def write_json(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def choices(*options: str) -> dict[str, str]:
    return {f"choice_{letter}": option for letter, option in zip("abcde", options, strict=False)}


def build_librispeech(folder: Path) -> Path:
    """Two speakers of one split; one chapter has a `.trans.txt`, the other a `.txt` beside its clip."""
    first = folder / "test-clean" / "84" / "121123"
    for number in range(2):
        write_clip(first / f"84-121123-000{number}.flac", hertz=200 + 50 * number)
    (first / "84-121123.trans.txt").write_text("84-121123-0000 GO ON\n84-121123-0001 WHAT A PITY\n")
    clip = write_clip(folder / "test-clean" / "174" / "50561" / "174-50561-0000.flac", hertz=300)
    clip.with_suffix(".txt").write_text("THE NEW YEAR\n")
    return folder


def build_race(folder: Path) -> Path:
    """Two passages, the first with two questions."""
    rows = []
    for passage, question, answer in [("high/p1", 0, "A"), ("high/p1", 1, "B"), ("middle/p2", 0, "D")]:
        write_clip(folder / f"{passage}.wav", hertz=200 + len(rows))
        rows.append(
            {
                "audio_path": f"{passage}.wav",
                "question": f"Question {question} on {passage}?",
                "options": ["To rest.", "To work.", "To eat.", "To play."],
                "answer": answer,
                "article_id": f"{passage}.txt",
                "question_idx": question,
            }
        )
    write_json(folder / "race_benchmark.json", rows)
    return folder


def build_slue(folder: Path) -> Path:
    rows = []
    for index, answer in enumerate("ABC"):
        clip = write_clip(folder / "audio" / f"merged_{index}.wav", hertz=200 + index)
        rows.append(
            {
                "path": clip.relative_to(folder).as_posix(),
                "task_name": "named_entity_recognition",
                "dataset_name": "slue-voxpopuli",
                "question": "How many places are named?",
                **choices("1", "2", "3", "4"),
                "answer_gt": answer,
                "entity_count": index + 1,
                "entity_types": ["PLACE"],
                "audio_duration_info": "170 s",
                "uniq_id": index,
            }
        )
    write_json(folder / "merged_audio_data.json", rows)
    return folder


def build_tau(folder: Path) -> Path:
    """One clip of each scene; the path is relative to the folder of audio, as some published files have it."""
    rows = []
    for index, scene in enumerate(SCENES):
        name = f"{scene}-lisbon-{1000 + index // 2}-0-a.wav"
        write_clip(folder / "concatenated_resampled" / name, hertz=200 + 10 * index)
        options = [SCENES[(index + step) % 10].replace("_", " ").capitalize() for step in range(4)]
        rotated = options[-(index % 4) :] + options[: -(index % 4)] if index % 4 else options
        rows.append(
            {
                "path": name,
                "scene_label": scene,
                "question": "What is the acoustic scene?",
                **choices(*rotated),
                "answer_gt": "ABCD"[index % 4],
            }
        )
    write_json(folder / "acoustic_scene_task_meta.json", rows)
    return folder


def build_gtzan(folder: Path) -> Path:
    """Options in both of their forms; the clips lie under `wav/`, which the paths leave out."""
    rows = []
    for index, (genre, options) in enumerate(
        [
            ("blues", ("Blues - blues", "Rock - rock", "Pop - pop", "Jazz - jazz")),
            ("hiphop", ("Metal", "Hip-Hop", "Disco", "Country")),
        ]
    ):
        write_clip(folder / "wav" / f"{genre}.wav", rate=22050, hertz=300 + index)
        rows.append(
            {
                "path": f"{genre}.wav",
                "question": "What is the genre of this music?",
                **choices(*options),
                "answer_gt": "AB"[index],
                "genre_label": genre,
                "uniq_id": f"gtzan_{index}",
            }
        )
    write_json(folder / "music_genre_classification_meta.json", rows)
    return folder


def build_desed(folder: Path) -> Path:
    rows = []
    for index, (event, options) in enumerate(
        [("Dog", ("Dog", "Cat", "Blender", "Frying")), ("Running_water", ("Speech", "Dishes", "Running water", "Cat"))]
    ):
        write_clip(folder / "audio" / f"{index}.wav", hertz=300 + index)
        rows.append(
            {
                "path": f"audio/{index}.wav",
                "task_type": "sound_event_detection",
                "question": "Which sound event occurs?",
                "choices": dict(zip("ABCD", options, strict=True)),
                "answer_gt": "AC"[index],
                "all_events": [event],
                "primary_event": event,
                "correct_event": event,
                "uniq_id": f"desed_{index}",
                "event_onset": 0.25,
                "event_seconds": 0.5,
            }
        )
    write_json(folder / "desed_sound_event_detection_task.json", {"task_info": {"name": "SED"}, "tasks": rows})
    return folder


def build_vesus(folder: Path) -> Path:
    """Persons 1, 2 and 10, happy and sad."""
    rows = []
    for person in (1, 2, 10):
        for emotion, answer in (("happy", "B"), ("sad", "C")):
            write_clip(folder / "wav" / f"{person}_{emotion}.wav", hertz=200 + person)
            rows.append(
                {
                    "path": f"wav/{person}_{emotion}.wav",
                    "emotion_label": emotion,
                    "person_id": person,
                    "question": "Which emotion does the speaker express?",
                    **choices("Angry", "Happy", "Sad", "Monotone"),
                    "answer_gt": answer,
                }
            )
    write_json(folder / "audio_emotion_dataset.json", rows)
    return folder


def build_had(folder: Path) -> Path:
    """Three real clips and two with fake parts."""
    for label, count in (("real", 3), ("fake", 2)):
        for index in range(count):
            write_clip(folder / label / f"HAD_{index + 8}.wav", hertz=200 + index)
    return folder


def build_vox(folder: Path) -> Path:
    rows = []
    for index, (speaker, gender) in enumerate([("id10270", "Female"), ("id10271", "Male"), ("id10271", "Male")]):
        write_clip(folder / "wav" / speaker / f"{index}.wav", hertz=200 + index)
        rows.append(
            {
                "path": f"{speaker}/{index}.wav",
                "question": "What is the speaker's gender?",
                "choice_a": "Male",
                "choice_b": "Female",
                "answer_gt": gender,
                "speaker_id_original": speaker,
                "uniq_id": f"vox_{index}",
            }
        )
    write_json(folder / "gender_id_task_meta.json", rows)
    return folder


def build_vox_age(folder: Path) -> Path:
    """One speaker of each age; answers are written as name and range, range and name, or one of the two."""
    answers = ("Young Adult (18-30)", "31-40 (Early Career)", "mid career", "51-70", "Elderly (71+)")
    rows = []
    for index, ((_, age), answer) in enumerate(zip(AGES, answers, strict=True)):
        speaker = f"id1000{index}"
        write_clip(folder / "wav" / speaker / "0.wav", hertz=200 + index)
        rows.append(
            {
                "path": f"wav/{speaker}/0.wav",
                "question": "To which age group does the speaker belong?",
                **choices(*(option for option, _ in AGES)),
                "answer_gt": answer,
                "speaker_age": age,
                "speaker_id_original": speaker,
            }
        )
    write_json(folder / "age_classification_task_meta.json", rows)
    return folder


#: The builder of every task, by key and in the paper's order.
BUILDERS: Mapping[str, Callable[[Path], Path]] = MappingProxyType(
    {
        "librispeech": build_librispeech,
        "race": build_race,
        "slue": build_slue,
        "tau": build_tau,
        "gtzan": build_gtzan,
        "desed": build_desed,
        "vesus": build_vesus,
        "had": build_had,
        "vox": build_vox,
        "vox_age": build_vox_age,
    }
)


#: How many samples each of them makes.
COUNTS: Mapping[str, int] = MappingProxyType(
    {
        "librispeech": 3, "race": 3, "slue": 3, "tau": 10, "gtzan": 2, "desed": 2, "vesus": 6, "had": 5, "vox": 3,
        "vox_age": 5,
    }
)  # fmt: skip


def build_all(root: Path, tasks: Sequence[str] = tuple(BUILDERS)) -> Path:
    """Build the tasks under one data root, in folders of upper-case names, and return the root."""
    for key in tasks:
        BUILDERS[key](root / key.upper())
    return root


def edit_rows(file: Path, edit: Callable[[list[Any]], object]) -> None:
    """Change the rows of a metadata file in place."""
    data = json.loads(file.read_text())
    edit(data["tasks"] if isinstance(data, dict) else data)
    write_json(file, data)


def tree(root: Path, *, manifest: bool = True) -> dict[str, str]:
    """Every file under a folder by its hash."""
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file() and (manifest or path.name != "audiomarathon.json")
    }
