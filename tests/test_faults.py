"""The faults that scripts/mutate.py plants still apply; that tests catch each is what the script itself shows."""

from __future__ import annotations

import ast
import functools
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import mutate  # noqa: E402


@functools.cache
def sound(file: str) -> tuple[str, list[Any]]:
    """Return a source and its statements, the parts of classes one by one."""
    text = (ROOT / mutate.SOURCES / file).read_text(encoding="utf-8")
    body = ast.parse(text).body
    return text, [part for node in body for part in (node.body if isinstance(node, ast.ClassDef) else [node])]


def around(file: str, begin: int, end: int) -> tuple[int, int]:
    """Return the first and the last of the lines of all statements on the lines from `begin` to `end`; 1 is the first.

    A fault is parsed within these alone: to parse each of three hundred whole files would take seconds.
    """
    _, statements = sound(file)
    lines = [(min(part.lineno for part in (node, *getattr(node, "decorator_list", ()))), node.end_lineno)
             for node in statements]  # fmt: skip
    hit = [(first, last) for first, last in lines if first <= end and last >= begin]
    return min((begin, *(first for first, _ in hit))), max((end, *(last for _, last in hit)))


def test_each_planted_fault_of_the_mutation_test_changes_code_once_and_names_its_tests() -> None:
    faults = mutate.read_faults()
    assert len({fault.name for fault in faults}) == len(faults) >= 40
    for fault in faults:
        code = fault.planted(ROOT)  # raises where the old text is not there once
        text, _ = sound(fault.file)
        line = text[: text.index(fault.old)].count("\n") + 1
        begin, end = around(fault.file, line, line + fault.old.rstrip("\n").count("\n"))
        more = code.count("\n") - text.count("\n")
        before, after = (
            ast.parse(dedent("\n".join(lines.split("\n")[begin - 1 : last])))
            for lines, last in ((text, end), (code, end + more))
        )
        assert ast.dump(before) != ast.dump(after), fault.name
        assert fault.tests, fault.name
        assert all((ROOT / test).is_file() for test in fault.tests), fault.name
    rooms = {fault.file.partition("/")[0] for fault in faults}
    assert {"models", "compression", "engine", "runs", "scoring", "metrics", "judges", "wings", "results"} <= rooms
