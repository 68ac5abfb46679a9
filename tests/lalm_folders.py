"""A synthetic MMAU-Pro: the original's columns, every category and known defect, and one to three clips a row."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet
from task_folders import write_clip

TEXTS = pa.list_(pa.string())
GIVEN = (
    "N", "N1", "N2", "end_phrase", "forbidden_words", "keywords", "postscript_marker", "section_splitter",
    "start_phrase",
)  # fmt: skip
KWARGS = pa.struct([*((name, pa.float64() if name[0] == "N" else pa.string()) for name in GIVEN)])
LISTS = ("audio_path", "choices", "perceptual_skills", "reasoning_skills")
COLUMNS = (
    "id", "audio_path", "question", "answer", "choices", "length_type", "perceptual_skills", "reasoning_skills",
    "category", "transcription", "task_classification", "task_identifier", "kwargs", "sub-cat",
)  # fmt: skip
SPECIAL = {**dict.fromkeys(LISTS, TEXTS), "kwargs": KWARGS}
SCHEMA = pa.schema([(name, SPECIAL.get(name, pa.string())) for name in COLUMNS])


def closed(id_: str, category: str, answer: str, *choices: str, clips: int = 1, **more: Any) -> dict[str, Any]:
    fields = {"question": "What do you hear?", "answer": answer, "choices": list(choices), "length_type": "short"}
    skills = {"perceptual_skills": ["Loudness"], "reasoning_skills": ["Counting", "Causes"]}
    return {"id": id_, "clips": clips, "category": category, **fields, **skills, **more}


def following(id_: str, kind: str, told: str, **given: Any) -> dict[str, Any]:
    fields = {"question": "Follow the instruction at the start of an audio.", "sub-cat": "speech"}
    return {"id": id_, "category": "instruction following", "transcription": told, **fields} | {
        "task_identifier": kind, "task_classification": "Keywords", "kwargs": dict.fromkeys(GIVEN) | given
    }  # fmt: skip


#: In the file's order, which is not the order of the ids.
ROWS: tuple[Mapping[str, Any], ...] = (
    closed("c2", "sound", "a bell", "a dog", "a bell", *(f"sound {n}" for n in range(9)), length_type="long"),
    closed("c1", "music", "a flute", "a flute", "a drum", "a harp", "a lute", length_type="medium"),
    closed("c3", "speech", "yes", "no", "yes", length_type="ultra-long"),
    closed("c4", "spatial_audio", "left", "right", "left", "behind", length_type="ultra_long", reasoning_skills=[""]),
    closed("c5", "voice_chat", "4", "3", "4", "5", "6", question=None, length_type=None, perceptual_skills=None),
    closed("c6", "sound_speech", "rain", "rain", "wind"),
    closed("c7", "sound_music", "rain", "wind", "rain"),
    closed("c8", "music_speech", "rain", "rain", "wind"),
    closed("c9", "sound_music_speech", "rain", "wind", "rain"),
    closed("m2", "multi", "first", "first", "second", clips=2, length_type=None),
    closed("m3", "multi", "third", "first", "second", "third", "none", clips=3, length_type=None),
    {**closed("o1", "open", "A bell rings."), "choices": ["A bell rings. "]},
    {**closed("o2", "open", "Two dogs bark.", clips=2), "choices": []},
    following("AIF_0", "Include Keywords", "Describe the audio. Include keywords sound.", keywords="sound"),
    following("AIF_1", "Number Words (range)", "Describe it. Use between 60 and 97 words.", N1=60.0, N2=97.0),
    closed("d1", "sound", "to the  Left.", "To the left", "to the right"),
    closed("d2", "sound", "Oil", "Honey", "Salt"),
    closed("d3", "sound", "in the beginning", "in the beginning"),
    closed("d4", "speech", "Coed Y Brenin", "Coed Y Brenin", "Coy de Brennan", ""),
)
DEFECTS = {
    "answer is none of the options": 1,
    "answer spelt otherwise": 1,
    "empty option": 1,
    "empty skill": 1,
    "one option": 1,
    "open question with an empty list of choices": 1,
    "open question with choices": 1,
}


def mmau_pro_folder(root: Path, recordings: Sequence[Path] = (), rows: Sequence[Mapping[str, Any]] = ROWS) -> Path:
    """Write `test.parquet` and its clips in `data/`: tones, or copies of the recordings in turn. Return the folder."""
    made, number = [], 0
    for row in rows:
        clips = []
        for place in range(row.get("clips", 1)):
            source = recordings[number % len(recordings)] if recordings else None
            name = f"data/{row['id']}" + (f"_{place}" if row.get("clips", 1) > 1 else "")
            clips.append(f"{name}{source.suffix if source else '.wav'}")
            if source:
                (root / "data").mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, root / clips[-1])
            else:
                write_clip(root / clips[-1], seconds=1 + place, hertz=200 + 10 * number)
            number += 1
        made.append({"audio_path": clips, **row})
    parquet.write_table(pa.Table.from_pylist(made, SCHEMA), root / "test.parquet")
    return root


def edit_table(root: Path, edit: Callable[[list[dict[str, Any]]], object]) -> None:
    """Change the rows of `test.parquet` in place."""
    rows = parquet.read_table(root / "test.parquet").to_pylist()
    edit(rows)
    parquet.write_table(pa.Table.from_pylist(rows, SCHEMA), root / "test.parquet")


def replies_table(
    replies: Mapping[str, str | None], rows: Sequence[Mapping[str, Any]] = ROWS, column: str = "model_output"
) -> pa.Table:
    """Return the table of `predictions.parquet`. A row missing in `replies` gets its correct answer as reply."""
    told = ({column: replies.get(row["id"], row.get("answer", "None"))} for row in rows)
    clips = ({"audio_path": ["a.wav"] * row.get("clips", 1)} for row in rows)
    merged = [{**row, **reply, **other} for row, reply, other in zip(rows, told, clips, strict=True)]
    return pa.Table.from_pylist(merged, SCHEMA.append(pa.field(column, pa.string())))
