"""JASCO as a task: its rows, the prompts of a clip as one bundle, one audio tower pass per clip, a judged run."""

from __future__ import annotations

import csv
import dataclasses
import functools
import json
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import ExitStack
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from conftest import call, succeed
from fake_lm import FakeLM, evaluate
from jasco_folders import build_jasco, edit, write_judgements

from audiomarathon.benchmarks import get_task, registry, select
from audiomarathon.cli import doctor_checks
from audiomarathon.compression.registry import get_method
from audiomarathon.engine.batches import Plan
from audiomarathon.errors import DataError
from audiomarathon.report.page_data import own_scores
from audiomarathon.runs.folder import Job, RunFolder, read_records
from audiomarathon.runs.read import Run
from audiomarathon.wings.jasco.benchmark import JASCO
from audiomarathon.wings.jasco.exchange import NEEDED
from audiomarathon.wings.jasco.task import COLUMNS, read_csv

TASK = get_task("jasco")
REAL = os.environ.get("JASCO_DATA_PATH", "")  # a clone of the original, which may not be shipped here


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return build_jasco(tmp_path / "clone")


@pytest.mark.parametrize("below", ["", "dataset", "dataset/v0"])
def test_jasco_samples_load_from_the_cloned_repository_or_a_folder_inside_it(root: Path, below: str) -> None:
    loaded = TASK.load(TASK.find(root / below))
    assert [sample.id for sample in loaded.samples] == [f"{clip}-p{k}" for clip in (1, 2, 10) for k in range(1, 9)]
    first = loaded.samples[0]
    assert (first.cluster, first.bundle, first.clips[0].name) == ("1", "1", "1.wav")
    assert TASK.prompt(first) == TASK.reference(first)["prompt"] == first.question
    assert TASK.reference(first)["spoken_text"] == "Let’s build a castle over there. 1"
    assert TASK.groups(loaded.samples[9]) == {"prompt": "2"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda rows: rows[2].__setitem__(0, "3"), "clip '3.wav' is missing"),
        (lambda rows: rows[2].__setitem__(0, "../v0/1"), "holds more than letters"),
        (lambda rows: rows[2].__setitem__(0, "../../../1"), "holds more than letters"),
        (lambda rows: rows[2].__setitem__(0, "1"), "duplicate id '1', first used in row 1"),
        (lambda rows: rows[2].__setitem__(1, " "), "field 'Audio' is empty"),
    ],
)
def test_a_bad_row_of_the_jasco_table_is_reported_and_its_clip_is_left_out(
    root: Path, change: Callable[[list[list[str]]], object], reason: str
) -> None:
    edit(root, change)
    loaded = TASK.load(TASK.find(root))
    (bad,) = loaded.bad_rows
    assert bad.row == 2
    assert reason in bad.reason
    assert len(loaded.samples) == 16


def test_a_jasco_table_that_lacks_a_needed_column_is_refused(root: Path) -> None:
    edit(root, lambda rows: rows[0].__setitem__(3, "Sound"))
    with pytest.raises(DataError, match="lacks the column 'Audio-Only Answer'"):
        TASK.load(TASK.find(root))


