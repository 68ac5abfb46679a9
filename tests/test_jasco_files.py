"""JASCO's CSV files: written for users to fill in, imported as a run, and evaluated with the original's command."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import call, succeed
from jasco_folders import TEXTS, TRAPS, build_jasco, said, write_judgements

from audiomarathon.benchmarks.rows import as_csv
from audiomarathon.errors import DataError
from audiomarathon.judges.judgements import Judgement
from audiomarathon.runs.folder import read_records
from audiomarathon.wings.jasco.exchange import NEEDED, read_replies, read_whole
from audiomarathon.wings.jasco.rubric import AsPublished, Strict
from audiomarathon.wings.jasco.task import INSTRUCTIONS

DOOR = Path(__file__).parent.parent / "JASCO" / "evaluation" / "eval.py"
COLUMNS = [*NEEDED, "note"]


def rows_of(file: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(file.read_text(encoding="utf-8-sig"))))


def a_file(file: Path, *, clips: tuple[int, ...] = (2, 10), **changes: str) -> Path:
    """Write a CSV file as a user fills it in, with an additional column."""
    rows = [
        {**TEXTS, "id": str(clip), "prompt": text, "allm_output": f'They fish,\n"{clip}"', "note": "é"} | changes
        for clip in clips
        for text in INSTRUCTIONS
    ]
    file.write_text(as_csv(rows, COLUMNS), encoding="utf-8-sig")
    return file


def edited(file: Path, change: Callable[[list[dict[str, str]]], object]) -> Path:
    change(rows := rows_of(file))
    file.write_text(as_csv(rows, COLUMNS), encoding="utf-8")
    return file


def test_the_example_csv_can_be_filled_in_and_imported(tmp_path: Path) -> None:
    root, file = build_jasco(tmp_path / "clone"), tmp_path / "my.csv"
    assert call("jasco", "example", "-o", file, "--data", root)[0] == 0
    rows = rows_of(file)
    assert [(row["id"], row["prompt"]) for row in rows] == [
        (id_, text) for id_ in ("1", "2", "10") for text in INSTRUCTIONS
    ]
    assert (rows[0]["n_frames"], rows[0]["allm_output"], rows[0]["with_speech"]) == ("32000", "", "True")
    code, output = call("jasco", "import", file, "--model-name", "M")
    assert code == 2
    assert "line 2: allm_output is not filled in" in output
    for row in rows:
        row["allm_output"] = "None"
    file.write_text(as_csv(rows, list(rows[0])), encoding="utf-8")
    succeed("jasco", "import", file, "--model-name", "M/1", "--results", tmp_path / "out")
    folder = next((tmp_path / "out" / "jasco").rglob("run.json")).parent
    assert folder.name == "imported"
    facts, summary = (json.loads((folder / name).read_text()) for name in ("run.json", "summary.json"))
    assert (facts["origin"], facts["checkpoint"], len(facts["samples"])) == ("imported", "M/1", 24)
    assert (summary["n"], summary["complete"], summary["reply_words"]) == (24, True, 1)
    assert call("jasco", "table", folder)[0] == 0


def test_runs_imported_from_two_csv_files_with_the_same_questions_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their replies may differ. A second import of other replies under the same name is refused."""
    monkeypatch.chdir(tmp_path)
    files = [a_file(tmp_path / "a.csv"), a_file(tmp_path / "b.csv", allm_output="They sail.")]
    for name, file in zip("AB", files, strict=True):
        succeed("jasco", "import", file, "--model-name", name)
        folder = tmp_path / "results" / "jasco" / name / "imported"
        records = read_records(folder).values()
        write_judgements(folder, "j", [(record, "Rating: 2\nOrientation: Both") for record in records])
        succeed("score", folder)
    succeed("compare", "results")
    code, output = call("jasco", "import", files[1], "--model-name", "A")
    assert code == 2
    assert "its reply to 2-p1 differs" in output


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"prompt": "What?"}, r"line 5: unknown prompt 'What\?'.*'2' has no row of prompt 2"),
        ({"prompt": INSTRUCTIONS[0]}, "line 5: two rows of id '2' and prompt 1"),
        ({"allm_output": "output_2"}, "line 4: allm_output is not filled in"),
        (None, "id '2' has no row of prompt 2"),
        ({"id": ""}, "line [0-9]: field 'id' is empty"),
        ({"id": "a\nb"}, r"line [0-9]: id 'a\\nb' is not one line"),
        ({"allm_output": "x" * 100_001}, "line 4: allm_output has 100,001 characters"),
    ],
)
def test_faulty_rows_of_a_judged_csv_are_reported_by_line_and_their_clips_left_out(
    tmp_path: Path, change: Any, fault: str
) -> None:
    file = edited(a_file(tmp_path / "a.csv"), lambda rows: rows[1].update(change) if change else rows.pop(1))
    with pytest.raises(DataError, match=fault) as raised:
        read_whole(file)
    if "100,001" in fault:  # a row that is too long is not reported as missing too
        assert "has no row" not in str(raised.value)
    assert {record.cluster for record in read_whole(file, allow_missing=True)} == {"10"}


