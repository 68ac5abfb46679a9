"""Tasks from TOML files: every kind of rows and answers, every error, and runs that outlive the file."""

from __future__ import annotations

import datetime
import json
import re
import shutil
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas
import pyarrow
import pytest
from builders import lines_of, records_in
from conftest import call, succeed
from hypothesis import given
from hypothesis import strategies as st
from jasco_folders import said
from pyarrow import parquet
from task_folders import write_clip, write_json

from audiomarathon.benchmarks import Filters, Loaded, Task, get_task
from audiomarathon.benchmarks.declared import _KEYS
from audiomarathon.benchmarks.questions.exact import number_in, spans_in
from audiomarathon.benchmarks.questions.open_ended import OpenEnded
from audiomarathon.benchmarks.questions.questions import Questions, right_by_words
from audiomarathon.benchmarks.rows import RowError, list_in
from audiomarathon.errors import AudioMarathonError, DataError, SettingsError
from audiomarathon.records import LETTERS, Record
from audiomarathon.scoring.scorer import figures_of
from audiomarathon.settings import cache_folder

ROWS: list[dict[str, Any]] = [
    {"id": f"q{number}", "audio": f"clips/{number}.wav", "question": "What is it?",
     "options": ["a bell", "a dog", "rain", "wind"][: 2 + number % 3], "answer": ("a bell", "a dog")[number % 2],
     "topic": ("thing", "animal")[number % 2]}
    for number in range(4)
]  # fmt: skip
FACTS = {"key": "sounds", "rows": "sounds.json", "id": "id", "clips": "audio", "question": "question",
         "options": "options", "answer": "answer"}  # fmt: skip


def toml(file: Path, facts: Mapping[str, Any], **more: Any) -> Path:
    """Write a task's file; a key that is None is left out."""
    both = {name: value for name, value in {**facts, **more}.items() if value is not None}
    file.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in both.items()), encoding="utf-8")
    return file


def declared(root: Path, rows: Sequence[Any] = ROWS, /, **more: Any) -> Path:
    """Write a data folder with its clips, and a task's file beside it; return the file."""
    for number in range(4):
        write_clip(root / "data" / "clips" / f"{number}.wav", seconds=0.3, hertz=300 + 100 * number)
    name = str(more.get("rows") or FACTS["rows"])
    file = root / "data" / name
    if file.suffix == ".json":
        write_json(file, rows)
    elif file.suffix == ".jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif file.suffix == ".csv":
        pandas.DataFrame(rows).to_csv(file, index=False)
    else:
        parquet.write_table(pyarrow.Table.from_pylist(rows), str(file).replace("*", "0"))
    return toml(root / "task.toml", FACTS, **more)


def loaded(file: Path, filters: Filters = Filters()) -> tuple[Task, Loaded]:
    task = get_task(str(file))
    return task, task.load(task.find(file.parent), filters)


def with_rows(**changes: Any) -> list[dict[str, Any]]:
    """Return ROWS with fields changed to a value, or by a function of the row; None removes a field."""
    rows = []
    for row in ROWS:
        made = {name: make(row) if callable(make) else make for name, make in changes.items()}
        rows.append({name: value for name, value in {**row, **made}.items() if value is not None})
    return rows


def place(row: Mapping[str, Any]) -> int:
    return int(row["options"].index(row["answer"]))


def labelled(row: Mapping[str, Any]) -> list[str]:
    return [f"({letter}) {text}" for letter, text in zip(LETTERS, row["options"], strict=False)]


COLUMNS = [row | {f"choice_{n}": [*row["options"], "", ""][n] for n in range(4)} for row in ROWS]
SHAPES: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "a list": (ROWS, {}),
    "JSON lines": (ROWS, {"rows": "sounds.jsonl"}),
    "columns of a CSV": (COLUMNS, {"rows": "sounds.csv", "options": [f"choice_{n}" for n in range(4)]}),
    "JSON in a CSV": (with_rows(options=lambda row: json.dumps(row["options"])), {"rows": "sounds.csv"}),
    "what pandas writes of lists": (
        with_rows(options=lambda row: str(row["options"]), audio=lambda row: f"('{row['audio']}',)"),
        {"rows": "sounds.csv"},
    ),
    "a parquet table": (ROWS, {"rows": "sounds.parquet"}),
    "parquet tables": (ROWS, {"rows": "sounds-*.parquet"}),
    "letters": (with_rows(answer=lambda row: f"({'abcd'[place(row)]})"), {"answer_is": "letter"}),
    "index": (with_rows(answer=place), {"answer_is": "index"}),
    "index1": (
        with_rows(options=lambda row: json.dumps(row["options"]), answer=lambda row: place(row) + 1),
        {"answer_is": "index1", "rows": "sounds.csv"},
    ),
    "labelled": (with_rows(options=labelled, answer=lambda row: labelled(row)[place(row)]), {}),
    "JSON of an object": (
        with_rows(more=lambda row: json.dumps({"what": row["options"]}), options=None), {"options": "more.what"}
    ),
    "an object": (with_rows(more=lambda row: {"what": row["question"]}), {"question": "more.what"}),
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_options_and_answers_are_read_from_every_supported_row_format(shape: str, tmp_path: Path) -> None:
    rows, more = SHAPES[shape]
    task, data = loaded(declared(tmp_path, rows, **more))
    assert (data.bad_rows, task.key) == ((), "own-choice/sounds")
    for sample, row in zip(data.samples, ROWS, strict=True):
        assert (sample.id, sample.question, list(sample.options)) == (row["id"], "What is it?", row["options"])
        assert sample.options[LETTERS.index(sample.answer)] == row["answer"]
        assert sample.clips == (tmp_path / "data" / row["audio"],)
    assert task.prompt(data.samples[0]).startswith("What is it?\n\nA. a bell\nB. a dog\n\nListen to the audio")


