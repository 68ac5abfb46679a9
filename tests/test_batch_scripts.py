"""Run `batch_test.sh` of the model folders, on tiny data and a tiny checkpoint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from fnmatch import fnmatch
from importlib.util import find_spec
from pathlib import Path

import pytest
import task_folders

from audiomarathon.benchmarks.audiomarathon.benchmark import AUDIOMARATHON
from audiomarathon.cli import batch as cli_batch
from audiomarathon.engine.ray_options import Ray
from audiomarathon.errors import SettingsError
from audiomarathon.models.registry import all_models
from audiomarathon.settings import env_names

ROOT = Path(__file__).parent.parent
RAY = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
FOLDERS = sorted({model.folder for model in all_models() if model.folder} | {"kvpress"})


def call(folder: str, *arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a folder's script as users do, from another folder, without environment variables for data."""
    gone = {*env_names(), "CUDA_VISIBLE_DEVICES", *(f"{task.key.upper()}_DATA_PATH" for task in AUDIOMARATHON.tasks)}
    clean = {name: value for name, value in os.environ.items() if name not in gone}
    command = [str(ROOT / folder / "batch_test.sh"), *arguments]
    env = clean | {"PYTHON": sys.executable, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"} | env
    return subprocess.run(command, check=False, cwd=cwd, env=env, capture_output=True, text=True, timeout=240)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    task_folders.build_tau(tmp_path / "data" / "TAU")
    task_folders.build_gtzan(tmp_path / "data" / "GTZAN")
    return tmp_path / "data"


def test_batch_test_scripts_of_all_model_folders_are_identical() -> None:
    doors = {(ROOT / folder / "batch_test.sh").read_text() for folder in FOLDERS}
    assert len(doors) == 1
    assert all(os.access(ROOT / folder / "batch_test.sh", os.X_OK) for folder in (*FOLDERS, "scripts"))


def test_a_batch_script_passes_every_argument_to_python_unchanged(tmp_path: Path) -> None:
    folder, here = FOLDERS[0], tmp_path / "my work"
    here.mkdir()
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\n[ "$2" = -c ] || { pwd; printf "%s\\n" "$@"; exit 7; }\n')
    python.chmod(0o755)
    done = call(folder, "-s", "1", "my task", "-o", "*", "", cwd=here, PYTHON=str(python))
    assert done.returncode == 7, done.stderr
    given = ["-P", "-m", "audiomarathon.cli.batch", folder, "-s", "1", "my task", "-o", "*", ""]
    assert done.stdout.splitlines() == [str(here), *given]


@pytest.fixture(params=["in this process", pytest.param("as users do", marks=pytest.mark.long)])
def door(
    request: pytest.FixtureRequest, no_env, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return `call`, or run the script's Python code in this process, which saves seconds of imports."""
    if request.param == "as users do":
        return call

    def door(folder: str, *arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.chdir(cwd)
        monkeypatch.setattr(os, "environ", os.environ | env)  # the command sets CUDA_VISIBLE_DEVICES
        code = 0
        try:
            cli_batch.batch(folder, arguments)
        except SystemExit as ended:
            code = int(ended.code or 0)
        return subprocess.CompletedProcess([], code, *capsys.readouterr())

    return door


def test_a_batch_script_runs_all_tasks_that_have_data_and_reports_those_without(
    door: Callable[..., subprocess.CompletedProcess[str]], data: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """Run from a folder with spaces in its name, with tasks in any case between options, one without data."""
    here = tmp_path / "my work"
    here.mkdir()
    done = door(
        "Qwen_2.5_Omni", "-s", "1", "tAu", "-r", "0.0,0.5", "-l", "1", "had", "-m", "fast_v,frame",
        cwd=here, AUDIOMARATHON_DATA=str(data), MODEL_PATH=str(tiny_checkpoint), MAX_NEW_TOKENS="3", DEVICE="cpu",
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    out = here / "Qwen_2.5_Omni_Results"
    assert [entry.name for entry in here.iterdir()] == [out.name]
    assert {log.name for log in (out / "logs").iterdir()} == {"tau.log", "had.log"}
    assert "no folder" in (out / "logs" / "had.log").read_text()
    content = json.loads((out / "summary.json").read_text())
    assert content["model"] == "qwen2.5-omni-7b"
    assert list(content["failures"]) == ["had"]
    settings = ["base-0", "fast_v-0.5-layer1", "frame-0.5-layer1"]
    assert [(r["task"], r["setting"], r["summary"]["n"]) for r in content["results"]] == [
        ("tau", setting, 1) for setting in settings
    ]
    for kind in ("txt", "csv"):
        assert "frame-0.5-layer1" in (out / f"summary.{kind}").read_text()
    for word in ("accuracy", "LLM prefill ms", "frame-0.5-layer1", "FAILED had"):
        assert word in done.stdout
    assert "Traceback" not in done.stderr


def test_a_batch_script_without_task_data_prints_an_error_and_no_results_table(
    door: Callable[..., subprocess.CompletedProcess[str]], data: Path, tmp_path: Path
) -> None:
    done = door("Qwen_2.5_Omni", "had", "-o", "out", cwd=tmp_path, AUDIOMARATHON_DATA=str(data), DEVICE="cpu")
    assert (done.returncode, done.stdout) == (1, "")
    assert [line[:12] for line in done.stderr.splitlines()] == ["error: had: "]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["logs"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-x"], "no such option: -x"),
        (["--ratio", "0.5"], "no such option: --ratio"),
        (["TAU", "-s"], "'-s' requires an argument"),
        (["-s", "many", "TAU"], "--sample-limit=many: not allowed"),
        (["-l", "-1", "TAU"], "--pruned-layer=-1: not allowed"),
        (["-r", "1.5", "TAU"], "--ratios=1.5: not allowed"),
        (["-m", "dort", "TAU"], "unknown method 'dort' (did you mean 'dart'?)"),
        (["TAUU"], "unknown task 'TAUU' (did you mean 'tau'?)"),
        (["-g", "0,0", "TAU"], "--gpu-id=0,0: not allowed"),
        (["-g", "first", "TAU"], "--gpu-id=first: not allowed"),
        (["--model", "gpt", "TAU"], "unknown model 'gpt'"),
    ],
)
def test_a_wrong_batch_command_is_a_one_line_error(
    arguments: list[str], message: str, no_env, monkeypatch, capsys
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(SystemExit) as raised:
        cli_batch.batch("Qwen_2.5_Omni", arguments)
    assert raised.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert message in line


@pytest.mark.parametrize(
    ("python", "reason"),
    [("false", ""), ("/nowhere/python", " (*No such file*)"), (sys.executable, " (*no numpy here)")],
)
def test_a_batch_script_whose_python_cannot_import_audiomarathon_reports_it(
    tmp_path: Path, python: str, reason: str
) -> None:
    broken = tmp_path / "broken" / "audiomarathon" / "__init__.py"
    broken.parent.mkdir(parents=True)
    broken.write_text("raise ImportError('no numpy here')")
    done = call("Qwen_2.5_Omni", cwd=tmp_path, PYTHON=python, PYTHONPATH=str(broken.parent.parent))
    assert done.returncode == 2
    assert fnmatch(done.stderr, f"error: {python} cannot import audiomarathon{reason}: activate its *root\n")


@pytest.fixture
def seen(no_env, monkeypatch: pytest.MonkeyPatch):
    """Return the arguments passed to the sweep."""

    def run(folder: str, *arguments: str, **env: str):
        calls: list[tuple] = []
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(cli_batch, "run_sweep", lambda *given, **named: calls.append((given, named)))
        cli_batch.batch(folder, arguments)
        ((given, named),) = calls
        return (*given, named)

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(os, "environ", os.environ.copy())
    return run


def test_options_missing_in_a_batch_command_are_taken_from_environment_variables(seen) -> None:
    given = seen("kvpress", "gtzan", "-r", "0.5", "--no-base", PRUNE_METHOD="knorm", SAMPLE_LIMIT="1")
    tasks, _model, settings, methods, ratios, named = given
    assert (tasks, methods, ratios, settings.limit, named["base"]) == (["gtzan"], "knorm", "0.5", 1, False)


def test_the_batch_script_of_a_model_runs_all_tasks_with_dart_at_layer_2_on_gpu_0_by_default(seen) -> None:
    tasks, model, settings, methods, ratios, named = seen("Qwen_2.5_Omni")
    assert tasks == ["all"]
    assert (model, methods, ratios) == ("qwen2.5-omni-7b", "dart", None)
    assert (settings.layer, settings.limit, str(settings.results)) == (2, 0, "Qwen_2.5_Omni_Results")
    assert named == {"base": True, "plan": False, "logs": True, "ray": None}
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"


def test_the_batch_script_of_kvpress_runs_presses_and_writes_to_kvpress_results(seen) -> None:
    _tasks, model, settings, methods, _ratios, _named = seen("kvpress")
    assert model == "qwen2.5-omni"
    assert "snapkv" in methods.split(",")
    assert "fast_v" not in methods.split(",")
    assert str(settings.results) == "kvpress_Results"


@pytest.mark.parametrize(("gpus", "there", "visible"), [("7", 0, "none"), ("0,1", 0, "none"), ("0,1,9", 2, "only 2")])
def test_a_gpu_id_that_does_not_exist_is_refused_rather_than_run_on_the_cpu(
    seen, monkeypatch, capsys, gpus, there, visible
) -> None:
    monkeypatch.setattr(cli_batch, "_has_gpu", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: there)
    with pytest.raises(SystemExit):
        seen("Qwen_2.5_Omni", "-g", gpus)
    assert f"error: --gpu-id={gpus}: PyTorch sees {visible} of these GPUs" in capsys.readouterr().err
    assert seen("Qwen_2.5_Omni", "-g", "7", "--plan")[-1]["plan"]
    assert seen("Qwen_2.5_Omni", "-g", "7", DEVICE="cpu")[2].device == "cpu"


@pytest.mark.parametrize(("gpus", "ray"), [("3", None), pytest.param("0,2,3", Ray(workers=3), marks=RAY)])
def test_each_of_several_gpu_ids_gets_a_ray_worker_and_a_single_gpu_none(
    seen, monkeypatch: pytest.MonkeyPatch, gpus, ray
) -> None:
    monkeypatch.setattr(cli_batch, "_has_gpu", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    *_given, named = seen("Qwen_2.5_Omni", "-g", gpus)
    assert (os.environ["CUDA_VISIBLE_DEVICES"], named["ray"]) == (gpus, ray)


def test_gpu_id_on_a_machine_without_a_gpu_runs_on_the_cpu(seen, monkeypatch, capsys) -> None:
    monkeypatch.setattr(cli_batch, "_has_gpu", lambda: False)
    assert seen("Qwen_2.5_Omni", "-g", "0")[-1]["ray"] is None
    assert seen("Qwen_2.5_Omni", "-g", "0,1")[-1]["ray"] is None
    assert "--gpu-id=0: this machine has no GPU, so the sweep runs on the CPU" in capsys.readouterr().err


def test_cuda_visible_devices_set_by_a_scheduler_is_kept(seen) -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = "5"
    seen("Qwen_2.5_Omni")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "5"


def test_a_batch_script_in_a_folder_not_named_after_a_model_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"not a model's folder"):
        cli_batch._model_of("Elsewhere")
