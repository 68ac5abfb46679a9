"""`audiomarathon new`: each kind of package is found once it is installed, and its own test passes."""

from __future__ import annotations

import importlib
import inspect
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import soundfile
from conftest import call, succeed

from audiomarathon.cli.new import KINDS
from audiomarathon.embedded import mini_benchmark

SOURCES = Path(inspect.getfile(importlib.import_module("audiomarathon"))).parents[1]


@pytest.fixture(scope="module")
def mini(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Generate the part of the mini benchmark that a package's test uses, with clips cut to three seconds."""
    root = mini_benchmark.generate(tmp_path_factory.mktemp("mini"), tasks=["desed"], limit=2, progress=False)
    clips = [file for file in root.rglob("*") if file.suffix in (".wav", ".flac")]
    assert len(clips) == 2
    for clip in clips:
        waveform, rate = soundfile.read(clip)
        soundfile.write(clip, waveform[: 3 * rate], rate)
    return root


@pytest.fixture
def kind(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mini: Path) -> Iterator[str]:
    """Write a package of a kind and put it on the path, with the metadata that an installer makes."""
    monkeypatch.setattr(mini_benchmark, "mini_benchmark", lambda: mini)
    name = f"own_{request.param}"
    succeed("new", request.param, name, "--into", tmp_path)
    project = tomllib.loads((tmp_path / name / "pyproject.toml").read_text())["project"]
    site = tmp_path / name / "src"
    metadata = site / f"{name}-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0.1.0\n")
    ((group, entries),) = project["entry-points"].items()
    points = [f"[{group}]", *(f"{key} = {value}" for key, value in entries.items())]
    (metadata / "entry_points.txt").write_text("\n".join(points))
    monkeypatch.syspath_prepend(site)
    monkeypatch.syspath_prepend(tmp_path / name / "tests")
    monkeypatch.chdir(tmp_path)  # a judge must not be confused with its folder here
    yield request.param
    for module in [loaded for loaded in sys.modules if name in loaded]:
        del sys.modules[module]


@pytest.mark.parametrize("kind", KINDS, indirect=True)
def test_a_newly_created_package_passes_the_tests_in_its_template(kind: str, tmp_path: Path) -> None:
    tests = vars(importlib.import_module(f"test_own_{kind}"))
    test_functions = [check for name, check in tests.items() if name.startswith("test_")]
    assert test_functions
    for number, function in enumerate(test_functions):
        function(**{name: tmp_path / str(number) for name in inspect.signature(function).parameters})


@pytest.mark.long
@pytest.mark.parametrize("what", KINDS)
def test_a_newly_created_package_installs_by_pip_and_passes_pytest(what: str, tmp_path: Path) -> None:
    name, site = f"own_{what}", tmp_path / "site"
    succeed("new", what, name, "--into", tmp_path)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", site, tmp_path / name], check=True)
    env = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{SOURCES}"}
    pytest_ = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", name]
    done = subprocess.run(pytest_, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_new_command_prints_the_commands_to_run_next(tmp_path: Path) -> None:
    folder = tmp_path / "my_pruner"
    run = "audiomarathon run tau --data mini --method my_pruner --ratio 0.5"
    said = succeed("new", "method", "my_pruner", "--into", tmp_path)
    assert said.splitlines()[1:] == [f"pip install -e {folder}", f"pytest {folder}", run]
    written = {file.relative_to(folder).as_posix(): file.read_text() for file in folder.rglob("*") if file.is_file()}
    assert {*written} == {
        *("pyproject.toml", "README.md", "tests/test_my_pruner.py"),
        *("src/my_pruner/__init__.py", "src/my_pruner/method.py"),
    }
    assert "class MyPruner(TokenPruner)" in written["src/my_pruner/method.py"]
    assert not any(word in text for word in ("newname", "NewName") for text in written.values())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("thing", "mine"), "allowed: method, task, model, judge, encoder"),
        (("method", "my-pruner"), "allowed: up to 60 letters, digits and _"),
        (("method", "class"), "no word of Python"),
        (("method", "none"), "no word of Python"),  # its class would be None
        (("task", "row"), "no word of Python or of the template"),  # its class would hide the template's Row
        (("method", "tests"), "no word of Python or of the template"),
        (("method", "../up"), "allowed: up to 60 letters, digits and _"),
        (("method", "a" * 300), "allowed: up to 60 letters, digits and _"),
        (("method", "a\nb"), "new method 'a\\nb'"),
        (("thing" * 100, "mine"), "allowed: method, task, model, judge, encoder"),
        (("method", "frame"), "a method or a package of that name exists"),
        (("task", "json"), "a task or a package of that name exists"),
        (("encoder", "Numpy"), "a encoder or a package of that name exists"),
        (("method", "PyYAML"), "a method or a package of that name exists"),
        (("judge", "replay"), "a judge or a package of that name exists"),
        (("judge", "here"), "already exists"),
    ],
)
def test_the_new_command_refuses_invalid_or_existing_names(tmp_path, words, said) -> None:
    (tmp_path / "here").mkdir()
    code, told = call("new", *words, "--into", tmp_path)
    assert (code, said in told, told.count("\n")) == (2, True, 1), told
    assert [file.name for file in tmp_path.rglob("*")] == ["here"]
