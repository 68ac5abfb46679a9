"""The demo's picture: bars of scores and of prefill, a group a task."""

from __future__ import annotations

from pathlib import Path

import pytest

from audiomarathon.engine.run import Result
from audiomarathon.report import charts
from audiomarathon.report.pictures import plot_settings


def result(task: str, method: str, score: float, interval: list[float] | None, n: int = 4) -> Result:
    summary = {
        "task": task, "n": n, "score": score if n else None, "intervals": {"score": interval},
        "timing": {"llm_prefill_s": {"p50": score / 10}} if n else {},
    }  # fmt: skip
    return Result(Path(task), method, summary)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[charts.Chart]:
    """The pictures that are saved."""
    saved: list[charts.Chart] = []
    save = charts.save
    monkeypatch.setattr(charts, "save", lambda chart, path: (saved.append(chart), save(chart, path))[1])
    return saved


def test_bars_stand_for_scores_and_prefill(drawn: list[charts.Chart], tmp_path: Path) -> None:
    results = [
        result("tau", "base-0", 0.8, [0.6, 0.9]),
        result("tau", "frame-0.5", 0.5, None),  # one cluster: no interval
        result("had", "base-0", 0.7, [0.7, 0.7]),
        result("had", "frame-0.5", 0.0, None, n=0),  # every sample failed
    ]
    path = plot_settings(results, tmp_path / "new" / "demo.png", "a title")
    assert path.read_bytes().startswith(b"\x89PNG")
    (chart,) = drawn
    assert {(row["task"], row["setting"]): row["value"] for row in chart.data["0-bars"]} == {
        ("tau", "base-0"): 0.8, ("tau", "frame-0.5"): 0.5, ("had", "base-0"): 0.7,
    }  # fmt: skip
    assert [row["value"] for row in chart.data["1-bars"]] == pytest.approx([80, 50, 70])
    assert [(row["low"], row["high"]) for row in chart.data["0-ends"]] == [(0.6, 0.9), (0.7, 0.7)]
    assert chart.spec["title"]["text"] == "a title"
