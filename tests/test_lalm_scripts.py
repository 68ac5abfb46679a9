"""The scripts in `LALM_Bench/` take the original commands and write the original files."""

from __future__ import annotations

import json
import os
import random
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from caption_folders import CAPTIONS, clotho_folder
from lalm_folders import ROWS, edit_table, mmau_pro_folder, replies_table
from pyarrow import parquet
from task_folders import write_clip

from audiomarathon.benchmarks.questions.open_ended import OpenEnded
from audiomarathon.cli.command import run_script
from audiomarathon.engine import run as engine
from audiomarathon.errors import ModelError
from audiomarathon.files import file_name
from audiomarathon.judges.judgements import Judgement, request_of
from audiomarathon.runs.folder import read_records, read_run
from audiomarathon.wings.lalm.commands import bench
from audiomarathon.wings.lalm.exchange import read_answers

FOLDER = Path(__file__).parent.parent / "LALM_Bench"
NAMES = list(CAPTIONS)  # in the order of the table, not in the order of the ids
VALIDATION = {f"v {n}.wav": CAPTIONS[NAMES[n % 3]] for n in (3, 1, 2)}
TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d|(?<=\()\d+(?=s\))")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("lalm")
    clotho_folder(root / "clotho")
    clotho_folder(root / "clotho", VALIDATION, split="validation")
    mmau_pro_folder(root / "mmau-pro")
    return root


Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def door(data: Path, tmp_path: Path, no_env: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Call:
    """Run commands of cli.py in a temporary folder; return exit code, stdout and stderr."""
    no_env("AUDIOMARATHON_DATA", str(data))
    monkeypatch.setenv("LALM_BENCH_ROOT", str(tmp_path))

    def run(*arguments: object) -> tuple[int, str, str]:
        code = 0
        try:
            run_script(bench, [str(argument) for argument in arguments], name="cli.py")
        except SystemExit as error:
            code = int(error.code or 0)
        return code, *capsys.readouterr()

    return run


def files_of(folder: Path) -> list[str]:
    """The files of a folder, without those of its runs."""
    files = [file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()]
    return sorted(file for file in files if "runs/" not in file)


def read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def test_the_run_script_writes_the_output_files_of_the_original_script_and_resumes(door: Call, tmp_path: Path) -> None:
    code, stdout, _ = door("run", "clotho", "-m", "embedded", "-t", "--output-root", "./out", "--no-save-attn")
    out = tmp_path / "out" / "embedded"
    assert code == 0, stdout
    assert files_of(out) == [
        "clotho/predictions.json", "clotho/scores.json", "clotho_eval.stderr.log", "clotho_infer.stderr.log",
        "result_clotho.txt",
    ]  # fmt: skip
    run = out / "runs/evaluation/lalm/clotho/embedded/base-0"
    cider_d = f"CIDEr-D: {read(out / 'clotho' / 'scores.json')['audiomarathon']['summary']['cider_d']:.4f}"
    text = (out / "result_clotho.txt").read_text(encoding="utf-8")
    assert TIME.sub("T", text).splitlines() == [
        "Clotho Benchmark Results for embedded",
        "Started at: T",
        "=================================",
        "[Clotho inference] Started at T",
        "✅ inference completed (Ts)",
        "[Clotho evaluation] Started at T",
        "✅ evaluation completed (Ts)",
        cider_d,
        "FENSE: not computed",
        f"Run: {run}",
        "Finished at: T",
        "=== Completed Clotho benchmark for embedded ===",
    ]
    assert f"{cider_d}\n" in stdout
    predictions, records = read(out / "clotho" / "predictions.json"), read_records(run)
    assert predictions == [
        {"audio_id": name, "prediction": records[name].reply, "references": list(texts)}
        for name, texts in CAPTIONS.items()
    ]
    assert "model embedded (embedded) on cpu" in (out / "clotho_infer.stderr.log").read_text()
    lines = (run / "samples.jsonl").read_bytes().splitlines(keepends=True)
    (run / "samples.jsonl").write_bytes(b"".join(lines[:-1]))
    code, _, stderr = door("run", "clotho", "-m", "embedded", "--output-root", "out")
    log = (out / "clotho_infer.stderr.log").read_bytes().decode()
    assert code == 0
    assert log in stderr
    assert "base-0: resuming: 2 of 3 samples" in log
    assert read(out / "clotho" / "predictions.json") == predictions
    assert len((run / "samples.jsonl").read_bytes().splitlines()) == 3
    assert door("inference", "clotho", "-m", "embedded", "--output-root", "out", "--limit", "1")[0] == 0
    assert not (out / "clotho" / "scores.json").exists(), "scores of other predictions"


def test_the_sample_size_option_draws_the_same_samples_as_the_original_script(door: Call, tmp_path: Path) -> None:
    """The samples are from all splits, in the original order: development, validation, evaluation."""
    flags = ("-m", "embedded", "--batch-size", 4, "--output-root", tmp_path / "o")
    code, _, stderr = door("inference", "clotho", *flags, "--split", "all", "--sample_size", 4, "--verbose")
    assert code == 0, stderr
    out = tmp_path / "o" / "embedded"
    names = random.Random(42).sample([*VALIDATION, *NAMES], 4)
    predictions = read(out / "clotho" / "predictions.json")
    assert [prediction["audio_id"] for prediction in predictions] == names
    assert stderr.count(f"{names[0]}: {predictions[0]['prediction']}") == 1
    assert files_of(out) == ["clotho/predictions.json", "clotho_infer.stderr.log", "result_clotho_inference.txt"]
    run = out / "runs/all-untimed/lalm/clotho/embedded/base-0"
    assert len(read(run / "corpus.json")["references"]) == 6
    predictions[0]["prediction"] = "mine"  # scores come from the records
    (out / "clotho" / "predictions.json").write_text(json.dumps(predictions))
    assert door("eval", "clotho", "-m", "embedded", "--output-root", tmp_path / "o", "--faithful")[0] == 0
    scores = read(out / "clotho" / "scores.json")
    assert (scores["evaluated_samples"], scores["audiomarathon"]["run"]) == (4, str(run))
    assert read(out / "clotho" / "predictions.json")[0]["prediction"] == read_records(run)[names[0]].reply
    text = (out / "result_clotho_evaluation.txt").read_text(encoding="utf-8")
    assert text.startswith("Clotho Evaluation Results for embedded\n")
    assert f"\nCIDEr-D: {scores['scores']['cider_d']:.4f}\n" in text
    assert text.endswith("\n=== Completed Clotho evaluation for embedded ===\n")


def test_the_white_noise_option_replaces_the_first_clips_by_noise_for_all_settings(door: Call, tmp_path: Path) -> None:
    flags = ("-m", "embedded", "--batch-size", 8, "--use-white-noise", "--limit", 4)
    code, _, stderr = door("run", "mmau-pro", *flags, "--methods", "frame", "--ratios", "0.5", "--faithful")
    assert code == 0, stderr
    out = tmp_path / "outputs" / "embedded_with_noise"
    names = ("debug_info.json", "predictions.parquet", "predictions_comprehensive_results.json")
    label = next(folder.name for folder in (out / "mmau-pro").iterdir() if folder.is_dir())
    assert label.startswith("frame-0.5")
    logs = ["mmau-pro_eval.stderr.log", "mmau-pro_infer.stderr.log", "result_mmau_pro.txt"]
    both = sorted([*(f"mmau-pro/{name}" for name in names), *(f"mmau-pro/{label}/{name}" for name in names)])
    assert files_of(out) == [*both, *logs]
    run = next(out.glob("runs/test-as_published-faithful-untimed-*/lalm/mmau_pro/embedded/base-0"))
    facts = read_run(run)
    assert facts["samples"] == [row["id"] for row in ROWS[:4]]
    assert (facts["control"]["kind"], facts["settings"]["max_new_tokens"]) == ("noise", 2048)
    table = parquet.read_table(out / "mmau-pro" / "predictions.parquet")
    assert table["id"].to_pylist() == facts["samples"]
    assert table["model_output"].to_pylist() == [read_records(run)[id_].reply for id_ in facts["samples"]]
    assert read(out / "mmau-pro" / names[2])["evaluation_summary"]["total_samples"] == 4
    text = (out / "result_mmau_pro.txt").read_text(encoding="utf-8")
    assert "MMAU-Pro Benchmark Results for embedded\n" in text
    assert "\noverall (base-0): not computed\n" in text
    assert f"\nRun: {run}\n" in text


def test_a_failure_of_one_model_does_not_stop_the_other_models(
    door: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran, run = [], engine.run

    def failing(tasks: Any, model: str, *others: Any, **more: Any) -> Any:
        ran.append(model)
        if model == "gemma3n":
            raise ModelError("no such checkpoint")
        if model == "qwen2.5-omni":
            raise ValueError("one line\n" * 60)
        return run(tasks, "embedded", *others, **more)

    monkeypatch.setattr(engine, "run", failing)
    code, _, stderr = door("run", "clotho", "--limit", 2)
    assert (code, ran) == (1, ["gemma3n", "qwen2.5-omni", "qwen3-omni"])
    assert stderr.count("error: no such checkpoint") == 1
    texts = {
        model: (tmp_path / "outputs" / model / "result_clotho.txt").read_text(encoding="utf-8")
        for model in ("gemma3n", "qwen2_5-omni", "qwen3-omni")
    }
    log = tmp_path / "outputs" / "gemma3n" / "clotho_infer.stderr.log"
    assert TIME.sub("T", texts["gemma3n"]).splitlines()[3:] == [
        "[Clotho inference] Started at T",
        f"❌ inference failed (Ts). See {log}",
        "--- stderr (tail) ---",
        "error: no such checkpoint",
        "Finished at: T",
        "=== Completed Clotho benchmark for gemma3n ===",
    ]
    tail = texts["qwen2_5-omni"].partition("--- stderr (tail) ---\n")[2].splitlines()[:-2]
    assert (len(tail), {*tail}) == (50, {"one line", ""})
    assert "Traceback" in (tmp_path / "outputs" / "qwen2_5-omni" / "clotho_infer.stderr.log").read_text()
    assert "✅ evaluation completed" in texts["qwen3-omni"]


def test_a_failed_sample_is_left_out_of_output_files_and_gives_exit_code_1(door: Call, tmp_path: Path) -> None:
    clip = clotho_folder(tmp_path / "data") / "evaluation" / NAMES[1]
    content, out = clip.read_bytes(), tmp_path / "outputs" / "embedded" / "clotho"
    clip.write_bytes(b"RIFF no audio")
    code, _, stderr = door("run", "clotho", "-m", "embedded", "--data", tmp_path / "data")
    assert code == 1
    assert "1 sample failed" in stderr
    assert [prediction["audio_id"] for prediction in read(out / "predictions.json")] == [NAMES[0], NAMES[2]]
    scores = read(out / "scores.json")
    assert (scores["evaluated_samples"], scores["total_samples"]) == (2, 3)
    clip.write_bytes(content)
    code, _, _ = door("run", "clotho", "-m", "embedded", "--data", tmp_path / "data")
    assert (code, len(read(out / "predictions.json"))) == (0, 3)


def foreign(file: Path, *replies: str) -> Path:
    """Write a predictions file of another program."""
    rows = [
        {"audio_id": name, "prediction": reply, "references": list(texts)}
        for (name, texts), reply in zip(CAPTIONS.items(), replies, strict=False)
    ]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(rows))
    return file


def test_the_eval_command_scores_a_predictions_file_made_by_another_program(door: Call, tmp_path: Path) -> None:
    file = tmp_path / "outputs/gemma3n/clotho/predictions.json"
    code, stdout, _ = door("eval", "clotho", "-m", "gemma3n")
    assert code == 1
    assert "no predictions.json; run inference first" in stdout
    for replies, flags, code, scored in (
        (("Rain.", "ERROR"), ("--faithful",), 0, 2),
        (("Rain.", "ERROR"), (), 1, 1),  # the word ERROR is a failed sample
        (("Rain falls.", "People talk.", "Dog"), (), 0, 3),
    ):
        content = foreign(file, *replies).read_bytes()
        assert door("eval", "clotho", "-m", "gemma3n", *flags)[0] == code
        assert read(file.with_name("scores.json"))["evaluated_samples"] == scored
        assert file.read_bytes() == content or not flags


def test_the_eval_command_takes_word_weights_from_the_data_if_given(door: Call, tmp_path: Path, data: Path) -> None:
    file, seen = foreign(tmp_path / "predictions.json", "Rain falls on a roof.", "People talk."), []
    for flags in ((), ("--use-white-noise",), ("--data", data / "clotho")):
        code, _, stderr = door("eval", "clotho", file, *flags)
        whose = f"3 clips of evaluation in {data / 'clotho'}" if "--data" in flags else "2 entries"
        assert (code, f"word weights come from the captions of the {whose}" in stderr) == (0, True), stderr
        seen.append(read(tmp_path / "scores.json")["audiomarathon"])
    assert len({content["run"] for content in seen}) == 3
    assert [content["summary"]["corpus"]["items"] for content in seen] == [2, 2, 3]
    assert [content["summary"]["control"] for content in seen] == [None, {"kind": "noise"}, None]


@pytest.mark.parametrize("benchmark", ["clotho", "mmau-pro"])
def test_bad_rows_among_the_drawn_samples_are_left_out_and_reported(
    door: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, benchmark: str
) -> None:
    root = tmp_path / "data"
    if benchmark == "clotho":
        ids = NAMES
        clotho_folder(root)
        (root / "evaluation" / ids[0]).unlink()
    else:
        ids = [row["id"] for row in ROWS[1:4]]
        mmau_pro_folder(root, rows=ROWS[1:4])
        edit_table(root, lambda rows: rows[0].update(category="none"))
    monkeypatch.setenv("ALLOW_BAD_ROWS", "1")
    flags = ("inference", benchmark, "-m", "embedded", "--data", root, "--batch-size", 2)
    code, _, stderr = door(*flags, "--limit", 1)
    assert (code, f"error: {root}: 1 of 1 chosen samples are bad rows: ['{ids[0]}']" in stderr) == (2, True), stderr
    assert [*tmp_path.iterdir()] == [root]
    assert random.Random(42).sample(ids, 2) == [ids[2], ids[0]]  # from the whole table, as published
    code, _, stderr = door(*flags, "--sample_size", 2)
    assert code == 0, stderr
    assert f"{root}: 1 of 2 chosen samples are bad rows: ['{ids[0]}']; left out" in stderr
    (run,) = (tmp_path / "outputs" / "embedded").rglob("base-0")
    assert [*read_records(run)] == [ids[2]]


def test_noise_clips_are_generated_again_when_the_original_clip_changes(door: Call, tmp_path: Path) -> None:
    root, frames = clotho_folder(tmp_path / "data"), []
    for seconds in (1, 1, 3):
        write_clip(root / "evaluation" / NAMES[0], seconds=seconds, hertz=300)
        flags = ("-m", "embedded", "--data", root, "--use-white-noise", "--limit", 1)
        code, _, stderr = door("inference", "clotho", *flags)
        assert code == 0, stderr
        frames.append(sorted(soundfile.info(file).frames for file in (tmp_path / "outputs").rglob(NAMES[0])))
    assert frames == [[16000], [16000], [16000, 48000]]


def test_the_eval_command_with_the_judge_option_judges_the_replies(door: Call, tmp_path: Path) -> None:
    file, judgements = tmp_path / "predictions.parquet", tmp_path / "judgements-j.jsonl"
    parquet.write_table(replies_table({"o1": "A bell.", "o2": ""}), file)
    protocol, records = OpenEnded(), read_answers(file)
    text = "CORRECTNESS: 4\nRELEVANCE: 4\nCOMPLETENESS: 4\nCLARITY: 4\nOVERALL: 4.0"
    asked = [*records, *(anchor.of(record) for record in records for anchor in protocol.anchors(record))]
    requests = [(record.id, request.hash) for record in asked if (request := request_of(protocol, record))]
    lines = [Judgement("j", protocol.name, "1", *request, text).to_line() for request in requests]
    judgements.write_bytes(b"".join(lines))
    code, stdout, stderr = door("eval", "mmau-pro", file, "--judge", f"replay:{judgements}")
    assert (code, "open: 0.3750\n" in stdout) == (0, True), stderr  # (4 - 1) / 4, and 0 for the empty reply
    results = read(tmp_path / "predictions_comprehensive_results.json")["category_results"]["open"]
    assert (results["count"], results["performance_score"], results["metrics"]["avg_overall"]) == (2, 0.5, 2.5)


@pytest.mark.usefixtures("undrawn")
def test_attention_files_are_written_to_the_folders_that_the_original_script_used(door: Call, tmp_path: Path) -> None:
    """`sample_0000` is the first row of the data, not the first in the order of ids."""
    flags = ("-m", "embedded", "--output-root", "out", "--save-attn", "--attn-full", "--attn-run-name", "mine")
    code, _, stderr = door("inference", "clotho", *flags, "--attn-layers", 0, "--attn-layers", 2, "--attn-plot-now")
    assert code == 0, stderr
    place = tmp_path / "out" / "embedded" / "clotho" / "attn" / "mine"
    run = tmp_path / "out/embedded/runs/evaluation/lalm/clotho/embedded/base-0/attention"
    assert sorted(folder.name for folder in place.glob("sample_*")) == [f"sample_000{number}" for number in range(3)]
    for number, name in enumerate(NAMES):
        folder = place / f"sample_{number:04d}"
        assert {file.name for file in folder.iterdir()} == {"attention.npz", "attn.npy", "meta.json", "tokens.json"}
        meta = read(folder / "meta.json")
        told = ("sample_id", "attn_run_name", "benchmark", "layers", "head_mean")
        assert [meta[key] for key in told] == [name, "mine", "lalm/clotho", [0, 2], True]
        maps = np.load(folder / "attn.npy", mmap_mode="r")
        assert maps.shape == (2, meta["seq_len"], meta["seq_len"])
        assert len(read(folder / "tokens.json")) == meta["seq_len"]
        assert (folder / "attention.npz").read_bytes() == (run / f"{file_name(name)}.npz").read_bytes()
    assert (place / "heads.png").is_file()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("run", "clotho", "--modle", "x"), "no such option"),
        (("walk", "clotho"), "'walk' is not one of"),
        (("run", "clotho", "-m", "gemma"), "unknown model 'gemma'"),
        (("inference", "clotho", "--attn-layers", "1"), "add --save-attn"),
        (("run", "clotho", "--limit", "1", "--sample_size", "1"), "--sample_size and --limit"),
        (("run", "clotho", "--judge", "qwen"), "need no judge"),
        (("run", "clotho", "--output", "x"), "name it with --model"),
        (("run", "mmau-pro", "-m", "embedded", "--judge", "nobody"), "unknown judge 'nobody'"),
        (("run", "clotho", "-m", "embedded", "--data", "nowhere"), "nowhere is not a folder"),
        (("run", "clotho", "-m", "embedded", "--split", "test"), "allowed for lalm/clotho: evaluation"),
        (("run", "clotho", "predictions.json"), "only for eval"),
        (("eval", "mmau-pro", "predictions.json"), "MMAU-Pro has predictions.parquet"),
        (("eval", "clotho", "predictions.json"), "cannot be read"),
        (("eval", "clotho", "predictions.json", "--save-attn"), "--save-attn"),
        (("eval", "clotho", "--split", "all", "--limit", "1"), "--split, --limit"),
        (("eval", "mmau-pro", "predictions.parquet", "--data", "x"), "--data"),
        (("eval", "clotho", "--sample_size", "1"), "--sample_size is not used by eval"),
        (("eval", "clotho", "--prompt", "short"), "--prompt is not used by eval"),
        (("run", "mmau-pro", "--input", "test.parquet"), "--input test.parquet: must be the file test.parquet of"),
        (("run", "mmau-pro", "--input", FOLDER / "README.md"), "README.md: must be the file test.parquet of MMAU-Pro"),
    ],
)
def test_a_wrong_command_line_of_a_benchmark_script_is_a_one_line_error_and_writes_nothing(
    door: Call, tmp_path: Path, arguments: tuple[str, ...], told: str
) -> None:
    code, _, stderr = door(*arguments)
    assert (code, told in stderr.lower() or told in stderr) == (2, True), stderr
    assert "Traceback" not in stderr
    assert [*tmp_path.iterdir()] == []