def test_a_fault_shared_by_many_rows_is_reported_once_with_the_number_of_rows(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r": line \d+: allm_output is not filled in \(and \d+ rows more\)") as raised:
        read_whole(a_file(tmp_path / "b.csv", allm_output=""))
    assert str(raised.value).count("not filled in") == 1


def test_prompts_in_an_imported_csv_are_matched_regardless_of_white_space(tmp_path: Path) -> None:
    file = edited(a_file(tmp_path / "a.csv"), lambda rows: rows[0].update(prompt=f" {INSTRUCTIONS[0]}\n"))
    assert len(read_whole(file)) == 16


def test_tables_of_another_format_are_refused(tmp_path: Path) -> None:
    header = ",".join(NEEDED)
    for text in ("id,prompt\n1,2\n", header + "\n" + "1," * 20, 'id,"prompt', f"{header},id\n"):
        (tmp_path / "a.csv").write_text(text)
        with pytest.raises(DataError, match=r"lacks the column|line 2 has more fields|not CSV|has 2 columns 'id'"):
            read_replies(tmp_path / "a.csv")


def stored(tmp_path: Path, file: Path, texts: list[tuple[str, str | None]]) -> Path:
    """Write a judge's answers to a file's rows, in the format that `replay:` reads."""
    lines = []
    for (_row, record), (text, second) in zip(read_replies(file), texts, strict=True):
        for protocol in (Strict(anchored=False), AsPublished()):
            answer = second if second is not None and protocol.second(text, record) else None
            lines += [
                Judgement("j", protocol.name, "1", record.id, hashed, str(answer_text)).to_line()
                for hashed, answer_text in said(protocol, record, text, answer).items()
            ]
    place = tmp_path / "judgements-j.jsonl"
    place.write_bytes(b"".join(lines))
    return place


@pytest.fixture
def five(tmp_path: Path) -> tuple[Path, Path]:
    """Write five rows with different ids, and a judge's answers."""
    rows = [TEXTS | {"id": id_, "prompt": "?", "allm_output": f"They fish {id_}.", "note": "NA"} for id_ in "12345"]
    file = tmp_path / "in.csv"
    file.write_text(as_csv(rows, COLUMNS))
    return file, stored(tmp_path, file, TRAPS)


PRINTED = "best-mean :  0.8\nAudio-Oriented % :  0.25\nBoth-Oriented % :  0.75\nSpeech-Oriented % :  0.0\n"


def test_the_eval_script_prints_the_metrics_that_the_original_script_prints(
    five: tuple[Path, Path], tmp_path: Path, script: Any
) -> None:
    file, judgements = five
    out = tmp_path / "out.csv"
    code, printed, err = script(DOOR, f"replay:{judgements}", file, out)
    assert (code, printed) == (0, PRINTED)
    assert "strict reading: best-mean 1.40, audio 0 %, both 100 %, speech 0 %, neither 0 %; 5 of 5 rows read" in err
    rows = rows_of(out)
    assert [*rows[0]] == [*COLUMNS, "llama3_extract", "rating", "orientation", "gated", "rule", "judge", "judge_prompt"]
    assert [{name: row[name] for name in COLUMNS} for row in rows] == rows_of(file)
    assert [row["llama3_extract"] for row in rows] == [text for text, _ in TRAPS]
    assert [row["rule"] for row in rows] == ["original", "second question", "original", "original", "second question"]
    assert [row["orientation"] for row in rows] == ["both", "both", "both", "audio", "?"]


def test_a_csv_file_of_stored_judgements_is_parsed_again_without_asking_a_judge(
    five: tuple[Path, Path], tmp_path: Path
) -> None:
    file, judgements = five
    out, again = tmp_path / "out.csv", tmp_path / "again.csv"
    assert call("jasco", "eval", f"replay:{judgements}", file, out)[0] == 0
    assert call("jasco", "eval", "j", out, again, "--parser", "strict")[0] == 0
    assert [row["rating"] for row in rows_of(again)] == ["2", "0", "2", "1", "2"]
    assert not again.with_name("again.csv.run").exists()


def test_the_eval_command_asks_only_for_missing_judgements_when_repeated(
    five: tuple[Path, Path], tmp_path: Path
) -> None:
    file, judgements = five
    lines = judgements.read_bytes().splitlines(keepends=True)
    judgements.write_bytes(b"".join(lines[:4]))
    out = tmp_path / "out.csv"
    code, output = call("jasco", "eval", f"replay:{judgements}", file, out)
    assert code == 1
    assert "3 of 5 rows without a judgement" in output
    assert [row["rule"] for row in rows_of(out)][-1] == "failed"
    again = tmp_path / "again.csv"
    code, output = call("jasco", "eval", "x", out, again)  # read again: a blank verdict stays missing, never becomes 0
    blank = sum(not row["llama3_extract"] for row in rows_of(out))
    assert code == 1
    assert 0 < blank < 5
    assert f"error: {blank} of 5 rows without" in output
    assert (rows_of(again)[-1]["gated"], rows_of(again)[-1]["rule"]) == ("", "absent")
    judgements.write_bytes(b"".join(lines))
    assert call("jasco", "eval", f"replay:{judgements}", file, out)[0] == 0
    assert [row["llama3_extract"] for row in rows_of(out)] == [text for text, _ in TRAPS]
