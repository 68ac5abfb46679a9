"""A figure is the same wherever it stands, and every command finds the same runs."""

from __future__ import annotations

import csv
import json
import re
import shutil
from dataclasses import replace
from html import unescape
from pathlib import Path
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
    """Return what equals a value up to the last digits; None stays None."""
    return value if value is None else pytest.approx(value, rel=1e-9, abs=1e-12)


def pair(interval: Any) -> Any:
    return None if interval is None else pytest.approx(tuple(interval), rel=1e-9, abs=1e-12)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten tasks under three settings, scored by this version, and a part of them run again by `reproduce`."""
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
def golden(summaries: Figures) -> dict[tuple[str, str], tuple[float, Any]]:
    """Score and interval of every run."""
    assert len(summaries) == 30
    return {key: (one["score"], one["intervals"]["score"]) for key, one in summaries.items()}


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


class TestTheScoreOfARun:
    def test_in_status(self, results: Path, golden: Figures) -> None:
        found = {(one.task, one.setting): one.progress for one in read_status([results])}
        assert found.keys() == golden.keys()
        for key, (value, interval) in golden.items():
            assert (found[key].score, found[key].interval) == (near(value), pair(interval))

    def test_in_status_while_it_runs(self, results: Path, golden: Figures, tmp_path: Path) -> None:
        """Without a summary it is worked out of the records, to the same figure."""
        copy = shutil.copytree(results / "race", tmp_path / "race")
        for file in copy.rglob("summary.json"):
            file.unlink()
        for one in read_status([copy]):
            value, interval = golden["race", one.setting]
            assert (one.progress.score, one.progress.interval) == (near(value), pair(interval))

    def test_on_the_page(self, data: PageData, golden: Figures) -> None:
        own = {place: row for place, row in data.figures.items() if place[0] in data.tasks}
        rows = {(scope, data.systems[place].method): row for (scope, place), row in own.items()}
        assert rows.keys() == golden.keys()
        for key, (value, interval) in golden.items():
            low_high = None if rows[key]["score_low"] is None else (rows[key]["score_low"], rows[key]["score_high"])
            assert (rows[key]["score"], low_high) == (near(value), pair(interval))

    def test_in_plots(self, panels: list[Panel], golden: Figures) -> None:
        tasks = [panel for panel in panels if panel.headline != MEAN]
        found = {(panel.name, one.label): one.figures["score"] for panel in tasks for one in panel.settings}
        assert found.keys() == golden.keys()
        for key, (value, interval) in golden.items():
            assert (found[key].value, found[key].interval) == (near(value), pair(interval))

    def test_in_pictures_of_controls(self, results: Path, golden: Figures) -> None:
        rows = control_runs([results]).frame.to_dict("records")
        found = {tuple(row["task"].split(" · ")[::2]): row for row in rows}
        assert found.keys() == golden.keys()
        for key, (value, interval) in golden.items():
            low_high = found[key]["score_low"], found[key]["score_high"]
            assert (found[key]["score"], low_high) == (near(value), pair(interval or (value, value)))

    def test_in_papers_files(
        self, data: PageData, golden: Figures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("vl_convert.vegalite_to_pdf", lambda _spec: b"")  # test_report_page.py looks at a PDF
        write_paper(data, tmp_path)
        rows = {
            (file.stem, row["setting"]): row for file in tmp_path.glob("*.csv") for row in csv.DictReader(file.open())
        }
        head, _line, *body = [
            line.strip("| \n").split(" | ") for line in (tmp_path / "scores.md").open() if line[0] == "|"
        ]
        shown = {(task, row[0]): cell for row in body for task, cell in zip(head[1:], row[1:], strict=True)}
        for key, (value, interval) in golden.items():
            assert float(rows[key]["score"]) == near(value)
            low, high = rows[key]["score_low"], rows[key]["score_high"]
            assert (None if low == "" else (float(low), float(high))) == pair(interval)
            text = f"{value:.3f} " + ("[–]" if interval is None else "[{:.3f}, {:.3f}]".format(*interval))
            assert shown[key].replace("**", "") == text

    def test_in_tables(self, results: Path, summaries: Figures, golden: Figures) -> None:
        runs = [Result(results / task / "embedded" / label, label, one) for (task, label), one in summaries.items()]
        table = {column.header: list(map(str, column.cells)) for column in rich_table(tables.results(runs)).columns}
        for place, (value, interval) in enumerate(golden.values()):
            text = f"{value:.3f} " + ("[–]" if interval is None else "[{:.3f}, {:.3f}]".format(*interval))
            assert table["score [95 % interval]"][place] == text

    def test_in_the_summary_of_sweeps(self, results: Path, outcome: Outcome, golden: Figures) -> None:
        write_outcome(outcome, results, "embedded")
        told = json.loads((results / "summary.json").read_text())["results"]
        rows = {(row["task"], row["setting"]): row for row in csv.DictReader((results / "summary.csv").open())}
        assert {(one["task"], one["setting"]) for one in told} == golden.keys() == rows.keys()
        for one in told:
            value, interval = golden[one["task"], one["setting"]]
            assert (one["summary"]["score"], one["summary"]["intervals"]["score"]) == (near(value), interval)
            assert float(rows[one["task"], one["setting"]]["score"]) == near(value)

    def test_in_comparisons(self, compared: Compared, golden: Figures) -> None:
        for row in compared.rows:
            if len(row.tasks) == 1:
                assert row.score == near(golden[row.scope, row.side][0])
                assert row.reference_score == near(golden[row.scope, "base-0"][0])

    def test_as_published(self, results: Path, summaries: Figures) -> None:
        bases = {task: one for (task, label), one in summaries.items() if label == "base-0"}
        rows = reproduced(
            [Result(results / task / "embedded" / "base-0", "base-0", one) for task, one in bases.items()], ""
        )
        for row in rows:
            if row["scope"] in bases:
                block = bases[row["scope"]].get("as_published") or bases[row["scope"]]["mean_of_samples"]
                assert row["mine"] == near(block.get("macro_f1", block.get("score")))


class TestTheDifferenceFromBase:
    def test_of_scores_and_times(
        self, systems: list[System], compared: Compared, data: PageData, outcome: Outcome
    ) -> None:
        """In the comparison, in a sweep's summary, and on the page."""
        rows = {(row.scope, row.side): row for row in compared.rows}
        figures = data.figures.items()
        shown = {(scope, systems[at].method): row for (scope, at), row in figures if not row.get("is_base")}
        swept = {
            (task, one.result.method): one
            for (_, task), group in outcome.groups.items()
            for one in group
            if one.result.method != "base-0"
        }
        tasks = {key for key, row in rows.items() if len(row.tasks) == 1}
        assert tasks == swept.keys()
        assert rows.keys() == shown.keys()
        for key, row in rows.items():
            own, speed = shown[key], row.speed_ups["first_token"] or {}
            assert own["difference"] == near(row.verdict.difference)
            interval = None if own["difference_low"] is None else (own["difference_low"], own["difference_high"])
            assert interval == pair(row.verdict.interval)
            assert own["p_holm"] == near(row.p_adjusted)
            assert own["first_token_speedup"] == near(speed.get("measured"))
            assert (own["shared"], own["timed"]) == (row.samples, row.timed)
        for key in tasks:
            told, saved = swept[key].against_base, swept[key].savings
            assert told is not None
            assert told["score"]["difference"] == near(rows[key].verdict.difference)
            assert told["score"]["interval"] == pair(rows[key].verdict.interval)
            for stage, speed in rows[key].speed_ups.items():
                assert saved[stage]["measured"] == near((speed or {}).get("measured"))
                assert saved[stage]["interval"] == pair((speed or {}).get("interval"))


