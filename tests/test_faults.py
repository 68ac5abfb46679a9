"""The faults that scripts/mutate.py plants still apply; that tests catch each is what the script itself shows."""

from __future__ import annotations

import ast
import functools
import sys
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import mutate  # noqa: E402


def parsed(text: str) -> list[Any]:
    return ast.parse(text).body


@functools.cache
def sound(file: str) -> tuple[str, list[Any]]:
    """Return a source and its statements."""
    text = (ROOT / mutate.SOURCES / file).read_text(encoding="utf-8")
    return text, parsed(text)


def test_each_applies_once_changes_code_and_names_tests() -> None:
    faults = mutate.read_faults()
    assert len({fault.name for fault in faults}) == len(faults) >= 40
    for fault in faults:
        code = fault.planted(ROOT)  # raises where the old text is not there once
        text, statements = sound(fault.file)
        line = text[: text.index(fault.old)].count("\n") + 1
        pairs = zip_longest(*([one for one in body if one.end_lineno >= line] for body in (statements, parsed(code))))
        assert any(None in pair or ast.dump(pair[0]) != ast.dump(pair[1]) for pair in pairs), fault.name
        assert fault.tests, fault.name
        assert all((ROOT / test).is_file() for test in fault.tests), fault.name
    rooms = {fault.file.partition("/")[0] for fault in faults}
    assert {"models", "compression", "engine", "runs", "scoring", "metrics", "judges", "wings", "results"} <= rooms


def test_a_fault_that_no_longer_applies_is_named(tmp_path: Path) -> None:
    (tmp_path / mutate.SOURCES).mkdir(parents=True)
    (tmp_path / mutate.SOURCES / "a.py").write_text("x = 1\nx = 1\n")
    with pytest.raises(ValueError, match=r"gone: a\.py holds 'y' 0 times"):
        mutate.Fault("gone", "a.py", "y", "z", ()).planted(tmp_path)
    with pytest.raises(ValueError, match="2 times"):
        mutate.Fault("twice", "a.py", "x = 1", "x = 2", ()).planted(tmp_path)
