"""All faults of scripts/mutate.py still apply; the script itself checks that tests catch each fault."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import mutate  # noqa: E402


def test_each_planted_fault_of_the_mutation_test_changes_the_code_and_names_existing_tests() -> None:
    faults = mutate.read_faults()
    assert len({fault.name for fault in faults}) == len(faults) >= 40
    for fault in faults:
        ast.parse(fault.planted(ROOT))  # raises unless the old text occurs exactly once
        assert fault.old != fault.new, fault.name
        assert fault.tests, fault.name
        assert all((ROOT / test).is_file() for test in fault.tests), fault.name
    rooms = {fault.file.partition("/")[0] for fault in faults}
    assert {"models", "compression", "engine", "runs", "scoring", "metrics", "judges", "wings", "results"} <= rooms