class TestTheMeanOverTasks:
    def test_and_its_interval(
        self, systems: list[System], data: PageData, compared: Compared, panels: list[Panel]
    ) -> None:
        """On the page, in plots, in the paper's table and in the comparison."""
        own = {systems[place].method: row for (scope, place), row in data.figures.items() if scope == "overall"}
        (panel,) = [panel for panel in panels if panel.headline == MEAN]
        plots = {one.label: one.figures["score"] for one in panel.settings}
        paper = {row["setting"]: row for row in scores_table(data).frame.to_dict("records")}
        overall = {row.side: row for row in compared.rows if row.scope == "overall"}
        for system in systems:
            one = mean_over([run.headline for run in system.runs.values()])
            label, interval = system.method, pair(one.interval)
            assert one.interval is None or one.low < one.value < one.high
            for found, name in ((own[label], "score"), (paper[label], "overall")):
                low_high = None if found[f"{name}_low"] is None else (found[f"{name}_low"], found[f"{name}_high"])
                assert (found[name], low_high) == (near(one.value), interval)
            assert (plots[label].value, plots[label].interval) == (near(one.value), interval)
            if label in overall:
                assert overall[label].score == near(one.value)


class TestEveryFormatOfATable:
    """A view is one frame; a terminal, Markdown, LaTeX, HTML and CSV are drawn from it, and say the same."""

    @pytest.fixture(params=["results", "comparison", "savings", "scores", "differences"])
    def table(
        self, request: pytest.FixtureRequest, results: Path, summaries: Figures, compared: Compared, data: PageData,
        outcome: Outcome,
    ) -> Table:  # fmt: skip
        runs = [Result(results / task / "embedded" / label, label, one) for (task, label), one in summaries.items()]
        made: dict[str, Any] = {
            "results": lambda: tables.results(runs),
            "comparison": lambda: tables.comparison(compared),
            "savings": lambda: tables.sweep([one for own in outcome.groups.values() for one in own])[1],
            "scores": lambda: scores_table(data),
            "differences": lambda: scores_table(data, "difference"),
        }
        found: Table = made[request.param]()
        return found

    def test_says_the_same(self, table: Table) -> None:
        wanted = [[cell.text for cell in row] for row in cells(table)]
        assert wanted
        lines = [line.strip("| \n").split(" | ") for line in markdown(table).splitlines() if line.startswith("|")][2:]
        assert [[cell.replace("**", "") for cell in row] for row in lines] == wanted
        rows = re.findall(r"<tr>(.*?)</tr>", html(table))[1:]
        each = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in rows]
        assert [[unescape(re.sub("</?small>", "", cell)) for cell in row] for row in each] == wanted
        body = latex(table).split("\\midrule\n")[1].split("\\bottomrule")[0].strip().splitlines()
        bare = [re.sub(r"\\textbf\{(.*?)\}", r"\1", row.removesuffix(r" \\")).replace("\\", "") for row in body]
        assert [row.replace("--", "–").split(" & ") for row in bare] == wanted
        if not table.headed:
            columns = [list(map(str, column.cells)) for column in rich_table(table).columns]
            assert [list(row) for row in zip(*columns, strict=True)] == wanted

    def test_csv_has_every_digit(self, table: Table) -> None:
        rows = list(csv.DictReader(as_csv(table).splitlines()))
        for row, own in zip(rows, table.frame.to_dict("records"), strict=True):
            for name, value in own.items():
                if name in row and isinstance(value, float):
                    assert float(row[str(name)]) == value


