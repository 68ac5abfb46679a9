"""A synthetic JASCO: clips of tones, a table with the original's columns, records of replies, and judgement files."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from task_folders import write_clip

from audiomarathon.benchmarks import get_task
from audiomarathon.judges.judgements import Judgement, judgements_file, request_of, second_of
from audiomarathon.judges.protocol import Protocol
from audiomarathon.records import Record
from audiomarathon.wings.jasco.task import COLUMNS, INSTRUCTIONS

TEXTS = {
    "audio_sound": "Waves crashing,seagulls",
    "spoken_text": "Let’s build a castle over there.",
    "audio_only_target": "They are at the beach enjoying the ocean.",
    "speech_only_target": "They a planning to build a castle in a specific location.",
    "tgt_text": "They are planning to build a sandcastle.",
    "target_keywords": "sandcastle",
}

#: Judgements that JASCO's original code misreads, each with the judge's answer to a second question, if any.
TRAPS: list[tuple[str, str | None]] = [
    ("Rating: 2\nOrientation: Both", None),
    ("**Rating:** 0\n**Orientation:** Both\nExplanation2: BOTH", "Good"),
    ("Rating: 2 (not 0)\nOrientation: Both", None),
    ("Rating: 1\nOrientation: Both. Not Orientation: Audio-Oriented", None),
    ("rating: 2\norientation: both", "dunno"),
]


def build_jasco(folder: Path, clips: Sequence[int] = (1, 2, 10)) -> Path:
    """Write clips and `v0.csv` as the original lays them out; return the root of the clone."""
    data = folder / "dataset" / "v0"
    for number in clips:
        write_clip(data / f"{number}.wav", seconds=2.0, hertz=200 + 20 * number)
    with (data / "v0.csv").open("w", encoding="utf-8", newline="") as stream:
        out = csv.writer(stream)
        out.writerow(["audio_id", *COLUMNS.values()])
        out.writerows([number, *(f"{TEXTS[name]} {number}" for name in COLUMNS)] for number in clips)
    return folder


def a_reply(clip: int, prompt: int, reply: str = "They build a sandcastle.", **changes: object) -> Record:
    """Return the record of a reply."""
    reference = {"answer": TEXTS["tgt_text"], "prompt": INSTRUCTIONS[prompt - 1], **TEXTS}
    return Record(f"{clip}-p{prompt}", str(clip), reply=reply, reference=reference, finish="stop", **changes)


def said(protocol: Protocol, record: Record, text: str, second: str | None = None) -> dict[str, str | None]:
    """Return a judge's answers about a record by request hash. `second` answers the follow-up question."""
    request = request_of(protocol, record)
    assert request
    answers: dict[str, str | None] = {request.hash: text}
    if second is not None:
        again = second_of(protocol, text, record)
        assert again
        answers[again.hash] = second
    return answers


def write_judgements(folder: Path, judge: str, judged: Iterable[tuple[Record, str]]) -> None:
    """Write a judge's answers about records of a run."""
    protocol = get_task("jasco").scorer.protocol
    lines = []
    for record, text in judged:
        (hashed,) = said(protocol, record, text)
        lines.append(Judgement(judge, protocol.name, protocol.version, record.id, hashed, text).to_line())
    judgements_file(folder, judge).write_bytes(b"".join(lines))


def edit(root: Path, change: Callable[[list[list[str]]], object]) -> None:
    """Change the rows of `v0.csv` in place, as a spreadsheet writes them."""
    file = root / "dataset" / "v0" / "v0.csv"
    with file.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.reader(stream))
    change(rows)
    with file.open("w", encoding="utf-8-sig", newline="") as stream:
        csv.writer(stream).writerows(rows)
