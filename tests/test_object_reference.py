"""Methods, tasks and encoders named by their location: FILE.py:Name and package.module:Name."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import task_folders
from builders import records_in
from conftest import succeed

from audiomarathon import evaluate
from audiomarathon.benchmarks import get_task
from audiomarathon.compression.registry import get_method
from audiomarathon.engine.source import source_hash
from audiomarathon.engine.sweep import grid
from audiomarathon.errors import AudioMarathonError, PluginError, RecordError, SettingsError
from audiomarathon.runs.read import Run
from audiomarathon.wings.encoders.registry import load_encoder

PRUNER = """
from dataclasses import dataclass
from audiomarathon.compression.token_pruner import TokenPruner
from chooser import first

@dataclass(frozen=True)
class Novelty(TokenPruner):
    "The first tokens."
    shift: int = 0

    def select(self, evidence):
        return first(evidence.n_keep) + self.shift
"""
CHOOSER = "import torch\ndef first(n):\n    return torch.arange(n)\n"
PRESSES = """
from contextlib import contextmanager, nullcontext
from pathlib import Path

class Press:
    def __init__(self, compression_ratio):
        self.compression_ratio = compression_ratio
    def __call__(self, model):
        return nullcontext()

@contextmanager
def bare(model):
    yield

class Nothing: pass
class Strange:
    def __call__(self): pass
    def __init__(self): raise OSError("no\\nluck")
"""
TASK = """
from audiomarathon.benchmarks.audiomarathon.tau import Tau
from audiomarathon.scoring.choice import Choice

class Scenes(Tau):
    key = "scenes"

class Mine(Choice):
    key = "mine"

class Odd(Tau):
    key = "odd"
    scorer = Mine()
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Write a user's files into a folder and make it the working folder."""
    folder = tmp_path / "mine"
    folder.mkdir()
    for name, text in {"pruner": PRUNER, "chooser": CHOOSER, "presses": PRESSES, "scenes": TASK}.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield folder
    for name in ("presses", "scenes"):  # imported as modules
        sys.modules.pop(name, None)


@pytest.fixture
def settings(tmp_path: Path, tiny_checkpoint: Path, no_env: Callable[[str, str], None]) -> dict[str, object]:
    data = task_folders.build_tau(tmp_path / "data")
    where = {"data": str(data), "model_path": str(tiny_checkpoint), "results": str(tmp_path / "out")}
    return {**where, "limit": 2, "timing": False, "max_new_tokens": 2}


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("pruner.py:Novelty:0.5", "Novelty-0.5-layer2"),
        ("./pruner.py:0.25", "Novelty-0.25-layer2"),
        ("presses.py:Press:0.3", "Press-0.3"),
        ("presses.py:bare", "bare"),
        ("pruner.py:Novelty:0.5+snapkv:0.3", "Novelty-0.5-layer2+snapkv-0.3"),
        ("presses:Press:0.5", "Press-0.5"),  # a module of the working folder
    ],
)
def test_the_label_of_a_method_from_a_file_is_its_class_name(mine: Path, name: str, label: str) -> None:
    assert get_method(name).label == label


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("pruner.py:Novelti:0.5", "there is no 'Novelti' (did you mean 'Novelty'?)"),
        ("pruner.py:Novelty", "pruner.py:Novelty:0.5"),
        ("pruner.py:first:0.5", "first is defined in chooser.py; name that file"),
        ("presses.py", "defines nothing usable; allowed: a subclass of TokenPruner, KVPress or Method"),
        ("presses.py:Press", "such as presses.py:Press:0.5"),
        ("presses.py:bare:0.5", "takes no ratio"),
        ("presses.py:Nothing", "allowed: a subclass of TokenPruner"),
        ("presses.py:Strange", "cannot be loaded: OSError: no luck"),
        ("nowhere.py:Novelty:0.5", "No such file"),
        ("no_such_package.mod:Novelty:0.5", "No module named 'no_such_package'"),
        ("fast_v:half", "got 'half'"),
        ("audiomarathon.compression.pruners.frame:Frame:0.5", "name frame is taken by another method; rename"),
        ("fsat_v:0.5", "did you mean 'fast_v'"),
    ],
)
def test_an_invalid_name_of_a_method_in_a_file_or_module_is_a_one_line_error(mine: Path, name: str, said: str) -> None:
    with pytest.raises(AudioMarathonError) as raised:
        get_method(name)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("code", ["import nowhere", "def (", "raise SystemExit(3)", "raise KeyError"])
