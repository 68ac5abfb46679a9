"""Runs, comparisons and pages from Python, as notebooks use them; the docs' snippet; the notebook of the docs."""

from __future__ import annotations

import json
import math
import pickle
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from builders import a_run, added, as_control, changed
from conftest import content_of, succeed

from audiomarathon import compare_runs, load_runs, write_report
from audiomarathon.engine.run import Result, score
from audiomarathon.errors import RecordError, SettingsError
from audiomarathon.report.render import Table, html_with_notes

ROOT = Path(__file__).parent.parent
NOTEBOOK = ROOT / "docs" / "notebooks" / "first_look.ipynb"


def complete(folder: Path) -> Path:
    """Give a run the summary that the engine would write."""
    return score(changed(folder, settings={"seed": 42}, sessions=[], bad_rows=[])).folder


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """base is always right, dart is half right and twice as fast, and random is not finished."""
    complete(a_run(tmp_path, "base-0", [True] * 8))
    complete(a_run(tmp_path, "dart-0.5-layer2", [True] * 4 + [False] * 4, prefill=0.5))
    a_run(tmp_path, "random-0.5-layer2", [True] * 3)
    return tmp_path


def test_the_summaries_data_frame_has_one_row_per_run(results: Path) -> None:
    frame = load_runs(results).summaries.set_index("setting")
    dart = frame.loc["dart-0.5-layer2"]
    assert (dart["checkpoint"], dart["task"], dart["method"], dart["ratio"]) == ("M", "tau", "dart", 0.5)
    assert (dart["n"], dart["score"], dart["llm_prefill_s"]) == (8, 0.5, 0.5)
    assert 0 <= dart["score_low"] < 0.5 < dart["score_high"] <= 1
    assert frame["llm_prefill_s"].dtype == float
    unfinished = frame.loc["random-0.5-layer2"]
    assert (unfinished["n"], unfinished["error"]) == (3, "not finished")
    assert math.isnan(unfinished["score"])


def test_the_records_data_frame_has_one_row_per_sample(results: Path) -> None:
    frame = load_runs(results).records
    assert len(frame) == 19
    scores = frame.groupby("setting")["own_score"].mean().to_dict()
    assert scores == {"base-0": 1.0, "dart-0.5-layer2": 0.5, "random-0.5-layer2": 1.0}


def test_load_runs_accepts_folders_lists_of_folders_and_results(results: Path) -> None:
    base, dart = (results / "tau" / "M" / label for label in ("base-0", "dart-0.5-layer2"))
    finished = [Result(folder, folder.name, {}) for folder in (base, dart)]
    for source in (results, str(results), [base, str(dart)], finished, load_runs(results)):
        assert set(load_runs(source).summaries["method"]) == {"base", "dart", "random"}  # random is included
    assert list(load_runs(finished[0]).summaries["method"]) == ["base"]


def test_the_table_of_compare_runs_equals_that_of_the_compare_command(results: Path, tmp_path: Path) -> None:
    succeed("compare", results, "--against", "dart-0.5-layer2", "-o", tmp_path / "table.csv")
    frame = compare_runs(results, "dart-0.5-layer2")
    assert frame.set_index("setting").loc["base-0", "difference"] == 0.5
    pd.testing.assert_frame_equal(pd.DataFrame(frame), pd.read_csv(tmp_path / "table.csv"), check_dtype=False)


def test_unknown_setting_names_and_invalid_run_sources_are_refused(results: Path) -> None:
    with pytest.raises(SettingsError, match=r"no setting is called bas-0 .did you mean 'base-0'"):
        compare_runs(results, "bas-0")
    for odd in (3, [3]):
        with pytest.raises(SettingsError, match="3 is not a run; allowed: folders"):
            load_runs(odd)
    with pytest.raises(SettingsError, match="two settings"):
        compare_runs(results / "tau" / "M" / "base-0")
    with pytest.raises(RecordError, match="no such folder"):
        load_runs(results / "nowhere")