def test_a_row_of_a_declared_task_may_have_26_options_or_several_clips(tmp_path: Path) -> None:
    many = [f"sound {number}" for number in range(26)]
    rows = [
        {"audio": ["clips/1.wav", "./clips/0.wav"], "options": many, "answer": "sound 25", "by": None},
        {"audio": "clips/2.wav", "options": ["yes", "no"], "answer": "no", "by": ["x", "y"]},
    ]
    task, data = loaded(declared(tmp_path, rows, id=None, question=None, groups="by", cluster="answer"))
    last, first = data.samples[1], data.samples[0]
    assert [clip.name for clip in first.clips] == ["1.wav", "0.wav"]
    assert (first.id, first.answer, first.cluster) == ("clips/1.wav", "Z", "sound 25")
    assert (task.groups(first), task.groups(last)) == ({"by": ""}, {"by": "x, y"})
    assert task.prompt(last).startswith("A. yes\nB. no\n\nListen to the audio")

    clips = (("clips/0.wav", "clips/1.wav"), ("clips/2.wav", ""))
    pairs = [{"one": first, "two": two, "says": "go"} for first, two in clips]
    more = {"id": None, "options": None, "question": None, "answer": None, "transcript": "says"}
    _task, data = loaded(declared(tmp_path / "b", pairs, clips=["one", "two"], **more))
    assert [len(sample.clips) for sample in data.samples] == [2]
    (bad,) = data.bad_rows  # never asked with only one clip of two
    assert (bad.row, bad.reason) == (2, "field 'two' is empty")


def test_audio_embedded_in_a_table_is_cached_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUDIOMARATHON_CACHE", str(tmp_path / "cache"))
    declared(tmp_path)
    content = [(tmp_path / "data" / row["audio"]).read_bytes() for row in ROWS]
    for number, cell in enumerate(
        (bytes, lambda clip: {"bytes": clip, "path": "x.WAV"}, lambda clip: [{"bytes": clip}])
    ):
        rows = [{**row, "audio": cell(clip)} for row, clip in zip(ROWS, content, strict=True)]
        task, data = loaded(declared(tmp_path / f"{number}", rows, rows="sounds.parquet"))
        assert data.bad_rows == ()
        assert data.folder == cache_folder() / "clips"
        assert [sample.clips[0].read_bytes() for sample in data.samples] == content
    there = {file: file.stat().st_mtime_ns for file in data.folder.iterdir()}
    assert len(there) == 4
    task.load(task.find(tmp_path / "2"))
    assert {file: file.stat().st_mtime_ns for file in data.folder.iterdir()} == there


def test_clip_names_are_found_despite_spaces_and_other_unicode_forms(tmp_path: Path) -> None:
    """The last two names and their files use different Unicode forms of accents."""
    files = [" in front.wav", "odd/ in front.wav", "odd/a  b.wav", "odd/no\u00a0break.wav", "odd/cafe\u0301.wav",
             "odd/caf\u00e8.wav"]  # fmt: skip
    names = [*files[:-2], "odd/caf\u00e9.wav", "odd/cafe\u0300.wav"]
    task = declared(tmp_path, [{**ROWS[0], "id": None, "audio": name} for name in names], id=None)
    clips = [write_clip(tmp_path / "data" / name, seconds=0.3) for name in files]
    data = loaded(task)[1]
    assert not data.bad_rows
    assert {sample.clips[0] for sample in data.samples} == {*clips}
    assert {sample.id for sample in data.samples} == {unicodedata.normalize("NFC", name) for name in files}


def test_rows_without_embedded_audio_are_bad_rows_if_other_rows_of_the_table_embed_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUDIOMARATHON_CACHE", str(tmp_path / "cache"))
    rows = [{**row, "audio": {"bytes": None, "path": row["audio"]}} for row in ROWS]
    _task, data = loaded(declared(tmp_path, rows, rows="sounds.parquet"))
    assert [len(data.samples), *data.bad_rows] == [4]
    assert data.folder == tmp_path / "data"
    for row in rows[1:]:
        row["audio"]["bytes"] = (tmp_path / "data" / row["audio"]["path"]).read_bytes()
    _task, data = loaded(declared(tmp_path / "b", rows, rows="sounds.parquet"))
    assert [(bad.row, bad.reason) for bad in data.bad_rows] == [
        (1, "clip 'clips/0.wav' has no audio in the table, but other clips do")
    ]
    assert len(data.samples) == 3


def test_dates_in_a_parquet_table_are_read_as_text(tmp_path: Path) -> None:
    rows = with_rows(day=lambda row: datetime.date(2024, 5, int(row["id"][1]) + 1))
    file = declared(tmp_path, rows, rows="sounds.parquet", groups="day")
    succeed("data", "controls", file, "--control", "silence", "--data", tmp_path / "data", "-o", tmp_path / "out")
    task, data = loaded(file)
    for samples in (data.samples, task.load(task.find(tmp_path / "out" / "silence")).samples):
        assert task.groups(samples[0]) == {"day": "2024-05-01"}


def test_two_identical_options_of_a_question_count_as_one(tmp_path: Path) -> None:
    rows = [{**ROWS[0], "options": ["four", "nine", "ten", "ten"], "answer": "ten"}]
    task, data = loaded(declared(tmp_path, rows, published="mmau-tokens"))
    assert data.defects == {"two options are the same": 1}
    sample = data.samples[0]
    told = task.reference(sample)
    for reply in ("C", "D", "ten", "C. ten", "D. ten", "(D) ten", "D) ten", "It is ten.", "It is D. ten"):
        values = task.scorer.judge(Record("a", reply=reply, reference=told))
        assert values["correct"], reply
    assert not task.scorer.judge(Record("a", reply="A", reference=told))["correct"]
    figures = figures_of(task.scorer, list(task.scorer.verdicts([Record("a", reply="D", reference=told)])), seed=0)
    assert [figures[name] for name in ("guessing", "always_last", "always_first")] == [0.5, 1.0, 0.0]


@pytest.mark.parametrize(
    ("reply", "letter"), [("E", "B"), ("B", "B"), ("B. E", "B"), ("(B) E", "B"), ("c", "C"), ("D", "D")]
)
def test_a_one_letter_reply_is_matched_to_an_option_text_before_an_option_label(reply: str, letter: str) -> None:
    told = {"answer": "B", "options": ["A", "E", "c", "D"], "labels": list("ABCD"), "published": "mmau-tokens"}
    assert Questions().judge(Record("a", reply=reply, reference=told))["parsed"] == letter


