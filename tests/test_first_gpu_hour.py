"""`scripts/first_gpu_hour.sh`: its commands with a fake Python; a real dry run that is killed and resumed."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from builders import a_run, changed_records, lines_of

from audiomarathon.settings import env_names

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))

import first_gpu_hour

SCRIPTS = Path(__file__).parent.parent / "scripts"

#: A fake Python that logs its arguments, and fails with exit code $CODE if they contain $FAILS.
PYTHON = """#!/bin/bash
case "$*" in
    *machine) printf '%s\\n' "${GPUS:-1}" qwen2.5-omni-7b "{$DTYPE}"; exit ;;
    *\\ table\\ *) touch "$3/table.md" ;;
esac
echo "$*" | sed 's|^-P -m audiomarathon ||;s|^[^ ]*/scripts/||' >>"$LOG"
[ "$FAILS" ] && [[ "$*" == *$FAILS* ]] && echo "error: no luck" && exit "${CODE:-1}" || exit 0
"""
#: Without Git, since a commit or edit in this checkout during the test would undo the steps.
REAL = {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
REAL |= {"GIT_DIR": "/"}
Hour = Callable[..., tuple[subprocess.CompletedProcess[str], list[str]]]


def command(*arguments: object) -> list[str]:
    return ["bash", str(SCRIPTS / "first_gpu_hour.sh"), *map(str, arguments)]


def surroundings(**env: str) -> dict[str, str]:
    """Return an environment without settings."""
    return {name: value for name, value in os.environ.items() if name not in env_names()} | env


@pytest.fixture
def hour(tmp_path: Path) -> Hour:
    """Call the script with the fake Python. Return the finished process and the commands that it called."""
    data, log = tmp_path / "data", tmp_path / "log"
    data.mkdir()
    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o755)

    def call(*arguments: object, **env: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
        log.write_text("")
        env = {"PYTHON": str(tmp_path / "python"), "LOG": str(log), "RAY_ADDRESS": "", **env}
        done = subprocess.run(
            command(*arguments), cwd=tmp_path, env=surroundings(**env), capture_output=True, text=True, check=False
        )
        return done, log.read_text().splitlines()

    return call


def steps(calls: list[str]) -> list[str]:
    """The first word of each command but the checks, and the table, which is made each time."""
    return [line.split()[0] for line in calls if not re.search("--plan|doctor --model|_hour.py table", line)]


ALL = ["doctor", "certify", "measure/benchmark_efficiency.py", "sweep", "sweep", "sweep", "first_gpu_hour.py"]


def test_finished_steps_of_the_script_are_skipped_until_their_inputs_change(hour: Hour, tmp_path: Path) -> None:
    first, calls = hour("voxtral", "--data", "data")
    assert first.returncode == 0, first.stderr
    (archive,) = tmp_path.glob("first_gpu_hour/*.tar.gz")
    assert steps(calls) == ALL
    assert [line for line in calls if line.endswith("/ray --executor ray --workers 2 --gpus-per-worker 0.5")]
    made = archive.stat().st_mtime_ns
    assert steps(hour("voxtral", "--data", "data")[1]) == []
    assert archive.stat().st_mtime_ns == made
    (tmp_path / "data" / "more.wav").touch()
    assert steps(hour("voxtral", "--data", "data")[1]) == ALL[3:]
    assert archive.stat().st_mtime_ns > made
    assert len([*tmp_path.glob("first_gpu_hour/sweep.before.*/log")]) == 1
    assert steps(hour("aero-1", "--data", "data")[1]) == [ALL[0], ALL[1], *ALL[3:]]  # efficiency has its own model
    assert steps(hour("aero-1", "--data", "data", DTYPE="float32")[1]) == ALL


@pytest.mark.parametrize(("env", "address"), [({"GPUS": "2"}, ""), ({"RAY_ADDRESS": "h:1"}, " --address h:1")])
def test_two_ray_workers_have_a_gpu_each_on_two_gpus_or_a_cluster(
    hour: Hour, env: dict[str, str], address: str
) -> None:
    _done, calls = hour("voxtral", **env)
    assert [line for line in calls if line.endswith(f"/ray --executor ray --workers 2{address}")]


@pytest.mark.parametrize(
    ("fails", "code", "called", "then"),
    [("certify", 1, ALL, ["certify"]), ("random,fast_v", 130, ALL[:4], ALL[3:])],
    ids=["failed", "interrupted by Ctrl-C"],
)
def test_only_ctrl_c_stops_later_steps_and_the_next_call_repeats_what_is_not_done(
    hour: Hour, tmp_path: Path, fails: str, code: int, called: list[str], then: list[str]
) -> None:
    done, calls = hour("voxtral", FAILS=fails, CODE=str(code))
    assert (done.returncode, steps(calls)) == (code, called)
    assert bool([*tmp_path.glob("first_gpu_hour/*.tar.gz")]) is (code == 1)
    done, calls = hour("voxtral")
    assert (done.returncode, steps(calls)) == (0, then)


def test_a_wrong_command_is_a_one_line_error_before_any_step(hour: Hour, tmp_path: Path) -> None:
    for arguments, said in (
        (["--data", "nowhere"], "--data nowhere: no such folder"),
        (["--model", "voxtral"], "no such option: --model; allowed: --data, --task, --out, --address"),
        (["voxtral", "aero-1"], "two models, voxtral and aero-1"),
    ):
        done, calls = hour(*arguments)
        assert (done.returncode, done.stdout, calls) == (2, "", [])
        assert done.stderr.startswith(f"error: {said}")
        assert not (tmp_path / "first_gpu_hour").exists()


@pytest.mark.parametrize("changes", [{}, {"reply": "other"}])
def test_replies_of_ray_workers_that_differ_from_local_ones_are_reported(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    local, ray = tmp_path / "local", tmp_path / "ray"
    a_run(local, "base-0", [True, True])
    shutil.copytree(local, ray)
    (folder,) = (file.parent for file in ray.rglob("run.json"))
    changed_records(folder, **changes)
    assert first_gpu_hour.replies(local, ray, tmp_path / "out.json") == int(bool(changes))
    assert len(json.loads((tmp_path / "out.json").read_text())["different"]) == (2 if changes else 0)


@pytest.mark.long
@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed (pip install 'ray>=2.40')")
def test_a_killed_dry_run_of_the_first_gpu_hour_script_resumes_and_uses_two_ray_nodes(tmp_path: Path) -> None:
    from test_encoder_ray import machines

    out, env = tmp_path / "out", surroundings(**REAL)
    with (tmp_path / "said").open("w") as said:
        killed = subprocess.Popen(
            command("--out", out), env=env, cwd=tmp_path, stdout=said, stderr=said, start_new_session=True
        )
        deadline = time.monotonic() + 300
        while not (begun := [*out.glob("sweep/results/tau/embedded/base-0/samples.jsonl")]) or not lines_of(begun[0]):
            assert killed.poll() is None, (tmp_path / "said").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
    assert "dry run (no GPU that PyTorch can use)" in (tmp_path / "said").read_text()
    assert not (out / "archive").exists()
    before = begun[0].read_bytes()

    def again(*more: str) -> str:
        given = command("--out", out, *more)
        return subprocess.run(given, env=env, cwd=tmp_path, capture_output=True, text=True, check=True).stderr

    with machines(1, 1) as made:
        told = again("--address", made.address)
    assert [told.count(f"{step}: done before\n") for step in first_gpu_hour.STEPS] == [1, 1, 1, 0, 0]
    assert begun[0].read_bytes().startswith(before)
    equal = json.loads((out / "two_workers" / "replies.json").read_text())
    assert (equal["replies"], equal["different"], equal["workers"]) == (8, [], 2)
    assert equal["workers_sharing"] == 1  # each on a machine of its own
    assert "8 of 8 replies equal" in (out / "table.md").read_text()
    (archive,) = out.glob("first_gpu_hour_*.tar.gz")
    with tarfile.open(archive) as held:
        records = held.extractfile("sweep/results/tau/embedded/snapkv-0.5/samples.jsonl")
        assert len({json.loads(line)["id"] for line in records}) == 4
        assert {Path(name).suffix for name in held.getnames()} == {"", ".json", ".jsonl", ".csv", ".txt", ".md"}
    assert again("--address", "127.0.0.1:1").count(": done before\n") == 5  # a lost cluster undoes nothing
