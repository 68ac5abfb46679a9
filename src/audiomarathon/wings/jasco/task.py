"""JASCO's task: eight instructions for each of 80 clips that mix a sound and an utterance."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from audiomarathon.benchmarks.locate import nearest, the_one
from audiomarathon.benchmarks.rows import Row, RowError, collect, read_csv, shown
from audiomarathon.benchmarks.task import Filters, Loaded, Part, Sample, Task, Variation, name_id
from audiomarathon.errors import DataError
from audiomarathon.files import write_text
from audiomarathon.wings.jasco.figures import CoReasoning
from audiomarathon.wings.jasco.speech import FIRST, LAST, SPEECH_FILE, read_speech, turn_clip

METADATA = "v0.csv"
#: {name of a text in `example.csv` and in references: its column in `v0.csv`}.
COLUMNS = {
    "audio_sound": "Audio",
    "spoken_text": "Speech",
    "audio_only_target": "Audio-Only Answer",
    "speech_only_target": "Speech-Only Answer",
    "tgt_text": "Correct Answer",
    "target_keywords": "Correct Answer Keyword",
}
_ID = "audio_id"
_CLIP = "file"  # our column: path of a control's clip, if it is not <audio_id>.wav
_TOLD = "told"  # our column: the text that a control puts before the instruction instead of audio
_SOUND, _SPEECH = "The audio sound is: {audio_sound}.", 'The spoken text is: "{spoken_text}"'
_TEXTS = {"text-both": f"{_SOUND} {_SPEECH}", "text-sound": _SOUND, "text-speech": _SPEECH}

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
    """Task "What are they doing?": open answers, judged by language models (arXiv 2409.14526).

    A clip's eight samples are one cluster (dependent samples), and one bundle (a run with `--limit` takes all of them
    or none), because only the best of the eight replies counts.
    """

    key = "jasco"
    title = "Joint audio-speech co-reasoning"
    download = ("20 MB", "CC BY-NC 4.0")
    max_new_tokens = 200  # the original states no limit
    scorer = CoReasoning()
    cuttable = False  # the needed part of a clip is unknown
    own_controls = (*_TEXTS, FIRST, LAST)
    group_fields = ("prompt",)
    metadata_file = METADATA

    def find(self, root: Path) -> Path:
        """Return the folder under `root` that contains `v0.csv`, in a clone of JASCO's repository or elsewhere."""
        named = nearest(root, lambda folder: METADATA in folder.files)
        return the_one(self, root, named, f"{METADATA} of JASCO")

    def load(self, folder: Path, filters: Filters = Filters()) -> Loaded:
        """Read the rows of `v0.csv`, and make eight samples of each clip, one per instruction."""
        del filters  # no filter applies to this task
        folder = folder.absolute()
        file = folder / METADATA
        rows = [row for _line, row in read_csv(file, [_ID, *COLUMNS.values()])]
        clips, bad = collect(file, folder, rows, _clip)
        return Loaded(folder, tuple(sample for clip in clips for sample in _asked(clip)), tuple(bad))

    def prompt(self, sample: Sample) -> str:
        """Return the instruction; for a control that gives a text instead of audio, put this text before it."""
        text = sample.meta.get(_TOLD)
        return f"{text}\n{sample.question}" if text else sample.question

    def vary(self, loaded: Loaded, control: str) -> Mapping[str, Variation]:
        """Return {sample's id: how to change the sample} for a control, which is an altered copy of the data.

        A text replaces the audio, or the clip is rotated so that its speech comes first or last.
        """
        if text := _TEXTS.get(control):
            return {sample.id: Variation(None, {_TOLD: text.format(**sample.meta)}) for sample in loaded.samples}
        file = loaded.folder / SPEECH_FILE
        if not file.is_file():
            raise DataError(f"{file}: is missing; next: audiomarathon jasco speech --data {loaded.folder}")
        speech = read_speech(file)
        if unknown := speech.keys() - {sample.cluster for sample in loaded.samples}:
            raise DataError(f"{file}: {METADATA} has no clip {min(unknown)!r}")
        speech_spans = {sample.id: speech.get(sample.cluster, ()) for sample in loaded.samples}
        return {
            id_: Variation(partial(turn_clip, spans=spans, control=control), {"speech": spans})
            for id_, spans in speech_spans.items()
        }

    def reference(self, sample: Sample) -> dict[str, Any]:
        """Return, as {name: text}, the sample's answer, its prompt and the clip's texts that judges see.

        These texts are stored in the record, so that judging does not need the data.
        """
        texts = {name: sample.meta[name] for name in COLUMNS}
        return {"answer": sample.answer, "prompt": sample.question, **texts}

    def write_rows(self, part: Part, target: Path) -> None:
        """Write `v0.csv` for the given samples (a selection or an altered copy of the data), one row per clip."""
        lines = io.StringIO()
        out = csv.writer(lines)
        out.writerow([_ID, *COLUMNS.values(), _CLIP, _TOLD])
        for sample in {clip_sample.cluster: clip_sample for clip_sample in part.kept}.values():
            text = part.row(sample, sample.meta).get(_TOLD, "")
            texts = (sample.meta[name] for name in COLUMNS)
            out.writerow([sample.cluster, *texts, "" if text else part.path(sample), text])
        write_text(target / METADATA, lines.getvalue())


def _clip(row: Row) -> Sample:
    """Turn a row of `v0.csv` into a sample with the clip's texts, but without a question."""
    id_ = name_id(row.text(_ID))
    if not re.fullmatch(r"[\w.-]+", id_):
        raise RowError(f"{_ID} {shown(id_)} holds more than letters, digits, . _ and -")
    here = replace(row, fields={**row.fields, _CLIP: row.optional(_CLIP) or f"{id_}.wav"})
    meta = {name: row.text(column) and row.fields[column] for name, column in COLUMNS.items()}  # not stripped
    text = row.optional(_TOLD) and row.fields[_TOLD]
    clips = () if text else (here.clip(_CLIP),)
    return Sample(id_, clips, "", meta["tgt_text"], id_, meta=meta | ({_TOLD: text} if text else {}), bundle=id_)


def _asked(clip: Sample) -> Iterator[Sample]:
    for number, question in enumerate(INSTRUCTIONS, 1):
        meta = {**clip.meta, "prompt": str(number)}
        yield replace(clip, id=f"{clip.id}-p{number}", question=question, meta=meta)