def test_rows_of_a_class_task_must_all_offer_the_same_classes(tmp_path: Path) -> None:
    rows = with_rows(options=lambda row: ["a dog", "a bell"][:: 1 - 2 * place(row)])
    task, data = loaded(declared(tmp_path, rows, classes=True))
    assert (task.key, task.scorer.figure.name) == ("own-classes/sounds", "macro_f1")
    assert {sample.labels for sample in data.samples} == {("a dog", "a bell"), ("a bell", "a dog")}
    assert {sample.stratum for sample in data.samples} == {"a dog", "a bell"}
    _task, data = loaded(declared(tmp_path / "a", [{**ROWS[0], "options": ["a bell", "a bell"]}], classes=True))
    assert "are the same" in data.bad_rows[0].reason
    with pytest.raises(DataError, match=r"differ in their options, \[\('a bell', 'a dog'\), .*leave out 'classes'"):
        loaded(declared(tmp_path / "b", classes=True))


def test_accuracy_is_reported_for_each_recorded_group_of_samples_and_not_per_answer_letter() -> None:
    told = {"answer": "A", "options": ["a bell", "a dog"], "labels": ["A", "B"]}
    task, groups = get_task("own-choice/sounds"), ({"topic": "thing"}, {"level": "hard"}, None)
    records = [Record(f"q{n}", f"q{n}", reply="A", reference=told, groups=each) for n, each in enumerate(groups)]
    records.append(Record("q3", "q3", reply="B", reference={**told, "answer": "B"}))
    frames = task.frames({"base": list(task.scorer.verdicts(records))})
    assert [*frames] == ["accuracy by topic", "accuracy by level"]
    assert frames["accuracy by level"][["hard", "none_said"]].values.tolist() == [[1.0, "n 3"]]


def test_a_json_rows_file_is_preferred_to_a_jsonl_file_of_the_same_name(tmp_path: Path) -> None:
    declared(tmp_path, ROWS, rows="sounds.jsonl")
    file = declared(tmp_path, ROWS[:2])
    assert len(loaded(file)[1].samples) == 2
    (tmp_path / "data" / "sounds.json").unlink()
    assert len(loaded(file)[1].samples) == 4


def test_open_questions_of_a_declared_task_are_judged_with_the_judge_prompt_of_mmau_pro(tmp_path: Path) -> None:
    task, data = loaded(declared(tmp_path, options=None, answer_is="open", judge="mmau-pro-open"))
    sample = data.samples[0]
    assert (task.key, task.prompt(sample), sample.answer) == ("own-open/sounds", "What is it?", "a bell")
    record = Record("q0", "q0", reply="A bell.", reference=task.reference(sample))
    assert task.scorer.fits(record)
    asked = OpenEnded().messages(record)[1]["content"]
    assert "What is it?" in asked
    assert "a bell" in asked
    grades = "".join(f"{name}: 4\n" for name in ("CORRECTNESS", "RELEVANCE", "COMPLETENESS", "CLARITY", "OVERALL"))
    judged = replace(record, judgements={"j": said(OpenEnded(), record, grades)})
    assert figures_of(task.scorer, list(task.scorer.verdicts([judged])), seed=0)["score"] == 0.75


@pytest.mark.parametrize(
    ("more", "key", "figure"),
    [
        ({"references": "captions"}, "own-caption/sounds", "cider_d"),
        ({"references": ["first", "second"]}, "own-caption/sounds", ""),  # loaded, but not run
        ({"transcript": "first"}, "own-transcript/sounds", "score"),
    ],
)
def test_caption_and_transcription_tasks_declared_in_a_task_file_run_and_are_scored(
    more: dict[str, Any], key: str, figure: str, tmp_path: Path
) -> None:
    rows = with_rows(first=lambda row: f"{row['answer']} sounds", second="a sound")
    rows = [{**row, "captions": [row["first"], "a sound"]} for row in rows]
    file = declared(tmp_path, rows, options=None, answer=None, question=None, groups="topic", **more)
    task, data = loaded(file)
    assert (task.key, len(data.samples)) == (key, 4)
    assert task.prompt(data.samples[0]).startswith(("Describe the sound", "Transcribe the speech"))
    assert [*task.corpus(data)] == ([] if "transcript" in more else [row["captions"] for row in rows])
    if figure:
        where = ("--data", file.parent, "--results", tmp_path)
        succeed("run", file, "--model", "embedded", *where, "--no-timing", "--max-new-tokens", 4)
        summary = json.loads((tmp_path / key / "embedded" / "base-0" / "summary.json").read_text())
        assert (summary["n"], summary["headline"], summary["score"] is None) == (4, figure, False)


SAID = {"th": "น้ำ", "de": "schön", "zh": "今天", "en": "water"}


@pytest.mark.parametrize(
    ("language", "kind", "figure"),
    [("th", "own-characters", "1 − CER"), ("zh", "own-characters", "1 − CER"), ("de", "own-transcript", "1 − WER")],
)
def test_the_language_of_a_transcription_task_selects_character_or_word_error_rate(
    language: str, kind: str, figure: str, tmp_path: Path
) -> None:
    facts = {"options": None, "answer": None, "transcript": "said", "language": language}
    task, data = loaded(declared(tmp_path, with_rows(said=SAID[language]), **facts))
    assert (task.key, task.scorer.figure.title, data.defects) == (f"{kind}/sounds", figure, {})
    reference = task.reference(data.samples[0])
    right, wrong = (Record("a", reply=text, reference=reference) for text in (SAID[language], SAID[language][:1]))
    verdicts = list(task.scorer.verdicts([right, wrong]))
    assert [verdict.values["errors"] > 0 for verdict in verdicts] == [False, True]
    rate = figure[4:].lower()
    assert figures_of(task.scorer, verdicts, seed=0)[rate] == 1 - figures_of(task.scorer, verdicts, seed=0)["score"]
    assert get_task(f"{kind}/sounds").scorer.key == task.scorer.key  # reports find it without the task file


def test_transcripts_in_another_language_than_english_are_reported_if_no_language_is_set(tmp_path: Path) -> None:
    rows = with_rows(said=lambda row: SAID["de" if row["id"] in ("q0", "q2") else "en"])
    facts = {"options": None, "answer": None, "transcript": "said"}
    data = loaded(declared(tmp_path / "unsaid", rows, **facts))[1]
    assert [(count, "set language" in name) for name, count in data.defects.items()] == [(2, True)]
    assert loaded(declared(tmp_path / "said", rows, **facts, language="en"))[1].defects == {}


