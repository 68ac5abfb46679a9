"""A number is the same wherever it is shown, and every command finds the same runs."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from builders import (
    a_failed_record,
    a_run,
    a_session,
    a_timed_choice,
    added,
    changed,
    changed_records,
    finished,
    with_identity,
)
from typer.testing import CliRunner

from audiomarathon.benchmarks import registry
from audiomarathon.benchmarks.audiomarathon.benchmark import AUDIOMARATHON
from audiomarathon.cli.app import app
from audiomarathon.engine.run import Result, score
from audiomarathon.metrics.statistics import mean_over
from audiomarathon.report import tables
from audiomarathon.report.controls import control_runs
from audiomarathon.report.curves import MEAN, Panel, read_panels
from audiomarathon.report.page import PageOptions, page
from audiomarathon.report.page_data import PageData, scores_table
from audiomarathon.report.paper import write_paper
from audiomarathon.report.render import Table, cells, html, latex, markdown, rich_table
from audiomarathon.report.render import csv as as_csv
from audiomarathon.report.sections import sections
from audiomarathon.report.sweep_report import write_outcome
from audiomarathon.results.best import ranking_of
from audiomarathon.results.compare import Compared, compare
from audiomarathon.results.reproduce import reproduced
from audiomarathon.results.status import read_status
from audiomarathon.results.sweep_summary import Outcome, read_outcome
from audiomarathon.results.systems import System, find_reference, read_systems

DEMO = Path(__file__).parent / "data" / "made_by_8983bac" / "demo"
Figures = dict[tuple[str, str], Any]
"""A figure, by task and setting."""


def near(value: Any) -> Any:
    """Return an approximation that matches a value or interval up to the last digits. None stays None."""
    return value if value is None else pytest.approx(value, rel=1e-9, abs=1e-12)


def interval_in(row: dict[str, Any], name: str = "score") -> tuple[float, float] | None:
    """Return the interval of a metric in a table's row."""
    return None if row[f"{name}_low"] is None else (row[f"{name}_low"], row[f"{name}_high"])


