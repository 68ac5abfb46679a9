"""`scripts/real/rivals.py`: what its page calls a method that beats random, and one that does not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import task_folders

from audiomarathon import evaluate
from audiomarathon.metrics.paired import PairedResult
from audiomarathon.results.systems import read_systems

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts" / "real"))

import rivals


@pytest.mark.parametrize(
    ("paired", "p", "margin", "said"),
    [
        (PairedResult(0.1, (0.05, 0.2), 0.001), 0.01, 0, "yes"),
        (PairedResult(-0.1, (-0.2, -0.05), 0.001), 0.01, 0, "no"),
        (PairedResult(0.1, (0.05, 0.2), 0.001), 0.06, 0, "not shown"),
        (PairedResult(0.0, (0.0, 0.0), 1.0), 1.0, 0, "not shown"),
        (PairedResult(0.1, None, None), None, 0, "not shown"),
        (PairedResult(0.0, (-0.01, 0.01), 0.9), None, 0.02, "yes"),
        (PairedResult(-0.1, (-0.2, -0.05), 0.001), None, 0.02, "no"),
        (PairedResult(-0.01, (-0.05, 0.03), 0.5), None, 0.02, "not shown"),
    ],
)
def test_a_verdict_on_rivals_needs_a_small_adjusted_p_or_an_interval_beyond_the_margin(
    paired: PairedResult, p: float | None, margin: float, said: str
) -> None:
    assert rivals.verdict(paired, p, margin) == said


def test_the_comparison_table_of_rival_methods_is_made_from_a_small_sweep(
    tmp_path: Path, tiny_checkpoint: Path, no_env: Any
) -> None:
    given = {"data": str(task_folders.build_tau(tmp_path / "data")), "model_path": str(tiny_checkpoint), "limit": 2}
    names = ["base", "random:0.5", "frame:0.5", "fast_v:0.5", "fast_v:0.9"]
    evaluate("tau", method=names, layer=1, timing=False, results=str(tmp_path / "out"), max_new_tokens=1, **given)
    systems = {system.method: system for system in read_systems([tmp_path / "out"])}
    lines = rivals.table(rivals.PARTS[1], systems)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| `")]
    cells = {name.strip("`"): row for name, *row in rows}
    assert cells["fast_v-0.5-layer1"][2] == cells["fast_v-0.5-layer1"][4] == "not shown"
    assert lines[-2] == "beats `random`: yes 0, no 0, not shown 2; beats `frame`: yes 0, no 0, not shown 2."
    assert cells["random-0.5-layer1"][1:3] == cells["fast_v-0.9-layer1"][1:3] == ["", ""]  # no bar of its ratio
    assert "cannot be tested here" in rivals.claims({"needles": systems})[-1]
    assert any("| not shown |" in line for line in rivals.claims({"needles": systems}))