def test_question_and_options_are_filled_into_a_prompt_template_that_has_only_known_fields(tmp_path: Path) -> None:
    file = declared(tmp_path, with_rows(question="Braces {here}?"), prompt="ask.txt")
    (tmp_path / "ask.txt").write_text('{question}\n{options}\nAnswer with {"answer": …}.\n')
    task, data = loaded(file)
    assert task.prompt(data.samples[0]) == 'Braces {here}?\nA. a bell\nB. a dog\nAnswer with {"answer": …}.'
    task, data = loaded(file, Filters(prompt="{options}?"))
    assert task.prompt(data.samples[0]) == "A. a bell\nB. a dog?"
    for wrong in ("short", "{question} {other}"):
        with pytest.raises(SettingsError, match=r"^TASK_PROMPT=.*: names in braces must be .*, at least one"):
            task.load(data.folder, Filters(prompt=wrong))
        (tmp_path / "ask.txt").write_text(wrong)
        with pytest.raises(SettingsError, match=r"task\.toml: ask\.txt: names in braces must be question"):
            get_task(str(file))


def test_a_caption_prompt_can_be_fixed_text(tmp_path: Path) -> None:
    file = declared(
        tmp_path,
        with_rows(captions=["A bell rings."]),
        options=None,
        answer=None,
        references="captions",
        prompt="ask.txt",
    )
    (tmp_path / "ask.txt").write_text("Describe the music.\n")
    task, data = loaded(file)
    assert task.prompt(data.samples[0]) == "Describe the music."
    with pytest.raises(SettingsError, match="TASK_PROMPT="):
        task.load(data.folder, Filters(prompt="In {style}."))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"optoins": "x"}, r"unknown key 'optoins' \(did you mean 'options'\?\); allowed: key, rows, "),
        ({"key": "a/b"}, "key = 'a/b' is not allowed; allowed: letters, digits"),
        ({"rows": "sub/rows.json"}, "rows = 'sub/rows.json' is not allowed; allowed: a .json, .jsonl, .csv or "),
        ({"clips": []}, r"clips = \[\] is not allowed; allowed: a field's name"),
        ({"clips": ["a", 1]}, "clips = "),
        ({"groups": {"a": "b"}}, "not TOML|groups = "),
        ({"question": ""}, "question = '' is not allowed"),
        ({"answer_is": "number"}, r"answer_is = 'number' is not allowed; allowed: text, letter, index \(from 0\)"),
        ({"published": "mmau"}, "published = 'mmau' is not allowed; allowed: mmau-tokens"),
        ({"judge": "gpt"}, "judge = 'gpt' is not allowed; allowed: mmau-pro-open"),
        ({"max_new_tokens": 0}, "max_new_tokens = 0 is not allowed; allowed: a whole number from 1"),
        ({"language": "jp"}, "language = 'jp' is not allowed; allowed: a code of ISO 639-1"),
        ({"language": "Thai"}, "language = 'Thai' is not allowed"),
        ({"language": "de"}, r"language is not allowed with the other keys \(own-choice\)"),
        ({"classes": False}, "classes = False is not allowed; allowed: true"),
        ({"key": None}, "lacks the key 'key'"),
        ({"clips": None}, "lacks the key 'clips'"),
        ({"options": None}, "lacks the key 'options'"),
        ({"answer": None}, "has no answers; allowed: one of references, transcript, answer"),
        ({"transcript": "x"}, "has transcript and answer; allowed: one of"),
        ({"judge": "mmau-pro-open"}, r'judge is not allowed .* \(own-choice\); .*judge needs answer_is = "open"'),
        (
            {"answer_is": "open", "options": None, "language": "de"},
            r"language is not allowed .* \(own-open\); .*; language needs transcript",
        ),
        ({"answer_is": "open"}, r"options is not allowed .* \(own-open\); allowed: answer_is, judge"),
        ({"answer_is": "open", "options": None, "question": None}, "lacks the key 'question'"),
        ({"answer": None, "references": "x"}, r"options is not allowed with the other keys \(own-caption\)"),
        ({"classes": True, "published": "mmau-tokens"}, r"published is not allowed with .* \(own-classes\)"),
        ({"prompt": "none.txt"}, r"none\.txt: no such file"),
    ],
)  # fmt: skip
def test_an_invalid_task_file_is_a_one_line_error(more: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(AudioMarathonError, match=message) as caught:
        get_task(str(toml(tmp_path / "t.toml", FACTS, **more)))
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["key = ", "key = " + "[" * 5000, f"key{'.a' * 5000} = 1"]
    + [f"max_new_tokens = {number}" for number in ("9" * 5000, "0x" + "f" * 5000)],
    ids=["no value", "deep list", "deep table", "long number", "long hexadecimal"],
)
def test_a_task_file_that_is_not_toml_is_refused_with_a_short_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text(text)
    with pytest.raises(SettingsError, match=r"t\.toml: not TOML: ") as caught:
        get_task(str(tmp_path / "t.toml"))
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("~nobody9/x.toml", "~nobody9/x.toml: there is no such user"),
        ("/nowhere/none.toml", "none.toml: no such file"),
        *((name, f"{name}: a task file must end in .toml") for name in ("./birds.tml", "/b.txt", "~/b")),
    ],
)
def test_a_task_file_that_cannot_be_found_is_refused(name: str, message: str) -> None:
    with pytest.raises((DataError, SettingsError), match=re.escape(message)):
        get_task(name)


