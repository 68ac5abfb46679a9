"""Tasks that a user describes in a TOML file: the file of rows, the meaning of their fields, and the scorer.

The key of such a task begins with its kind (`own-choice/NAME`), so that its runs can be read, scored and reported
without the file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from audiomarathon.benchmarks.audiomarathon.librispeech import INSTRUCTION as TRANSCRIBE
from audiomarathon.benchmarks.captioning import PROMPTS, few
from audiomarathon.benchmarks.locate import nearest, the_one
from audiomarathon.benchmarks.multiple_choice import lettered, option_lines
from audiomarathon.benchmarks.questions.exact import Exact, Spans, spans_in
from audiomarathon.benchmarks.questions.open_ended import OpenEnded
from audiomarathon.benchmarks.questions.question_types import QuestionTypes
from audiomarathon.benchmarks.questions.questions import TOKENS, Questions
from audiomarathon.benchmarks.rows import (
    AUDIO_SUFFIXES,
    Row,
    RowError,
    collect,
    list_in,
    one_line_each,
    one_text,
    read_table,
    shown,
)
from audiomarathon.benchmarks.rows import read_text as text_of
from audiomarathon.benchmarks.shards import check_shards
from audiomarathon.benchmarks.task import Filters, Loaded, Part, Sample, Task
from audiomarathon.errors import DataError, SettingsError
from audiomarathon.files import json_object, write_bytes, write_lines
from audiomarathon.languages import BY_CHARACTERS, LANGUAGES
from audiomarathon.metrics.normalise import needs_language
from audiomarathon.records import LETTERS
from audiomarathon.scoring.caption import Caption
from audiomarathon.scoring.choice import Choice
from audiomarathon.scoring.transcript import Characters, Transcript
from audiomarathon.settings import cache_folder
from audiomarathon.text import counted, did_you_mean

if TYPE_CHECKING:
    import pandas as pd

    from audiomarathon.records import Verdict
    from audiomarathon.scoring.scorer import Scorer

CHOICE, CLASSES, OPEN, CAPTION, TRANSCRIPT = "own-choice", "own-classes", "own-open", "own-caption", "own-transcript"
CHARACTERS = "own-characters"  # kind: a transcript in a language written without spaces
EXACT, SPANS = "own-exact", "own-spans"
_ENDLESS = 1e15  # limit of an exact answer: beyond it, floats cannot tell neighbouring integers apart
_FORMS = {"open": OPEN, "exact": EXACT, "spans": SPANS}  # kinds of tasks without options, by `answer_is`
#: Kinds of tasks, as {kind: (scorer, default token limit, default question)}; a task's key begins with its kind.
KINDS: Mapping[str, tuple[Scorer, int, str]] = {
    CHOICE: (Questions(), 16, ""),
    CLASSES: (Choice(), 16, ""),
    OPEN: (QuestionTypes(), 512, ""),
    CAPTION: (Caption(), 256, PROMPTS["detail"]),
    TRANSCRIPT: (Transcript(), 1100, TRANSCRIBE),
    CHARACTERS: (Characters(), 1100, TRANSCRIBE),
    EXACT: (Exact(), 32, ""),
    SPANS: (Spans(), 4096, ""),
}
SAME_OPTIONS = "two options are the same"
OTHER_LANGUAGE = (
    "the reference has letters or marks that English rules drop or misread; "
    "set language in the task's TOML, such as 'de', or 'en' to keep the English rules"
)

_ONE = ("id", "question", "answer", "transcript", "cluster", "unit")  # keys that name one field each
_SEVERAL = ("clips", "options", "references", "groups")  # keys that name one or more fields each
_TEXT = r"(?s).*\S.*"
#: Pattern of each key's value, and its description in a message.
_KEYS = {
    "key": (r"[A-Za-z0-9][\w.-]*", "letters, digits, . _ and -"),
    "rows": (r"[^/\\]+\.(json|jsonl|csv|parquet)", "a .json, .jsonl, .csv or .parquet file's name, with * for several"),
    **dict.fromkeys((*_ONE, *_SEVERAL), (_TEXT, "a field's name")),
    "answer_is": (
        "text|letter|index|index1|open|exact|spans",
        "text, letter, index (from 0), index1 (from 1), open, exact, spans",
    ),
    "classes": ("True", "true"),
    "published": (TOKENS, TOKENS),
    "judge": (OpenEnded.name, OpenEnded.name),
    **dict.fromkeys(("max_new_tokens", "within"), (r"[1-9]\d*", "a whole number from 1")),
    "language": ("|".join(sorted(LANGUAGES)), "a code of ISO 639-1 such as en, de, zh, ja, th, or yue"),
    **dict.fromkeys(("prompt", "title", "version", "source"), (_TEXT, "a text")),
}
_TYPES = {"classes": bool, "max_new_tokens": int, "within": int}
#: TOML keys that only tasks of a kind may have; the first is required, unless it is `language`.
_OWN_KEYS: Mapping[str, tuple[str, ...]] = {
    CHOICE: ("options", "answer_is", "published"),
    CLASSES: ("options", "answer_is", "classes"),
    OPEN: ("answer_is", "judge"),
    CAPTION: (),
    TRANSCRIPT: ("language",),
    CHARACTERS: ("language",),
    EXACT: ("answer_is", "within", "unit"),
    SPANS: ("answer_is",),
}
#: What each key of `_OWN_KEYS` requires in the TOML file, for a message.
_NEEDS = {
    "options": 'answer, without answer_is = "open", "exact" or "spans"',
    "answer_is": "answer",
    "classes": "answer and options",
    "published": "options, without classes",
    "judge": 'answer_is = "open"',
    "language": "transcript",
    **dict.fromkeys(("within", "unit"), 'answer_is = "exact"'),
}
_FIRST_BYTES = {b"RIFF": ".wav", b"fLaC": ".flac", b"OggS": ".ogg"}


@dataclass(frozen=True, eq=False, kw_only=True)
class Declared(Task):
    """A task that a user describes in a TOML file; docs/own-tasks.md explains the file's keys.

    Attributes
    ----------
    kind
        Kind of task, one of `KINDS`, which decides the scorer.
    toml
        The file's keys and values; keys for several fields hold lists. Empty in reports, which need no file.
    template
        The prompt, with {question} and {options}; "" uses the same prompt as the built-in tasks with lettered options.
    """

    key: str
    kind: str
    title: str
    max_new_tokens: int
    toml: Mapping[str, Any] = field(default_factory=dict)
    template: str = ""
    aliases: tuple[str, ...] = ()
    group_fields: tuple[str, ...] = ()
    version: str = ""
    source: str = ""
    cuttable: bool = False  # it is unknown which part of a clip the answer needs

    @property
    def scorer(self) -> Scorer:  # type: ignore[override]  # follows from the kind
        """The scorer that `KINDS` names for this kind of task, such as :class:`Choice` for fixed classes."""
        return KINDS[self.kind][0]

    @property
    def transcribes(self) -> bool:  # type: ignore[override]
        """Whether the model is asked only for a transcript, with the built-in prompt."""
        return self.kind in (TRANSCRIPT, CHARACTERS) and not self.template and "question" not in self.toml

    @property
    def language(self) -> str:  # type: ignore[override]
        """The language that the task's TOML names; English by default."""
        return str(self.toml.get("language", "en"))

    def find(self, root: Path) -> Path:
        """Return the folder nearest to the root that has a file of rows."""
        folders = nearest(root, lambda folder: any(map(self._is_table, folder.files)))
        return the_one(self, root, folders, self._rows)

    def load(self, folder: Path, filters: Filters = Filters()) -> Loaded:
        """Read the rows of the task's files as samples.

        If a table contains the audio itself, its clips are written to the cache, which then becomes `Loaded.folder`.
        """
        template = self.template
        if filters.prompt:
            template = _template(filters.prompt, f"TASK_PROMPT={filters.prompt}", self.kind)
        folder = folder.absolute()
        there = sorted(file for file in folder.iterdir() if self._is_table(file.name))
        if not (files := [file for file in there if fnmatch(file.name, self._rows)] or there):
            raise DataError(f"{self.key}: no {self._rows} in {folder}")
        check_shards(files)
        rows, places, embedded = list[Any](), list[tuple[Path, int]](), set[str]()
        for file in files:
            for number, row in enumerate(
                read_table(file, sorted({name.partition(".")[0] for name in self._fields})), 1
            ):
                places.append((file, number))
                rows.append(self._unfolded(row) if isinstance(row, dict) else row)
                if isinstance(row, dict):
                    rows[-1] |= {name: _kept(row[name], embedded) for name in self.toml["clips"] if name in row}
        known = {name for row in rows if isinstance(row, dict) for name in row}
        if lacking := [name for name in self._fields if name not in known]:
            # Checked here: a misspelt field would give an empty group, or an error in every row.
            raise DataError(f"{files[0]}: no row has the field {lacking[0]!r}{did_you_mean(lacking[0], known)}")
        place = _clips_folder() if embedded else folder
        to_sample = partial(self._sample, template=template, embedded=embedded)
        samples, bad = collect(folder / self._rows, place, rows, to_sample, places)
        if (
            self.kind == CLASSES
            and len(option_sets := sorted({tuple(sorted(sample.options)) for sample in samples})) > 1
        ):
            raise DataError(f"{files[0]}: rows differ in their options, {shown(option_sets[:2])}; leave out 'classes'")
        same = sum(len({*sample.options}) < len(sample.options) for sample in samples)
        defects = {SAME_OPTIONS: same} if same else {}
        english = self.kind == TRANSCRIPT and "language" not in self.toml
        if english and (odd := sum(needs_language(sample.answer) for sample in samples)):
            defects[OTHER_LANGUAGE] = odd
        return Loaded(place, tuple(samples), tuple(bad), defects=defects)

    def prompt(self, sample: Sample) -> str:
        """Return the template with question and options filled in.

        Without a template, return question and lettered options; for a task without options, the question.
        """
        filling = {"question": sample.question, "options": option_lines(sample)}
        if template := sample.meta["template"]:
            return re.sub(r"\{(question|options)\}", lambda match: filling[match[1]], template)
        return lettered(sample) if sample.options else sample.question

    def reference(self, sample: Sample) -> dict[str, Any]:
        """Return what the scorer needs to know about a sample, as {name: value}, such as {"answer": …, "options": …}.

        For captions, it is {"references": captions}.
        """
        reference = super().reference(sample)
        if self.kind == CAPTION:
            return {"references": list(sample.meta["references"])}
        if self.kind == OPEN:
            return {**reference, "type": "open", "category": "open", "question": sample.question, "options": []}
        if within := self.toml.get("within"):  # in seconds
            unit = str(sample.meta["row"].get(self.toml.get("unit"))).lower()
            return {**reference, "within": within / (60 if unit.startswith("min") else 1)}
        return reference | {name: self.toml[name] for name in ("published", "language") if name in self.toml}

    def corpus(self, loaded: Loaded) -> Sequence[Sequence[str]]:
        """Return each sample's reference captions, by which the scorer weights words; () for other kinds of tasks."""
        return [list(sample.meta["references"]) for sample in loaded.samples] if self.kind == CAPTION else ()

    def groups(self, sample: Sample) -> dict[str, str] | None:
        """Return the values by which reports group a sample, as {field: value}; None if the task names no fields."""
        return dict(sample.meta["groups"]) or None

    def frames(self, verdicts: Mapping[str, Sequence[Verdict]]) -> Mapping[str, pd.DataFrame]:
        """Return tables for the report, as {title: table}: the scorer's, and those of the headline score by group.

        The names of the group fields come from the records, since the task's file may have changed.
        """
        groups = dict.fromkeys(
            name
            for setting_verdicts in verdicts.values()
            for verdict in setting_verdicts
            for name in verdict.record.groups or ()
        )
        return super(Declared, replace(self, group_fields=tuple(groups))).frames(verdicts)

    def write_rows(self, part: Part, target: Path) -> None:
        """Write the rows of the given samples (`part.kept`) to the folder `target`, with the paths of their clips.

        The rows are written as JSON lines, whatever the format of the source.
        """
        rows, names = [], self.toml["clips"]
        for sample in part.kept:
            clips = part.clips(sample)
            clip_fields = dict(zip(names, clips, strict=False)) if len(names) > 1 else {names[0]: clips}
            # JSON has no dates, which a table may contain.
            rows.append(json.loads(json.dumps(part.row(sample, {**sample.meta["row"], **clip_fields}), default=str)))
        write_lines(target / self._lines, rows)

    @property
    def _fields(self) -> list[str]:
        """Names of the fields that the task reads in a row."""
        names = [self.toml[name] for name in _ONE if name in self.toml]
        return names + [name for key in _SEVERAL for name in self.toml.get(key, ())]

    @property
    def _rows(self) -> str:
        if not self.toml:
            raise DataError(f"{self.key}: give its TOML file instead of its name; only the file describes the data")
        return str(self.toml["rows"])

    @property
    def _lines(self) -> str:
        """Name of the file that :meth:`write_rows` writes."""
        return f"{Path(self._rows.replace('*', 'all')).stem}.jsonl"

    def _is_table(self, name: str) -> bool:
        return fnmatch(name, self._rows) or name == self._lines

    def _unfolded(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return a row to which nested values are added as fields, as the TOML file names them.

        If the file names a field `outer.inner`, and the row's field `outer` holds an object (or its JSON text), the
        object's value `inner` is added under the name `outer.inner`.
        """
        fields = dict(row)
        for name in self._fields:
            outer, _, inner = name.partition(".")
            value = row.get(outer)
            value = json_object(value.encode()) if inner and isinstance(value, str) else value
            if isinstance(value, dict) and inner in value:
                fields.setdefault(name, value[inner])
        return fields

    def _sample(self, row: Row, template: str, embedded: Collection[str]) -> Sample:
        toml, paths = self.toml, row.listed(self.toml["clips"])
        if embedded and (bare := [path for path in paths if path not in embedded]):
            raise RowError(f"clip {shown(bare[0])} has no audio in the table, but other clips do")
        clips = row.clips(toml["clips"])
        options, answer = self._options(row) if "options" in toml else ((), "")
        references = [one_text(text, "reference") for text in few(row.listed(toml.get("references", ())))]
        letters = tuple(LETTERS[options.index(option)] for option in options)  # options of the same text are one option
        groups = {name: _group(row.fields.get(name)) for name in self.group_fields}
        return Sample(
            row.id(toml["id"]) if "id" in toml else row.identifier(clips[0]),
            clips,
            row.text(toml["question"]) if "question" in toml else KINDS[self.kind][2],
            answer
            or (_exact(row.fields.get(toml["answer"]), self.kind) if self.kind in (EXACT, SPANS) else "")
            or "\n".join(references)
            or one_text(row.text(name := toml.get("answer") or toml["transcript"]), name),
            row.text(toml["cluster"]) if "cluster" in toml else row.relative(clips[0]),
            options,
            options if self.kind == CLASSES else letters,
            {"groups": groups, "references": references, "row": row.fields, "template": template},
            kind="" if self.kind == CLASSES else next(iter(groups.values()), ""),
        )

    def _text(self, row: Row) -> str:
        """Return the open answer, or the transcript, that a row states."""
        return (
            one_text(row.text(name), name) if (name := self.toml.get("transcript")) else row.text(self.toml["answer"])
        )

    def _options(self, row: Row) -> tuple[tuple[str, ...], str]:
        """Return the texts of a row's options, and the letter of the right option.

        If every option's text begins with its letter, these letters are removed, since the prompt adds them.
        """
        written, answer = row.listed(self.toml["options"], may_end=True), row.text(self.toml["answer"])
        how = self.toml.get("answer_is", "text")
        if not 2 <= len(written) <= len(LETTERS):
            raise RowError(f"has {counted(len(written), 'option')}, expected 2 to {len(LETTERS)}")
        one_line_each(written)
        letters = list(LETTERS[: len(written)])
        numbers = [str(number) for number in range(how == "index1", len(written) + (how == "index1"))]
        known = {"text": written, "letter": letters}.get(how, numbers)
        sought = answer.strip(" ().").upper() if how == "letter" else answer
        if sought not in known:
            is_letter = how == "text" and answer.strip(" ().").upper() in letters
            hint = '; if it is the letter of an option, set answer_is = "letter"' * is_letter
            raise RowError(f"answer {shown(answer)} is not one of {shown(known)}{hint}")
        labelled = [
            re.fullmatch(rf"\(?{letter}[).:]\s+(.+)", text) for letter, text in zip(letters, written, strict=True)
        ]
        texts = [match[1] for match in labelled if match]
        options = tuple(texts if len(texts) == len(written) else written)
        if len({*options}) < (len(options) if self.kind == CLASSES else 2):
            raise RowError(f"two of the options {shown(written)} are the same")
        return options, letters[known.index(sought)]


def on_record(key: str) -> Declared | None:
    """Return the task that a user described, given only its key in a run; None for the key of any other task.

    Without its TOML file, such a task can read, score and report runs, but not load data.
    """
    kind, _, name = key.partition("/")
    return Declared(key=key, kind=kind, title=name, max_new_tokens=KINDS[kind][1]) if name and kind in KINDS else None


def read_task(file: Path) -> Declared:
    """Read a task from a TOML file.

    Raises
    ------
    SettingsError
        A key or a value is not allowed or missing; the message names file, key and allowed values.
    DataError
        The file or its prompt's file cannot be read.
    """
    try:
        toml = tomllib.loads(text_of(file))
        repr(toml)  # raises here, not in a message, for keys nested too deeply or hex numbers of thousands of digits
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{file}: not TOML: {error}") from error
    for name, value in toml.items():
        if name not in _KEYS:
            raise SettingsError(f"{file}: unknown key {name!r}{did_you_mean(name, _KEYS)}; allowed: {', '.join(_KEYS)}")
        (pattern, allowed), wanted = _KEYS[name], _TYPES.get(name, str)
        several = value if name in _SEVERAL and isinstance(value, list) else [value]
        if not several or not all(type(text) is wanted and re.fullmatch(pattern, str(text)) for text in several):
            raise SettingsError(f"{file}: {name} = {shown(value)} is not allowed; allowed: {allowed}")
        toml[name] = several if name in _SEVERAL else value
    kind = _kind(file, toml)
    template = toml.get("prompt", "lettered")
    return Declared(
        key=f"{kind}/{toml['key']}",
        kind=kind,
        title=toml.get("title", toml["key"]),
        max_new_tokens=toml.get("max_new_tokens", KINDS[kind][1]),
        toml=toml,
        template=""
        if template == "lettered"
        else _template(text_of(file.parent / template), f"{file}: {template}", kind),
        group_fields=tuple(toml.get("groups", ())),
        version=" ".join(toml[name] for name in ("version", "published", "language") if name in toml),
        source=toml.get("source", ""),
    )


def _template(text: str, where: str, kind: str) -> str:
    """Check a prompt's template and return it without its final line break.

    Raise :class:`SettingsError` for unknown names in braces. Only prompts for captions and transcripts may be fixed
    texts, which have no name in braces.
    """
    names, fixed = {*re.findall(r"\{(\w+)\}", text)}, kind in (CAPTION, TRANSCRIPT, CHARACTERS)
    if not names <= {"question", "options"} or not (names or fixed):
        needed = "" if fixed else ", at least one of them"
        raise SettingsError(f"{where}: names in braces must be question or options{needed}")
    return text.removesuffix("\n")


def _kind(file: Path, toml: Mapping[str, Any]) -> str:
    """Return the kind of task that a TOML file with these keys describes.

    Raise :class:`SettingsError` for keys that do not go together, and for missing keys.
    """
    kinds = {"references": CAPTION, "transcript": TRANSCRIPT, "answer": CLASSES if "classes" in toml else CHOICE}
    if len(given := [name for name in kinds if name in toml]) != 1:
        raise SettingsError(f"{file}: has {' and '.join(given) or 'no answers'}; allowed: one of {', '.join(kinds)}")
    kind = _FORMS.get(toml.get("answer_is", ""), kinds[given[0]]) if "answer" in toml else kinds[given[0]]
    kind = CHARACTERS if kind == TRANSCRIPT and toml.get("language") in BY_CHARACTERS else kind
    kind_key = [name for name in _OWN_KEYS[kind][:1] if name != "language"]
    needed = ["key", "rows", "clips", *kind_key, *["question"] * (kind in _FORMS.values())]
    if lacking := [name for name in needed if name not in toml]:
        raise SettingsError(f"{file}: lacks the key {lacking[0]!r}")
    if odd := {name for keys in _OWN_KEYS.values() for name in keys}.intersection(toml).difference(_OWN_KEYS[kind]):
        allowed = f"{', '.join(_OWN_KEYS[kind]) or 'no such key'}; {(name := min(odd))} needs {_NEEDS[name]}"
        raise SettingsError(f"{file}: {name} is not allowed with the other keys ({kind}); allowed: {allowed}")
    return kind


def _group(value: Any) -> str:
    """Return the name of a sample's group, given a field's value, which may be a list of one name (in MMAU)."""
    value = value if not isinstance(value, str) or (values := list_in(value)) is None else values
    return ", ".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)


def _exact(value: Any, kind: str) -> str:
    """Check an exact answer (a number, [lowest, highest], a letter, or a list of spans) and return it as JSON text."""
    if isinstance(value, str) and kind == EXACT and re.fullmatch(r"\(?[A-Z]\)?\.?", value.strip()):
        return json.dumps(value.strip(" ()."))
    with contextlib.suppress(ValueError, RecursionError):
        value = json.loads(value) if isinstance(value, str) else value
    several = value if isinstance(value, list) else [value]
    if kind == SPANS and isinstance(value, list) and len(spans_in(json.dumps(value))) == len(value):
        return json.dumps(value)
    numbers = all(
        isinstance(number, int | float) and not isinstance(number, bool) and abs(number) < _ENDLESS
        for number in several
    )
    if kind == EXACT and numbers and len(several) <= 2 and several == sorted(several) and several:
        return json.dumps(value)
    allowed = "a number, [lowest, highest] or a letter" if kind == EXACT else "a list of {word, start, end}"
    raise RowError(f"answer {shown(value)} is not {allowed}")


def _clips_folder() -> Path:
    return cache_folder() / "clips"


def _kept(value: Any, embedded: set[str]) -> Any:
    """Return the path (or paths) of clips that a field's value states.

    If the value is audio instead of a path, write it to a file in the cache, named after the hash of its content.
    Return this file's name, and add it to the set `embedded`.
    """
    if isinstance(value, list):
        return [_kept(member, embedded) for member in value]
    named = value.get("path") if isinstance(value, dict) else None
    content = value.get("bytes") if isinstance(value, dict) else value
    if not isinstance(content, bytes):
        return named or content
    suffix = Path(str(named).lower()).suffix
    suffix = suffix if suffix in AUDIO_SUFFIXES else _FIRST_BYTES.get(content[:4], ".mp3")
    file = _clips_folder() / f"{hashlib.sha256(content).hexdigest()}{suffix}"
    if not file.is_file():
        write_bytes(file, content)
    embedded.add(file.name)
    return file.name
