"""The faults that scripts/mutate.py plants still apply; that tests catch each is what the script itself shows."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import mutate  # noqa: E402


def test_each_planted_fault_of_the_mutation_test_changes_code_once_and_names_its_tests() -> None:
    faults = mutate.read_faults()
    assert len({fault.name for fault in faults}) == len(faults) >= 40
    for fault in faults:
        ast.parse(fault.planted(ROOT))  # raises where the old text is not there once
        assert fault.old != fault.new, fault.name
        assert fault.tests, fault.name
        assert all((ROOT / test).is_file() for test in fault.tests), fault.name
    rooms = {fault.file.partition("/")[0] for fault in faults}
    assert {"models", "compression", "engine", "runs", "scoring", "metrics", "judges", "wings", "results"} <= rooms
