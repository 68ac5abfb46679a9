"""LALM Bench's files: import predictions of other programs as runs, and export runs in the original format."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from builders import changed
from caption_folders import CAPTIONS, clotho_folder
from conftest import call, succeed
from lalm_folders import KWARGS, ROWS, SCHEMA, closed, following, mmau_pro_folder, replies_table
from pyarrow import parquet
from sklearn.metrics import accuracy_score, precision_recall_fscore_support
from test_captions import Bags

from audiomarathon.benchmarks import get_task
from audiomarathon.benchmarks import rows as table_rows
from audiomarathon.benchmarks.questions import question_types as figures
from audiomarathon.benchmarks.questions.open_ended import OpenEnded
from audiomarathon.errors import DataError
from audiomarathon.judges.judgements import request_of
from audiomarathon.records import Record
from audiomarathon.runs.folder import read_records
from audiomarathon.wings.lalm.exchange import answers, comprehensive, read_answers, read_captions

ENTRIES = [
    {"audio_id": name, "prediction": reply, "references": list(texts)}
    for (name, texts), reply in zip(CAPTIONS.items(), ("Rain falls on tin.", "ERROR", ""), strict=True)
]
KEYS = ["dataset", "evaluated_samples", "total_samples", "scores", "timestamp", "audiomarathon"]


def written(file: Path, content: object) -> Path:
    file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return file


def replies_file(
    file: Path, replies: Mapping[str, str], *rows: Mapping[str, Any], column: str = "model_output"
) -> Path:
    parquet.write_table(replies_table(replies, rows or ROWS, column), file)
    return file


def read(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text(encoding="utf-8"))


NAMES = (" in front.wav", "double  space.wav", "a\ttab.wav", "no\u00a0break.wav", "cafe\u0301 .wav", "z.wav")


def test_a_clip_gets_the_same_sample_id_in_a_run_and_in_an_imported_predictions_file(tmp_path: Path) -> None:
    """The file may also contain the names in composed Unicode or with plain white space."""
    clotho_folder(tmp_path, dict.fromkeys(NAMES, next(iter(CAPTIONS.values()))))
    task = get_task("clotho")
    ids = {sample.id for sample in task.load(task.find(tmp_path)).samples}
    assert ids == {unicodedata.normalize("NFC", name) for name in NAMES}
    for names in (NAMES, ids, [" ".join(name.split()) for name in NAMES]):
        file = written(tmp_path / "p.json", [{"audio_id": name, "prediction": "rain"} for name in names])
        assert {record.id for record in read_captions(file, tmp_path)} == ids


def test_clip_names_that_differ_only_in_white_space_are_different_clips(tmp_path: Path) -> None:
    clotho_folder(tmp_path, dict.fromkeys(("a b.wav", "a  b.wav"), next(iter(CAPTIONS.values()))))
    file = written(tmp_path / "p.json", [{"audio_id": "a  b.wav", "prediction": "rain"}])
    assert [record.id for record in read_captions(file, tmp_path)] == ["a  b.wav"]
    with pytest.raises(DataError, match="lacks 'references'"):
        read_captions(written(file, [{"audio_id": " a b.wav", "prediction": "rain"}]), tmp_path)


def test_clotho_predictions_are_imported_as_a_run_and_exported_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = written(tmp_path / "predictions.json", ENTRIES)
    code, output = call("import", "lalm", file, "--model-name", "A/b")
    assert (code, "word weights come from the captions of the 3 entries" in output) == (1, True), output
    assert "1 sample failed (see 'error' in samples.jsonl; the first: Caf" in output
    assert "run the same command again once the cause is fixed" in output
    run = next(Path("results/lalm/clotho").glob("*/imported"))
    records, summary = read_records(run), read(run, "summary.json")
    assert [records[prediction["audio_id"]].reply for prediction in ENTRIES] == ["Rain falls on tin.", None, ""]
    assert (summary["n"], summary["errors"], summary["corpus"]["items"]) == (2, 1, 3)
    succeed("export", "lalm", "results", "-o", "out")
    (place,) = Path("out").glob("A_b-*/clotho")
    assert read(place, "predictions.json") == [ENTRIES[0], ENTRIES[2]]
    assert (place / "predictions.json").read_text(encoding="utf-8").startswith('[\n    {\n        "audio_id"')
    out = read(place, "scores.json")
    assert [*out] == KEYS
    assert (out["dataset"], out["evaluated_samples"], out["total_samples"]) == ("Clotho-v2", 2, 3)
    assert out["scores"] == {"cider_d": summary["cider_d_as_published"], "sbert_sim": None, "fer": None, "fense": None}
    assert out["audiomarathon"]["summary"]["cider_d"] == summary["cider_d"] != summary["cider_d_as_published"]
    assert out["audiomarathon"]["run"] == str(run.absolute())
    assert call("import", "lalm", place / "predictions.json", "--model-name", "again")[0] == 0
    again = read_records(Path("results/lalm/clotho/again/imported"))
    assert {id_: record.reply for id_, record in again.items()} == {
        id_: record.reply for id_, record in records.items() if record.answered
    }
    assert call("import", "lalm", file, "--model-name", "word", "--faithful")[0] == 0
    assert read_records(Path("results/lalm/clotho/word/imported"))["Café, evening.wav"].reply == "ERROR"
    code, output = call("import", "lalm", file, "--model-name", "word")
    assert code == 2
    assert "evening.wav counts as a reply there, and as a failed sample in" in output
    assert "one import was --faithful" in output


def test_references_missing_in_a_predictions_file_are_taken_from_the_data(tmp_path: Path) -> None:
    bare = [{name: prediction[name] for name in ("audio_id", "prediction")} for prediction in ENTRIES]
    file = written(tmp_path / "predictions.json", bare)
    command = ("import", "lalm", file, "--model-name", "A", "--results", tmp_path / "out")
    code, output = call(*command)
    assert code == 2
    assert "lacks 'references'; needed: audio_id, prediction, references (or --data" in output
    assert call(*command, "--data", clotho_folder(tmp_path / "data"))[0] == 1
    records = read_records(tmp_path / "out" / "lalm" / "clotho" / "A" / "imported")
    assert {id_: tuple(record.reference["references"]) for id_, record in records.items()} == CAPTIONS


def test_runs_with_word_weights_from_different_references_are_not_compared(tmp_path: Path) -> None:
    more = {**CAPTIONS, "More.wav": ("A bell rings.",) * 5}
    data, out = clotho_folder(tmp_path / "data", more), tmp_path / "out"
    file = written(tmp_path / "predictions.json", [ENTRIES[0], ENTRIES[2]])
    imported = ("import", "lalm", file, "--results", out, "--model-name")
    assert [call(*imported, "A")[0], call(*imported, "B", "--data", data)[0]] == [0, 0]
    assert "word weights from different reference texts" in call("compare", out)[1]
    assert call("run", "clotho", "--model", "embedded", "--data", data, "--results", out, "--max-new-tokens", 2)[0] == 0
    assert "prompts of an imported run" in call("compare", out / "lalm" / "clotho")[1]


def test_word_weights_of_imported_predictions_come_from_the_split_that_has_their_clips(tmp_path: Path) -> None:
    decomposed = unicodedata.normalize("NFD", str(ENTRIES[1]["audio_id"]))
    part = [ENTRIES[1] | {"audio_id": decomposed, "prediction": "a"}]
    x, y = ({"audio_id": f"{name}.wav", "prediction": "rain", "references": ["Rain."]} for name in "xy")
    folder = clotho_folder(tmp_path / "clotho")
    clotho_folder(folder, {"x.wav": CAPTIONS["Rain on a tin roof.wav"]}, split="validation")
    for name, rows, code, told in (
        ("A", part, 0, f"captions of the 3 clips of evaluation in {folder}"),
        ("B", [*part, x], 0, "of the 4 clips of validation and evaluation"),
        ("C", [y], 2, "has no captions of 1 of 1 clips, such as 'y.wav'"),
    ):
        file = written(tmp_path / "predictions.json", rows)
        done = call("import", "lalm", file, "--data", tmp_path, "--results", tmp_path / "r", "--model-name", name)
        assert (done[0], told in done[1]) == (code, True), done
    assert read(tmp_path / "r" / "lalm/clotho/A/imported", "summary.json")["corpus"]["items"] == 3
    assert not (tmp_path / "r/lalm/clotho/C").exists()


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("[{", "not JSON: "),
        ({"a": 1}, "expected a list of rows, found a dict"),
        ([1, {"audio_id": "a"}], "entry 1: is not an object; entry 2: lacks 'prediction'"),
        ([ENTRIES[0], ENTRIES[2], ENTRIES[0]], "entry 3: second entry of 'Rain on a tin roof.wav'"),
        ([ENTRIES[0] | {"prediction": None}], "entry 1: audio_id and prediction must be texts"),
        ([ENTRIES[0] | {"references": []}] * 7, "entry 5: references must be a list of texts; and 2 more"),
        ([ENTRIES[0] | {"references": [" "]}], "entry 1: a reference is empty"),
        ([ENTRIES[0], ENTRIES[2] | {"references": ["a"] * 101}], "entry 2: has 101 references; allowed: up to 100"),
        ([ENTRIES[0], ENTRIES[2] | {"prediction": "x" * 100_001}], "entry 2: the reply to "),
        ([ENTRIES[0] | {"audio_id": " \u200b"}], "entry 1: audio_id is empty"),
        ([ENTRIES[0] | {"audio_id": name} for name in ("a", "x" * 256)], "entry 2: audio_id 'xxx"),
        ([ENTRIES[0] | {"audio_id": name} for name in ("\u00e9", "e\u0301")], "entry 2: second entry of '\u00e9'"),
        ('[{"audio_id": "a", "prediction": "b", "prediction": "c"}]', "duplicate field 'prediction'"),
        (ENTRIES[:1], "one entry is not enough to weigh words"),
    ],
)
def test_a_faulty_predictions_file_is_refused_with_an_error_that_names_the_faulty_entry(
    tmp_path: Path, content: object, fault: str
) -> None:
    file = written(tmp_path / "predictions.json", content)
    code, output = call("import", "lalm", file, "--model-name", "A", "--results", tmp_path / "r")
    assert (code, fault in output, output.count("\n")) == (2, True, 1), output
    assert not (tmp_path / "r").exists()


def test_a_faulty_parquet_file_is_refused_with_an_error_that_names_the_faulty_row(tmp_path: Path) -> None:
    def told(file: Path, *flags: str) -> str:
        code, output = call("import", "lalm", file, "--model-name", "A", "--results", tmp_path / "r", *flags)
        assert (code, (tmp_path / "r").exists()) == (2, False)
        return output

    rows = [ROWS[0], {**ROWS[1], "category": "noise"}, ROWS[0]]
    output = told(replies_file(tmp_path / "a.parquet", {}, *rows))
    assert "row 2: category 'noise' is not allowed" in output
    assert "row 3: duplicate id 'c2', first used in row 1" in output
    good = replies_file(tmp_path / "b.parquet", {"c1": None}, *ROWS[:2])
    assert "row 2: model_output of c1 is not a text" in told(good)
    assert "lacks the column 'replies'" in told(good, "--column", "replies")
    long = replies_file(tmp_path / "d.parquet", {"c1": "x" * 100_001}, *ROWS[:2])
    assert "row 2: the reply to 'c1' has 100,001 characters; allowed: up to 100,000" in told(long)
    table = parquet.read_table(long)
    for column in ("id", "model_output"):
        parquet.write_table(table.append_column(column, table[column]), twice := tmp_path / "e.parquet")
        assert f"has 2 columns '{column}'; keep one" in told(twice)
    assert "cannot be read as parquet" in told(written(tmp_path / "c.parquet", "{}"))
    assert "expected predictions.json or predictions.parquet" in told(written(tmp_path / "a.csv", "id"))
    for file in (tmp_path / "none.parquet", tmp_path / "none.json"):
        assert told(file) == f"error: {file}: no such file\n"


def not_utf8(count: int) -> pa.Array:
    offsets = np.arange(count + 1, dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets.tobytes()), pa.py_buffer(b"\xff" * count))


def shared(count: int) -> pa.Array:
    """Return a column of one long text, stored once."""
    return pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), pa.array(["x" * 500_000]))


def keywords(number: float) -> Callable[[int], pa.Array]:
    """Return arguments for two kinds of instructions. Neither kind uses N."""
    return lambda count: pa.array([{"keywords": "a", "N": number, "N1": 1.0, "N2": 2.0}] * count, KWARGS)


@pytest.mark.parametrize(
    ("column", "values", "fault"),
    [
        ("model_output", not_utf8, "cannot be read as parquet: ArrowInvalid"),
        ("kwargs", keywords(np.inf), "sample 'AIF_0' cannot be written as JSON"),
        ("question", shared, "is too large for metadata"),
        ("unknown", shared, None),
        ("unknown", lambda count: pa.array([[None] * 10_000] * count), "is too large for metadata"),
        ("kwargs", keywords(np.nan), None),
    ],
)
def test_invalid_or_huge_values_in_a_parquet_file_of_replies_give_a_one_line_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: str, values: Any, fault: str | None
) -> None:
    table = replies_table({})
    if column in table.column_names:
        table = table.drop_columns([column])
    table = table.append_column(column, values(len(table)))
    parquet.write_table(table, file := tmp_path / "p.parquet", store_schema=False)
    monkeypatch.setattr(table_rows, "MAX_METADATA_BYTES", 2**20)
    monkeypatch.setattr(table_rows, "MAX_VALUES", 10_000)
    code, output = call("import", "lalm", file, "--model-name", "A", "--results", tmp_path / "r")
    assert (code, (tmp_path / "r").exists()) == ((2, False) if fault else (0, True)), output
    assert not fault or (fault in output and output.count("\n") == 1), output


def test_exported_parquet_files_of_replies_have_the_columns_of_the_original_files(tmp_path: Path) -> None:
    columns = SCHEMA.append(pa.field("model_output", pa.string()))
    rows = following("q1", "No Commas", "Say no commas."), following("q2", "Title", "With title.")
    records = read_answers(replies_file(tmp_path / "p.parquet", {"q1": "a"}, *rows))
    failed = [Record("c1", "c1", error="no memory")]
    for chosen, root, count in (records, None, 2), (failed, None, 0), (failed, mmau_pro_folder(tmp_path), 0):
        parquet.write_table(answers(chosen, root), file := tmp_path / "out.parquet")
        assert (parquet.read_schema(file), parquet.read_metadata(file).num_rows) == (columns, count)
    records[0].reference["kwargs"]["N"] = "three"
    with pytest.raises(DataError, match=r"the records do not fit the columns of test\.parquet: Arrow"):
        answers(records)


def test_all_scores_in_an_export_match_replies_with_options_by_the_same_text_encoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An encoder that was missing when the run was scored is used for all metrics or for none."""
    rows = [closed("s1", "sound", "rain", "rain", "wind"), closed("m1", "music", "bell", "drum", "bell")]
    file = replies_file(tmp_path / "p.parquet", {"m1": "drum"}, *rows)
    succeed("import", "lalm", file, "--model-name", "A", "--results", tmp_path / "r")
    monkeypatch.setattr(figures, "text_encoder", Letters)
    succeed("export", "lalm", tmp_path / "r", "-o", tmp_path / "out")
    place = tmp_path / "out" / "A" / "mmau-pro"
    results = read(place, "predictions_comprehensive_results.json")
    scores = {name: category["performance_score"] for name, category in results["category_results"].items()}
    assert scores == {"sound": 1.0, "music": 0.0}
    assert results["evaluation_summary"]["overall_weighted_performance"] == 0.5
    assert read(place, "debug_info.json")["matched_by"] == "letters"


