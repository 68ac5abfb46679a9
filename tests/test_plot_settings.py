"""The demo's picture: bars of scores and of prefill, a group a task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.figure
import pytest

from audiomarathon.engine.run import Result
from audiomarathon.report.plot import plot_settings


def result(task: str, method: str, score: float, interval: list[float] | None, n: int = 4) -> Result:
    summary = {
        "task": task, "n": n, "score": score, "intervals": {"score": interval},
        "timing": {"llm_prefill_s": {"p50": score / 10}},
    }  # fmt: skip
    return Result(Path(task), method, summary)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that are saved."""
    saved: list[Any] = []
    save = matplotlib.figure.Figure.savefig
    monkeypatch.setattr(
        matplotlib.figure.Figure, "savefig", lambda self, *a, **k: (saved.append(self), save(self, *a, **k))
    )
    return saved


def test_bars_stand_for_scores_and_prefill(drawn: list[Any], tmp_path: Path) -> None:
    results = [
        result("tau", "base-0", 0.8, [0.6, 0.9]),
        result("tau", "frame-0.5", 0.5, None),  # one cluster: no interval
        result("had", "base-0", 0.7, [0.7, 0.7]),
        result("had", "frame-0.5", 0.0, None, n=0),  # every sample failed
    ]
    path = plot_settings(results, tmp_path / "new" / "demo.png", "a title")
    assert path.read_bytes().startswith(b"\x89PNG")
    scores, prefill = drawn[0].axes
    assert sorted(bar.get_height() for bar in scores.patches) == [0.5, 0.7, 0.8]
    assert sorted(bar.get_height() for bar in prefill.patches) == pytest.approx([50, 70, 80])
    assert [label.get_text() for label in prefill.get_xticklabels()] == ["tau", "had"]
    assert [text.get_text() for text in scores.get_legend().get_texts()] == ["base-0", "frame-0.5"]
