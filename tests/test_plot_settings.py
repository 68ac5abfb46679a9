"""The demo's picture: bars of scores and of prefill, a group a task."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import a_run, finished

from audiomarathon.report import charts
from audiomarathon.report import styles as series
from audiomarathon.report.pictures import plot_settings


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[charts.Chart]:
    """Collect the charts that are saved."""
    saved: list[charts.Chart] = []
    save = charts.save
    monkeypatch.setattr(charts, "save", lambda chart, path: (saved.append(chart), save(chart, path))[1])
    return saved


def test_a_bar_chart_of_scores_and_prefill_times_is_written_as_a_png(drawn: list[charts.Chart], tmp_path: Path) -> None:
    right = [True] * 4
    folders = [
        finished(a_run(tmp_path, "base-0", right, prefill=0.8), score=0.8, intervals={"score": [0.6, 0.9]}),
        finished(a_run(tmp_path, "frame-0.5", right, prefill=0.5), score=0.5, intervals=None),  # one cluster
        finished(a_run(tmp_path, "base-0", right, task="had", prefill=0.7), score=0.7, intervals={"score": [0.7, 0.7]}),
        finished(a_run(tmp_path, "frame-0.5", [], task="had"), score=None),  # every sample failed
    ]
    path = plot_settings(folders, tmp_path / "new" / "demo.png", "a title")
    assert path.read_bytes().startswith(b"\x89PNG")
    (chart,) = drawn
    assert {(row["task"], row["setting"]): row["value"] for row in chart.data["0-bars"]} == {
        ("tau", "base-0"): 0.8, ("tau", "frame-0.5"): 0.5, ("had", "base-0"): 0.7,
    }  # fmt: skip
    assert [row["value"] for row in chart.data["1-bars"]] == pytest.approx([800, 500, 700])
    assert [(row["low"], row["high"]) for row in chart.data["0-ends"]] == [(0.6, 0.9), (0.7, 0.7)]
    assert chart.spec["title"]["text"] == "a title"
    legends = [part["layer"][0]["encoding"]["color"]["legend"] for part in chart.spec["concat"]]
    assert legends == [{}, None]  # one legend for both; without {}, None would hide it in both
    assert "95 % intervals" in chart.spec["title"]["subtitle"][0]
    assert series.PALE not in chart.spec["title"]["subtitle"]
