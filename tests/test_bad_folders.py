"""Results folders from elsewhere: a bad file is reported, hides no other run, and does not block."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

import pytest
from builders import a_run, changed, finished, with_identity, write_run
from conftest import call
from jasco_folders import a_reply
from test_cli import one_error

from audiomarathon.errors import RecordError
from audiomarathon.files import file_name, write_json
from audiomarathon.lock import hold, is_held
from audiomarathon.report.curves import read_panels
from audiomarathon.report.page_data import PageData
from audiomarathon.report.paper import write_paper
from audiomarathon.report.pictures import plot_runs
from audiomarathon.results.status import read_status
from audiomarathon.results.systems import read_systems
from audiomarathon.runs.folder import RunFolder, read_records, read_run
from audiomarathon.text import spreadsheet

sys.path.append(str(Path(__file__).parent / "drills"))
from hanging import no_hang


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for label in ("base-0", "dart-0.5-layer2", "random-0.5-layer2"):
        finished(a_run(tmp_path / "runs", label, [True] * 4))
    return tmp_path / "runs"


ODD_SUMMARIES = (b'{"score": "0.5"}', b'{"kv_bytes": {}}', b'{"timing": 1}', b'{"intervals": {"score": ["0", "1"]}}')


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "cannot be read: it is empty"),
        (b' {"n": 4', "cannot be read: not complete JSON"),
        (b"\xff", "cannot be read"),
        (b"[]", "not a JSON object"),
        *((content, "its .* (has a value|must hold)") for content in ODD_SUMMARIES),
    ],
)
def test_a_run_with_an_unreadable_summary_counts_as_unfinished(runs: Path, content: bytes, said: str) -> None:
    (runs / "tau" / "M" / "dart-0.5-layer2" / "summary.json").write_bytes(content)
    with pytest.warns(UserWarning, match=rf"summary\.json: {said}"):
        (panel,) = read_panels([runs])
    assert [setting.label for setting in panel.settings] == ["base-0", "random-0.5-layer2"]


def test_a_folder_with_records_but_no_run_json_is_reported(runs: Path) -> None:
    (runs / "tau" / "M" / "dart-0.5-layer2" / "run.json").unlink()
    with pytest.warns(UserWarning, match=r"left out: .*dart-0\.5-layer2: .*no run\.json"):
        assert [system.method for system in read_systems([runs])] == ["base-0", "random-0.5-layer2"]
    assert [status.state for status in read_status([runs])] == ["complete", "unreadable", "complete"]


def test_the_score_command_scores_the_other_runs_after_an_unreadable_run_folder(runs: Path) -> None:
    for file in runs.rglob("run.json"):
        missing = dict.fromkeys(("data_samples", "data_expected", "left_out"))
        changed(file.parent, settings={"seed": 1}, sessions=[], bad_rows=[], **missing)
    (runs / "tau" / "M" / "base-0" / "run.json").write_text("{")
    code, said = call("score", runs)
    assert (code, said.count("records in")) == (2, 2)
    assert "base-0/run.json: cannot be read" in said


JASCO = {"task": "jasco", "method": "base-0", "checkpoint": "/m/M"}


def test_the_judge_command_names_a_sample_whose_reference_lacks_a_field(tmp_path: Path) -> None:
    write_run(tmp_path / "run", JASCO, [asdict(a_reply(1, 1)) | {"reference": {"prompt": "What?"}}])
    code, said = call("judge", tmp_path, "--with", "toy")
    assert code == 2
    assert "sample 1-p1" in one_error(said)


def test_pictures_and_tables_named_after_a_hostile_task_name_stay_in_the_output_folder(
    runs: Path, tmp_path: Path, undrawn: None
) -> None:
    for name in ("../../out", "/etc/out", ".bashrc", "a\0b", "x" * 300, "..", ""):
        assert Path(file_name(name)).name == file_name(name)
        assert not file_name(name).startswith(".")
        assert len(file_name(name)) < 140
    assert (file_name("tau-M"), file_name("a/b") != file_name("a_b")) == ("tau-M", True)
    for file in runs.rglob("summary.json"):
        file.write_text(file.read_text().replace('"tau"', '"../../../escaped"'))
    before = {*tmp_path.rglob("*")}
    plot_runs([runs], tmp_path / "x" / "y")
    write_paper(PageData(read_systems([runs])), tmp_path / "x" / "y")
    made = {*tmp_path.rglob("*")} - before - {tmp_path / "x", tmp_path / "x" / "y"}
    assert len(made) == 6
    assert all(path.parent == tmp_path / "x" / "y" for path in made)


def test_a_run_json_with_nested_methods_and_lists_in_its_identity_is_read_back_unchanged(runs: Path) -> None:
    folder = runs / "tau" / "M" / "dart-0.5-layer2"
    more = {"first": {"method": "fast_v", "ratio": 0.5}, "second": {"method": "snapkv"}, "widths": [1, 2]}
    identity = read_run(folder)["identity"] | more
    with_identity(folder, **more)
    assert read_run(folder)["identity"] == identity
    assert len(read_systems([runs])) == 3
    with RunFolder(folder, identity) as again:
        assert len(again.records) == 4


@pytest.mark.parametrize("name", ["samples.jsonl", "run.json", "summary.json", ".lock"])
def test_a_fifo_in_a_run_folder_is_refused_and_does_not_block(runs: Path, name: str) -> None:
    folder = runs / "tau" / "M" / "dart-0.5-layer2"
    identity = read_run(folder)["identity"]
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    warns = nullcontext() if name == ".lock" else pytest.warns(UserWarning, match="a FIFO, not a plain file")
    told = rf"{name}( cannot be locked)?: (cannot be \w+: )?a FIFO, not a plain file"
    refused = nullcontext() if name == "summary.json" else pytest.raises(RecordError, match=told)
    with no_hang(20):
        with warns:
            read_panels([runs])
        read_status([runs])
        assert not is_held(folder / ".lock")
        with refused, RunFolder(folder, identity):
            pass


@pytest.mark.parametrize("name", ["samples.jsonl", "run.json", "summary.json"])
def test_a_run_file_of_five_terabytes_is_reported_as_too_large(runs: Path, name: str) -> None:
    """A sparse file takes no room on the disk."""
    with (runs / "tau" / "M" / "dart-0.5-layer2" / name).open("r+b") as file:
        file.truncate(5 << 40)
    with pytest.warns(UserWarning, match=rf"{name}: cannot be read: 5,497,558,138,880 bytes, too large"):
        read_panels([runs])
    read_status([runs])


def test_a_folder_in_place_of_samples_jsonl_is_refused(runs: Path) -> None:
    file = runs / "tau" / "M" / "base-0" / "samples.jsonl"
    file.unlink()
    file.mkdir()
    with pytest.raises(RecordError, match="a folder, not a plain file"):
        read_records(file.parent)


@pytest.mark.parametrize("name", [".lock", "samples.jsonl", "samples.rejected"])
def test_writing_results_does_not_follow_a_symbolic_link_in_a_run_folder(tmp_path: Path, name: str) -> None:
    target, folder = tmp_path / "precious", a_run(tmp_path, "base-0", [True])
    target.write_text("precious, without a line break")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(target)
    if name == "samples.rejected":
        (folder / "samples.jsonl").write_text("no record\n")
    with pytest.raises(RecordError, match="a link, not a plain file"), RunFolder(folder, read_run(folder)["identity"]):
        pass
    assert target.read_text() == "precious, without a line break"


def test_writing_a_file_does_not_follow_a_symbolic_link_planted_under_its_temporary_name(tmp_path: Path) -> None:
    (tmp_path / ".run.json.new").symlink_to(tmp_path / "precious")
    (tmp_path / "precious").write_text("x")
    write_json(tmp_path / "run.json", {})
    assert (tmp_path / "precious").read_text() == "x"
    with hold(tmp_path / "lock"):
        assert is_held(tmp_path / "lock")


@pytest.mark.parametrize("cell", ["=1", "\n=1", " +1", "\t=1", "\u00a0@x", "\r\n-1"])
def test_a_spreadsheet_formula_in_a_table_cell_is_escaped(cell: str) -> None:
    shown = str(spreadsheet(cell))
    assert shown.startswith(("'", "\\x"))
    assert spreadsheet("a = b") == "a = b"


def test_a_spreadsheet_formula_in_a_setting_name_is_escaped(runs: Path, tmp_path: Path) -> None:
    for file in runs.rglob("dart*/run.json"):
        file.write_text(file.read_text().replace('"dart', '"=HYPERLINK(1)'))
    write_paper(PageData(read_systems([runs])), tmp_path / "figures")
    lines = (tmp_path / "figures" / "tau.csv").read_text().splitlines()
    assert sum(line.startswith("'=H") for line in lines) == 1
    assert not [line for line in lines if line.startswith("=H")]


@pytest.mark.parametrize(
    ("name", "value"),
    [("identity", ["x"]), ("identity", {"checkpoint": {"a": 1}}), ("sessions", ["x"]), ("control", "x"), ("cost", 1)],
)
def test_a_run_json_with_fields_of_wrong_types_is_reported_and_the_other_runs_are_read(
    runs: Path, name: str, value: object
) -> None:
    folder = changed(runs / "tau" / "M" / "dart-0.5-layer2", **{name: value})
    with pytest.warns(UserWarning, match=rf"left out: .*run\.json: .*'({name}|checkpoint)' (has a value|must)"):
        assert [system.method for system in read_systems([runs])] == ["base-0", "random-0.5-layer2"]
    assert [status.state for status in read_status([runs])] == ["complete", "unreadable", "complete"]
    with pytest.raises(RecordError, match=f"'({name}|checkpoint)' (has a value|must)"), RunFolder(folder, {}):
        pass
