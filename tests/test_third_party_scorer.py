"""A third party's benchmark that is neither choice nor transcript: partial credit, several metrics, bundles."""

from __future__ import annotations

import csv
import importlib.metadata
import json
from collections.abc import Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import lines_of, records_in
from conftest import content_of, succeed
from task_folders import write_clip

from audiomarathon.benchmarks import Filters, Loaded, Sample, Task, registry
from audiomarathon.benchmarks.benchmark import Benchmark, TaskFacts
from audiomarathon.metrics.statistics import Sums
from audiomarathon.records import Figure, Record, Verdict
from audiomarathon.report.curves import read_panels
from audiomarathon.report.page_data import PageData
from audiomarathon.results.status import read_status
from audiomarathon.results.systems import read_systems
from audiomarathon.scoring.scorer import Scorer


class Points(Scorer):
    """Give a reply 0, 0.5 or 1 point by its length; also report the longest length."""

    key = "points"
    figure = Figure("points", "points", chance=0.5)

    def judge(self, record: Record) -> dict[str, Any]:
        length = len(record.text) + int(record.reference["offset"])
        return {"points": length % 3 / 2, "length": len(record.text)}

    def sums(self, verdicts: Sequence[Verdict]) -> Sums:
        rows = [[verdict.values["points"], verdict.values["points"] == 1, 1] for verdict in verdicts]
        names, clusters = ("points", "full"), tuple(verdict.record.cluster for verdict in verdicts)
        return Sums(names, np.array(rows, float), lambda sums: sums[:, :2] / sums[:, 2:], clusters)

    def summary(self, verdicts: Sequence[Verdict]) -> dict[str, Any]:
        return {"longest": max(verdict.values["length"] for verdict in verdicts)}

    def own_score(self, verdict: Verdict) -> float:
        return float(verdict.values["points"])

    def shown(self, verdict: Verdict) -> str:
        return f"{verdict.values['points']:g} points"


class Beats(Task):
    """Two questions for each of four clips; the two count only together."""

    key = "rhythm/beats"
    title = "Beats"
    max_new_tokens = 6
    scorer = Points()
    group_fields = ("tempo",)

    def find(self, root: Path) -> Path:
        return root

    def load(self, folder: Path, filters: Filters = Filters()) -> Loaded:
        asked = [(clip, number) for clip in sorted(folder.glob("*.wav")) for number in range(2)]
        samples = [
            Sample(f"{clip.stem}/{number}", (clip,), f"Beat {number}?", "", clip.stem, meta={"tempo": clip.stem < "c"},
                   bundle=clip.stem)
            for clip, number in asked
        ]  # fmt: skip
        return Loaded(folder, tuple(samples))

    def prompt(self, sample: Sample) -> str:
        return sample.question

    def reference(self, sample: Sample) -> dict[str, Any]:
        return {"offset": int(sample.id[-1])}


RHYTHM = Benchmark("rhythm", "Rhythm", (Beats(),), {"rhythm/beats": TaskFacts("BT", "time", 8, (0.5, 2.0))})


@pytest.fixture
def results(tmp_path: Path, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, no_env: object) -> Path:
    entry, find = EntryPoint("rhythm", f"{__name__}:RHYTHM", registry.BENCHMARKS), importlib.metadata.entry_points
    found = lambda **how: [entry] if how == {"group": registry.BENCHMARKS} else find(**how)  # noqa: E731
    monkeypatch.setattr("importlib.metadata.entry_points", found)
    for place, name in enumerate("abcd"):
        write_clip(tmp_path / "data" / f"{name}.wav", hertz=200 + 100 * place)
    model = ("--model", "qwen2.5-omni", "--model-path", tiny_checkpoint, "--data", tmp_path / "data")
    succeed("sweep", "rhythm/beats", "--methods", "frame:0.5", *model, "--results", tmp_path / "out")
    return tmp_path / "out"


def points(folder: Path) -> dict[str, float]:
    """Return the points of each reply, computed independently."""
    return {row["id"]: (len(row["reply"]) + int(row["id"][-1])) % 3 / 2 for row in lines_of(folder / "samples.jsonl")}


def test_status_compare_and_report_show_the_scores_of_a_third_party_scorer(
    results: Path, tmp_path: Path, tiny_checkpoint: Path
) -> None:
    model = ("--model", "qwen2.5-omni", "--model-path", tiny_checkpoint, "--data", tmp_path / "data")
    picture = tmp_path / "e.png"
    succeed("explain", "rhythm/beats:a/1", "--methods", "frame:0.5", *model, "-o", picture)
    assert picture.stat().st_size > 1000
    folders = {file.parent.name: file.parent for file in results.rglob("run.json")}
    assert set(folders) == {"base-0", "frame-0.5-layer2"}
    assert folders["base-0"].relative_to(results).parts == ("rhythm", "beats", "tiny-omni", "base-0")
    expected = {label: float(np.mean(list(points(folder).values()))) for label, folder in folders.items()}
    assert len({*points(folders["base-0"]).values()}) > 1
    for label, folder in folders.items():
        summary = json.loads((folder / "summary.json").read_text())
        full = np.mean([value == 1 for value in points(folder).values()])
        assert (summary["score"], summary["points"], summary["full"]) == pytest.approx((expected[label],) * 2 + (full,))
        assert summary["longest"] > 0
        assert summary["figure"]["title"] == "points"
        verdicts = {row["id"]: row["points"] for row in lines_of(folder / "verdicts-points.jsonl")}
        assert verdicts == points(folder)
        assert all(record["groups"] == {"tempo": str(record["id"][0] < "c")} for record in records_in(folder))

    (panel,) = read_panels([results])
    assert (panel.headline, {setting.label: setting.figures["score"].value for setting in panel.settings}) == (
        "points", pytest.approx(expected),
    )  # fmt: skip
    assert {status.setting: status.progress.score for status in read_status([results])} == pytest.approx(expected)

    succeed("compare", results, "-o", tmp_path / "c.json")
    (row,) = json.loads((tmp_path / "c.json").read_text())["rows"]
    assert (row["score"], row["reference_score"]) == pytest.approx((expected["frame-0.5-layer2"], expected["base-0"]))
    assert (row["samples"], row["mcnemar"]) == (8, None)

    page, figures = tmp_path / "r.html", tmp_path / "paper"
    succeed("report", results, "-o", page, "--audio", "none", "--figures", figures)
    content = content_of(page.read_text())
    data = PageData(read_systems([results]))
    names = [setting.name for setting in data.settings]
    figures_of = {names[place]: row for (scope, place), row in data.figures.items() if scope in data.tasks}
    assert {name: row["score"] for name, row in figures_of.items()} == pytest.approx(expected)
    assert all(row["own_scores"] for row in figures_of.values())
    for sample in content["samples"]:
        for reply in sample["replies"]:
            score = points(folders[names[reply["setting"]]])[sample["id"]]
            assert (reply["score"], reply["verdict"]) == (score, f"{score:g} points")
    rows = list(csv.DictReader((figures / "records.csv").open()))
    assert {(row["setting"], row["id"]): float(row["own_score"]) for row in rows} == {
        (label, id_): expected_score
        for label, folder in folders.items()
        for id_, expected_score in points(folder).items()
    }

    assert "rhythm/beats" in succeed("list", "tasks")
