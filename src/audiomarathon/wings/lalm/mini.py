"""Synthetic LALM Bench data for trials (the mini benchmark): a few clips of each task, in the public format."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import soundfile

from audiomarathon.embedded import synthesis, world
from audiomarathon.files import write_bytes, write_text
from audiomarathon.wings.lalm.captions import AudioCaps, Clotho
from audiomarathon.wings.lalm.mmau_pro import GIVEN, METADATA, schema

_RATE = 16_000
_CAPTIONS = (
    "A {0} is heard in a quiet room.",
    "The sound of a {0} comes first, and then it is quiet.",
    "Someone is near a {0}.",
    "A {0} sounds once for two seconds.",
    "In the background there is a low murmur, and then a {0}.",
)


def write(root: Path) -> None:
    """Write synthetic LALM Bench data for trials into the folder `lalm/` of a data root.

    The folder has Clotho, AudioCaps, MMAU, MMAR and, if pyarrow is installed, MMAU-Pro.
    """
    folder = root / "lalm"
    names = [label.cue for label in world.EVENTS[:6]]
    told = [[text.format(name.lower()) for text in _CAPTIONS] for name in names]
    for number, name in enumerate(names):
        _clip(folder / "clotho" / "evaluation" / f"{name}.wav", number, 15.5)
        _clip(folder / "audiocaps" / "audio" / f"{name}_30.wav", number, 10.0)
        _clip(folder / "mmau_mini" / "test-mini-audios" / f"mini-{number}.wav", number, 8.0)
        _clip(folder / "mmar" / "audio" / f"mini_{number}.wav", number, 8.0)
    clotho = [[f"{name}.wav", *texts] for name, texts in zip(names, told, strict=True)]
    _table(folder / "clotho" / Clotho.metadata_file, Clotho.columns, clotho)
    rows = [
        [str(n), name, "30", text] for n, (name, texts) in enumerate(zip(names, told, strict=True)) for text in texts
    ]
    _table(folder / "audiocaps" / AudioCaps.metadata_file, AudioCaps.columns, rows)
    asked = [_question(number, name, names) for number, name in enumerate(names)]
    mmau = [
        {
            **question,
            "id": f"mini-{n}",
            "audio_id": f"./test-mini-audios/mini-{n}.wav",
            "task": "sound",
            "difficulty": "easy",
        }
        for n, question in enumerate(asked)
    ]
    write_text(folder / "mmau_mini" / "mmau-test-mini.json", json.dumps(mmau, indent=2))
    mmar = [
        {**question, "id": f"mini_{n}", "audio_path": f"./audio/mini_{n}.wav", "modality": "sound", "url": f"mini/{n}"}
        for n, question in enumerate(asked)
    ]
    write_text(folder / "mmar" / "MMAR-meta.jsonl", "".join(json.dumps(question) + "\n" for question in mmar))
    if find_spec("pyarrow"):
        _mmau_pro(folder / "mmau_pro", names)


def _mmau_pro(folder: Path, names: Sequence[str]) -> None:
    import pyarrow
    from pyarrow import parquet

    rows: list[dict[str, Any]] = []
    for number, name in enumerate(names):
        clips = [f"data/mini_{number}.wav"]
        skills = {"perceptual_skills": ["Sound events"], "reasoning_skills": ["Recall"], "length_type": "short"}
        asked = _question(number, name, names)
        closed = {key: asked[key] for key in ("question", "choices", "answer")}
        given = dict.fromkeys(GIVEN) | {"keywords": "sound"}
        rows += [
            {"id": f"closed_{number}", "audio_path": clips, "category": "sound", **closed, **skills},
            {"id": f"open_{number}", "audio_path": clips, "category": "open", "question": "What do you hear?",
             "answer": f"A {name.lower()} is heard once.", **skills},
            {"id": f"AIF_{number}", "audio_path": clips, "category": "instruction following",
             "question": "Follow the instruction.", "transcription": "Describe the audio. Include keywords sound.",
             "task_identifier": "Include Keywords", "kwargs": given, **skills},
        ]  # fmt: skip
        _clip(folder / clips[0], number, 8.0)
    parquet.write_table(pyarrow.Table.from_pylist(rows, schema()), stream := io.BytesIO())
    write_bytes(folder / METADATA, stream.getvalue())


def _question(number: int, name: str, names: Sequence[str]) -> dict[str, Any]:
    """Return a question about which sound is in the clip, with four options: the right answer `name`, and three others.

    The position of the right answer among the options depends on `number`.
    """
    others = [other for other in names if other != name][:3]
    choices = [*others[: number % 4], name, *others[number % 4 :]]
    asked = {"question": world.QUESTIONS["desed"], "choices": choices, "answer": name}
    return {**asked, "category": "Perception", "sub-category": "Sound event"}


def _clip(file: Path, number: int, seconds: float) -> None:
    rng = world.stream(42, "benchmark", 102, number, round(seconds))
    clip = synthesis.needle("desed", [(world.EVENTS[number], seconds / 2)], rng, seconds, _RATE)
    stream = io.BytesIO()
    soundfile.write(stream, clip.samples, _RATE, format="WAV")
    write_bytes(file, stream.getvalue())


def _table(file: Path, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    text = io.StringIO()
    csv.writer(text).writerows([columns, *rows])
    write_text(file, text.getvalue())
