"""The scripts in the model folders: each opens a task of its own on its folder's model, and takes no arguments."""

from __future__ import annotations

import ast
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import task_folders

from audiomarathon.benchmarks import get_task
from audiomarathon.benchmarks.declared import Declared
from audiomarathon.benchmarks.registry import built_in
from audiomarathon.cli import app as cli
from audiomarathon.embedded.without_data import embedded_instead
from audiomarathon.models.registry import all_models, get_model
from audiomarathon.settings import RunSettings, env_names
from audiomarathon.wings.ruler.task import Ruler

ROOT = Path(__file__).parent.parent
FOLDERS = sorted({model.folder for model in all_models() if model.folder})
DOORS = sorted(door for folder in FOLDERS for door in (ROOT / folder).glob("*_test.py"))


def opened(door: Path) -> tuple[str, str]:
    """The task and the model that a door names."""
    (call,) = [node for node in ast.walk(ast.parse(door.read_text("utf-8"))) if isinstance(node, ast.Call)]
    assert ast.unparse(call.func) == "run_task"
    return ast.literal_eval(call.args[0]), ast.literal_eval(call.keywords[0].value)


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_task_scripts_of_a_model_folder_cover_each_task_once(folder: str) -> None:
    tasks = [opened(door)[0] for door in DOORS if door.parent.name == folder]
    assert sorted(tasks) == sorted(
        task.key
        for benchmark in built_in()
        for task in benchmark.tasks
        if task.key != "lalm/audiocaps" and not task.own_command and not isinstance(task, Declared | Ruler)
    )


@pytest.mark.parametrize("door", DOORS, ids=lambda door: f"{door.parent.name}/{door.stem}")
def test_a_task_script_runs_the_task_and_model_that_its_path_names(door: Path) -> None:
    task, model = opened(door)
    assert get_task(door.stem.removesuffix("_test")).key == task
    assert get_model(model).folder == door.parent.name


def call(door: Path, *arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a door as users do, in an environment that names no data."""
    clean = {name: value for name, value in os.environ.items() if name not in ("AUDIOMARATHON_DATA", "VESUS_DATA_PATH")}
    command = [sys.executable, str(door), *arguments]
    return subprocess.run(command, check=False, cwd=cwd, env=clean | env, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("door", DOORS, ids=lambda door: f"{door.parent.name}/{door.stem}")
def test_the_help_of_a_task_script_names_its_task_model_and_environment_variables(
    door: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process: 40 Pythons of their own would take minutes."""
    monkeypatch.setattr(sys, "argv", [str(door), "--help"])
    runpy.run_path(str(door), run_name="__main__")
    task, model = opened(door)
    said = capsys.readouterr().err
    assert f"{model} on {task}" in said
    assert all(name in said for name in env_names())


def test_a_task_script_with_arguments_is_refused() -> None:
    door = ROOT / "Qwen_2.5_Omni" / "TAU_test.py"
    done = call(Path(door.name), "--limit", "3", cwd=door.parent)
    assert done.returncode == 2
    assert "takes no arguments" in done.stderr


def test_a_task_script_refuses_a_bad_environment_variable_in_one_line(tmp_path: Path) -> None:
    done = call(ROOT / "Qwen_2.5_Omni" / "VESUS_test.py", cwd=tmp_path, PRUNE_RATIO="1.5")
    assert done.returncode == 2
    assert done.stderr.startswith("error: PRUNE_RATIO=1.5: not allowed")


def test_run_task_passes_task_model_and_settings_to_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """`run_task` hands its names to the engine and leaves settings to the env vars."""
    seen: list[tuple[object, ...]] = []
    monkeypatch.setattr(cli, "evaluate", lambda tasks, model, settings: seen.append((tasks, model, settings)))
    monkeypatch.setattr(sys, "argv", ["TAU_test.py"])
    cli.run_task("tau", model="qwen2.5-omni")
    assert seen == [(["tau"], "qwen2.5-omni", RunSettings.read())]


def _first(door: Path) -> bool:
    """Whether `make test` runs a door: one on short clips; another test sees what every door asks for."""
    return (door.parent.name, door.stem) == (FOLDERS[0], "Clotho_test")


@pytest.mark.parametrize(
    "door",
    [door if _first(door) else pytest.param(door, marks=pytest.mark.long) for door in DOORS],
    ids=lambda door: f"{door.parent.name}/{door.stem}",
)
def test_every_task_script_can_run_the_embedded_model_without_a_download(
    door: Path,
    script: Callable[..., tuple[int, str, str]],
    no_env: Callable[[str, str], None],
    tmp_path: Path,
) -> None:
    settings = {"AUDIOMARATHON_DATA": "mini", "MODEL_PATH": "embedded", "RESULTS_DIR": str(tmp_path)}
    for name, value in {**settings, "SAMPLE_LIMIT": "1", "TIMING": "0"}.items():
        no_env(name, value)
    code, _out, err = script(door)
    task, model = opened(door)
    assert code == 0, err
    assert f"runs instead of {get_model(model).key}" in err
    assert (tmp_path / task / "embedded" / "base-0" / "summary.json").is_file()


def test_the_embedded_model_does_not_replace_a_transcriber_or_an_endpoint(no_env: Callable[[str, str], None]) -> None:
    no_env("MODEL_PATH", "embedded")
    said: list[str] = []
    assert embedded_instead("whisper-base", RunSettings.read(), said.append) == ("whisper-base", RunSettings.read())
    assert embedded_instead("openai", RunSettings.read(), said.append)[0] == "openai"
    assert said == []


def test_duration_scripts_write_no_file_into_the_repository_unless_asked(
    script: Callable[..., tuple[int, str, str]], no_env: Callable[[str, str], None], tmp_path: Path, monkeypatch
) -> None:
    no_env("AUDIOMARATHON_DATA", str(task_folders.build_tau(tmp_path / "data")))
    folder = ROOT / "analyse_audio_duration"
    before = sorted(folder.iterdir())
    monkeypatch.chdir(folder)
    code, out, err = script(folder / "TAU.py")
    assert code == 0, err
    assert "tau" in out
    assert "-o FOLDER also writes" in err
    assert sorted(folder.iterdir()) == before