def test_the_page_shows_what_its_tables_hold(data: PageData) -> None:
    text = page(data, PageOptions(spectrograms=False)).partition('<script type="application/json"')[0]
    for table in (scores_table(data, narrow=True), scores_table(data, "difference", narrow=True)):
        assert html(table) in text


class TestWhichRunIsTheBase:
    """One run differs from base in one fact: every view says alike whether scores and times may be compared."""

    @pytest.fixture
    def pruned(self, tmp_path: Path) -> Path:
        """A run that is twice as fast as base and gives the same replies; `frame` stands beside it."""
        for label, prefill in (("base-0", 1.0), ("frame-0.5-layer2", 0.5), ("dart-0.5-layer2", 0.5)):
            folder = a_run(tmp_path, label, [True] * 7 + [False], prefill=prefill, **self.SAME)
            changed(finished(folder), sessions=[a_session("s")])
        return folder

    SAME: ClassVar = {"checkpoint": "c", "dtype": "bfloat16", "attention": "sdpa", "seed": 42, "version": "1"}

    def views(self, root: Path) -> dict[str, tuple[bool, bool]]:
        """By view, whether the score of `dart` is compared with base's, and whether its times are."""
        systems = read_systems([root])
        (place,) = [at for at, one in enumerate(systems) if one.method.startswith("dart")]
        compared = compare(systems, find_reference(systems, None))
        rows = {row.side.split()[0]: row for row in compared.rows}
        own = PageData(systems).figures["tau", place]
        ranked = {one.name.split()[0] for one in ranking_of(compared).candidates}
        (group,) = read_outcome(root, seed=42).groups.values()
        (swept,) = [one for one in group if one.result.method.startswith("dart")]
        (panel,) = read_panels([root])
        (drawn,) = [one for one in panel.settings if one.label.startswith("dart")]
        row = rows.get("dart-0.5-layer2")
        return {
            "compare": (row is not None, row is not None and row.speed_ups["first_token"] is not None),
            "ranking": (row is not None, "dart-0.5-layer2" in ranked),
            "sweep": (swept.against_base is not None, swept.savings["first_token"]["measured"] is not None),
            "page": (own.get("difference") is not None, own.get("first_token_speedup") is not None),
            "plot": (drawn.pairs is not None, "prefill_ms" in drawn.figures),
        }

    def test_if_nothing_differs(self, pruned: Path) -> None:
        assert set(self.views(pruned.parents[2]).values()) == {(True, True)}

    @pytest.mark.parametrize("lost", ["failed", "clip replaced", "not selected again", ""])
    def test_samples_that_only_one_side_has_are_left_out(self, pruned: Path, lost: str) -> None:
        """A later, smaller run of base takes no sample away."""
        if lost == "failed":
            added(pruned, a_failed_record("clip3"))
        elif lost == "clip replaced":
            added(pruned, a_timed_choice(3, right=True, prefill=0.5, clips="another"))
        elif lost == "not selected again":
            base = changed(pruned.with_name("base-0"), samples=["clip0"])
            changed(base, "summary.json", n=1, expected=1)
        finished(pruned)
        systems = read_systems([pruned.parents[2]])
        rows = {row.side: row for row in compare(systems, find_reference(systems, None)).rows}
        (place,) = [at for at, one in enumerate(systems) if one.method.startswith("dart")]
        figures = PageData(systems).figures["tau", place]
        (group,) = read_outcome(pruned.parents[2], seed=42).groups.values()
        (swept,) = [one for one in group if one.result.method.startswith("dart")]
        (panel,) = read_panels([pruned.parents[2]])
        (drawn,) = [one for one in panel.settings if one.label.startswith("dart")]
        scored = (
            rows["dart-0.5-layer2"].samples,
            figures["shared"],
            swept.against_base["samples"],
            len(drawn.pairs.pairs),
        )
        timed = rows["dart-0.5-layer2"].timed, figures["timed"], swept.savings["compared_samples"]
        assert {*scored, *timed} == {8 if lost in ("not selected again", "") else 7}

    @pytest.mark.parametrize(
        "identity",
        [{name: "other"} for name in ("prompts", "data", "max_new_tokens", "version", "origin", "corpus")],
        ids=lambda identity: next(iter(identity)),
    )
    def test_if_the_question_differs(self, pruned: Path, identity: dict[str, Any]) -> None:
        with_identity(pruned, **identity)
        assert set(self.views(pruned.parents[2]).values()) == {(False, False)}

    @pytest.mark.parametrize(
        ("identity", "said"),
        [({"dtype": "float32"}, "float32"), ({"attention": "eager"}, "eager"), ({"seed": 7}, "seed 7")],
    )
    def test_if_the_conditions_differ(self, pruned: Path, identity: dict[str, Any], said: str) -> None:
        """Only a comparison that was asked for sets it beside base, under a name that says so."""
        with_identity(pruned, **identity)
        found = self.views(pruned.parents[2])
        assert {name: each for name, each in found.items() if name not in ("compare", "ranking")} == dict.fromkeys(
            ("sweep", "page", "plot"), (False, False)
        )
        systems = read_systems([pruned.parents[2]])
        assert f"dart-0.5-layer2 {said}" in {one.name(with_checkpoint=False) for one in systems}

    def test_if_the_code_of_a_model_differs(self, pruned: Path) -> None:
        for folder in pruned.parent.iterdir():
            with_identity(folder, **{"code of model own": "1" * 16})
        self.test_if_the_conditions_differ(pruned, {"code of model own": "2" * 16}, "model code 222222")

    @pytest.mark.parametrize("device", ["other gpu", None])
    def test_if_the_device_differs(self, pruned: Path, device: str | None) -> None:
        with_identity(pruned, device=device)
        assert set(self.views(pruned.parents[2]).values()) == {(True, False)}

    @pytest.mark.parametrize("identity", [{"sdpa_backends": "cudnn"}, {"timing": "cold"}, {"prefill_chunk": 64}])
    def test_if_a_gpu_was_timed_in_another_way(self, pruned: Path, identity: dict[str, Any]) -> None:
        with_identity(pruned, **identity)
        assert set(self.views(pruned.parents[2]).values()) == {(True, False)}

    @pytest.mark.parametrize(
        "session",
        [a_session("t", cpu="other cpu"), a_session("t", threads=4), a_session("t", busy=3.0), {"started": "t"}],
        ids=["cpu", "threads", "busy", "unknown"],
    )
    def test_if_another_session_is_not_known_to_be_alike(self, pruned: Path, session: dict[str, Any]) -> None:
        changed(changed_records(pruned, session="t"), sessions=[session])
        assert set(self.views(pruned.parents[2]).values()) == {(True, False)}

    def test_if_workers_shared_the_machine(self, pruned: Path) -> None:
        changed(pruned, sessions=[a_session("s") | {"workers_sharing": 2}])
        assert set(self.views(pruned.parents[2]).values()) == {(True, False)}

    def test_if_a_quiet_session_on_the_same_machine_is_another(self, pruned: Path) -> None:
        """Tables compare its times with a note; no picture draws them, and nothing is recommended from them."""
        changed(changed_records(pruned, session="t"), sessions=[a_session("t")])
        finished(pruned)
        found = self.views(pruned.parents[2])
        assert found.pop("plot") == (True, False)
        assert set(found.values()) == {(True, True)}
        data = PageData(read_systems([pruned.parents[2]]))
        specs = [
            json.dumps(chart.vega_lite()) for one in sections(data) for own in one.charts.values() for chart in own
        ]
        assert any("dart" in spec for spec in specs)
        assert not any("dart" in spec for spec in specs if " ms" in spec or "ms," in spec or "×" in spec)


