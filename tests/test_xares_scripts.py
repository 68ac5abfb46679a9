"""The folder X-ARES/: its commands, printed lines, score files and Python examples."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from test_probing_runs import made

import audiomarathon
from audiomarathon.errors import EncoderError, SettingsError
from audiomarathon.runs.read import Run
from audiomarathon.wings.encoders.probing.probe_input import PUBLISHED, STANDARD
from audiomarathon.wings.encoders.registry import load_encoder
from audiomarathon.wings.encoders.results.scores import task_scores
from audiomarathon.wings.encoders.xares.task_config import load_task_file
from audiomarathon.wings.encoders.xares_commands import XaresTask, run

ROOT = Path(__file__).parent.parent
DOORS = ROOT / "X-ARES"
ENCODER = """
import torch


class LevelEncoder(torch.nn.Module):
    sampling_rate, output_dim, hop_size_in_ms = 1000, 2, 100

    def forward(self, audio):
        frames = torch.nn.functional.pad(audio, (0, -audio.shape[1] % 100)).unfold(1, 100, 100)
        return 30 * torch.stack([frames.mean(-1), frames.square().mean(-1)], dim=-1)
"""
TASK = """
from xares.task import TaskConfig


def {name}_config(encoder):
    config = TaskConfig(
        name="{name}", formal_name="{title}", encoder=encoder, k_fold_splits=[1, 2, 3], output_dim=3,
        eval_weight={weight}, label_processor=lambda x: "abc".index(x["tone"]), {more}
    )
    config.audio_tar_name_of_split = {{fold: f"{{fold}}.tar" for fold in config.k_fold_splits}}
    return config
"""


def write_task(folder: Path, name: str, title: str, weight: int, more: str = "") -> None:
    (folder / f"{name}_task.py").write_text(TASK.format(name=name, title=title, weight=weight, more=more))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder with an encoder and task files, tars for `tones` and `hums`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AUDIOMARATHON_CACHE", str(tmp_path / "cache"))
    for name in ("XARES_ENV_ROOT", "AUDIOMARATHON_ENCODER_DATA"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "level_encoder.py").write_text(ENCODER)
    shutil.copytree(made(tmp_path / "env") / "tones", tmp_path / "env" / "hums")
    write_task(tmp_path, "tones", "Tones", 30)
    write_task(tmp_path, "hums", "A hum", 10, "private=True, do_knn=False, epochs=60")
    others = {"lost": "", "away": "private=True", "off": "disabled=True", "frames": "task_type='frame'"}
    for name, more in others.items():
        write_task(tmp_path, name, name, 10, more)
    return tmp_path


def scores_of(results: Path, task: str) -> tuple[float, float | None]:
    runs = [Run.read(folder) for folder in sorted((results / "own" / task / "LevelEncoder").iterdir())]
    (score,) = task_scores(runs)
    mlp, knn = (score.by_probe.get(name) for name in PUBLISHED)
    assert mlp
    return mlp.value, knn and knn.value


def test_xares_run_prints_the_score_table_that_the_original_x_ares_prints(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [f"{name}_task.py" for name in ("tones", "lost", "hums", "away", "off", "frames", "nothing")]
    assert run("level_encoder.py", files, max_jobs=0, results=Path("out")) == 1
    stdout, told = capsys.readouterr()
    (tones, tones_knn), (hums, hums_knn) = (scores_of(place / "out", task) for task in ("tones", "hums"))
    assert (tones_knn is None, hums_knn) == (False, None)
    assert stdout.startswith("\nResults:\n Task  MLP_Score  KNN_Score  Private\n")
    rows = [line.split() for line in stdout.splitlines()[3:6]]
    assert rows[:2] == [["A", "hum", *rows[0][2:4], "True"], ["Tones", *rows[1][1:3], "False"]]
    assert [*map(float, rows[0][2:4])] == pytest.approx([hums, 0], abs=1e-6)
    assert [*map(float, rows[1][1:3])] == pytest.approx([tones, tones_knn], abs=1e-6)
    assert hums != tones
    averages = f"""