def worded(score: float, interval: Any) -> str:
    """Return a score and its interval as tables show them."""
    return f"{score:.3f} " + ("[–]" if interval is None else "[{:.3f}, {:.3f}]".format(*interval))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten tasks under three settings, scored by this version, and a partial rerun by `reproduce`."""
    folder = shutil.copytree(DEMO, tmp_path_factory.mktemp("one") / "demo")
    for file in sorted(folder.rglob("run.json")):
        score(file.parent)
    again = folder / "reproduce-paper" / "tau" / "embedded" / "base-0"
    shutil.copytree(folder / "tau" / "embedded" / "base-0", again)
    lines = (again / "samples.jsonl").read_bytes().splitlines(keepends=True)
    (again / "samples.jsonl").write_bytes(b"".join(lines[:3]))
    return folder


@pytest.fixture(scope="module")
def summaries(results: Path) -> Figures:
    files = [file for file in results.rglob("summary.json") if len(file.relative_to(results).parts) == 4]
    return {(file.parts[-4], file.parts[-2]): json.loads(file.read_text()) for file in files}


@pytest.fixture(scope="module")
def golden(summaries: Figures) -> Figures:
    """Score and interval of every run, up to the last digits."""
    assert len(summaries) == 30
    return {key: (near(summary["score"]), near(summary["intervals"]["score"])) for key, summary in summaries.items()}


@pytest.fixture(scope="module")
def texts(summaries: Figures) -> dict[tuple[str, str], str]:
    """Score and interval of every run, as tables show them."""
    return {key: worded(summary["score"], summary["intervals"]["score"]) for key, summary in summaries.items()}


@pytest.fixture(scope="module")
def runs(results: Path, summaries: Figures) -> dict[tuple[str, str], Result]:
    return {(task, label): Result(results / task / "embedded" / label, label, summary)
            for (task, label), summary in summaries.items()}  # fmt: skip


@pytest.fixture(scope="module")
def systems(results: Path) -> list[System]:
    return list(read_systems([results]))


@pytest.fixture(scope="module")
def data(systems: list[System]) -> PageData:
    return PageData(systems)


@pytest.fixture(scope="module")
def compared(systems: list[System]) -> Compared:
    return compare(systems, find_reference(systems, None))


@pytest.fixture(scope="module")
def outcome(results: Path) -> Outcome:
    return read_outcome(results, seed=42)


@pytest.fixture(scope="module")
def panels(results: Path) -> list[Panel]:
    return list(read_panels([results]))


def of_status(results: Path, _tmp_path: Path) -> Figures:
    return {(row.task, row.setting): (row.progress.score, row.progress.interval) for row in read_status([results])}


def of_unfinished_status(results: Path, tmp_path: Path) -> Figures:
    """Without summaries the scores are computed from the records."""
    copy = shutil.copytree(results, tmp_path / "copy")
    for file in copy.rglob("summary.json"):
        file.unlink()
    return of_status(copy, tmp_path)


def of_page(results: Path, _tmp_path: Path) -> Figures:
    data = PageData(read_systems([results]))
    return {
        (scope, data.systems[place].method): (row["score"], interval_in(row))
        for (scope, place), row in data.figures.items()
        if scope in data.tasks
    }


def of_plots(results: Path, _tmp_path: Path) -> Figures:
    settings = [(panel.name, each) for panel in read_panels([results]) if panel.headline != MEAN
                for each in panel.settings]  # fmt: skip
    scores = {(task, setting.label): setting.figures["score"] for task, setting in settings}
    return {key: (score.value, score.interval) for key, score in scores.items()}


def of_paper(results: Path, tmp_path: Path) -> Figures:
    write_paper(PageData(read_systems([results])), tmp_path)
    scores = {}
    for file in {*tmp_path.glob("*.csv")} - {tmp_path / "records.csv", tmp_path / "mean.csv"}:
        for row in csv.DictReader(file.open()):
            interval = (float(row["score_low"]), float(row["score_high"])) if row["score_low"] else None
            scores[file.stem, row["setting"]] = float(row["score"]), interval
    return scores


def of_sweep_summary(results: Path, _tmp_path: Path) -> Figures:
    write_outcome(read_outcome(results, seed=42), results, "embedded")
    told = json.loads((results / "summary.json").read_text())["results"]
    scores = {(row["task"], row["setting"]): row["summary"] for row in told}
    rows = csv.DictReader((results / "summary.csv").open())
    assert {(row["task"], row["setting"]): float(row["score"]) for row in rows} == {
        key: near(summary["score"]) for key, summary in scores.items()
    }
    return {key: (summary["score"], summary["intervals"]["score"]) for key, summary in scores.items()}


class TestTheScoreOfARun:
    @pytest.mark.parametrize("view", [of_status, of_unfinished_status, of_page, of_plots, of_paper, of_sweep_summary])
    def test_the_score_of_a_run_in_every_view_equals_that_of_its_summary(
        self, view: Callable[[Path, Path], Figures], results: Path, golden: Figures, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        monkeypatch.setattr("vl_convert.vegalite_to_pdf", lambda _spec: b"")  # test_report_page.py looks at a PDF
        assert view(results, tmp_path) == golden

    def test_the_score_of_a_run_in_charts_of_controls_equals_that_of_its_summary(
        self, results: Path, golden: Figures
    ) -> None:
        rows = {tuple(row["task"].split(" · ")[::2]): row for row in control_runs([results]).frame.to_dict("records")}
        assert rows.keys() == golden.keys()
        for key, (value, interval) in golden.items():
            expected = (value, value) if interval is None else interval
            assert (rows[key]["score"], interval_in(rows[key])) == (value, expected)

    def test_the_score_of_a_run_in_printed_tables_equals_that_of_its_summary(
        self, data: PageData, runs: dict[tuple[str, str], Result], texts: Figures
    ) -> None:
        table = {col.header: [*map(str, col.cells)] for col in rich_table(tables.results([*runs.values()])).columns}
        assert table["score [95 % interval]"] == [*texts.values()]
        lines = [
            line.strip("| \n").split(" | ") for line in markdown(scores_table(data)).splitlines() if line[:1] == "|"
        ]
        head, _line, *body = lines
        shown = {(task, row[0]): cell.replace("**", "") for row in body for task, cell in zip(head, row, strict=True)}
        assert {key: shown[key] for key in texts} == texts

    def test_the_score_of_a_run_in_comparisons_equals_that_of_its_summary(
        self, compared: Compared, golden: Figures
    ) -> None:
        for row in compared.rows:
            if len(row.tasks) == 1:
                assert row.score == golden[row.scope, row.side][0]
                assert row.reference_score == golden[row.scope, "base-0"][0]

    def test_the_score_of_a_run_under_published_rules_equals_that_of_its_summary(
        self, runs: dict[tuple[str, str], Result]
    ) -> None:
        bases = {task: run for (task, label), run in runs.items() if label == "base-0"}
        for row in reproduced([*bases.values()], ""):
            if row["scope"] in bases:
                summary = bases[row["scope"]].summary
                block = summary.get("as_published") or summary["mean_of_samples"]
                assert row["mine"] == near(block.get("macro_f1", block.get("score")))


class TestTheDifferenceFromBase:
    def test_the_difference_from_base_is_identical_in_comparison_sweep_summary_and_report_page(
        self, systems: list[System], compared: Compared, data: PageData, outcome: Outcome
    ) -> None:
        rows = {(row.scope, row.side): row for row in compared.rows}
        shown = {
            (scope, systems[at].method): row for (scope, at), row in data.figures.items() if not row.get("is_base")
        }
        settings = [(task, each) for (_, task), group in outcome.groups.items() for each in group]
        swept = {(task, each.result.method): each for task, each in settings if each.result.method != "base-0"}
        assert {key for key, row in rows.items() if len(row.tasks) == 1} == swept.keys()
        assert rows.keys() == shown.keys()
        for key, row in rows.items():
            page_row, speed = shown[key], row.speed_ups["first_token"] or {}
            assert page_row["difference"] == near(row.verdict.difference)
            assert interval_in(page_row, "difference") == near(row.verdict.interval)
            assert page_row["p_holm"] == near(row.p_adjusted)
            assert page_row["first_token_speedup"] == near(speed.get("measured"))
            assert (page_row["shared"], page_row["timed"]) == (row.samples, row.timed)
        for key, setting in swept.items():
            told, saved = setting.against_base, setting.savings
            assert told["score"]["difference"] == near(rows[key].verdict.difference)
            assert told["score"]["interval"] == near(rows[key].verdict.interval)
            for stage, speed in rows[key].speed_ups.items():
                assert saved[stage]["measured"] == near((speed or {}).get("measured"))
                assert saved[stage]["interval"] == near((speed or {}).get("interval"))


class TestTheMeanOverTasks:
    def test_the_mean_over_tasks_is_identical_on_report_page_plots_paper_and_comparison(
        self, systems: list[System], data: PageData, compared: Compared, panels: list[Panel]
    ) -> None:
        page_rows = {systems[at].method: row for (scope, at), row in data.figures.items() if scope == "overall"}
        (panel,) = [panel for panel in panels if panel.headline == MEAN]
        plots = {setting.label: setting.figures["score"] for setting in panel.settings}
        paper = {row["setting"]: row for row in scores_table(data).frame.to_dict("records")}
        overall = {row.side: row for row in compared.rows if row.scope == "overall"}
        for system in systems:
            mean = mean_over([run.headline for run in system.runs.values()])
            label, expected = system.method, (near(mean.value), near(mean.interval))
            assert mean.interval is None or mean.low < mean.value < mean.high
            assert (page_rows[label]["score"], interval_in(page_rows[label])) == expected
            assert (paper[label]["overall"], interval_in(paper[label], "overall")) == expected
            assert (plots[label].value, plots[label].interval) == expected
            assert label not in overall or overall[label].score == expected[0]


class TestEveryFormatOfATable:
    """A table is one data frame. Terminal, Markdown, LaTeX, HTML and CSV output show the same content."""

    @pytest.fixture(params=range(5), ids=["results", "comparison", "savings", "scores", "differences"])
    def table(
        self, request: Any, runs: dict[Any, Result], compared: Compared, data: PageData, outcome: Outcome
    ) -> Table:
        return (
            tables.results([*runs.values()]),
            tables.comparison(compared),
            tables.sweep([setting for group in outcome.groups.values() for setting in group])[1],
            scores_table(data),
            scores_table(data, "difference"),
        )[request.param]

    def test_a_table_has_the_same_cells_in_markdown_html_latex_and_terminal(self, table: Table) -> None:
        expected = [[cell.text for cell in row] for row in cells(table)]
        assert expected
        lines = [line.strip("| \n").split(" | ") for line in markdown(table).splitlines() if line.startswith("|")][2:]
        assert [[cell.replace("**", "") for cell in row] for row in lines] == expected
        rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", html(table))[1:]]
        assert [[unescape(re.sub("</?small>", "", cell)) for cell in row] for row in rows] == expected
        body = latex(table).split("\\midrule\n")[1].split("\\bottomrule")[0].strip().splitlines()
        bare = [re.sub(r"\\textbf\{(.*?)\}", r"\1", row.removesuffix(r" \\")).replace("\\", "") for row in body]
        assert [row.replace("--", "–").split(" & ") for row in bare] == expected
        if not table.headed:
            columns = [list(map(str, column.cells)) for column in rich_table(table).columns]
            assert [list(row) for row in zip(*columns, strict=True)] == expected

    def test_csv_tables_hold_unrounded_values(self, table: Table) -> None:
        rows = csv.DictReader(as_csv(table).splitlines())
        for row, record in zip(rows, table.frame.to_dict("records"), strict=True):
            for name, value in record.items():
                if name in row and isinstance(value, float):
                    assert float(row[str(name)]) == value


def test_the_report_page_contains_its_tables_as_html(data: PageData) -> None:
    text = page(data, PageOptions(spectrograms=False)).partition('<script type="application/json"')[0]
    for table in (scores_table(data, narrow=True), scores_table(data, "difference", narrow=True)):
        assert html(table) in text


class TestWhichRunIsTheBase:
    """One run differs from base in one fact. All views agree whether scores and times may be compared."""

    @pytest.fixture
    def pruned(self, tmp_path: Path) -> Path:
        """A run that is twice as fast as base and gives the same replies, beside a run of `frame`."""
        for label, prefill in (("base-0", 1.0), ("frame-0.5-layer2", 0.5), ("dart-0.5-layer2", 0.5)):
            folder = a_run(tmp_path, label, [True] * 7 + [False], prefill=prefill, **self.SAME)
            changed(finished(folder), sessions=[a_session("s")])
        return folder

    SAME: ClassVar = {"checkpoint": "c", "dtype": "bfloat16", "attention": "sdpa", "seed": 42, "version": "1"}

    def looked_at(self, root: Path) -> SimpleNamespace:
        """Return what each view shows about `dart`."""
        systems = read_systems([root])
        (place,) = [at for at, system in enumerate(systems) if system.method.startswith("dart")]
        compared = compare(systems, find_reference(systems, None))
        (group,) = read_outcome(root, seed=42).groups.values()
        (panel,) = read_panels([root])
        return SimpleNamespace(
            row={row.side.split()[0]: row for row in compared.rows}.get("dart-0.5-layer2"),
            ranked={candidate.name.split()[0] for candidate in ranking_of(compared).candidates},
            swept=next(setting for setting in group if setting.result.method.startswith("dart")),
            figures=PageData(systems).figures["tau", place],
            drawn=next(setting for setting in panel.settings if setting.label.startswith("dart")),
        )

    def views(self, root: Path) -> dict[str, tuple[bool, bool]]:
        """Return by view whether the score of `dart` is compared with base's, and whether its times are."""
        see = self.looked_at(root)
        return {
            "compare": (see.row is not None, see.row is not None and see.row.speed_ups["first_token"] is not None),
            "ranking": (see.row is not None, "dart-0.5-layer2" in see.ranked),
            "sweep": (see.swept.against_base is not None, see.swept.savings["first_token"]["measured"] is not None),
            "page": (see.figures.get("difference") is not None, see.figures.get("first_token_speedup") is not None),
            "plot": (see.drawn.pairs is not None, "prefill_ms" in see.drawn.figures),
        }

    @pytest.mark.parametrize("lost", ["failed", "clip replaced", "not selected again"])
    def test_all_views_leave_out_samples_missing_in_the_base_run_or_the_pruned_run(
        self, pruned: Path, lost: str
    ) -> None:
        """A later run of base on fewer samples removes no sample."""
        if lost == "failed":
            added(pruned, a_failed_record("clip3"))
        elif lost == "clip replaced":
            added(pruned, a_timed_choice(3, right=True, prefill=0.5, clips="another"))
        else:
            base = changed(pruned.with_name("base-0"), samples=["clip0"])
            changed(base, "summary.json", n=1, expected=1)
        finished(pruned)
        see = self.looked_at(pruned.parents[2])
        scored = see.row.samples, see.figures["shared"], see.swept.against_base["samples"], len(see.drawn.pairs.pairs)
        timed = see.row.timed, see.figures["timed"], see.swept.savings["compared_samples"]
        assert {*scored, *timed} == {8 if lost == "not selected again" else 7}

    @pytest.mark.parametrize(
        ("identity", "compared"),
        [
            ({}, (True, True)),
            *(({name: "other"}, (False, False)) for name in ("prompts", "data", "version", "origin", "corpus")),
            *(({name: "other"}, (True, False)) for name in ("device", "sdpa_backends", "timing", "prefill_chunk")),
            ({"device": None}, (True, False)),
        ],
    )
    def test_all_views_agree_on_whether_a_run_and_a_base_run_under_other_conditions_are_compared(
        self, pruned: Path, identity: dict[str, Any], compared: tuple[bool, bool]
    ) -> None:
        with_identity(pruned, **identity)
        assert set(self.views(pruned.parents[2]).values()) == {compared}

    def test_no_view_compares_times_measured_in_sessions_with_different_machine_load(self, pruned: Path) -> None:
        """test_compare.py tests the other facts of a session."""
        changed(changed_records(pruned, session="t"), sessions=[a_session("t", busy=3.0)])
        assert set(self.views(pruned.parents[2]).values()) == {(True, False)}

    @pytest.mark.parametrize(
        ("identity", "said"),
        [({"dtype": "float32"}, "float32"), ({"code of model own": "2" * 16}, "model code 222222")],
    )
    def test_only_the_compare_command_compares_runs_made_under_different_conditions(
        self, pruned: Path, identity: dict[str, Any], said: str
    ) -> None:
        for folder in pruned.parent.iterdir():
            with_identity(folder, **dict.fromkeys(identity, "1" * 16))
        with_identity(pruned, **identity)
        by_view = self.views(pruned.parents[2])
        assert {by_view[name] for name in ("sweep", "page", "plot")} == {(False, False)}
        systems = read_systems([pruned.parents[2]])
        assert f"dart-0.5-layer2 {said}" in {system.name(with_checkpoint=False) for system in systems}

    def test_times_from_different_sessions_on_a_quiet_machine_are_in_tables_but_not_in_plots(
        self, pruned: Path
    ) -> None:
        """Tables compare the times with a note. No chart draws them, and no recommendation uses them."""
        changed(changed_records(pruned, session="t"), sessions=[a_session("t")])
        finished(pruned)
        by_view = self.views(pruned.parents[2])
        assert by_view.pop("plot") == (True, False)
        assert set(by_view.values()) == {(True, True)}
        found = sections(PageData(read_systems([pruned.parents[2]])))
        charts = [chart for section in found for group in section.charts.values() for chart in group]
        specs = [spec for chart in charts if "dart" in (spec := json.dumps(chart.vega_lite()))]
        assert specs
        assert not any(" ms" in spec or "ms," in spec or "×" in spec for spec in specs)


