"""What benchmark_harness.py runs beside lmms-eval: commands timed in parts, and refused when they differ."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts" / "measure"))

from harness import beside_lmms_eval as beside

from audiomarathon.embedded.mini_benchmark import generate


@pytest.fixture(scope="module")
def two_clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate(tmp_path_factory.mktemp("mini"), progress=False, workers=1, tasks=["tau"], limit=2)


def call(begin: float) -> dict[str, object]:
    return {"begin": {"wall": begin, "cpu": begin}, "end": {"wall": begin + 1, "cpu": begin + 0.5}}


def script(folder: Path, calls: list[dict[str, object]], code: int = 0) -> list[str]:
    """A command that leaves these calls behind."""
    text = f"open('calls.json', 'w').write({json.dumps(calls)!r}); raise SystemExit({code})"
    return [sys.executable, "-c", text, str(folder)]


def test_parts_of_a_run_leave_the_warm_up_out(tmp_path: Path) -> None:
    took, calls = beside.one_run(script(tmp_path, [call(5), call(10), call(13), call(17)]), tmp_path, 3)
    assert len(calls) == 3
    assert took["until the first sample is asked", "cpu"] == 10
    assert took["model, a sample", "cpu"] == 0.5
    assert took["between samples", "wall"] == (2 + 3) / 2
    assert took["whole run", "cpu"] < took["whole run", "wall"] + 1


@pytest.mark.parametrize(("calls", "code"), [([call(1)], 0), ([call(1), call(2)], 3)])
def test_a_run_that_failed_is_refused(tmp_path: Path, calls: list[dict[str, object]], code: int) -> None:
    with pytest.raises(SystemExit, match=r"error: .*(exit code 3|1 times, not 2)"):
        beside.one_run(script(tmp_path, calls, code), tmp_path, 2)


@pytest.mark.parametrize("differing", beside.SAME)
def test_sides_that_differ_are_refused(
    differing: str, two_clips: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    took = {("whole run", clock): 2.0 for clock in beside.CLOCKS}
    other = ""

    def one_run(line: list[str], folder: Path, count: int) -> tuple[object, object]:
        calls = [dict.fromkeys(beside.SAME, "same") for _ in range(count)]
        calls[0][differing] += other if "lmms-eval" in line else ""
        return took, calls

    monkeypatch.setattr(beside, "one_run", one_run)
    monkeypatch.setattr(beside, "mini_benchmark", lambda: two_clips)
    beside.beside_lmms_eval("python", 2, 3)
    assert "1.00 (1.00 to 1.00)" in capsys.readouterr().out
    other = "!"
    with pytest.raises(SystemExit, match="differ"):
        beside.beside_lmms_eval("python", 2, 1)