def test_replies_to_noise_are_imported_as_a_control_run_of_the_replies_to_audio(tmp_path: Path) -> None:
    results, root = tmp_path / "r", mmau_pro_folder(tmp_path / "data")
    heard = replies_file(tmp_path / "a.parquet", {"c3": "Answer: no"}, column="said")
    noise = replies_file(tmp_path / "n.parquet", {"c1": "ERROR", "c3": "no"})
    flags = ("--model-name", "A", "--results", results)
    succeed("import", "lalm", heard, *flags, "--column", "said")
    code, output = call("import", "lalm", noise, *flags, "--control", "noise")
    assert code == 1
    assert "1 sample failed" in output
    run = results / "lalm/mmau_pro/A/imported-noise"
    facts = read(run, "run.json")
    assert facts["control"] == facts["identity"]["control"] == {"kind": "noise"}
    assert {record.control for record in read_records(run).values() if record.answered} == {"noise"}
    assert "imported [noise]" in succeed("compare", results)
    succeed("export", "lalm", results, "-o", tmp_path / "out")
    out = tmp_path / "out" / "A" / "mmau-pro" / "predictions.parquet"
    before, after = (
        [(record.id, record.reply, {**record.reference, "defects": None}) for record in read_answers(*which)]
        for which in ((heard, "said"), (out,))
    )
    assert before == after
    table = answers(list(read_records(run).values()), root)  # the data's rows, all columns, without failed ones
    assert table.column_names == [*SCHEMA.names, "model_output"]
    assert table["id"].to_pylist() == [row["id"] for row in ROWS if row["id"] != "c1"]
    assert table.schema.types[:-1] == parquet.read_schema(root / "test.parquet").types
    debug = read(tmp_path / "out" / "A_with_noise" / "mmau-pro", "debug_info.json")
    assert [debug[name] for name in ("errors", "not_judged", "matched_by")] == [1, 2, None]
    assert debug["defects"]["one option"] == 1