def test_a_declared_task_whose_data_or_named_column_is_missing_is_refused(tmp_path: Path) -> None:
    file = declared(tmp_path)
    for more, advice in (({}, "Set AUDIOMARATHON_DATA or --data to the data root"),
                         ({"source": "ask Ann"}, "Ask Ann; then set AUDIOMARATHON_DATA")):  # fmt: skip
        with pytest.raises(DataError, match=rf"no sounds\.json under .*\. {advice}"):
            get_task(str(toml(file, FACTS, **more))).find(tmp_path / "data" / "clips")
    said = "error: own-choice/sounds: ask Ann; pass your copy with --from FOLDER or --from ARCHIVE\n"
    assert call("data", "download", file) == (2, said)
    with pytest.raises(DataError, match=r"no row has the field 'topics' \(did you mean 'topic'\?\)"):
        loaded(toml(file, FACTS, groups="topics"))
    with pytest.raises(DataError, match=r"lacks the column 'topics'"):
        loaded(declared(tmp_path / "b", groups="topics", rows="sounds.parquet"))


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"answer": "a cat"}, r"answer 'a cat' is not one of \['a bell', 'a dog', 'rain'\]"),
        ({"options": [str(number) for number in range(27)]}, "has 27 options"),
        ({"options": ["a dog", "a\nbell"]}, "has a line break"),
        ({"options": ["a dog", None, "rain"]}, "field 'options, item 2' is missing"),
        ({"options": ["a dog", {"b": 1}]}, "holds a dict, expected text"),
        ({"options": ["a dog", "a dog"], "answer": "a dog"}, "two of the options .* are the same"),
        ({"options": ["(A) a dog", "(B) a dog"], "answer": "(A) a dog"}, "two of the options .* are the same"),
        ({"options": "[broken"}, "has 1 option, expected 2 to 26"),
        ({"options": "['a dog', 'a bell', ...]"}, "looks like a Python list"),
        ({"audio": "../../x.wav"}, "leaves the task's folder"),
        ({"audio": "clips/9.wav"}, "is missing under"),
        ({"audio": None}, "field 'audio' is missing"),
        ({"audio": []}, "field 'audio' is an empty list"),
        ({"audio": ["clips/1.wav", None]}, "field 'audio, item 2' is missing"),
        ({"answer": "B"}, "answer 'B' is not one of .*; if it is the letter of an option, set answer_is = "),
        ({"options": []}, "field 'options' is an empty list"),
        ({"options": "['a dog', nan, 'rain']"}, "field 'options, item 2' is missing"),
        ({"id": "q0"}, "duplicate id 'q0'"),
        ({"id": "x" * 201}, "is not one line of at most 200"),
    ],
)  # fmt: skip
def test_a_bad_row_is_reported_with_its_reason(row: dict[str, Any], reason: str, tmp_path: Path) -> None:
    _task, data = loaded(declared(tmp_path, [ROWS[0], {**ROWS[1], **row}, ROWS[2]]))
    assert [sample.id for sample in data.samples] == ["q0", "q2"]
    (bad,) = data.bad_rows
    assert bad.row == 2
    assert re.search(reason, bad.reason)


@pytest.mark.parametrize(
    ("how", "answer"), [("letter", "(e)"), ("index", 3), ("index", -1), ("index1", 0), ("index1", 4)]
)
def test_an_answer_that_is_not_among_the_options_is_a_bad_row(how: str, answer: object, tmp_path: Path) -> None:
    _task, data = loaded(declared(tmp_path, [{**ROWS[1], "answer": answer}], answer_is=how))
    assert f"answer {str(answer)!r} is not one of" in data.bad_rows[0].reason


def test_a_bad_row_is_reported_with_its_file_if_there_are_several_files(tmp_path: Path) -> None:
    file = declared(tmp_path, ROWS[:2], rows="sounds-*.jsonl")
    data = file.parent / "data"
    (data / "sounds-*.jsonl").rename(data / "sounds-a.jsonl")
    (data / "sounds-b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (ROWS[2], ROWS[1])))
    (bad,) = loaded(file)[1].bad_rows
    assert (bad.file.name, bad.row) == ("sounds-b.jsonl", 2)
    assert bad.reason == "duplicate id 'q1', first used in row 2 of sounds-a.jsonl"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("""['it\\'s', "b", 'é\\n']""", ["it's", "b", "é\n"]),
        ("['a',]", ["a"]),
        ("['a'\n 'b']", ["a", "b"]),
        ("array(['a', 'b'], dtype=object)", ["a", "b"]),
        ("[np.str_('a'), np.str_('b')]", ["a", "b"]),
        ("['a', nan, None]", ["a", None, None]),
        ("[1. 2.5]", [1.0, 2.5]),
        ("[]", []),
        *((text, None) for text in ("[music] a dog", "(A dog barks)", "(1, 2)")),
    ],
)
def test_options_written_as_a_python_or_numpy_list_are_parsed(text: str, expected: list[Any] | None) -> None:
    assert list_in(text) == expected


#: Lists as other programs write them, and a list that would be slow to read.
OTHER_LISTS = ["['a''b']", "['a' 'b', 'c']", "[['a'], ['b']]", "['a', b'b']", "[‘a’, ‘b’]", "\"['a']\""]
OTHER_LISTS += [r'"[\"a\"]"', "['a", "['" + "\\" * 99_999]


@pytest.mark.parametrize("text", OTHER_LISTS)
def test_text_that_looks_like_a_python_list_but_cannot_be_parsed_is_refused(text: str) -> None:
    with pytest.raises(RowError, match="looks like a Python list"):
        list_in(text)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("transcript", "['go', 'on']", "looks like a list"),
        ("references", ["['a dog', 'a bell']"], "looks like a list"),
        ("references", ["a sound", None], "field 'says, item 2' is missing"),
    ],
)
def test_a_bad_transcript_or_caption_makes_a_bad_row(name: str, text: object, reason: str, tmp_path: Path) -> None:
    rows = with_rows(says=lambda row: text if row["id"] == "q1" else "a sound")
    task = declared(tmp_path, rows, options=None, answer=None, question=None, **{name: "says"})
    (bad,) = loaded(task)[1].bad_rows
    assert bad.row == 2
    assert reason in bad.reason


def test_a_caption_task_of_one_item_is_refused_before_any_sample_is_run(tmp_path: Path) -> None:
    rows = with_rows(says=["a sound", "a bell"])[:1]
    file = declared(tmp_path, rows, options=None, answer=None, question=None, references="says")
    for command in (("data", "verify", file), ("run", file, "--model", "embedded", "--results", tmp_path / "out")):
        code, output = call(*command, "--data", tmp_path / "data")
        assert code
        assert "has 1 item; CIDEr-D needs the references of at least 2 items" in output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["s-00000-of-00002"], "only 1 of 2 shards would be read; absent: s-00001-of-00002.json"),
        (["s-00001-of-00002"], "absent: s-00000-of-00002.json"),
        (["s-01-of-03", "s-03-of-03"], "absent: s-02-of-03.json"),  # counted from 1
        (["s_1_of_12"], "absent: s_0_of_12.json, s_2_of_12.json.* and 6 more"),
        (["s1of3", "s3of3"], "absent: s2of3.json"),
        (["s 2 of 2"], "absent: s 1 of 2.json"),
        (["s-00000-of-00002-1a2b3c"], r"absent: s-00001-of-00002\*.json"),
        (["s-0-of-1", "s-other-0-of-2"], "absent: s-other-1-of-2.json"),  # two splits
        (["s-0-of-1", "s-0-of-2", "s-1-of-2"], "s-0-of-1.json and s-0-of-2.json state different totals"),
        (["s-0-of-2", "s-0-of-2-1a2b3c", "s-1-of-2"], "are the same shard"),
        (["s-0-of-2", "s-1-of-2", "s-3-of-2"], "s-3-of-2.json is not one of 2 shards"),
    ],
)
def test_a_missing_shard_of_the_rows_files_is_refused(names: list[str], told: str, tmp_path: Path) -> None:
    task = declared(tmp_path, rows="s*.json")
    (tmp_path / "data" / "s*.json").unlink()
    for name in names:
        write_json(tmp_path / "data" / f"{name}.json", [{**ROWS[0], "id": name}])
    with pytest.raises(DataError, match=told):
        loaded(task)


