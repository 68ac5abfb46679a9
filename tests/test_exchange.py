"""Import logs of other suites, export runs as their logs, and keep the columns of exported data frames stable."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pandas as pd
import pytest
import task_folders
from builders import a_failed_record, a_run, a_timed_choice, added, changed, lines_of, write_records
from conftest import call, succeed
from exchange_logs import asked, inspect_content, inspect_eval, inspect_json, lmms_folder, tau_samples

from audiomarathon import compare_runs, load_runs
from audiomarathon.audio.member import Member
from audiomarathon.judges.judgements import Judgement
from audiomarathon.runs.read import Run
from audiomarathon.wings.exchange.entries import score_of
from audiomarathon.wings.exchange.importing import letter_of, options_in
from audiomarathon.wings.exchange.inspect_logs import log_of

TAU = "ABCDABCDAB"  # the right letters, in the order of the rows


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return task_folders.build_tau(tmp_path / "data")


def imported(suite: str, log: Path, results: Path, *options: object) -> Run:
    """Import a log, and return the only run in the results."""
    succeed("import", suite, log, "--results", results, *options)
    return only_run(results)


def only_run(results: Path) -> Run:
    (file,) = results.rglob("run.json")
    return Run.read(file.parent)


def a_row(**scores: object) -> dict[str, Any]:
    """Return a sample as a log has it."""
    return {"input": "?", "target": "t", "reply": "r", "scores": scores}


def refused(suite: str, log: Path, *options: object) -> str:
    """Import a log that is refused, check that nothing is written, and return the one-line error."""
    results = log.parent / "refused"
    code, said = call("import", suite, log, "--results", results, *options)
    assert code == 2
    assert len(said.splitlines()) == 1, said
    assert "Traceback" not in said
    assert not results.exists()
    return said


# lmms-eval


@pytest.fixture
def alike(data: Path) -> Path:
    """TAU with the same question and options in every row. The rows are not in the order of their ids."""
    same = {"choice_a": "Airport", "choice_b": "Bus", "choice_c": "Metro", "choice_d": "Park", "scene_label": ""}
    task_folders.edit_rows(
        data / "acoustic_scene_task_meta.json",
        lambda rows: (rows.reverse(), [row.update(same) for row in rows]),
    )
    return data


def test_a_log_of_lmms_eval_is_matched_to_the_task(data: Path, tmp_path: Path) -> None:
    rows = asked(tau_samples(data), "A" * 10)
    run = imported("lmms-eval", lmms_folder(tmp_path / "log", rows), tmp_path / "out", "--task", "tau", "--data", data)
    assert (run.key, run.checkpoint) == ("tau", "lmms-lab/a-model")
    assert run.summary["accuracy"] == 0.3
    by_id = {sample.id: sample for sample in tau_samples(data)}
    for id_, record in run.records.items():
        assert record.reference["labels"] == list(by_id[id_].labels)
        assert record.cluster == by_id[id_].cluster


@pytest.mark.parametrize("by", ["the data", "sorted ids"])
def test_identical_questions_of_an_imported_log_are_matched_by_order_if_answers_confirm_it(
    by: str, alike: Path, tmp_path: Path
) -> None:
    samples = tau_samples(alike) if by == "the data" else sorted(tau_samples(alike), key=lambda sample: sample.id)
    log = lmms_folder(tmp_path / "log", asked(samples, "BBBBBCCCCC"))
    said = succeed("import", "lmms-eval", log, "--task", "tau", "--data", alike, "--results", tmp_path / "out")
    assert f"by the order of {by}" in said
    records = only_run(tmp_path / "out").records
    assert [records[sample.id].reply for sample in samples] == list("BBBBBCCCCC")


@pytest.mark.parametrize(
    ("answers", "order", "reason"),
    [
        (TAU, [*range(1, 10), 0], "does not match the 10 samples of tau"),
        ("A" * 10, range(10), "a shifted order fits as well"),
        ("ABCDAABCDA", range(10), "a shifted order fits as well"),
        ("AAAAABBBBB", [1, 0, *range(2, 10)], "or nearly"),
    ],
    ids=["another order", "answers all the same", "answers repeat", "data sorted by answer"],
)
def test_a_log_whose_samples_cannot_be_matched_to_the_task_by_order_is_refused(
    answers: str, order: Sequence[int], reason: str, alike: Path, tmp_path: Path
) -> None:
    task_folders.edit_rows(
        alike / "acoustic_scene_task_meta.json",
        lambda rows: [row.update(answer_gt=answer) for row, answer in zip(rows, answers, strict=True)],
    )
    samples = tau_samples(alike)
    log = lmms_folder(tmp_path / "log", asked([samples[place] for place in order], "A" * 10))
    assert reason in refused("lmms-eval", log, "--task", "tau", "--data", alike)


def test_an_imported_log_of_only_the_first_samples_of_a_task_is_matched_by_position(data: Path, tmp_path: Path) -> None:
    rows = asked(tau_samples(data)[:4], "ABCA")
    log = lmms_folder(tmp_path / "log", [{**row, "doc_id": place} for place, row in enumerate(rows)])
    run = imported("lmms-eval", log, tmp_path / "out", "--task", "tau", "--data", data)
    assert sorted(run.records) == sorted(sample.id for sample in tau_samples(data)[:4])


def test_with_the_choices_option_answer_options_are_read_from_the_prompts(data: Path, tmp_path: Path) -> None:
    log = lmms_folder(tmp_path / "log", asked(tau_samples(data), TAU))
    run = imported("lmms-eval", log, tmp_path / "out", "--choices")
    assert run.key == "own-choice/audiomarathon_tau"
    assert run.summary["accuracy"] == 1.0
    assert run.records["0"].reference["options"] == list(tau_samples(data)[0].options)


@pytest.mark.parametrize(
    ("prompt", "options"),
    [
        ("Which?\nA. a bus\nB. a tram\nAnswer.", ["a bus", "a tram"]),
        ("Which? (A) a bus (B) a tram", ["a bus", "a tram"]),
        ("Which?\n(A) a bus\n(B) a tram\n", ["a bus", "a tram"]),
        ("A) one\nB) two\nAnswer: A\n\nA) three\nB) four\nC) five", ["three", "four", "five"]),
        ("Which?\nA: yes, (a) loud one\nB: no", ["yes, (a) loud one", "no"]),
    ],
)
def test_answer_options_are_read_from_prompts_of_many_formats(prompt: str, options: list[str]) -> None:
    assert options_in(prompt) == options


def test_the_target_in_an_imported_log_may_be_an_option_letter_text_or_number() -> None:
    options = ["a bus", "a tram"]
    assert [letter_of(target, options) for target in ("B", "(b).", "A tram", "1")] == ["B"] * 4
    assert letter_of("1", ["2", "1"]) == "B"  # a number that is an option counts as its text
    for wrong in ("C", "2", "", "a train"):
        with pytest.raises(ValueError, match="is not one of the options"):
            letter_of(wrong, options)


def test_the_score_in_an_imported_log_becomes_the_main_score_of_the_run(data: Path, tmp_path: Path) -> None:
    rows = asked(tau_samples(data), "AACDABCDAB")
    log = lmms_folder(tmp_path / "log", [{**row, "target": "what the log says"} for row in rows])
    run = imported("lmms-eval", log, tmp_path / "out")
    assert run.key == "reported/audiomarathon_tau"
    assert (run.summary["headline"], run.summary["score"]) == ("reported", 0.9)
    assert run.records["1"].extra == {
        "log": {"doc_id": 1, "token_counts": [{"output_tokens": 2}], "accuracy": 0.0, "doc_hash": ANY, "input": ANY},
        "reported": 0.0,
    }
    assert "0.900" in succeed("score", tmp_path / "out")


def test_scoring_again_restores_an_edited_imported_score_from_the_original_log_entry(
    data: Path, tmp_path: Path
) -> None:
    run = imported("lmms-eval", lmms_folder(tmp_path / "log", asked(tau_samples(data), TAU)), tmp_path / "out")
    lines = lines_of(run.folder / "samples.jsonl")
    lines[0]["extra"]["reported"] = 0.0
    write_records(run.folder, [{n: v for n, v in line.items() if n not in ("schema", "crc")} for line in lines])
    assert call("score", run.folder)[0] == 0
    summary = Run.read(run.folder).summary
    assert summary["score"] == 0.9


def test_imported_scores_can_be_compared_by_clusters_of_samples_and_with_a_margin(data: Path, tmp_path: Path) -> None:
    for setting, replies in (("base-0", TAU), ("half", "AAAAAAAAAA")):
        rows = asked(tau_samples(data), replies)
        for number, row in enumerate(rows):
            row["scores"]["place"] = f"p{number % 5}"
        options = ("--score", "accuracy", "--cluster", "place", "--setting", setting, "--results", tmp_path / "out")
        succeed("import", "lmms-eval", lmms_folder(tmp_path / setting, rows), *options)
    assert "-0.700" in succeed("compare", tmp_path / "out", "--margin", "0.1")
    run = Run.read(next((tmp_path / "out").rglob("run.json")).parent)
    assert len({record.cluster for record in run.records.values()}) == 5


def test_samples_with_a_score_in_only_one_of_two_imported_logs_are_not_compared(tmp_path: Path) -> None:
    for setting, values in (("base-0", [0, 0, 0, 0, 1, 1, 1, 1]), ("half", [math.nan] * 4 + [1, 1, 1, 1])):
        log = lmms_folder(tmp_path / setting, [a_row(ok=value) for value in values])
        call("import", "lmms-eval", log, "--setting", setting, "--results", tmp_path / "out")
    row = compare_runs(tmp_path / "out").iloc[0]
    assert (row["difference"], row["samples"]) == (0, 4)  # `half` has scores only for samples that base got right
    said = succeed("compare", tmp_path / "out", "--margin", "0.5")
    assert "4 samples had a score under only one of the two" in said
    assert "4 without a score count as lost" in said


def test_the_score_option_keeps_the_score_in_the_log_rather_than_scoring_the_replies(
    data: Path, tmp_path: Path
) -> None:
    log = lmms_folder(tmp_path / "log", asked(tau_samples(data), TAU))
    run = imported("lmms-eval", log, tmp_path / "out", "--task", "tau", "--data", data, "--score", "accuracy")
    assert run.key == "reported/tau"
    assert {record.cluster for record in run.records.values()} == {sample.cluster for sample in tau_samples(data)}


def test_an_imported_score_inside_an_object_is_read_and_divided_by_the_given_maximum(tmp_path: Path) -> None:
    log = lmms_folder(tmp_path / "log", [a_row(gpt_eval={"score": number, "id": "x"}) for number in (5, 2)])
    run = imported("lmms-eval", log, tmp_path / "out", "--out-of", 5)
    assert [record.extra["reported"] for record in run.records.values()] == [1.0, 0.4]


def test_a_log_with_several_scores_is_refused_until_one_is_named(tmp_path: Path) -> None:
    scores = {"wer": 0.5, "accuracy": 1, "points": 7, "note": "fine", "nothing": None}
    log = lmms_folder(tmp_path / "log", [a_row(**scores)])
    for options, told in (
        ("", "allowed: wer, accuracy\n"),
        ("--score acuracy", "did you mean 'accuracy'"),
        ("--choices --score wer", "not with --task or --score"),
        ("--out-of 1e-9", "its scores: wer, accuracy, points, note; --out-of"),
        ("--score wer --out-of 0", "--out-of 0"),
    ):
        assert told in refused("lmms-eval", log, *options.split())
    assert "read as better if higher" in call("import", "lmms-eval", log, "--score", "wer", "--results", tmp_path)[1]


def test_score_values_are_read_as_the_inspect_library_reads_them() -> None:
    values = {"C": 1, "I": 0, "P": 0.5, "N": 0, True: 1, 0.25: 0.25, "yes": 1, "0.5": 0.5, None: None, "NaN": None}
    assert {value: score_of(value, 1.0) for value in values} == values


@pytest.mark.parametrize("value", ["good", -0.1, 1.5, math.nan, math.inf, "Infinity", [1], {"a": 1}, 10**400])
def test_log_values_that_are_no_score_are_refused_on_import(value: object) -> None:
    with pytest.raises(ValueError, match="is not a score from 0 to 1"):
        score_of(value, 1.0)


def test_an_unchanged_log_may_be_imported_again_but_a_changed_one_is_refused(data: Path, tmp_path: Path) -> None:
    def again(replies: str, right: float) -> tuple[int, str]:
        rows = [{**row, "scores": {"accuracy": right}} for row in asked(tau_samples(data), replies)]
        log = lmms_folder(tmp_path / "log", rows)
        return call("import", "lmms-eval", log, "--results", tmp_path / "out")

    assert again(TAU, 1.0)[0] == again(TAU, 1.0)[0] == 0
    for changed_log in (("A" * 10, 1.0), (TAU, 0.0)):
        code, said = again(*changed_log)
        assert code == 2
        assert "remove the folder first" in said


LINE = {"doc_id": 0, "target": "t", "filtered_resps": "r", "accuracy": 1.0, "input": "?"}
DEEP = '{"a":' * 200 + "1" + "}" * 200
HOSTILE_LINES = {
    "no JSON": "{",
    "a list": "[]",
    "no reply": '{"doc_id": 0, "target": "t"}',
    "id of another type": json.dumps(LINE | {"doc_id": "../../x"}),
    "negative id": json.dumps(LINE | {"doc_id": -1}),
    "target of another type": json.dumps(LINE | {"target": ["t"]}),
    "deep": json.dumps(LINE)[:-1] + f', "more": {DEEP}}}',
    "very deep": "[" * 100_000,
    "a field twice": '{"doc_id": 0, "doc_id": 1, "target": "t", "filtered_resps": "r"}',
    "a score that is none": json.dumps(LINE | {"accuracy": "good"}),
    "a long reply": json.dumps(LINE | {"filtered_resps": "r" * 100_001}),
    "an id twice": json.dumps(LINE) + "\n" + json.dumps(LINE),
    "empty": "\n",
}


@pytest.mark.parametrize("line", HOSTILE_LINES.values(), ids=HOSTILE_LINES)
def test_hostile_lmms_eval_lines_give_a_one_line_error_and_no_run(line: str, tmp_path: Path) -> None:
    (tmp_path / "x_samples_t.jsonl").write_text(line)
    refused("lmms-eval", tmp_path / "x_samples_t.jsonl", "--score", "accuracy")


@pytest.mark.parametrize("name", ["../../../tmp/x", "/etc/x", "a.py", "a.toml", "a:b", "..", "\n", "\x1b[31m"])
def test_names_in_a_log_cannot_write_outside_the_results_folder(name: str, tmp_path: Path) -> None:
    content, results = inspect_content([a_row(ok=1)], task=name), tmp_path / "out" / "in"
    content["eval"]["model"] = name
    code, said = call("import", "inspect", inspect_json(tmp_path / "a.json", content), "--results", results)
    assert "Traceback" not in said
    written = [file for file in tmp_path.rglob("*") if file.is_file() and file.name != "a.json"]
    assert all(results.resolve() in file.resolve().parents for file in written)
    if code == 0:
        (run,) = (tmp_path / "out").rglob("run.json")
        assert not {".", ":"} & set(json.loads(run.read_text())["task"])
        assert call("score", run.parent)[0] == 0


def test_a_folder_of_several_logs_is_refused(data: Path, tmp_path: Path) -> None:
    log = lmms_folder(tmp_path / "log", asked(tau_samples(data), TAU))
    lmms_folder(log, asked(tau_samples(data), TAU), task="other")
    assert "holds 2 files" in refused("lmms-eval", log)
    (tmp_path / "empty").mkdir()
    assert "log of Inspect (.eval, .json)" in refused("inspect", tmp_path / "empty")


# Inspect


def test_an_imported_inspect_log_keeps_repetitions_times_and_unknown_fields(data: Path, tmp_path: Path) -> None:
    content = inspect_content(asked(tau_samples(data), TAU), epochs=2)
    content["samples"][0] |= {"unheard_of": {"a": [1, None, math.nan, 7777]}}
    log = inspect_json(tmp_path / "a.json", json.dumps(content).replace("7777", "1e999"))
    run = imported("inspect", log, tmp_path / "out", "--cluster", "metadata.speaker")
    assert (run.key, run.checkpoint, len(run.records)) == ("reported/scenes", "mockllm/model", 20)
    record = run.records["clip0#1"]
    assert (record.cluster, record.groups) == ("s0", {"epoch": "1"})
    kept = record.extra["log"]
    assert kept["unheard_of"] == {"a": [1, None, "NaN", "1e999"]}  # JSON has no such numbers
    assert (kept["total_time"], kept["output"]["time"]) == (1.5, 0.25)


def test_imported_repetitions_of_a_sample_belong_to_one_cluster(data: Path, tmp_path: Path) -> None:
    log = inspect_json(tmp_path / "a.json", inspect_content(asked(tau_samples(data), TAU), epochs=2))
    run = imported("inspect", log, tmp_path / "out", "--task", "tau", "--data", data)
    assert len(run.records) == 20
    assert run.records[f"{tau_samples(data)[0].id}#1"].cluster == run.records[f"{tau_samples(data)[0].id}#2"].cluster


def test_failed_samples_of_an_imported_log_become_error_records(tmp_path: Path) -> None:
    rows = [a_row(ok="C"), a_row(ok=math.nan), a_row()]
    rows[2]["fields"] = {"error": {"message": "it broke", "traceback": "", "traceback_ansi": ""}}
    log = inspect_json(tmp_path / "a.json", inspect_content(rows))
    assert call("import", "inspect", log, "--results", tmp_path / "out")[0] == 1  # as of any run with failed samples
    run = only_run(tmp_path / "out")
    assert [record.error for record in run.failed.values()] == ["it broke"]
    assert [verdict.values["reported"] for verdict in run.verdicts.values()] == [1.0, None]
    assert run.summary["score"] == 1.0


@pytest.mark.parametrize("options", [(), ("--score", "accuracy")], ids=str)
def test_samples_missing_from_the_imported_log_of_a_stopped_evaluation_count_as_not_run(
    options: tuple[str, ...], data: Path, tmp_path: Path
) -> None:
    content = inspect_content(asked(tau_samples(data), TAU), epochs=2) | {"status": "cancelled"}
    del content["samples"][15:]
    log = inspect_json(tmp_path / "a.json", content)
    code, said = call("import", "inspect", log, "--results", tmp_path / "out", *options)
    assert code == 1  # as of any run that is not complete
    assert "5 not run" in said
    summary = only_run(tmp_path / "out").summary
    assert (summary["n"], summary["expected"], summary["complete"]) == (15, 20, False)


def test_an_imported_sample_with_a_huge_repetition_number_creates_only_one_record(tmp_path: Path) -> None:
    run = imported("inspect", inspect_json(tmp_path / "a.json", content_with(epoch=10**15)), tmp_path / "out")
    assert list(run.records) == [f"clip0#{10**15}"]


def test_answer_options_of_an_inspect_log_are_read_from_its_choices_field(data: Path, tmp_path: Path) -> None:
    rows = [{**row, "input": "Where?", "fields": {"choices": list(sample.options)}}
            for row, sample in zip(asked(tau_samples(data), TAU), tau_samples(data), strict=True)]  # fmt: skip
    run = imported("inspect", inspect_json(tmp_path / "a.json", inspect_content(rows)), tmp_path / "out", "--choices")
    assert run.summary["accuracy"] == 1.0


def test_imported_samples_that_have_the_ids_of_task_samples_are_matched_in_any_order(
    data: Path, tmp_path: Path
) -> None:
    samples = tau_samples(data)[::-1]
    rows = [{**row, "id": sample.id} for row, sample in zip(asked(samples, TAU), samples, strict=True)]
    log = inspect_json(tmp_path / "a.json", inspect_content(rows))
    run = imported("inspect", log, tmp_path / "out", "--task", "tau", "--data", data)
    assert [run.records[sample.id].reply for sample in samples] == [*TAU]
    log = inspect_json(tmp_path / "b.json", inspect_content([{**row, "target": "A"} for row in rows]))
    assert "by id, sample 1 has another target" in refused("inspect", log, "--task", "tau", "--data", data)


def test_importing_an_eval_file_gives_the_same_run_as_its_json_file(data: Path, tmp_path: Path) -> None:
    content = inspect_content(asked(tau_samples(data), "AACDABCDAB"))
    files = inspect_json(tmp_path / "a.json", content), inspect_eval(tmp_path / "b.eval", content)
    as_json, as_eval = (imported("inspect", file, tmp_path / file.stem) for file in files)
    assert as_json.summary["score"] == as_eval.summary["score"] == 0.9
    assert dict(as_json.records) == dict(as_eval.records)


def content_with(**fields: object) -> dict[str, Any]:
    return inspect_content([a_row(ok=1) | {"fields": fields}])


HOSTILE_LOGS: Mapping[str, object] = {
    "no JSON": "{",
    "a list": "[]",
    "no samples": {"version": 2, "eval": {}},
    "samples of another type": content_with() | {"samples": {"a": 1}},
    "spec of another type": content_with() | {"eval": []},
    "a sample that is a text": content_with() | {"samples": ["a"]},
    "no sample": content_with() | {"samples": []},
    "id of another type": content_with(id={"a": 1}),
    "a long id": content_with(id="x" * 300),
    "epoch of another type": content_with(epoch=True),
    "epoch below one": content_with(epoch=0),
    "scores of another type": content_with(scores=[1]),
    "a score that is a list": content_with(scores={"ok": {"value": [1]}}),
    "output of another type": content_with(output="r"),
    "choices of another type": content_with(output={"choices": {"a": 1}}),
    "target of another type": content_with(target=[1]),
    "deep": json.dumps(content_with())[:-1] + f', "more": {DEEP}}}',
}


@pytest.mark.parametrize("content", HOSTILE_LOGS.values(), ids=HOSTILE_LOGS)
def test_hostile_inspect_logs_give_a_one_line_error_and_no_run(content: object, tmp_path: Path) -> None:
    refused("inspect", inspect_json(tmp_path / "a.json", content), "--score", "ok")


def test_hostile_eval_archives_give_a_one_line_error_and_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = inspect_eval(tmp_path / "a.eval", content_with(), **{"samples/../../b.json": b"{"})
    assert "not JSON" in refused("inspect", file, "--score", "ok")
    with pytest.warns(UserWarning, match="Duplicate name"):
        inspect_eval(file, content_with(), **{"header.json": b"{}"})
    assert "two members of one name" in refused("inspect", file)
    monkeypatch.setattr("audiomarathon.untrusted.MAX_METADATA_BYTES", 1000)
    inspect_eval(file, content_with(), **{"samples/b.json": b"0" * 10_000})
    assert "more than 1,000 bytes to unpack" in refused("inspect", file)
    file.write_bytes(file.read_bytes()[:200])
    refused("inspect", file)
    refused("inspect", tmp_path / "missing.eval")
    (tmp_path / "folder.json").mkdir()
    refused("inspect", tmp_path / "folder.json")


# Our runs to Inspect and back


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    """Two settings of TAU, one with a failed sample."""
    for label, rights in (("base-0", [True] * 7 + [False]), ("dart-0.5-layer2", [True, False] * 4)):
        folder = a_run(tmp_path / "ours", label, rights)
        changed(folder, settings={"seed": 7})
    added(folder, a_failed_record("x"))
    changed(folder, samples=[*(f"clip{n}" for n in range(8)), "x"])
    call("score", tmp_path / "ours")
    return tmp_path / "ours"


def exported(runs: Path, place: Path) -> list[Path]:
    """Export runs as logs of Inspect; return the logs."""
    succeed("export", "inspect", runs, "-o", place / "logs")
    return sorted((place / "logs").iterdir())


def exported_base(ours: Path, place: Path) -> tuple[Path, dict[str, Any]]:
    """Export the run of base as a log of Inspect; return the log and its content."""
    (log,) = exported(ours / "tau" / "M" / "base-0", place)
    return log, json.loads(log.read_text())


def test_a_run_exported_as_an_inspect_log_has_the_same_records_and_scores_after_import(
    ours: Path, tmp_path: Path
) -> None:
    for log in exported(ours, tmp_path):
        assert call("import", "inspect", log, "--results", tmp_path / "back")[0] in (0, 1)
    for folder in (path.parent for path in ours.rglob("run.json")):
        back = tmp_path / "back" / folder.relative_to(ours)
        before, after = (json.loads((run_folder / "summary.json").read_text()) for run_folder in (folder, back))
        for name in ("score", "accuracy", "macro_f1", "intervals", "per_class", "n", "errors", "timing", "kv_bytes"):
            assert before[name] == after[name]
        assert Run.read(back).records == Run.read(folder).records
        assert Run.read(back).failed.keys() == Run.read(folder).failed.keys()
    before, after = (compare_runs(root)["difference"].tolist() for root in (ours, tmp_path / "back"))
    assert before == after  # though one setting has a sample more


def test_notes_and_sequential_stopping_data_of_a_run_survive_export_and_import(ours: Path, tmp_path: Path) -> None:
    folder = ours / "tau" / "M" / "dart-0.5-layer2"
    order = [f"clip{n}" for n in range(9)]
    stop = {"verdict": "no worse", "margin": 0.1, "order": order, "stopped_after": 8, "largest": 3}
    facts = {"samples": order, "note": "a note", "left_out": {"known gaps": 2}, "data_samples": 9, "data_expected": 11}
    changed(folder, stopping=stop, largest_cluster=3, **facts)
    call("score", folder)
    (log,) = exported(folder, tmp_path)
    call("import", "inspect", log, "--results", tmp_path / "back")
    before, after = (Run.read(root / "tau" / "M" / "dart-0.5-layer2") for root in (ours, tmp_path / "back"))
    assert before.summary == after.summary  # the summary contains the counts and notes
    assert not before.summary["complete"]
    for name in ("stopping", "largest_cluster"):  # needed for the bounds at a margin
        assert before.facts[name] == after.facts[name]


def test_times_of_imported_runs_are_not_compared(ours: Path, tmp_path: Path) -> None:
    for log in exported(ours, tmp_path):
        call("import", "inspect", log, "--results", tmp_path / "back")
    said = call("compare", tmp_path / "back")[1]
    assert "times of an imported run" in said
    assert "times of an imported run" not in call("compare", ours)[1]


def test_judge_answers_survive_export_and_import(ours: Path, tmp_path: Path) -> None:
    folder = ours / "tau" / "M" / "base-0"
    said = Judgement("a-judge", "p", "1", "clip0", "hash", text="Rating: 4 – gut", messages=[{"role": "user"}])
    (folder / "judgements-a-judge.jsonl").write_bytes(said.to_line())
    (log,) = exported(folder, tmp_path)
    run = imported("inspect", log, tmp_path / "back")
    assert run.records["clip0"].judgements == {"a-judge": {"hash": "Rating: 4 – gut"}}
    file = run.folder / "judgements-a-judge.jsonl"
    file.write_bytes(file.read_bytes() + replace(said, sample="clip1").to_line())
    imported("inspect", log, tmp_path / "back")
    assert [line["sample"] for line in lines_of(file)] == ["clip0", "clip1"]


def test_an_exported_log_holds_kept_token_counts_scores_and_replies(ours: Path, tmp_path: Path) -> None:
    (log,) = exported(ours / "tau" / "M" / "dart-0.5-layer2", tmp_path)
    content = json.loads(log.read_text())
    sample = content["samples"][1]
    assert list(content) == ["version", "status", "eval", "plan", "results", "stats", "samples"]  # viewers need these
    assert sample["metadata"]["audiomarathon"]["record"]["kept_audio_tokens"] == 100
    assert sample["scores"]["choice"]["value"] == 0.0
    assert sample["output"]["completion"] == sample["messages"][-1]["content"]
    assert content["results"]["scores"][0]["metrics"]["accuracy"]["value"] == 0.5
    assert [sample["error"]["message"] for sample in content["samples"] if "error" in sample] == [
        "AudioError: no sound"
    ]


def test_an_exported_log_holds_clips_and_prompts_if_the_data_is_there(data: Path, tmp_path: Path) -> None:
    log = lmms_folder(tmp_path / "log", asked(tau_samples(data), TAU))
    imported("lmms-eval", log, tmp_path / "out", "--task", "tau", "--data", data)
    assert call("export", "inspect", tmp_path / "out", "-o", tmp_path / "logs", "--data", data)[0] == 0
    (file,) = (tmp_path / "logs").iterdir()
    audio, text = json.loads(file.read_text())["samples"][0]["input"][0]["content"]
    assert Path(audio["audio"]).is_file()
    assert "What is the acoustic scene?" in text["text"]


def test_a_clip_stored_inside_a_tar_is_exported_to_inspect_as_a_document_with_its_path(data: Path, ours: Path) -> None:
    run = Run.read(ours / "tau" / "M" / "base-0")
    sample = replace(tau_samples(data)[0], clips=(Member(data / "clips.tar", "a/b.wav", 512, 100),))
    content = log_of(run, {"clip0": sample})[1]
    part = content["samples"][0]["input"][0]["content"][0]
    assert part == {"type": "document", "document": f"{data}/clips.tar/a/b.wav", "mime_type": "audio/wav"}


@pytest.mark.parametrize(
    "change",
    [
        {"task": "evil.py:X"}, {"task": "evil.toml"}, {"task": "../tau"}, {"task": "no-such-task"}, {"task": 3},
        {"method": "a\nb"}, {"method": ["x"]}, {"identity": [1]}, {"identity": {"data": [1]}},
        {"settings": {"seed": "7"}}, {"settings": 3}, {"control": {"kind": 3}},
        {"largest_cluster": "x"}, {"note": [1]}, {"data_samples": "9"}, {"samples": {"a": 1}}, {"stopping": [1]},
        {"stopping": {"largest": "x"}}, {"stopping": {"order": 3}},
    ],
    ids=str,
)  # fmt: skip
def test_a_manipulated_exported_log_is_a_one_line_error_and_runs_no_code(
    change: Mapping[str, Any], ours: Path, tmp_path: Path
) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('it ran')")
    log, content = exported_base(ours, tmp_path)
    content["eval"]["metadata"]["audiomarathon"]["run"] |= change
    assert "it ran" not in refused("inspect", inspect_json(log, content))


def test_an_exported_log_with_a_damaged_record_is_refused(ours: Path, tmp_path: Path) -> None:
    log, content = exported_base(ours, tmp_path)
    stored = content["samples"][0]["metadata"]["audiomarathon"]
    for change in ({"kv_bytes": -1}, {"reference": {}}, {"reply": 3}, {"id": "clip1"}):
        content["samples"][0]["metadata"]["audiomarathon"] = stored | {"record": stored["record"] | change}
        refused("inspect", inspect_json(log, content))


def test_an_unfinished_run_is_not_exported(tmp_path: Path) -> None:
    a_run(tmp_path / "ours", "base-0", [True])
    for exporter in ("inspect", "hub"):
        code, said = call("export", exporter, tmp_path / "ours", "-o", tmp_path / "out")
        assert code == 2
        assert not (tmp_path / "out").exists()
        assert "is not finished" in said


# Frames and the hub

TEXT = pd.Series(["a"]).dtype
COLUMNS = {
    "checkpoint": TEXT, "setting": TEXT, "task": TEXT, "id": TEXT, "cluster": TEXT, "answer": TEXT, "reply": TEXT,
    "finish": TEXT, "error": TEXT, "own_score": "float64", "clip_seconds": "float64", "truncated": "boolean",
    "prompt_tokens": "float64", "audio_tokens": "float64", "kept_audio_tokens": "float64", "kv_bytes": "float64",
    "new_tokens": "float64", "peak_memory_bytes": "float64", "load_s": "float64", "preprocess_s": "float64",
    "encoder_s": "float64", "llm_prefill_s": "float64", "prefill_s": "float64", "decode_s": "float64",
}  # fmt: skip


def test_the_records_data_frame_has_the_documented_columns(ours: Path) -> None:
    for root in (ours, ours / "tau" / "M" / "base-0"):
        frame = load_runs(root).records
        assert list(frame)[: len(COLUMNS)] == list(COLUMNS)
        assert [str(frame[name].dtype) for name in COLUMNS] == list(map(str, COLUMNS.values()))
    page = (Path(__file__).parent.parent / "docs" / "exchange.md").read_text(encoding="utf-8")
    assert [name for name in COLUMNS if f"`{name}`" not in page] == []


def test_the_records_data_frame_is_unchanged_after_writing_and_reading_parquet(ours: Path, tmp_path: Path) -> None:
    other = a_run(ours, "base-0", [True], task="gtzan")
    added(other, a_timed_choice(0, right=True, groups={"parsed": "a group", "task": "another"}))
    frame = load_runs(ours).records
    frame.to_parquet(tmp_path / "records.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "records.parquet"), frame, check_dtype=False)
    assert set(frame["task"]) == {"tau", "gtzan"}


def test_a_hub_export_has_a_card_and_data_frames_of_records_and_summaries(ours: Path, tmp_path: Path) -> None:
    import yaml

    assert call("export", "hub", ours, "-o", tmp_path / "set")[0] == 0
    _, facts, text = (tmp_path / "set" / "README.md").read_text().split("---\n", 2)
    files = {config["config_name"]: config["data_files"] for config in yaml.safe_load(facts)["configs"]}
    sizes = {name: len(pd.read_parquet(tmp_path / "set" / file)) for name, file in files.items()}
    assert sizes == {"records": 17, "summaries": 2}
    assert "dart-0.5-layer2" in text
    assert str(tmp_path) not in b"".join(file.read_bytes() for file in (tmp_path / "set").iterdir()).decode("latin-1")
    code, said = call("export", "hub", ours, "-o", tmp_path / "set")
    assert code == 2
    assert "is not empty" in said


def test_export_to_the_hub_format_without_pyarrow_is_a_one_line_error(
    ours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    code, said = call("export", "hub", ours, "-o", tmp_path / "set")
    assert code == 2
    assert not (tmp_path / "set").exists()
    assert "pip install 'audiomarathon[lalm]'" in said


# The real packages


@pytest.fixture
def inspect_ai() -> Any:
    return pytest.importorskip("inspect_ai.log")


@pytest.mark.real
def test_the_inspect_library_reads_the_same_scores_and_replies_from_exported_logs(
    ours: Path, tmp_path: Path, inspect_ai: Any
) -> None:
    logs = exported(ours, tmp_path)
    assert len(inspect_ai.list_eval_logs(str(tmp_path / "logs"))) == 2  # as `inspect view` lists them
    for log in logs:
        read = inspect_ai.read_eval_log(str(log))
        header = inspect_ai.read_eval_log(str(log), header_only=True)  # as `inspect view` reads it
        assert header.results == read.results
        run = Run.read(next(ours.rglob(read.eval.task_args["method"])))
        assert read.results.scores[0].metrics["macro_f1"].value == run.summary["score"]
        replies = {sample.id: sample.output.completion for sample in read.samples if not sample.error}
        assert replies == {id_: record.reply for id_, record in run.records.items()}
        packed = tmp_path / f"{log.stem}.eval"  # zstd
        inspect_ai.write_eval_log(read, str(packed))
        assert call("import", "inspect", packed, "--results", tmp_path / "back")[0] in (0, 1)
        back = Run.read(tmp_path / "back" / "tau" / "M" / run.method)
        assert back.records == run.records
        assert all(back.summary[name] == run.summary[name] for name in ("score", "intervals"))


@pytest.mark.real
def test_logs_rewritten_by_the_inspect_library_can_be_imported(data: Path, tmp_path: Path, inspect_ai: Any) -> None:
    content = inspect_content(asked(tau_samples(data), "AACDABCDAB"), epochs=2)
    read = inspect_ai.read_eval_log(str(inspect_json(tmp_path / "a.json", content)))
    for name in ("b.eval", "c.json"):
        inspect_ai.write_eval_log(read, str(tmp_path / name))
        run = imported("inspect", tmp_path / name, tmp_path / name[:1])
        assert (run.summary["score"], len(run.records)) == (0.9, 20)


@pytest.mark.real
@pytest.mark.parametrize("content", [log for name, log in HOSTILE_LOGS.items() if name != "epoch of another type"])
def test_hostile_logs_are_a_one_line_error_even_with_the_inspect_library(
    content: object, tmp_path: Path, inspect_ai: Any
) -> None:
    refused("inspect", inspect_json(tmp_path / "a.json", content), "--score", "ok")


@pytest.mark.real
def test_the_datasets_library_loads_the_exported_hub_dataset(ours: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    assert call("export", "hub", ours, "-o", tmp_path / "set")[0] == 0
    for name, rows in (("records", 17), ("summaries", 2)):
        loaded = datasets.load_dataset(str(tmp_path / "set"), name, split="train", cache_dir=str(tmp_path / "cache"))
        assert len(loaded) == rows