def test_an_export_of_two_runs_to_the_same_file_name_or_of_another_task_is_refused(tmp_path: Path) -> None:
    file = written(tmp_path / "predictions.json", ENTRIES[::2])
    for results in ("one", "two"):
        succeed("import", "lalm", file, "--model-name", "A", "--results", tmp_path / results)
    code, output = call("export", "lalm", tmp_path / "one", tmp_path / "two", "-o", tmp_path / "out")
    assert code == 2
    assert "overwrite" in output
    assert not (tmp_path / "out").exists()
    changed(tmp_path / "one/lalm/clotho/A/imported", task="lalm/audiocaps")
    code, output = call("export", "lalm", tmp_path / "one", "-o", tmp_path / "out")
    assert code == 2
    assert "no run of lalm/clotho or lalm/mmau_pro; name run folders" in output


class Letters(Bags):
    """Encode texts by the counts of their letters."""

    name, hash = "letters", "1a"


def judged(correctness: int, overall: str) -> str:
    return f"CORRECTNESS: {correctness}\nRELEVANCE: 4\nCOMPLETENESS: 2\nCLARITY: 5\nOVERALL: {overall}"


def test_the_exported_comprehensive_file_equals_that_of_the_official_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weighted averages over option texts are scikit-learn's; the spread is numpy's."""
    monkeypatch.setattr(figures, "text_encoder", Letters)
    truth = ["rain", "rain", "rain", "bell", "wind"]
    replies = ["rain", "wind", "wind", "rain", "wind"]
    rows = [
        *(closed(f"s{n}", "sound", text, "rain", "wind", "bell") for n, text in enumerate(truth)),
        closed("one", "sound", "rain", "rain"),
        *({**closed(f"o{n}", "open", "A bell rings."), "choices": None} for n in range(3)),
        following("AIF_0", "Include Keywords", "Include keywords sound.", keywords="sound"),
    ]
    file = replies_file(tmp_path / "p.parquet", {f"s{n}": text for n, text in enumerate(replies)}, *rows)
    records = {record.id: record for record in read_answers(file)}
    for id_, text in {"o0": judged(5, "4.0"), "o1": judged(1, "3.0"), "o2": "no scores"}.items():
        request = request_of(OpenEnded(), records[id_])
        assert request
        object.__setattr__(records[id_], "judgements", {"j": {request.hash: text}})
    verdicts = list(figures.QuestionTypes().verdicts(list(records.values())))
    overall = figures.QuestionTypes().published(verdicts).figures["as_published"]
    content = comprehensive(verdicts, 12, file, overall)
    results, summary = content["category_results"], content["evaluation_summary"]
    precision, recall, f1, _ = precision_recall_fscore_support(truth, replies, average="weighted", zero_division=0)
    wanted = {"accuracy": accuracy_score(truth, replies), "precision": precision, "recall": recall, "f1_score": f1}
    assert results["sound"] == {
        "type": "closed", "count": 5, "performance_score": pytest.approx(0.4), "metrics": pytest.approx(wanted)
    }  # fmt: skip
    overalls = [4.0, 3.0, 3.0]  # o1's 3.0 counts as missing: its value is the mean of 1, 4, 2, 5; o2 has no score
    assert results["open"]["performance_score"] == pytest.approx(np.mean(overalls) / 5)
    metrics = results["open"]["metrics"]
    assert (metrics["avg_correctness"], metrics["std_correctness"]) == pytest.approx((3, np.std([5, 1, 3])))
    assert (metrics["avg_overall"], metrics["std_overall"]) == pytest.approx((10 / 3, np.std(overalls)))
    assert (metrics["good_response_rate"], metrics["poor_response_rate"]) == pytest.approx((1 / 3, 0))
    assert results["instruction following"] == {
        "type": "aif", "count": 1, "performance_score": 0.0, "success_rate": 0.0
    }  # fmt: skip
    weighted = sum(category["performance_score"] * category["count"] for category in results.values()) / 9
    assert (summary["total_samples"], summary["evaluated_samples"]) == (12, 9)
    assert summary["overall_weighted_performance"] == pytest.approx(weighted)
    assert summary["parquet_file"] == str(file)


def test_scores_of_categories_without_any_scored_reply_are_null_in_the_exported_results_file(tmp_path: Path) -> None:
    records = read_answers(replies_file(tmp_path / "p.parquet", {}))
    verdicts = list(figures.QuestionTypes().verdicts(records))
    categories = comprehensive(verdicts, len(records), tmp_path / "p.parquet", None)["category_results"]
    nothing = {"count": 0, "performance_score": None, "metrics": None}
    assert categories["music"] == {"type": "closed", **nothing}
    assert categories["open"] == {"type": "openended", **nothing}
    assert [*categories] == [
        "music", "sound", "speech", "multi", "spatial_audio", "voice_chat", "sound_speech", "sound_music",
        "music_speech", "sound_music_speech", "open", "instruction following",
    ]  # fmt: skip