def test_all_shards_of_a_rows_file_are_read_and_naming_a_single_one_is_refused(tmp_path: Path) -> None:
    task = declared(tmp_path, rows="s-*.parquet")
    (file := tmp_path / "data" / "s-0.parquet").rename(file.with_name("s-00000-of-00002.parquet"))
    more = pyarrow.Table.from_pylist([{**row, "id": f"more {row['id']}"} for row in ROWS])
    parquet.write_table(more, file.with_name("s-00001-of-00002.parquet"))
    assert len(loaded(task)[1].samples) == 8
    with pytest.raises(DataError, match=r"there, but not read: s-00001-of-00002\.parquet"):
        loaded(toml(task, FACTS, rows="s-00000-of-00002.parquet"))


def test_a_jsonl_line_that_is_not_json_is_a_bad_row(tmp_path: Path) -> None:
    file = declared(tmp_path, rows="sounds.jsonl")
    with (tmp_path / "data" / "sounds.jsonl").open("a") as stream:
        stream.write('{"id": "q9", "a\n\n[1]\n')
    _task, data = loaded(file)
    assert len(data.samples) == 4
    assert [(bad.row, bad.reason[:8]) for bad in data.bad_rows] == [(5, "not JSON"), (6, "not JSON")]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a task's file, its data, and the results of a sweep and of a run on silence."""
    root = tmp_path_factory.mktemp("ran")
    file = declared(root, groups=["topic"], published="mmau-tokens", version="v1", title="Sounds")
    where = ["--model", "embedded", "--no-timing"]
    succeed("data", "verify", file, "--data", root / "data")
    succeed("data", "controls", file, "--control", "silence", "--data", root / "data", "-o", root / "controls")
    sweep = ("--methods", "random", "--ratios", "0.5", "--results", root / "results")
    succeed("sweep", file, *where, "--data", root / "data", *sweep)
    succeed("run", file, *where, "--data", root / "controls" / "silence", "--results", root / "results-silence")
    return root


def test_a_finished_run_is_scored_and_reported_without_its_task_file(ran: Path, tmp_path: Path) -> None:
    results = shutil.copytree(ran / "results", tmp_path / "results")
    base, pruned = sorted(results.glob("own-choice/sounds/embedded/*"))
    before = json.loads((base / "summary.json").read_text())
    for line in records_in(base):
        assert line["reference"]["published"] == "mmau-tokens"
        assert line["groups"] == {"topic": ROWS[int(line["id"][1])]["topic"]}
    assert (before["always_first"], before["always_last"]) == (0.5, 0.25)
    assert before["as_published"] is not None
    assert any("always first 0.500" in note for note in before["notes"])
    (base / "summary.json").unlink()
    for verdicts in results.rglob("verdicts-*"):
        verdicts.unlink()
    succeed("score", results)
    assert json.loads((base / "summary.json").read_text()) == before
    assert len(lines_of(pruned / "verdicts-questions.jsonl")) == 4
    assert "own-choice/sounds" in succeed("compare", results)
    how = ("-o", tmp_path / "r.html", "--audio", "none", "--no-spectrograms")
    succeed("report", results, ran / "results-silence", *how)
    page = (tmp_path / "r.html").read_text()
    assert "accuracy by topic" in page
    assert ">animal<" in page
    code, output = call("run", "own-choice/sounds", "--model", "embedded", "--data", ran / "data")
    assert code == 2
    assert "give its TOML file" in output
    with pytest.raises(DataError, match="TOML file"):
        get_task("own-choice/sounds").load(ran / "data")


@pytest.mark.parametrize("more", [{"version": "v2"}, {"published": None}, {"prompt": "ask.txt"}])
def test_a_run_is_not_resumed_after_the_version_scoring_or_prompt_of_its_task_changed(
    more: dict[str, Any], ran: Path, tmp_path: Path
) -> None:
    (tmp_path / "ask.txt").write_text("{question} {options}")
    facts = {**FACTS, "groups": ["topic"], "published": "mmau-tokens", "version": "v1", **more}
    file = toml(tmp_path / "other.toml", facts)
    where = ("--data", ran / "data", "--results", ran / "results")
    code, output = call("run", file, "--model", "embedded", "--no-timing", *where)
    assert code == 2
    assert "holds another run (" in output


