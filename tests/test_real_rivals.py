"""`scripts/real/rivals.py`: which methods beat random selection according to its page, and which do not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from audiomarathon.metrics.paired import PairedResult

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
def test_a_setting_passes_if_it_is_better_with_a_small_adjusted_p_or_surely_within_the_margin(
    paired: PairedResult, p: float | None, margin: float, said: str
) -> None:
    assert rivals.verdict(paired, p, margin) == said
