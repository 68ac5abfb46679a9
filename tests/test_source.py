"""Hashes of source code: an edit of a third party's method, task or model makes a new run; other edits do not."""

from __future__ import annotations

import functools
import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from audiomarathon.benchmarks import get_task
from audiomarathon.compression.pruners.fast_v import FastV
from audiomarathon.engine.source import source_hash

MINE = """
from helper import HALF, keep
import numpy

class Mine:
    def __call__(self, model):
        return keep(model)
"""
HELPER = """
HALF = 0.5
def keep(model):
    return HALF
"""
SCRIPT = """
from dataclasses import dataclass
from audiomarathon.engine.source import source_hash
HALF = 0.5
LIMIT = 100

def keep(model):
    return HALF

@dataclass
class Mine:
    ratio: float = 0.0
    def __call__(self, model):
        return keep(model)

def main():
    print(source_hash(Mine()), source_hash(lambda model: keep(model)) is not None, LIMIT)

main()
"""


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Write a module and its helper in a new folder, and return the module."""
    made = []

    def load(mine: str = MINE, helper: str = HELPER, place: str = "") -> Any:
        folder = tmp_path / str(len(made)) / place
        folder.mkdir(parents=True)
        made.append(folder)
        (folder / "mine.py").write_text(mine)
        (folder / "helper.py").write_text(helper)
        forget()
        monkeypatch.syspath_prepend(folder)
        return importlib.import_module("mine")

    def forget() -> None:
        for name in ("mine", "helper"):
            sys.modules.pop(name, None)

    yield load
    forget()  # other tests have a module `helper` too


def test_built_in_and_standard_library_code_has_no_source_hash() -> None:
    assert source_hash(FastV(0.5)) is source_hash(get_task("tau")) is source_hash(functools.partial(print)) is None


@pytest.mark.parametrize("place", ["", "site-packages"])
def test_editing_a_source_file_or_a_file_it_imports_changes_the_source_hash(
    loaded: Callable[..., Any], place: str
) -> None:
    """Installed packages are identified by version, so there only the file of the method counts."""
    first = source_hash(loaded(place=place).Mine())
    assert first == source_hash(loaded(place=place).Mine())
    assert first != source_hash(loaded(MINE.replace("keep(model)", "keep(model) / 2"), place=place).Mine())
    imported = source_hash(loaded(helper=HELPER.replace("0.5", "0.6"), place=place).Mine())
    assert (imported == first) is bool(place)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda module: module.Mine,
        lambda module: functools.partial(module.Mine()),
        lambda module: module.Mine().__call__,
        lambda module: [module.Mine()],
        lambda module: module.keep,
    ],
    ids=["class", "partial", "bound method", "list", "function"],
)
def test_code_of_methods_inside_any_container_is_in_the_source_hash(
    loaded: Callable[..., Any], wrap: Callable[[Any], object]
) -> None:
    before, after = (source_hash(wrap(loaded(helper=HELPER + edit))) for edit in ("", "#"))
    assert None is not before != after is not None


def said(script: Path, *how: str) -> str:
    command, text = [sys.executable, *(how or [str(script)])], script.read_text() if how else None
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout.split()[0]


@pytest.mark.parametrize("how", [(), ("-",)], ids=["a script", "code without a file"])
def test_the_source_hash_of_a_method_in_a_script_covers_its_code_and_the_names_it_uses(
    how: tuple[str, ...], tmp_path: Path
) -> None:
    """The call at the end of a script may change. Code without a file is hashed in compiled form."""
    around = ("", "") if how else ("LIMIT = 100", "LIMIT = 200")
    hashes = []
    for old, new in (("", ""), around, ("HALF = 0.5", "HALF = 0.6"), ("return keep(", "return 2 * keep(")):
        (tmp_path / "script.py").write_text(SCRIPT.replace(old, new))
        hashes.append(said(tmp_path / "script.py", *how))
    assert hashes[0] == hashes[1]
    assert hashes[3] not in hashes[:3]
    assert (hashes[2] in hashes[:2]) is bool(how)