SCRIPTS = [FOLDER / "cli.py", *sorted(FOLDER.glob("src/**/*.py"))]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda file: file.relative_to(FOLDER).as_posix())
def test_every_script_shows_help_and_finds_the_benchmark_folder(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LALM_BENCH_ROOT", "")
    monkeypatch.setattr(sys, "argv", [str(script), "--help"])
    runpy.run_path(str(script), run_name="__main__")
    assert "--sample_size" in capsys.readouterr().out
    assert os.environ["LALM_BENCH_ROOT"] == str(FOLDER)


def script(name: str, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    try:
        runpy.run_path(str(FOLDER / "src" / name), run_name="__main__")
    except SystemExit as error:
        return int(error.code or 0)
    return 0


def test_every_script_takes_the_options_of_the_original_script(
    door: Call, tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clotho's script uses all splits by default."""
    out, scores, table = tmp_path / "there", tmp_path / "scores" / "mine.json", data / "mmau-pro" / "test.parquet"
    flags = ("--model", "embedded", "--batch-size", 8)
    assert script("clotho/inference.py", monkeypatch, *flags, "--limit", 4, "--output_json_path", out) == 0
    assert [prediction["audio_id"] for prediction in read(out / "predictions.json")] == [*VALIDATION, NAMES[0]]
    given = ("--input_json_path", out / "predictions.json", "--output_json_path", scores)
    assert script("clotho/evaluation.py", monkeypatch, *given) == 0
    assert read(scores)["evaluated_samples"] == 4
    monkeypatch.delenv("AUDIOMARATHON_DATA")
    given = ("--input", table, "--output", out, "--limit", 3, "--verbose", "--verbose_n", 1)
    assert script("mmau-pro/inference.py", monkeypatch, *flags, *given) == 0
    file = out / "predictions.parquet"
    assert parquet.read_table(file)["id"].to_pylist() == [row["id"] for row in ROWS[:3]]
    assert script("mmau-pro/evaluation.py", monkeypatch, file, "--model_output_column", "model_output") == 0
    results = read(out / "predictions_comprehensive_results.json")
    assert results["evaluation_summary"]["parquet_file"] == str(file)
    assert read(out / "debug_info.json")["n"] == 3


def test_if_model_path_is_embedded_any_model_name_runs_the_embedded_model(
    door: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MODEL_PATH", "embedded")
    code, _out, _err = door("inference", "clotho", "-m", "gemma3n", "--output-root", "./out")
    assert code == 0
    assert (tmp_path / "out" / "gemma3n" / "clotho" / "predictions.json").is_file()