class TestWhichRuns:
    """Runs of `reproduce` lie in the same folder and cover other subsets of the same tasks."""

    @pytest.fixture
    def both(self, tmp_path: Path) -> Path:
        for label in ("base-0", "dart-0.5-layer2"):
            finished(a_run(tmp_path / "out", label, [True] * 6 + [False] * 2), model="toy")
            finished(a_run(tmp_path / "out" / "reproduce-paper", label, [True] * 3), model="toy")
        for file in (tmp_path / "out").rglob("run.json"):
            file.write_text(json.dumps(json.loads(file.read_text()) | {"model": "toy", "settings": {"seed": 1}}))
        return tmp_path / "out"

    def seen(self, folder: Path) -> dict[str, set[str]]:
        said = CliRunner().invoke(app, ["score", str(folder)]).output.replace("\n", "")
        panels = [panel for panel in read_panels([folder]) if panel.headline != MEAN]
        groups = read_outcome(folder, seed=1).groups.values()
        return {
            "status": {str(status.folder) for status in read_status([folder])},
            "score": {str(path) for path in folder.rglob("run.json") if str(path.parent) in said},
            "compare": {str(run.folder) for system in read_systems([folder]) for run in system.runs.values()},
            "plot": {setting.label for panel in panels for setting in panel.settings},
            "controls": set(control_runs([folder]).frame["task"]),
            "sweep": {str(setting.result.folder) for group in groups for setting in group},
        }

    def test_every_command_finds_the_same_runs_in_a_results_folder(self, both: Path) -> None:
        assert {name: len(settings) for name, settings in self.seen(both).items() if len(settings) != 2} == {}

    def test_runs_of_the_reproduce_command_are_found_if_their_folder_is_named(self, both: Path) -> None:
        by_command = self.seen(both / "reproduce-paper")
        assert {name: len(each) for name, each in by_command.items()} == dict.fromkeys(by_command, 2)
        assert all("reproduce-paper" in folder for folder in by_command["status"])


def test_task_weights_of_a_benchmark_apply_to_the_mean_in_every_view(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = {task.key: 1.0 + place for place, task in enumerate(AUDIOMARATHON.tasks)}
    made = (replace(AUDIOMARATHON, weights=weights),)
    monkeypatch.setattr(registry, "built_in", lambda: made)
    systems = read_systems([results])
    (base, frame, _random), data = systems, PageData(systems)
    ours, other = (
        sum(weights[key] * run.headline.value for key, run in system.runs.items()) / sum(weights.values())
        for system in (frame, base)
    )
    mean = data.figures["overall", systems.index(frame)]
    (panel,) = [panel for panel in read_panels([results]) if panel.headline == MEAN]
    (plot,) = [setting.figures["score"] for setting in panel.settings if setting.label == frame.method]
    (row,) = [row for row in compare(systems, base).rows if (row.scope, row.side) == ("overall", frame.method)]
    assert mean["score"] == plot.value == row.score == near(ours)
    assert (mean["score_low"], mean["score_high"]) == plot.interval
    assert plot.low < ours < plot.high
    assert row.verdict.difference == mean["difference"] == near(ours - other)
