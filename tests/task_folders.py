"""Tiny data sets of all ten tasks on disk, in the formats of the published files; clips are one second of tone.

Each builder writes the folder of its task and returns it; `build_all` puts the ten under one root.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

RATE = 16000

SCENES = (
    "airport", "bus", "metro", "metro_station", "park", "public_square", "shopping_mall", "street_pedestrian",
    "street_traffic", "tram",
)  # fmt: skip
AGES = {
    "Young Adult (18-30)": 25, "Early Career (31-40)": 35, "Mid Career (41-50)": 45, "Senior (51-70)": 60,
    "Elderly (71+)": 80,
}  # fmt: skip


@functools.lru_cache(maxsize=64)  # tests write the same few clips thousands of times
def _tone(rate: int, seconds: float, hertz: float, form: str) -> bytes:
    time = np.arange(int(rate * seconds)) / rate
    soundfile.write(stream := io.BytesIO(), 0.1 * np.sin(2 * np.pi * hertz * time), rate, format=form)
    return stream.getvalue()


def write_clip(path: Path, *, rate: int = RATE, seconds: float = 1.0, hertz: float = 440.0) -> Path:
    """Write a tone in the format that the path's suffix names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_tone(rate, seconds, hertz, path.suffix[1:]))
    return path


def write_json(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def a_row(path: str, question: str, options: Sequence[str], answer: str, **more: object) -> dict[str, Any]:
    """Return a row of the tasks that keep each option in a separate field."""
    choices = {f"choice_{letter}": option for letter, option in zip("abcde", options, strict=False)}
    return {"path": path, "question": question, **choices, "answer_gt": answer, **more}


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
        row = {"audio_path": f"{passage}.wav", "question": f"Question {question} on {passage}?", "answer": answer}
        row |= {"options": ["To rest.", "To work.", "To eat.", "To play."]}
        rows.append(row | {"article_id": f"{passage}.txt", "question_idx": question})
    write_json(folder / "race_benchmark.json", rows)
    return folder


def build_slue(folder: Path) -> Path:
    rows = []
    facts = {"task_name": "named_entity_recognition", "dataset_name": "slue-voxpopuli", "entity_types": ["PLACE"]}
    facts |= {"audio_duration_info": "170 s"}
    for index, answer in enumerate("ABC"):
        write_clip(folder / "audio" / f"merged_{index}.wav", hertz=200 + index)
        more = {**facts, "entity_count": index + 1, "uniq_id": index}
        rows.append(a_row(f"audio/merged_{index}.wav", "How many places are named?", "1234", answer, **more))
    write_json(folder / "merged_audio_data.json", rows)
    return folder


def build_tau(folder: Path) -> Path:
    """One clip of each scene; paths are relative to the folder of audio, as in some published files."""
    rows = []
    for index, scene in enumerate(SCENES):
        name = f"{scene}-lisbon-{1000 + index // 2}-0-a.wav"
        write_clip(folder / "concatenated_resampled" / name, hertz=200 + 10 * index)
        options = [SCENES[(index + step) % 10].replace("_", " ").capitalize() for step in range(4)]
        rotated = options[-(index % 4) :] + options[: -(index % 4)] if index % 4 else options
        rows.append(a_row(name, "What is the acoustic scene?", rotated, "ABCD"[index % 4], scene_label=scene))
    write_json(folder / "acoustic_scene_task_meta.json", rows)
    return folder


def build_gtzan(folder: Path) -> Path:
    """Options in both published formats; the clips are in `wav/`, which the paths leave out."""
    rows = []
    for index, (genre, options) in enumerate([
        ("blues", ("Blues - blues", "Rock - rock", "Pop - pop", "Jazz - jazz")),
        ("hiphop", ("Metal", "Hip-Hop", "Disco", "Country")),
    ]):  # fmt: skip
        write_clip(folder / "wav" / f"{genre}.wav", rate=22050, hertz=300 + index)
        more = {"genre_label": genre, "uniq_id": f"gtzan_{index}"}
        rows.append(a_row(f"{genre}.wav", "What is the genre of this music?", options, "AB"[index], **more))
    write_json(folder / "music_genre_classification_meta.json", rows)
    return folder


def build_desed(folder: Path) -> Path:
    rows = []
    facts = {"task_type": "sound_event_detection", "event_onset": 0.25, "event_seconds": 0.5}
    for index, (event, options) in enumerate(
        [("Dog", ("Dog", "Cat", "Blender", "Frying")), ("Running_water", ("Speech", "Dishes", "Running water", "Cat"))]
    ):
        write_clip(folder / "audio" / f"{index}.wav", hertz=300 + index)
        more = {**facts, "choices": dict(zip("ABCD", options, strict=True)), "uniq_id": f"desed_{index}"}
        more |= {"all_events": [event], "primary_event": event, "correct_event": event}
        rows.append(a_row(f"audio/{index}.wav", "Which sound event occurs?", (), "AC"[index], **more))
    write_json(folder / "desed_sound_event_detection_task.json", {"task_info": {"name": "SED"}, "tasks": rows})
    return folder


def build_vesus(folder: Path) -> Path:
    """Persons 1, 2 and 10, happy and sad."""
    rows, options = [], ("Angry", "Happy", "Sad", "Monotone")
    for person in (1, 2, 10):
        for emotion, answer in (("happy", "B"), ("sad", "C")):
            path = f"wav/{person}_{emotion}.wav"
            write_clip(folder / path, hertz=200 + person)
            more = {"emotion_label": emotion, "person_id": person}
            rows.append(a_row(path, "Which emotion does the speaker express?", options, answer, **more))
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
        path, more = f"{speaker}/{index}.wav", {"speaker_id_original": speaker, "uniq_id": f"vox_{index}"}
        rows.append(a_row(path, "What is the speaker's gender?", ("Male", "Female"), gender, **more))
    write_json(folder / "gender_id_task_meta.json", rows)
    return folder


def build_vox_age(folder: Path) -> Path:
    """One speaker of each age; answers are written as name and range, range and name, or only one of them."""
    answers = ("Young Adult (18-30)", "31-40 (Early Career)", "mid career", "51-70", "Elderly (71+)")
    rows = []
    for index, (age, answer) in enumerate(zip(AGES.values(), answers, strict=True)):
        path = f"wav/id1000{index}/0.wav"
        write_clip(folder / path, hertz=200 + index)
        more = {"speaker_age": age, "speaker_id_original": f"id1000{index}"}
        rows.append(a_row(path, "To which age group does the speaker belong?", [*AGES], answer, **more))
    write_json(folder / "age_classification_task_meta.json", rows)
    return folder


#: The builder of every task, by key and in the paper's order.
BUILDERS: Mapping[str, Callable[[Path], Path]] = {
    "librispeech": build_librispeech, "race": build_race, "slue": build_slue, "tau": build_tau, "gtzan": build_gtzan,
    "desed": build_desed, "vesus": build_vesus, "had": build_had, "vox": build_vox, "vox_age": build_vox_age,
}  # fmt: skip


#: How many samples each builder makes.
COUNTS: Mapping[str, int] = {
    "librispeech": 3, "race": 3, "slue": 3, "tau": 10, "gtzan": 2, "desed": 2, "vesus": 6, "had": 5, "vox": 3,
    "vox_age": 5,
}  # fmt: skip


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
    """Return the hash of every file under a folder."""
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file() and (manifest or path.name != "audiomarathon.json")
    }
