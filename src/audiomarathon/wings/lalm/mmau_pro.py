"""MMAU-Pro's task: closed and open questions, and spoken instructions, on one to three clips (arXiv 2508.13992)."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from audiomarathon.benchmarks.locate import nearest, the_one
from audiomarathon.benchmarks.multiple_choice import lettered
from audiomarathon.benchmarks.questions.instructions import check
from audiomarathon.benchmarks.questions.question_types import QuestionTypes
from audiomarathon.benchmarks.rows import Row, RowError, clean, collect, is_absent, one_line_each, read_parquet, shown
from audiomarathon.benchmarks.task import BadRow, Filters, Loaded, Part, Sample, Task
from audiomarathon.errors import SettingsError
from audiomarathon.files import write_bytes
from audiomarathon.records import LETTERS, Verdict

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow

METADATA = "test.parquet"
#: {category: type of its questions}; the questions of all other categories are closed (multiple choice).
TYPES = {"open": "open", "instruction following": "following"}
CATEGORIES = (
    "music", "sound", "speech", "multi", "spatial_audio", "voice_chat", "sound_speech", "sound_music", "music_speech",
    "sound_music_speech", *TYPES,
)  # fmt: skip
LENGTHS = ("short", "medium", "long", "ultra-long")
FORMS = ("", "as_published", "text")
COLUMNS = (
    "id", "audio_path", "question", "answer", "choices", "length_type", "perceptual_skills", "reasoning_skills",
    "category", "transcription", "task_identifier", "kwargs",
)  # fmt: skip
UNREAD_COLUMNS = ("task_classification", "sub-cat")
GIVEN = (
    "N", "N1", "N2", "end_phrase", "forbidden_words", "keywords", "postscript_marker", "section_splitter",
    "start_phrase",
)  # fmt: skip
MAX_OPTIONS, MAX_CLIPS = 11, 3

# Names of defects in the data. Samples with a defect are counted, and used unchanged.
SPELT_OTHERWISE = "answer spelt otherwise"
NO_RIGHT_OPTION = "answer is none of the options"
ONE_OPTION = "one option"
EMPTY_OPTION = "empty option"
OPEN_WITH_CHOICES = "open question with choices"
OPEN_WITH_NO_CHOICES = "open question with an empty list of choices"
EMPTY_SKILL = "empty skill"


class MmauPro(Task):
    """Task MMAU-Pro: closed and open questions about audio of every kind, and spoken instructions to follow.

    `TASK_PROMPT=as_published` numbers the options, adds no instruction, and gives spoken instructions as text too.
    `TASK_PROMPT=text` only gives spoken instructions as text too.
    """

    key = "lalm/mmau_pro"
    aliases = ("mmau_pro", "mmau-pro")
    title = "Audio understanding (MMAU-Pro)"
    download = ("47.5 GB", "as its page on the hub says")
    max_new_tokens = 512
    scorer = QuestionTypes()
    cuttable = False  # the needed part of a clip is unknown
    group_fields = ("length", "category")
    metadata_file = METADATA

    def find(self, root: Path) -> Path:
        """Return the folder under `root` with `test.parquet` and the folder `data` (unpacked from `data.zip`)."""
        folders = nearest(root, lambda folder: METADATA in folder.files and "data" in folder.folders)
        return the_one(self, root, folders, f"{METADATA} of MMAU-Pro beside its folder data (unpack data.zip)")

    def load(self, folder: Path, filters: Filters = Filters()) -> Loaded:
        """Read the rows and find their clips; return samples, unusable rows and defects, as :class:`Loaded`.

        The defects are {known defect of the data: number of samples that have it}; they are not repaired.
        """
        if filters.prompt not in FORMS:
            allowed = f"allowed for {self.key}: {', '.join(filter(None, FORMS))}, or empty"
            raise SettingsError(f"TASK_PROMPT={filters.prompt}: not allowed; {allowed}")
        folder = folder.absolute()
        file = folder / METADATA
        rows = read_parquet(file, COLUMNS).to_pylist()
        samples, bad = collect(file, folder, rows, partial(_with_clips, form=filters.prompt))
        defects = Counter(defect for sample in samples for defect in sample.meta["defects"])
        return Loaded(folder, tuple(samples), tuple(bad), defects=dict(sorted(defects.items())))

    def prompt(self, sample: Sample) -> str:
        """Return the prompt of a sample: its question, worded as `TASK_PROMPT` says."""
        meta, form = sample.meta, sample.meta.get("form", "")
        question = meta["transcription"] if form and meta["type"] == "following" else sample.question
        if not sample.options:
            return question
        if form != "as_published":
            return lettered(sample)
        return "\n".join([f"{question}\n\nOptions:", *(f"{n}) {text}" for n, text in enumerate(sample.options, 1))])

    def reference(self, sample: Sample) -> dict[str, Any]:
        """Return, as {name: value}, the facts of a sample that are stored in its record.

        Scoring and judging use only these facts, so they work without the data.
        """
        meta = {name: value for name, value in sample.meta.items() if name != "form"}
        return {"answer": sample.answer, "question": sample.question, "options": list(sample.options), **meta}

    def frames(self, verdicts: Mapping[str, Sequence[Verdict]]) -> Mapping[str, pd.DataFrame]:
        """Return the tables in the report's section on MMAU-Pro, as {title: table}; `verdicts` is {setting: verdicts}.

        The first table has the accuracy by length of the audio. The scorer makes the other tables.
        """
        tables = self.scorer.frames(verdicts)
        by_length, _by_category = (frame for title, frame in super().frames(verdicts).items() if title not in tables)
        order = ("setting", *LENGTHS, "none")
        columns = sorted(by_length, key=lambda name: order.index(str(name).partition("_")[0]))
        return {"Accuracy by length of the audio": by_length[columns], **tables}

    def write_rows(self, part: Part, target: Path) -> None:
        """Write `test.parquet` for the given samples (a selection or an altered copy of the data).

        Columns and types are those of MMAU-Pro's file.
        """
        import pyarrow
        from pyarrow import parquet

        kept = {sample.id: sample for sample in part.kept}
        file = part.loaded.folder / METADATA
        rows = [
            part.row(kept[sample.id], {**fields, "audio_path": part.clips(kept[sample.id])})
            for sample, fields in read_questions(file)[0]
            if sample.id in kept
        ]
        table = pyarrow.Table.from_pylist(rows, read_parquet(file, COLUMNS, UNREAD_COLUMNS).schema)
        parquet.write_table(table, out := io.BytesIO())
        write_bytes(target / METADATA, out.getvalue())


def schema() -> pyarrow.Schema:
    """Return the names and types of the columns of `test.parquet`."""
    import pyarrow

    text, number = pyarrow.string(), pyarrow.float64()
    kinds = dict.fromkeys(("audio_path", "choices", "perceptual_skills", "reasoning_skills"), pyarrow.list_(text))
    kinds["kwargs"] = pyarrow.struct([(name, number if name.startswith("N") else text) for name in GIVEN])
    classification, sub_category = UNREAD_COLUMNS
    names = (*COLUMNS[:-2], classification, *COLUMNS[-2:], sub_category)
    return pyarrow.schema([(name, kinds.get(name, text)) for name in names])


def read_questions(file: Path, *more: str) -> tuple[list[tuple[Sample, Mapping[str, Any]]], list[BadRow]]:
    """Read the questions in a parquet file; return (pairs, unusable rows), both in the file's order.

    A pair is (sample without clips, its row as {column: value}).

    `more` names additional columns to read, such as the column of replies.
    """
    asked: dict[str, tuple[Sample, Mapping[str, Any]]] = {}

    def to_sample(row: Row) -> Sample:
        sample = question(row)
        asked.setdefault(sample.id, (sample, row.fields))
        return sample

    table = read_parquet(file, (*COLUMNS, *more), UNREAD_COLUMNS)
    _, bad = collect(file, file.parent, table.to_pylist(), to_sample)
    return list(asked.values()), bad


def question(row: Row) -> Sample:
    """Turn a row of `test.parquet` into a sample without clips.

    Texts stay unchanged, since the published scoring compares them exactly.
    """
    id_, category = row.id("id"), row.text("category")
    if category not in CATEGORIES:
        raise RowError(f"category {shown(category)} is not allowed; allowed: {', '.join(CATEGORIES)}")
    length = row.optional("length_type").replace("_", "-") or "none"
    if length not in (*LENGTHS, "none"):
        raise RowError(f"length_type {shown(length)} is not allowed; allowed: {', '.join(LENGTHS)}, or null")
    clips = len(_texts(row, "audio_path"))
    if not 1 <= clips <= MAX_CLIPS:
        raise RowError(f"audio_path names {clips} clips, expected 1 to {MAX_CLIPS}")
    kind = TYPES.get(category, "closed")
    skills = {name: _texts(row, name) for name in ("perceptual_skills", "reasoning_skills")}
    options, answer, details, defects = {"closed": _closed, "open": _open, "following": _following}[kind](row)
    if any("" in names for names in skills.values()):
        defects = [*defects, EMPTY_SKILL]
    meta = {
        "type": kind,
        "category": category,
        "length": length,
        **{name: [skill for skill in names if skill] for name, names in skills.items()},
        "clips": clips,
        "defects": defects,
        **details,
    }
    return Sample(id_, (), _written(row, "question"), answer, id_, tuple(options), meta=meta, kind=category)


_Asked = tuple[list[str], str, dict[str, Any], list[str]]  # options, answer, fields of the question's type, defects


def _closed(row: Row) -> _Asked:
    row.text("answer")
    options, answer = _texts(row, "choices"), _written(row, "answer")
    if not 1 <= len(options) <= MAX_OPTIONS:
        raise RowError(f"has {len(options)} options, allowed: 1 to {MAX_OPTIONS}")
    one_line_each([clean(option, "option") for option in options if option])
    if len(set(options)) < len(options):
        raise RowError(f"two of the options {shown(options)} are the same")
    same = [place for place, option in enumerate(options) if option == answer]
    right = same or [place for place, option in enumerate(options) if _folded(option) == _folded(answer)]
    letter = LETTERS[right[0]] if len(right) == 1 else ""
    here = {
        NO_RIGHT_OPTION: not letter,
        SPELT_OTHERWISE: bool(letter) and not same,
        ONE_OPTION: len(options) == 1,
        EMPTY_OPTION: not all(options),
    }
    return options, letter, {"answer_text": answer}, [name for name, holds in here.items() if holds]


def _open(row: Row) -> _Asked:
    row.text("answer")
    answer, choices = _written(row, "answer"), row.fields.get("choices")
    defects = [] if choices is None else [OPEN_WITH_CHOICES if choices else OPEN_WITH_NO_CHOICES]
    return [], answer, {"answer_text": answer}, defects


def _following(row: Row) -> _Asked:
    """Read a row with a spoken instruction to follow; return ([], answer, fields, []): no options and no defects.

    The answer is the text of the spoken instruction, so that readers of the report see what was asked. The fields are
    `transcription`, and `kind` and `kwargs` of the instruction, by which replies are checked.
    """
    transcription, kind, kwargs = row.text("transcription"), row.text("task_identifier"), row.fields.get("kwargs") or {}
    if not isinstance(kwargs, dict):
        raise RowError(f"kwargs {shown(kwargs)} is not an object")
    kwargs = {name: value for name, value in kwargs.items() if not is_absent(value)}
    try:
        check(kind, {**kwargs, "question": _written(row, "question"), "transcription": transcription})
    except ValueError as error:
        raise RowError(str(error)) from error
    return [], transcription, {"transcription": transcription, "kind": kind, "kwargs": kwargs}, []


def _with_clips(row: Row, form: str) -> Sample:
    sample = question(row)
    clips = tuple(replace(row, fields={"audio_path": path}).clip("audio_path") for path in row.fields["audio_path"])
    return replace(sample, clips=clips, meta={**sample.meta, "form": form})


def _texts(row: Row, name: str) -> list[str]:
    """Return the list of texts in the field `name` of a row; [] for null."""
    value = row.fields.get(name) or []
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise RowError(f"field {name!r} must be a list of texts, found {shown(value)}")
    return value


def _written(row: Row, name: str) -> str:
    """Return the text in the field `name` of a row unchanged, white space included; "" for null."""
    text, value = row.optional(name), row.fields.get(name)
    return value if text and isinstance(value, str) else text


def _folded(text: str) -> str:
    return " ".join(text.split()).casefold().removesuffix(".").rstrip()