def test_any_exception_in_a_method_file_is_a_one_line_error(mine: Path, code: str) -> None:
    (mine / "pruner.py").write_text(code)
    with pytest.raises(PluginError, match=r"^method pruner\.py:Novelty: cannot be loaded: \w+[^\n]*$"):
        get_method("pruner.py:Novelty:0.5")


def test_the_source_hash_of_a_method_file_covers_the_file_and_those_that_it_imports(mine: Path) -> None:
    def now(folder: Path = mine) -> str | None:
        return source_hash(get_method(f"{folder}/pruner.py:Novelty:0.5"))

    before, moved = now(), shutil.copytree(mine, mine.parent / "moved")
    assert now(moved) == before
    (moved / "chooser.py").write_text(CHOOSER.replace("arange(n)", "arange(n) + 1"))
    assert now(moved) != now() == before  # two folders have a file of the same name
    (mine / "pruner.py").write_text(PRUNER + "#")
    assert now() != before


def test_a_run_of_a_method_file_is_not_resumed_after_the_file_was_edited(
    mine: Path, settings: dict[str, object], no_env: Callable[[str, str], None]
) -> None:
    name = "pruner.py:Novelty"
    _base, novelty, built_in = evaluate("tau", method=["base", f"{name}:0.5", "frame:0.5"], **settings)
    assert (novelty.folder.name, novelty.summary["complete"]) == ("Novelty-0.5-layer2", True)
    for record in records_in(novelty.folder):
        assert record["kept_audio_tokens"] < record["audio_tokens"]
    no_env("PRUNE_METHOD", name)  # the environment variable gives the same run
    no_env("PRUNE_RATIO", "0.5")
    assert evaluate("tau", **settings)[0].folder == novelty.folder
    (mine / "pruner.py").write_text(PRUNER + "#")
    with pytest.raises(RecordError, match=r"holds another run \(code of method Novelty: "):
        evaluate("tau", **settings)
    shutil.rmtree(mine)
    mine.mkdir()
    shown = succeed("compare", settings["results"])
    assert "Novelty-0.5-layer2" in shown
    assert built_in.method in shown


def test_a_sweep_refuses_method_files_that_define_two_methods_of_the_same_name(mine: Path) -> None:
    name = f"{mine}/pruner.py:Novelty"
    labels = [method.label for method in grid([name, "frame", f"{name}:0.9", name], [0.0, 0.5])]
    assert labels == ["base-0", "Novelty-0.5-layer2", "frame-0.5-layer2", "Novelty-0.9-layer2"]
    (mine / "other.py").write_text(PRUNER.replace("self.shift", "0"))
    with pytest.raises(SettingsError, match=r"two different methods are called Novelty-0\.5-layer2"):
        grid([name, f"{mine}/other.py:Novelty"], [0.5])


def test_a_finished_run_of_a_task_from_a_file_can_be_read_after_the_file_was_deleted(
    mine: Path, settings: dict[str, object]
) -> None:
    (result,) = evaluate("./scenes.py:Scenes", method="base", **settings)
    assert (result.folder.parts[-4:-2], result.summary["complete"]) == (("own-classes", "scenes"), True)
    facts = json.loads((result.folder / "run.json").read_text())
    assert "code of task own-classes/scenes" in facts["identity"]
    (mine / "scenes.py").unlink()
    read = Run.read(result.folder)
    assert read.task is not None
    assert read.headline.value == result.summary["score"]


def test_a_task_can_be_named_by_file_or_module_and_class(mine: Path) -> None:
    assert get_task("scenes:Scenes").key == "own-classes/scenes"  # a module of the working folder
    with pytest.warns(UserWarning, match="reports and comparisons find its scorer Mine only in an installed"):
        assert get_task("scenes.py:Odd").key == "odd"
    for name, said in {
        "pruner.py:Novelty": "Novelty is not a task; allowed: a subclass of Task",
        "scenes.py": "defines several: Scenes, Odd; name one",
        "./scenes": "must end in .toml, or .py as FILE.py:CLASS",
    }.items():
        with pytest.raises(SettingsError, match=said):
            get_task(name)


def test_an_encoder_of_a_module_is_found_by_its_class_name() -> None:
    named = load_encoder("audiomarathon.wings.encoders.controls:LogMelEncoder")
    assert named.name == "LogMelEncoder"
    assert named.identity["source"] == load_encoder("control:logmel").identity["source"]
    with pytest.raises(SettingsError, match="there is no 'LogMelEncoda'"):
        load_encoder("audiomarathon.wings.encoders.controls:LogMelEncoda")
