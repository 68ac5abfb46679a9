"""The commands in the README files of the four public releases: each runs here, or the docs name a replacement."""

from __future__ import annotations

import ast
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import raw_corpora
import task_folders
from builders import lines_of
from caption_folders import CAPTIONS, clotho_folder
from lalm_folders import ROWS, mmau_pro_folder
from test_jasco_files import a_file, stored

from audiomarathon.cli import batch
from audiomarathon.cli.segment import corpus_class
from audiomarathon.engine import run as engine
from audiomarathon.judges import registry
from audiomarathon.judges.replay import ReplayJudge

ROOT = Path(__file__).parent.parent
ENTRIES = tomllib.loads((ROOT / "tests" / "original_commands.toml").read_text(encoding="utf-8"))
COMMANDS = [entry for entries in ENTRIES.values() for entry in entries]
TESTED = [entry for entry in COMMANDS if entry.get("runs", "here") != "here"]
PAGE = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
#: What a command runs: a script or module, or what a line of Python imports or calls.
SCRIPT = re.compile(
    r"xares\.run|[\w-]+\.(py|sh|txt)\b|(?<=import )\w+|(?<=task = )\w+"
    r"|\w+(?= = YourEncoder)|\.run\(\)|check_audio_encoder(?=\()"
)
#: A fake Python that logs the folder, the settings and the arguments of each call.
NOTED = ("CUDA_VISIBLE_DEVICES", "PRUNE_RATIO", "PRUNE_METHOD", "PRUNE_LAYER_IDX", "SAMPLE_LIMIT", "RESULTS_DIR")
PYTHON = f"""#!{sys.executable} -S
import json, os, sys
if sys.argv[1:3] != ["-P", "-c"]:
    with open(os.environ["CALLS"], "a") as calls:
        noted = {{name: os.environ[name] for name in {NOTED!r} if name in os.environ}}
        print(json.dumps([os.getcwd(), noted, sys.argv[1:]]), file=calls)
"""


def test_every_command_of_the_original_repositories_either_still_runs_or_has_a_replacement() -> None:
    counts = {name: len(entries) for name, entries in ENTRIES.items()}
    assert counts == {"AudioMarathon": 34, "JASCO": 2, "LALM_Bench": 17, "X-ARES": 13}
    assert [entry for entry in COMMANDS if not {"runs", "replaced"} & {*entry}] == []
    assert {key for entry in COMMANDS for key in entry} == {"command", "runs", "folder", "leaves", "replaced"}
    assert [entry for entry in COMMANDS if (entry.get("runs") == "here") != ("folder" in entry)] == []


def test_each_replaced_original_command_has_a_row_with_its_replacement_in_the_docs_table() -> None:
    for entry in (entry for entry in COMMANDS if "replaced" in entry):
        begin = f"| `{entry['command']}` |"
        (row,) = [line for line in PAGE.splitlines() if line.startswith(begin)]
        assert entry["replaced"] in row.removeprefix(begin).replace("`", "")
        for file in re.findall(r"-r (\S+)", entry["replaced"]):
            assert any((folder / file).is_file() for folder in (ROOT, ROOT / "LALM_Bench"))


@pytest.mark.parametrize("entry", TESTED, ids=lambda entry: entry["command"][:60])
def test_the_test_named_for_an_original_command_exists_and_names_its_script(entry: dict[str, str]) -> None:
    file, *names = entry["runs"].split("::")
    nodes = ast.parse((ROOT / file).read_text(encoding="utf-8")).body
    constants = [node for node in nodes if isinstance(node, ast.Assign)]
    matched: list[ast.stmt] = []
    for name in names:  # a class, and its test
        matched += [node for node in nodes if getattr(node, "name", "") == name]
        nodes = getattr(matched[-1], "body", [])
    assert len(matched) == len(names)
    named = SCRIPT.search(entry["command"])
    assert named
    assert named[0] in "".join(map(ast.unparse, [*constants, *matched]))