@pytest.mark.parametrize("format_", ["csv", "jsonl", "parquet"])
def test_a_control_of_a_task_with_csv_jsonl_or_parquet_rows_loads_without_a_bad_row(
    format_: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUDIOMARATHON_CACHE", str(tmp_path / "cache"))
    clips = [write_clip(tmp_path / "data" / row["audio"].replace("wav", "ogg"), seconds=0.3) for row in ROWS]
    changes: dict[str, dict[str, Any]] = {
        "csv": {"options": lambda row: json.dumps(row["options"])},
        "jsonl": {"audio": lambda row: row["audio"].replace("wav", "ogg")},  # written as FLAC, under another name
        "parquet": {"audio": lambda row: clips[ROWS.index(row)].read_bytes()},
    }
    file = declared(tmp_path, with_rows(**changes[format_]), rows=f"sounds.{format_}")
    succeed("data", "controls", file, "--control", "noise", "--data", tmp_path / "data", "-o", tmp_path / "out")
    task, data = loaded(file)
    control = task.load(task.find(tmp_path / "out" / "noise"))
    assert control.bad_rows == ()
    facts = [
        [(sample.id, sample.options, sample.answer, sample.clips[0].stem) for sample in each.samples]
        for each in (data, control)
    ]
    assert facts[0] == facts[1]


# --- The published scoring rule, and the bundled tasks.


RIGHT = ["a dog", "The DOG: a dog!", "(B) a dog", "a dog, hot"]
#: A word of the answer is missing, or there is a word of another option ("cat") or another word ("dog_").
WRONG = ["dog", "", "?!", "B", "a dog, not a cat", "a dog_"]


@pytest.mark.parametrize("reply", [*RIGHT, *WRONG])
def test_the_word_matching_rule_of_mmau_gives_the_expected_verdict_on_example_replies(reply: str) -> None:
    assert right_by_words(reply, "a dog", ["a cat", "a dog", "Dog, a", "hotdog"]) is (reply in RIGHT)


_TEXT = st.text("ab c_-.é1", max_size=8)


@given(_TEXT, st.lists(_TEXT, max_size=5), st.text("abc ", max_size=3))
def test_an_answer_with_a_word_of_another_option_is_wrong_under_the_mmau_word_rule(
    answer: str, others: list[str], left_over: str
) -> None:
    options = [*others, answer]
    words = answer.lower().replace("-", " ").replace(".", " ").split()
    assert right_by_words(answer, answer, options) is bool(words)
    assert right_by_words(f"{answer} {answer.upper()}", answer, options) is bool(words)
    for other in others:
        strange = set(other.lower().replace("-", " ").replace(".", " ").split()) - set(words)
        assert right_by_words(f"{answer} {other}", answer, options) is (bool(words or strange) and not strange)


def test_mmau_mini_and_mmar_are_included_as_declared_tasks(tmp_path: Path) -> None:
    write_clip(tmp_path / "data" / "test-mini-audios" / "a.wav")
    groups = {"task": "sound", "difficulty": "easy", "category": "Reasoning", "sub-category": "Source"}
    row = {"id": "a", "audio_id": "./test-mini-audios/a.wav", "question": "Who?", "choices": ["Man", "Dog"],
           "answer": "Dog", "split": "test-mini"}  # fmt: skip
    write_json(tmp_path / "data" / "mmau-test-mini.json", [row | groups | {"category": ["Reasoning"]}])
    task = get_task("MMAU-mini")
    (sample,) = task.load(task.find(tmp_path)).samples
    assert task.reference(sample)["published"] == "mmau-tokens"
    assert task.groups(sample) == groups
    assert task.version == "v05.15.25 mmau-tokens"
    with pytest.raises(DataError, match=r"no MMAR-meta\.jsonl under .*github\.com/ddlBoJack/MMAR, .*BoJack/MMAR"):
        get_task("mmar").find(tmp_path)


PAGE = (Path(__file__).parent.parent / "docs" / "own-tasks.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"```toml\n# (\w+\.toml)\n(.*?)```", PAGE, re.DOTALL))


EXACT = [(120, "120"), (120, "2:00"), (3600, "1:00:00"), (1200, "1,200"), (1, "1,2,3"), (-3, "−3"), (2, "2min")]
EXACT += [(12.5, "It lasts 12.5s"), (0.5, ".5"), ("120", "120.0"), ([2, 4], "There are 3 speakers")]
NOT_NEAR = [(1, "9" * 400), (1, "1" * 5000 + ":05"), (120, "123"), (120, "no idea")]


class TestExact:
    """Answers that are a number, a range, a letter or spans of time, as in BLAB."""

    @pytest.mark.parametrize(
        ("answer", "reply", "correct", "near"),
        [
            *((answer, reply, True, True) for answer, reply in EXACT),
            *((answer, reply, False, True) for answer, reply in ((120, "About 122 seconds."), ([2, 4], "5"))),
            *((answer, reply, False, False) for answer, reply in NOT_NEAR),
            ("B", "(B) anger", True, None),
            ("(B)", "The answer is C.", False, None),
        ],
    )
    def test_a_numeric_reply_is_correct_only_if_exact_and_counts_as_near_within_a_tolerance(
        self, tmp_path: Path, answer: Any, reply: str, correct: bool, near: bool | None
    ) -> None:
        rows = [ROWS[0] | {"answer": answer}]
        task, data = loaded(declared(tmp_path, rows, options=None, answer_is="exact", within=2))
        (sample,) = data.samples
        assert task.key == "own-exact/sounds"
        (verdict,) = task.scorer.verdicts([Record("a", reply=reply, reference=task.reference(sample))])
        assert (verdict.values["correct"], verdict.values["near"]) == (correct, near)
        assert task.scorer.unparsed(verdict) is (reply == "no idea" or len(reply) > 300)

    @pytest.mark.parametrize("how", ["exact", "spans"])
    def test_an_answer_that_is_no_number_letter_or_span_is_a_bad_row(self, tmp_path: Path, how: str) -> None:
        answers = ["soon", None, True, [4, 2], [1, 2, 3], {"a": 1}, "NaN", 10**400, []]
        rows = [ROWS[1] | {"id": f"{place}", "answer": answer} for place, answer in enumerate(answers)]
        _task, data = loaded(declared(tmp_path, rows, options=None, answer_is=how))
        assert ["is not a" in bad.reason for bad in data.bad_rows] == [True] * (8 + (how == "exact"))  # [] is no span

    def test_f1_of_words_with_time_spans_in_a_reply_equals_a_value_computed_by_hand(self, tmp_path: Path) -> None:
        spans = [{"word": "Hello,", "start": 1.0, "end": 1.5}, {"word": "world", "start": 2, "end": 2.5},
                 {"word": "hello", "start": 60, "end": 61}]  # fmt: skip
        task, data = loaded(declared(tmp_path, [ROWS[0] | {"answer": spans}], options=None, answer_is="spans"))
        reply = """```json
        [{"word": "hello", "start": 1.2, "end": 1.3}, {"word": "world", "start": 2.3, "end": 2.5},
         {"word": "hello", "start": "1:00", "end": "1:01.0"}, {"word": "x", "start": "?", "end": 3}]```"""
        (verdict,) = task.scorer.verdicts([Record("a", "c", reply=reply, reference=task.reference(data.samples[0]))])
        assert verdict.values == {"found": 2, "said": 3, "there": 3}
        rates = dict.fromkeys(("f1", "precision", "recall"), 2 / 3)
        assert task.scorer.sums([verdict]).figures == pytest.approx(rates)
        (none,) = task.scorer.verdicts([Record("a", "c", reply="None", reference=task.reference(data.samples[0]))])
        assert task.scorer.unparsed(none)
        assert task.scorer.sums([none]).figures == {"f1": 0, "precision": None, "recall": 0}


@pytest.mark.parametrize("text", ["the 4th", "version 12.5.3", "1:2", "three", ""])
def test_text_without_a_plain_number_is_read_as_no_number(text: str) -> None:
    assert number_in(text) is None


def test_a_time_span_that_starts_just_after_0_is_read() -> None:
    assert spans_in('{"word": "hi", "start": 0.00001, "end": 1}') == [("hi", 0.00001, 1.0)]


@pytest.mark.parametrize(
    ("name", "row", "reply", "right"),
    [
        ("blab_duration", {"groundtruth": "125", "answer_type": "seconds"}, "2:05", {"accuracy": 1, "near": 1}),
        ("blab_duration", {"groundtruth": "125", "answer_type": "seconds"}, "127", {"accuracy": 0, "near": 1}),
        ("blab_duration", {"groundtruth": 5, "answer_type": "minutes"}, "7 minutes", {"accuracy": 0, "near": 0}),
        ("blab_duration", {"groundtruth": 5, "answer_type": "minutes"}, "5 minutes", {"accuracy": 1, "near": 1}),
        ("blab_emotion", {"correct_option": "B"}, "**(B)** joy", {"accuracy": 1, "near": None}),
        (
            "blab_words",
            {"groundtruth": [{"word": "ice", "start": 3000.1, "end": 3000.4}]},
            '[{"word": "Ice", "start": 3000.2, "end": 3000.5}]',
            {"f1": 1, "precision": 1, "recall": 1},
        ),
    ],
)
def test_the_documented_task_files_for_blab_load_and_score_its_rows(
    tmp_path: Path, name: str, row: dict[str, Any], reply: str, right: dict[str, float | None]
) -> None:
    (tmp_path / f"{name}.toml").write_text(BLOCKS[f"{name}.toml"])
    write_clip(tmp_path / "audio_1.wav")
    file = next(line.split('"')[1] for line in BLOCKS[f"{name}.toml"].splitlines() if line.startswith("rows"))
    write_json(tmp_path / file, [{"audio": "audio_1.wav", "question": "What?", **row}])
    task, data = loaded(tmp_path / f"{name}.toml")
    (sample,) = data.samples
    verdicts = [*task.scorer.verdicts([Record("a", "c", reply=reply, reference=task.reference(sample))])]
    assert task.scorer.sums(verdicts).figures == right


def test_mmsu_is_read_from_parquet_files_with_embedded_audio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns in formats of several programs; the real files were not available."""
    monkeypatch.setenv("AUDIOMARATHON_CACHE", str(tmp_path / "cache"))
    audio = {"bytes": write_clip(tmp_path / "a.wav").read_bytes(), "path": "a.wav"}
    groups = {"category": "Perception", "sub-category": "Paralinguistics", "task_name": "sarcasm_detection"}
    row = {"id": "sarcasm_1", "question": "Is it sarcasm?", "audio": audio, "choice_a": "Yes", "choice_b": "No",
           "choice_c": None, "choice_d": None, "answer_gt": "No"} | groups  # fmt: skip
    other = row | {"id": "vowel_2", "choice_c": "Maybe", "choice_d": "Never", "answer_gt": "Never"}
    for number, table_row in enumerate((row, other)):
        table = pyarrow.Table.from_pylist([table_row], schema=pyarrow.Table.from_pylist([other]).schema)
        parquet.write_table(table, tmp_path / f"train-0000{number}-of-00002.parquet")
    task = get_task("mmsu")
    data = task.load(task.find(tmp_path))
    samples = [(sample.id, len(sample.options), sample.answer) for sample in data.samples]
    assert samples == [("sarcasm_1", 2, "B"), ("vowel_2", 4, "D")]
    assert task.groups(data.samples[0]) == groups
    assert "not tried on the real ones" in task.source


def test_a_documented_task_without_data_is_refused_naming_the_download_source(
    no_env: Callable[[str, str], None], tmp_path: Path
) -> None:
    no_env("AUDIOMARATHON_CACHE", str(tmp_path))
    for more in ((), ("--model", "embedded"), ("vesus",)):
        code, output = call("run", "mmar", *more, "--results", tmp_path / "results")
        assert code == 2
        assert output.startswith("error: lalm/mmar: no data root is set. Get MMAR-meta.jsonl from https://"), output


def test_the_first_example_of_the_documentation_loads(tmp_path: Path) -> None:
    (tmp_path / "birds.toml").write_text(BLOCKS["birds.toml"])
    (lines,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    for line in lines.splitlines():
        write_clip(tmp_path / "data" / json.loads(line)["audio"])
    (tmp_path / "data" / "birds.jsonl").write_text(lines)
    task, data = loaded(tmp_path / "birds.toml")
    assert (task.key, len(data.samples), data.bad_rows) == ("own-choice/birds", len(lines.splitlines()), ())


def test_the_second_example_of_the_documentation_reads_an_mmau_parquet_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUDIOMARATHON_CACHE", str(tmp_path / "cache"))
    (tmp_path / "mmau_hub.toml").write_text(BLOCKS["mmau_hub.toml"])
    row = {"context": {"bytes": write_clip(tmp_path / "a.wav").read_bytes()}, "instruction": "Who?",
           "choices": ["(A) Man", "(B) Dog"], "answer": "(B) Dog",
           "other_attributes": json.dumps({"id": "x", "task": "sound", "difficulty": "easy"})}  # fmt: skip
    parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "test_mini.parquet")
    task, data = loaded(tmp_path / "mmau_hub.toml")
    (sample,) = data.samples
    assert (sample.id, sample.options, sample.answer) == ("x", ("Man", "Dog"), "B")
    assert task.groups(sample) == {"other_attributes.task": "sound", "other_attributes.difficulty": "easy"}


def test_the_docs_list_exactly_the_supported_keys() -> None:
    rows = PAGE.partition("## Keys")[2].partition("\n\nOne of")[0].split("\n|")[1:]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[0])} == set(_KEYS)