@pytest.mark.parametrize("limit", [1, 7, 8, 9, 16, 17, 24, 99])
def test_a_sample_limit_selects_all_questions_of_a_clip_or_none(tmp_path: Path, limit: int) -> None:
    samples = TASK.load(TASK.find(build_jasco(tmp_path, (1, 2, 3, 4)))).samples
    chosen = select(samples, limit, 7)
    assert len(chosen) == min(32, -(-limit // 8) * 8)
    assert chosen == select(samples, 0, 7)[: len(chosen)]
    clips = [sample.bundle for sample in chosen]
    assert all(clips[start : start + 8] == [clips[start]] * 8 for start in range(0, len(clips), 8))


@pytest.mark.parametrize("size", [None, 4, 8])
def test_the_audio_tower_runs_once_per_clip_for_all_its_questions(root: Path, tmp_path: Path, size: int | None) -> None:
    samples = select(TASK.load(TASK.find(root)).samples, 0, 42)
    lm, methods = FakeLM(), [get_method("base"), get_method("frame", 0.5)]
    with ExitStack() as stack:
        jobs = [Job(method, stack.enter_context(RunFolder(tmp_path / method.label, {}))) for method in methods]
        evaluate(lm, Plan(Asked(), samples, 8, batch_size=size, warm_up=False), jobs)
    assert lm.audio_tower.runs == 3
    assert len(lm.calls) == 2 * 24 // (size or 1)
    if size is None:  # each record contains the time of the shared pass
        for clip in {sample.cluster for sample in samples}:
            ids = [f"{clip}-p{k}" for k in range(1, 9)]
            assert len({job.folder.records[id_].time["encoder"] for job in jobs for id_ in ids}) == 1
        assert all(record.encoder_shared for record in jobs[0].folder.records.values())


@pytest.mark.skipif(not REAL, reason="JASCO_DATA_PATH names no clone of github.com/BenoitWang/What_Are_They_Doing")
def test_the_real_clips_match_the_example_csv_of_the_original_repository() -> None:
    loaded = TASK.load(TASK.find(Path(REAL)))
    assert (len(loaded.samples), loaded.bad_rows) == (640, ())
    rows = {
        (row["id"], row["prompt"]): row for _line, row in read_csv(Path(REAL) / "evaluation" / "example.csv", NEEDED)
    }
    assert [*rows] == [(sample.cluster, sample.question) for sample in loaded.samples]
    for sample in loaded.samples:
        row = rows[sample.cluster, sample.question]
        assert {name: row[name] for name in COLUMNS} == {name: sample.meta[name] for name in COLUMNS}


class Asked(type(TASK)):
    """JASCO with each sample's id as its prompt."""

    def prompt(self, sample: Any) -> str:
        return str(sample.id)


def test_data_verify_counts_jasco_samples_and_names_download_source_and_licence(root: Path, tmp_path: Path) -> None:
    code, output = call("data", "verify", "jasco", "--data", root)
    assert code == 1
    assert "24 samples" in output
    assert "expected 640" in output
    printed = call("data", "verify", "jasco", "--data", tmp_path / "nowhere")[1]
    assert "audiomarathon data download jasco" in printed
    assert "CC BY-NC" in printed


def test_copying_jasco_or_making_a_control_of_it_keeps_all_samples(root: Path, tmp_path: Path) -> None:
    succeed("data", "download", "jasco", "--from", root, "--data", tmp_path / "root")
    taken = TASK.load(TASK.find(tmp_path / "root"))
    assert (len(taken.samples), taken.bad_rows) == (24, ())
    for kind in ("silence", "mismatched"):
        succeed("data", "controls", "jasco", "--data", root, "--control", kind, "-o", tmp_path / "c")
        made = TASK.load(TASK.find(tmp_path / "c" / kind))
        assert [(each.id, TASK.reference(each)) for each in made.samples] == [
            (each.id, TASK.reference(each)) for each in taken.samples
        ]


def test_the_download_command_prints_the_jasco_licence_before_downloading(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.make_archive(str(tmp_path / "main"), "zip", root.parent, root.name)
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        for name, code in {"gone.zip": 2, "main.zip": 0}.items():
            benchmark = dataclasses.replace(JASCO, archive=f"{address}/{name}")
            made = (registry.AUDIOMARATHON, benchmark)
            monkeypatch.setattr(registry, "built_in", lambda made=made: made)
            done, output = call("data", "download", "jasco", "--data", tmp_path / "root")
            assert done == code, output
            assert output.index("CC-BY-NC-4.0: not for commercial use") < output.index("downloading")
        server.shutdown()
    assert len(TASK.load(TASK.find(tmp_path / "root")).samples) == 24


def test_the_score_of_a_jasco_run_is_missing_until_judged_and_then_averages_the_judges(
    root: Path, tmp_path: Path, no_env: object
) -> None:
    out = tmp_path / "out"
    command = ("run", "jasco", "--model", "embedded", "--data", root, "--results", out, "--max-new-tokens", "4")
    assert call(*command, "--limit", "9")[0] == 0
    folder = next(out.rglob("run.json")).parent
    assert folder.relative_to(out).parts == ("jasco", "embedded", "base-0")
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["n"], summary["score"]) == (16, None)
    assert own_scores(Run.read(folder)) == []  # no reply is judged, so none scores 0
    records = [record for record in read_records(folder).values() if record.text.strip()]
    assert records
    texts = ("Rating: 2\nOrientation: Both", "Rating: 1\nOrientation: Speech-Oriented")
    write_judgements(folder, "a", [(record, texts[record.cluster == records[0].cluster]) for record in records])
    write_judgements(folder, "b", [(record, texts[0]) for record in records])
    succeed("score", folder)
    judged = json.loads((folder / "summary.json").read_text())
    empty = {record.cluster for record in read_records(folder).values()} - {record.cluster for record in records}
    assert (judged["best_mean: a"], judged["best_mean: b"]) == (1, 2 - len(empty))
    assert judged["score"] == pytest.approx((judged["best_mean: a"] + judged["best_mean: b"]) / 2)
    assert judged["as_published"]["best_mean"] == judged["score"]
    assert len(own_scores(Run.read(folder))) == 16
    before = (folder / "summary.json").read_bytes()
    (folder / "verdicts-jasco.jsonl").unlink()
    assert call("score", folder)[0] == 0
    assert (folder / "summary.json").read_bytes() == before


def test_runs_scored_by_different_judges_are_not_compared(
    root: Path, tmp_path: Path, no_env: Callable[[str, str], None]
) -> None:
    out = tmp_path / "out"
    no_env("MAX_NEW_TOKENS", "2")
    place = ("--model", "embedded", "--data", root, "--results", out)
    assert call("sweep", "jasco", *place, "--methods", "frame:0.5", "--limit", 8)[0] == 0
    assert "judge" in call("reproduce", "jasco", *place, "--limit", 8)[1]
    folders = {file.parent.name: file.parent for file in out.rglob("run.json")}
    for label, judges in {"base-0": "ab", "frame-0.5-layer2": "a"}.items():
        for judge in judges:
            asked = [record for record in read_records(folders[label]).values() if record.text.strip()]
            write_judgements(folders[label], judge, [(record, "Rating: 2\nOrientation: Both") for record in asked])
    assert call("score", out)[0] == 0
    code, output = call("compare", out)
    assert code == 2
    assert "only one has best_mean: b" in output
    output = succeed("jasco", "table", out, "-o", tmp_path / "t.csv")
    with (tmp_path / "t.csv").open(newline="") as stream:
        rows = {row["setting"]: row for row in csv.DictReader(stream)}
    summary = json.loads((folders["base-0"] / "summary.json").read_text())
    assert float(rows["embedded base-0"]["b"]) == summary["best_mean: b"]
    assert float(rows["embedded base-0"]["best_mean"]) == summary["best_mean"]
    assert rows["embedded frame-0.5-layer2"]["b"] == ""
    assert "judge a: not certified: it has judged no anchors" in " ".join(output.split())
    assert "best_mean and mean of different judges cannot be compared" in " ".join(output.split())
    code, output = call("jasco", "survival", out, "-o", tmp_path / "s")
    assert code == 0
    assert "not measurable" in output
    assert sorted(file.name for file in (tmp_path / "s").iterdir()) == ["survival.csv", "survival.json"]
    assert "base" in call("jasco", "survival", folders["base-0"])[1]
    assert "other judges (a, b)" in call("reproduce", "jasco", *place, "--limit", 8)[1]


def test_the_doctor_command_names_the_licence_of_jasco(root: Path, no_env: Callable[[str, str], None]) -> None:
    no_env("JASCO_DATA_PATH", str(root))
    (finding,) = (finding for finding in doctor_checks._data() if "data jasco" in finding.text)
    assert "CC-BY-NC-4.0: not for commercial use" in finding.text
