"""JASCO's task: eight instructions to each of 80 clips in which a sound and an utterance are mixed."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from audiomarathon.benchmarks.finding import nearest, the_one
from audiomarathon.benchmarks.jasco.figures import CoReasoning
from audiomarathon.benchmarks.rows import Row, RowError, collect, read_text, shown
from audiomarathon.benchmarks.task import Filters, Loaded, Part, Sample, Task
from audiomarathon.errors import DataError
from audiomarathon.files import write_text

METADATA = "v0.csv"
#: Column of `v0.csv` by the name of the same text in `example.csv`, which references have.
COLUMNS = {
    "audio_sound": "Audio",
    "spoken_text": "Speech",
    "audio_only_target": "Audio-Only Answer",
    "speech_only_target": "Speech-Only Answer",
    "tgt_text": "Correct Answer",
    "target_keywords": "Correct Answer Keyword",
}
_ID = "audio_id"
_CLIP = "file"  # a column of ours: where a control's clip lies, if it is not called <audio_id>.wav

INSTRUCTIONS = (
    "Based on both the audio sound and the spoken text, infer what the speakers are doing specifically?",
    "Based on both the spoken text and the audio sound, infer what the speakers are doing specifically?",
    "What is the spoken text? What is the audio sound? Based on both the spoken text and the audio sound, infer what "
    "the speakers are doing specifically?",
    "What is the audio sound? What is the spoken text? Based on both the audio sound and the spoken text, infer what "
    "the speakers are doing specifically?",
    "What is the spoken text? What is the audio sound? Based on both the spoken text and the audio sound, infer what "
    "specific scenario are the speakers in?",
    "What is the audio sound? What is the spoken text? Based on both the audio sound and the spoken text, infer what "
    "specific scenario are the speakers in?",
    "What sound can you hear? What does the speaker say? Guess what activity the speakers are engaged in using both "
    "the audio sound and the spoken text.",
    "What does the speaker say? What sound can you hear? Guess what activity the speakers are engaged in using both "
    "the spoken text and the audio sound.",
)


class Jasco(Task):
    """What are they doing? Open answers, judged by language models (arXiv 2409.14526).

    The samples of a clip are its bundle and its cluster: the best of the eight replies counts.
    """

    key = "jasco"
    title = "Joint audio-speech co-reasoning"
    max_new_tokens = 200  # the original states none
    scorer = CoReasoning()
    cuttable = False  # what is needed of a clip is not known
    group_fields = ("prompt",)
    metadata_file = METADATA

    def find(self, root: Path) -> Path:
        """Return the folder of `v0.csv`: of a clone of the original repository, or wherever it was put."""
        named = nearest(root, lambda folder: METADATA in folder.files)
        return the_one(self, root, named, f"{METADATA} of JASCO")

    def load(self, folder: Path, filters: Filters = Filters()) -> Loaded:
        """Read the clips' rows, and ask eight questions about each."""
        del filters  # none of them applies to this task
        folder = folder.absolute()
        file = folder / METADATA
        rows = [row for _line, row in read_csv(file, [_ID, *COLUMNS.values()])]
        clips, bad = collect(file, folder, rows, _clip)
        return Loaded(folder, tuple(sample for clip in clips for sample in _asked(clip)), tuple(bad))

    def prompt(self, sample: Sample) -> str:
        """Return the instruction, and nothing else."""
        return sample.question

    def reference(self, sample: Sample) -> dict[str, Any]:
        """Return all that judges are told, so that judging needs no data."""
        texts = {name: sample.meta[name] for name in COLUMNS}
        return {"answer": sample.answer, "prompt": sample.question, **texts}

    def write_rows(self, part: Part, target: Path) -> None:
        """Write `v0.csv`, a row a clip."""
        lines = io.StringIO()
        out = csv.writer(lines)
        out.writerow([_ID, *COLUMNS.values(), _CLIP])
        for sample in {one.cluster: one for one in part.kept}.values():
            out.writerow([sample.cluster, *(sample.meta[name] for name in COLUMNS), part.path(sample)])
        write_text(target / METADATA, lines.getvalue())


def read_csv(file: Path, needed: Sequence[str]) -> list[tuple[int, dict[str, str]]]:
    """Return the rows of a CSV file, each with its last line; values are text: `NA` and `None` are replies like others.

    Raises
    ------
    DataError
        It cannot be read, lacks a column, or a row has more fields than there are columns.
    """
    try:
        reader = csv.DictReader(io.StringIO(read_text(file), newline=""), restval="", strict=True)
        rows = [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise DataError(f"{file}: not CSV: {error} at line {reader.line_num}") from error
    if lacking := [name for name in needed if name not in (reader.fieldnames or ())]:
        raise DataError(f"{file}: lacks the column {lacking[0]!r}; JASCO's has {', '.join(needed)}")
    if long := next((line for line, row in rows if None in row), 0):
        raise DataError(f"{file}: line {long} has more fields than there are columns")
    return rows


def _clip(row: Row) -> Sample:
    """Return a clip as a sample that asks nothing yet."""
    id_ = row.text(_ID)
    if not re.fullmatch(r"[\w.-]+", id_):
        raise RowError(f"{_ID} {shown(id_)} holds more than letters, digits, . _ and -")
    here = replace(row, fields={**row.fields, _CLIP: row.optional(_CLIP) or f"{id_}.wav"})
    meta = {name: row.text(column) and row.fields[column] for name, column in COLUMNS.items()}  # as it is written
    return Sample(id_, (here.clip(_CLIP),), "", meta["tgt_text"], id_, meta=meta, bundle=id_)


def _asked(clip: Sample) -> Iterator[Sample]:
    for number, question in enumerate(INSTRUCTIONS, 1):
        meta = {**clip.meta, "prompt": str(number)}
        yield replace(clip, id=f"{clip.id}-p{number}", question=question, meta=meta)