@pytest.fixture
def noted(tmp_path: Path) -> Callable[[str, str], list[Any]]:
    """Run shell lines in a folder with links to the repository's scripts. Return the calls of Python."""
    (python := tmp_path / "bin" / "python").parent.mkdir()
    python.write_text(PYTHON)
    python.chmod(0o755)

    def run(folder: str, lines: str) -> list[Any]:
        for file in (ROOT / folder).rglob("*"):  # links, so that nothing is written into the repository
            if file.is_file() and "__pycache__" not in file.parts:
                (link := tmp_path / "clone" / file.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(file)
        env = {name: value for name, value in os.environ.items() if name not in NOTED}
        env |= {"PATH": f"{python.parent}:{env['PATH']}", "PYTHON": str(python), "CALLS": str(tmp_path / "calls")}
        script = f"set -e\ncd {shlex.quote(str(tmp_path / 'clone' / folder))}\n{lines}\n"
        subprocess.run(["bash", "-c", script], env=env, check=True)
        return lines_of(tmp_path / "calls")

    return run


@pytest.fixture
def standing_in(tmp_path: Path, no_env, monkeypatch, family_checkpoint, tiny_checkpoint) -> Callable[[str], None]:
    """Put tiny data and weights where a folder's commands look for them."""

    def prepare(folder: str) -> None:
        clone = tmp_path / "clone" / folder
        clone.mkdir(parents=True)
        no_env("AUDIOMARATHON_DATA", str(tmp_path / "data"))
        for name, value in {"DEVICE": "cpu", "MAX_NEW_TOKENS": "1", "TIMING": "0"}.items():
            monkeypatch.setenv(name, value)
        if folder == "Phi4MM":
            monkeypatch.setenv("MODEL_PATH", str(family_checkpoint("phi4mm")))
        if folder == "Qwen_2.5_Omni":
            monkeypatch.setenv("MODEL_PATH", str(tiny_checkpoint))
        if folder in ("Phi4MM", "Qwen_2.5_Omni", "analyse_audio_duration"):
            task_folders.build_all(tmp_path / "data", ("gtzan", "had", "tau", "slue", "vesus", "race"))
        if folder == "Segment":
            places = {"gtzan": "GTZAN/genres", "had": "HAD/HAD_train"}
            places |= {"tau": "TAU-urban-acoustic-scenes-2019-development"}
            for task, place in places.items():
                monkeypatch.setattr(corpus_class(task), "seconds", (4, 4) if task == "gtzan" else (3, 5))
                (clone / place).parent.mkdir(parents=True, exist_ok=True)
                (raw,) = raw_corpora.MAKERS[task](tmp_path / task, raw_corpora.Noise())
                Path(raw).rename(clone / place)
        if folder == "LALM_Bench":  # the embedded model replaces models of 7B and more
            clotho_folder(tmp_path / "data" / "clotho")
            more = {f"v{n}.wav": CAPTIONS[next(iter(CAPTIONS))] for n in range(9)}
            clotho_folder(tmp_path / "data" / "clotho", more, split="validation")
            mmau_pro_folder(tmp_path / "data" / "mmau-pro", rows=ROWS[:2])
            monkeypatch.setenv("LALM_BENCH_ROOT", str(clone))
            run = engine.run
            monkeypatch.setattr(
                engine, "run", lambda tasks, _model, *given, **options: run(tasks, "embedded", *given, **options)
            )
        if folder == "JASCO":
            (clone / "evaluation").mkdir()
            file = a_file(clone / "evaluation" / "example.csv", clips=(2,))
            answers = stored(tmp_path, file, [("Rating: 2\nOrientation: Both", None)] * 8)
            asked: dict[str, Any] = {"meta-llama/Llama-3.1-70B-Instruct": ReplayJudge(answers)}
            monkeypatch.setattr(registry, "LocalJudge", lambda _name, source, *_given, **_more: asked[source])

    return prepare


def called(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in this process what Python would be started for."""
    try:
        if arguments[:3] == ["-P", "-m", "audiomarathon.cli.batch"]:
            batch.batch(arguments[3], arguments[4:])
        else:
            monkeypatch.setattr(sys, "argv", arguments)
            runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as done:
        if done.code:
            raise


FOLDERS = list(dict.fromkeys(entry["folder"] for entry in COMMANDS if "folder" in entry))
LONG = ("Qwen_2.5_Omni", "LALM_Bench")  # other tests run their scripts too, with other options


@pytest.mark.parametrize(
    "folder", [pytest.param(folder, marks=[pytest.mark.long] if folder in LONG else []) for folder in FOLDERS]
)
def test_original_commands_run_in_their_folder_and_write_their_results_there(
    folder: str, noted, standing_in, tmp_path: Path, monkeypatch
) -> None:
    entries = [entry for entry in COMMANDS if entry.get("folder") == folder]
    typed = [entry.get("replaced", entry["command"]) for entry in entries]
    standing_in(folder)
    calls = noted(folder, "\n".join(line for line in typed if line != f"cd {folder}"))
    left = [entry["leaves"] for entry in entries if "leaves" in entry]
    assert len(calls) == len(left)
    for (where, settings, arguments), path in zip(calls, left, strict=True):
        place = Path(where)
        monkeypatch.chdir(place)
        for file in place.glob(path):
            file.unlink()
        with monkeypatch.context() as patched:
            for name, value in ({"CUDA_VISIBLE_DEVICES": ""} | settings).items():
                patched.setenv(name, value)
            called(arguments, patched)
        assert [*place.glob(path)], (arguments, path)


@pytest.mark.skipif(find_spec("pip") is None or find_spec("setuptools") is None, reason="no pip that builds offline")
def test_pip_installs_this_project_from_the_original_requirements_file_of_jasco() -> None:
    offline = ("--dry-run", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check")
    command = [sys.executable, "-m", "pip", "install", *offline, "-r", "evaluation/requirements.txt"]
    done = subprocess.run(command, cwd=ROOT / "JASCO", capture_output=True, text=True, check=True)
    assert "Would install audiomarathon-" in done.stdout