def test_data_frames_are_displayed_as_the_tables_of_the_commands_with_added_columns(results: Path) -> None:
    frame, compared = load_runs(results).summaries, compare_runs(results)
    assert "0.500 [" in repr(frame)
    assert "<small> [" in frame._repr_html_()
    assert "against base-0" in repr(compared)
    assert ">-0.500<" in compared._repr_html_()
    pd.testing.assert_frame_equal(pd.DataFrame(pickle.loads(pickle.dumps(frame))), pd.DataFrame(frame))
    frame["mine"] = 7
    assert "mine" in repr(frame)
    assert "mine" in frame._repr_html_()
    assert type(frame.query("n == 8")) is pd.DataFrame


def test_html_markup_in_table_titles_and_notes_is_escaped() -> None:
    html = html_with_notes(Table.of([{"task": "<i>"}], title="<b>", notes=["<script>"]))
    assert not re.search(r"<(i|b|script)>", html)


def test_load_runs_gives_one_chart_per_task_and_one_of_the_mean_over_tasks(results: Path) -> None:
    charts = load_runs(results).charts
    assert list(charts) == ["tau", "mean"]
    assert charts["mean"] is charts["tau"]  # the docs' snippet asks for "mean" with runs of one task
    assert charts["tau"]._repr_svg_().startswith("<svg")


def test_control_runs_and_failed_samples_have_rows_in_the_summaries(results: Path) -> None:
    heard = complete(as_control(a_run(results / "silent", "base-0", [True] * 4)))
    failing = complete(changed(added(a_run(results, "fast_v-0.5-layer2", [True] * 2)), samples=["clip0", "clip1", "x"]))
    frame = load_runs([heard, failing]).summaries.set_index("setting")
    assert frame.loc["base-0 [silence]", "n"] == 4
    assert (frame.loc["fast_v-0.5-layer2", "n"], frame.loc["fast_v-0.5-layer2", "expected"]) == (2, 3)


def test_the_page_of_write_report_equals_that_of_the_report_command(results: Path, tmp_path: Path) -> None:
    written = write_report(results, tmp_path / "new" / "own.html", audio="none", spectrograms=False)
    succeed("report", results, "-o", tmp_path / "page.html", "--audio", "none", "--no-spectrograms")
    assert content_of(written.read_text()) == content_of((tmp_path / "page.html").read_text())
    with pytest.raises(SettingsError, match="allowed: link, embed, none"):
        write_report(results, tmp_path / "no.html", audio="loud")


@pytest.mark.long
@pytest.mark.usefixtures("no_env")
def test_the_code_snippet_of_the_catalogue_page_runs(tmp_path: Path, monkeypatch, capsys) -> None:
    (snippet,) = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "catalogue.md").read_text(encoding="utf-8"), re.DOTALL
    )
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(snippet, names)
    assert set(names["runs"].summaries["method"]) == {"base", "fast_v", "random"}
    assert "against base-0" in capsys.readouterr().out
    assert len(content_of((tmp_path / "report.html").read_text())["samples"]) == 4


@pytest.mark.long
@pytest.mark.usefixtures("no_env")
def test_every_cell_of_the_example_notebook_runs(tmp_path: Path) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook, place = nbformat.read(NOTEBOOK, as_version=4), {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources=place).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    kinds = [kind for output in outputs for kind in output.get("data", ())]
    assert (kinds.count("text/html"), kinds.count("image/svg+xml")) == (5, 1)
    assert (tmp_path / "results" / "first_look.html").exists()


def test_the_stored_notebook_was_executed_and_holds_no_local_path() -> None:
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} == {"execute_result"}  # no errors or warnings
    for output in outputs:
        assert not re.search(r"(^|[\s'\"(=])/\w", "".join(output["data"].get("text/plain", "")))
    assert NOTEBOOK.stat().st_size < 200_000