Weighted Average MLP Score for All Datasets: {(30 * tones + 10 * hums) / 40}
Weighted Average KNN Score for All Datasets: {tones_knn * 30 / 30}

Weighted Average MLP Score for Public Datasets: {tones * 30 / 30}
Weighted Average KNN Score for Public Datasets: {tones_knn * 30 / 30}

Encoders
"""
    assert averages in re.sub(" +\n", "\n", stdout)
    for line in (
        "left out: away: private task", "left out: off is disabled", "error: frames: frame task, criterion Cross",
        "error: nothing_task.py: no such file", "error: env/lost: no 1.tar", "note: X-ARES 0.1.3 prints the private",
    ):  # fmt: skip
        assert told.count(line) == 1, line
    written = {
        file.relative_to(place / "env").as_posix(): file.read_text() for file in (place / "env").rglob("*_score.txt")
    }
    assert written == {
        "tones/checkpoints/LevelEncoder/mlp_score.txt": f"{tones}\n30",
        "tones/checkpoints/LevelEncoder/knn_score.txt": f"{tones_knn}\n30",
        "hums/checkpoints/LevelEncoder/mlp_score.txt": f"{hums}\n10",
    }


@pytest.mark.long
def test_tasks_run_in_parallel_and_a_killed_process_does_not_stop_the_others(place: Path) -> None:
    kill = "import multiprocessing, os\nif multiprocessing.parent_process():\n    os.kill(os.getpid(), 9)\n"
    (place / "hums_task.py").write_text(kill + (place / "hums_task.py").read_text())
    words = ["--max-jobs", "9", "level_encoder.py", "hums_task.py", "tones_task.py"]
    command = [sys.executable, "-m", "xares.run", *words]
    env = os.environ | {"PYTHONPATH": f"{DOORS}:{ROOT / 'src'}"}
    done = subprocess.run(command, env=env, text=True, capture_output=True, check=False)
    assert done.returncode == 1
    assert "error: hums_task.py: its process ended with exit code -9" in done.stderr
    mlp, knn = scores_of(place / "results", "tones")
    assert f"Weighted Average MLP Score for All Datasets: {mlp}\n" in done.stdout
    assert f"Weighted Average KNN Score for All Datasets: {knn}\n" in done.stdout
    assert "Public" not in done.stdout


def test_xares_stage_options_limit_a_run_to_downloading_or_encoding_or_scoring(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fetched: list[tuple[str, Path]] = []
    monkeypatch.setattr(
        "audiomarathon.wings.encoders.xares_commands.fetch", lambda task, root, _say: fetched.append((task.name, root))
    )
    write_task(place, "tones", "Tones", 30, "zenodo_id='1', env_root='env'")
    task: dict[str, Any] = {"encoder_py": "level_encoder.py", "tasks_py": ["tones_task.py"], "max_jobs": 0}
    assert run(**task, to_stage=0) == 0
    assert fetched == []  # all parts are there
    tar = place / "env" / "tones" / "2.tar"
    (part := tar.with_name(".2.tar.partial")).touch()
    assert run(**task, to_stage=0) == 0
    part.unlink()
    tar.rename(place / "2.tar")
    assert run(**task, to_stage=0) == 0
    assert fetched == [("tones", Path("env"))] * 2
    (place / "2.tar").rename(tar)
    assert run(**task, from_stage=1, to_stage=1) == 0
    assert not (place / "results").exists()
    monkeypatch.setattr("audiomarathon.wings.encoders.encoder.Encoder.encode", None)  # stage 2 encodes nothing again
    assert run(**task, from_stage=2) == 0
    assert len(fetched) == 2
    assert "Results:\n Task  MLP_Score  KNN_Score  Private\nTones" in capsys.readouterr().out
    assert {folder.name for folder in (place / "results/own/tones/LevelEncoder").iterdir()} == {*STANDARD, *PUBLISHED}


def test_an_encoder_that_breaks_the_interface_is_refused_before_any_task_runs(place: Path) -> None:
    (place / "odd_encoder.py").write_text(ENCODER.replace("output_dim", "dim"))
    task = {"tasks_py": ["tones_task.py"], "max_jobs": 1, "from_stage": 1}
    with pytest.raises(EncoderError, match="output_dim"):
        run("odd_encoder.py", **task)  # type: ignore[arg-type]
    assert not (place / "results").exists()


def test_xares_task_and_evaluate_encoder_give_the_scores_of_the_encoder_command(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = load_encoder("level_encoder.py").module
    assert audiomarathon.check_audio_encoder(encoder)
    mlp, knn = XaresTask(load_task_file(place / "tones_task.py", encoder)).run()
    assert (mlp, knn) == tuple((score, 30) for score in scores_of(place / "results", "tones"))
    (score,) = audiomarathon.evaluate_encoder(encoder, ["tones_task.py"], results="results")
    assert [*score.by_probe] == sorted([*STANDARD, *PUBLISHED], key=[*STANDARD, *PUBLISHED].index)
    assert score.by_probe[PUBLISHED[0]].value == mlp[0]
    assert score.by_probe["linear"].value > 0.9
    with pytest.warns(UserWarning, match="left out: "):
        (small,) = audiomarathon.evaluate_encoder(
            "level_encoder.py", ["lost_task.py", "tones_task.py"], protocol="standard", limit=6, results="small"
        )
    assert (small.n, [*small.by_probe]) == (18, [*STANDARD])
    with pytest.raises(SettingsError, match="protocol nonsense: allowed: both"):
        audiomarathon.evaluate_encoder("level_encoder.py", "tones_task.py", protocol="nonsense")


def test_code_examples_of_the_x_ares_readme_run(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readme = (DOORS / "README.md").read_text()
    imports = re.findall(r"^>>> (from .*)$", readme, re.MULTILINE)
    monkeypatch.syspath_prepend(DOORS)
    others = {
        name: module for name, module in sys.modules.items() if name.split(".")[0] not in ("xares", "tasks", "example")
    }
    namespace = dict[str, Any]()
    with patch.dict(sys.modules, others, clear=True):
        for line in imports:
            exec(line, namespace)
    assert len(imports) == 5
    config = namespace["asvspoof2015_config"](encoder=load_encoder("level_encoder.py").module)
    task = namespace["XaresTask"](config=config)
    assert (task.task.key, task.root, task.encoder.name) == ("xares/asvspoof2015", Path("env"), "LevelEncoder")
    assert namespace["evaluate_encoder"] is audiomarathon.evaluate_encoder
    assert not namespace["check_audio_encoder"](namespace["DashengEncoder"])  # the class, not an encoder
    monkeypatch.setitem(sys.modules, "dasheng", None)
    with pytest.raises(EncoderError, match=r"dasheng cannot be imported .*: pip install 'audiomarathon\[encoders\]'"):
        namespace["DashengEncoder"]()


def test_the_batch_test_script_runs_every_encoder_on_every_task(place: Path) -> None:
    python = place / "python"
    python.write_text('#!/bin/sh\necho "$@"\ncase "$*" in *gone*) exit 2 ;; esac\n')
    python.chmod(0o755)
    env = os.environ | {"PYTHON": str(python), "RESULTS_DIR": "out", "TASKS": "esc50 tones_task.py"}
    env |= {"ENCODERS": "gone_encoder.py hf:some/model"}
    done = subprocess.run([DOORS / "batch_test.sh", "--max-jobs", "4"], env=env, text=True, stdout=-1, check=False)
    lines = []
    for name in ("gone_encoder.py", "hf:some/model"):
        lines += [f"== {name}", f"-P -m xares.run --results out --max-jobs 4 {name} esc50 tones_task.py"]
    assert done.stdout.splitlines() == [*lines, "-P -m audiomarathon encoder table out"]
    assert done.returncode == 1
