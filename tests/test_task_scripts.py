"""The scripts in the model folders: each runs one task on its folder's model, and takes no arguments."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import task_folders

from audiomarathon.benchmarks import get_task
from audiomarathon.benchmarks.declared import Declared
from audiomarathon.benchmarks.registry import built_in
from audiomarathon.embedded.without_data import embedded_instead
from audiomarathon.models.registry import all_models, get_model
from audiomarathon.settings import RunSettings, env_names
from audiomarathon.wings.ruler.task import Ruler

ROOT = Path(__file__).parent.parent
FOLDERS = sorted({model.folder for model in all_models() if model.folder})
DOORS = sorted(door for folder in FOLDERS for door in (ROOT / folder).glob("*_test.py"))


Script = Callable[..., tuple[int, str, str]]
SetEnv = Callable[[str, str], None]


def name_of(door: Path) -> str:
    return f"{door.parent.name}/{door.stem}"


def opened(door: Path) -> tuple[str, str]:
    """Return the task and the model that a script names."""
    ((task, model),) = re.findall(r'run_task\("([^"]+)", model="([^"]+)"\)', door.read_text("utf-8"))
    return task, model


def test_the_task_scripts_of_each_model_folder_cover_each_task_once() -> None:
    wanted = sorted(
        task.key
        for benchmark in built_in()
        for task in benchmark.tasks
        if task.key != "lalm/audiocaps" and not task.own_command and not isinstance(task, Declared | Ruler)
    )
    for folder in FOLDERS:
        assert sorted(opened(door)[0] for door in DOORS if door.parent.name == folder) == wanted, folder


def test_each_task_script_runs_the_task_and_model_that_its_path_names() -> None:
    for door in DOORS:
        task, model = opened(door)
        assert get_task(door.stem.removesuffix("_test")).key == task
        assert get_model(model).folder == door.parent.name


def test_the_help_of_each_task_script_names_its_task_model_and_environment_variables(script: Script) -> None:
    for door in DOORS:
        task, model = opened(door)
        said = script(door, "--help")[2]
        assert f"{model} on {task}" in said
        assert [name for name in env_names() if name not in said] == []


def test_a_task_script_with_arguments_is_refused(script: Script) -> None:
    code, _out, err = script(ROOT / "Qwen_2.5_Omni" / "TAU_test.py", "--limit", "3")
    assert code == 2
    assert "takes no arguments" in err


TRIED = ROOT / FOLDERS[0] / "TAU_test.py"  # `make test` runs only this script, on clips of one second


@pytest.mark.parametrize(
    "door", [door if door == TRIED else pytest.param(door, marks=pytest.mark.long) for door in DOORS], ids=name_of
)
def test_every_task_script_can_run_the_embedded_model_without_a_download(
    door: Path, script: Script, no_env: SetEnv, tmp_path: Path, monkeypatch
) -> None:
    if os.environ.get("AUDIOMARATHON_TESTS") != "all":
        tau = task_folders.build_tau(tmp_path / "TAU")
        monkeypatch.setattr("audiomarathon.embedded.mini_benchmark.mini_benchmark", lambda: tau)
    settings = {"AUDIOMARATHON_DATA": "mini", "MODEL_PATH": "embedded", "RESULTS_DIR": str(tmp_path / "out")}
    for name, value in {**settings, "SAMPLE_LIMIT": "1", "TIMING": "0"}.items():
        no_env(name, value)
    code, _out, err = script(door)
    task, model = opened(door)
    assert code == 0, err
    assert f"runs instead of {get_model(model).key}" in err
    assert (tmp_path / "out" / task / "embedded" / "base-0" / "summary.json").is_file()


def test_the_embedded_model_does_not_replace_a_transcriber_or_an_endpoint(no_env: SetEnv) -> None:
    no_env("MODEL_PATH", "embedded")
    said: list[str] = []
    assert embedded_instead("whisper-base", RunSettings.read(), said.append) == ("whisper-base", RunSettings.read())
    assert embedded_instead("openai", RunSettings.read(), said.append)[0] == "openai"
    assert said == []


def test_audio_duration_scripts_write_no_file_into_the_repository_unless_asked(
    script, no_env, tmp_path, monkeypatch
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