class TestWhichRuns:
    """What `reproduce` ran lies in the same folder, and is other subsets of the same tasks."""

    @pytest.fixture
    def both(self, tmp_path: Path) -> Path:
        for label in ("base-0", "dart-0.5-layer2"):
            finished(a_run(tmp_path / "out", label, [True] * 6 + [False] * 2), model="toy")
            finished(a_run(tmp_path / "out" / "reproduce-paper", label, [True] * 3), model="toy")
        for file in (tmp_path / "out").rglob("run.json"):
            file.write_text(json.dumps(json.loads(file.read_text()) | {"model": "toy", "settings": {"seed": 1}}))
        return tmp_path / "out"

    def seen(self, folder: Path) -> dict[str, set[str]]:
        done = CliRunner().invoke(app, ["score", str(folder)])
        panels = [panel for panel in read_panels([folder]) if panel.headline != MEAN]
        systems = read_systems([folder])
        return {
            "status": {str(one.folder) for one in read_status([folder])},
            "score": {
                str(path) for path in folder.rglob("run.json") if str(path.parent) in done.output.replace("\n", "")
            },
            "compare": {str(run.folder) for system in systems for run in system.runs.values()},
            "plot": {one.label for panel in panels for one in panel.settings},
            "controls": set(control_runs([folder]).frame["task"]),
            "sweep": {
                str(one.result.folder) for group in read_outcome(folder, seed=1).groups.values() for one in group
            },
        }

    def test_are_the_same_for_every_command(self, both: Path) -> None:
        assert {name: len(found) for name, found in self.seen(both).items()} == dict.fromkeys(
            ("status", "score", "compare", "plot", "controls", "sweep"), 2
        )

    def test_of_reproduce_where_its_folder_is_named(self, both: Path) -> None:
        found = self.seen(both / "reproduce-paper")
        assert {name: len(each) for name, each in found.items()} == dict.fromkeys(found, 2)
        assert all("reproduce-paper" in folder for folder in found["status"])


def test_weights_of_a_benchmark_are_those_of_every_mean(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = {task.key: 1.0 + place for place, task in enumerate(AUDIOMARATHON.tasks)}
    made = (replace(AUDIOMARATHON, weights=weights),)
    monkeypatch.setattr(registry, "built_in", lambda: made)
    systems = read_systems([results])
    (base, frame, _random), data = systems, PageData(systems)
    each = {
        label: {key: run.headline.value for key, run in one.runs.items()} for label, one in (("b", base), ("f", frame))
    }
    own, other = (sum(weights[key] * each[label][key] for key in weights) / sum(weights.values()) for label in "fb")
    mean = data.figures["overall", systems.index(frame)]
    (panel,) = [panel for panel in read_panels([results]) if panel.headline == MEAN]
    (plot,) = [one.figures["score"] for one in panel.settings if one.label == frame.method]
    (row,) = [row for row in compare(systems, base).rows if (row.scope, row.side) == ("overall", frame.method)]
    assert mean["score"] == plot.value == row.score == near(own)
    assert (mean["score_low"], mean["score_high"]) == plot.interval
    assert plot.low < own < plot.high
    assert row.verdict.difference == mean["difference"] == near(own - other)
