"""The command: every fault is one clear line and a non-zero exit, and nothing is lost."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import builders
import huggingface_hub
import numpy as np
import pytest
import safetensors.numpy
import task_folders
from builders import changed, one_load  # noqa: F401 (a fixture)
from conftest import call, succeed
from huggingface_hub import errors as hub_errors
from typer.testing import CliRunner

from audiomarathon.cli import doctor_checks as doctor
from audiomarathon.cli.app import app, main
from audiomarathon.cli.options import PICTURES, checked_file
from audiomarathon.embedded import mini_benchmark
from audiomarathon.errors import ModelError, SettingsError
from audiomarathon.models.checkpoint import find_checkpoint
from audiomarathon.models.qwen2_5_omni import Qwen2_5Omni
from audiomarathon.models.registry import get_model
from audiomarathon.settings import env_names

pytestmark = pytest.mark.usefixtures("one_load")


@pytest.fixture
def command(no_env, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Run the command in an empty folder; returns (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def call(*arguments: object) -> tuple[int, str, str]:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.stdout, result.stderr

    return call


@pytest.fixture
def tau(tmp_path: Path) -> Path:
    return task_folders.build_tau(tmp_path / "data" / "TAU")


@pytest.fixture
def run_tau(command, tau: Path, tiny_checkpoint: Path):
    """Run the tiny checkpoint on TAU with further options, at most a token a reply."""
    where = ("run", "tau", "--data", tau, "--model-path", tiny_checkpoint, "--max-new-tokens", "1")
    return lambda *more: command(*where, *more)


def one_error(stderr: str) -> str:
    lines = [line for line in stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, stderr
    assert "Traceback" not in stderr
    return lines[0]


REAL = "--model qwen2.5-omni"


class TestFaultsBeforeAnyModelIsLoaded:
    @pytest.mark.parametrize(
        ("words", "message"),
        [
            ("--method frame --ratio 0.5 --layer 99", "99 is not one of this model's layers 0–3"),
            ("--method fast_v --ratio 0.5 --layer 0", "the layer must be"),
            ("--attn-implementation flash_attention_2 --device cpu", "allowed here: sdpa, eager"),
            ("--results data/TAU/info.txt/out", "info.txt/out: cannot be written: Not a directory"),
        ],
    )
    def test_a_layer_attention_or_output_path_that_cannot_be_used_is_one_error_line(
        self, command, tau: Path, tiny_checkpoint: Path, monkeypatch, words: str, message: str
    ) -> None:
        (tau / "info.txt").touch()
        monkeypatch.setattr(Qwen2_5Omni, "load", None)
        code, _out, err = command("run", "tau", "--data", tau, "--model-path", tiny_checkpoint, *words.split())
        assert code == 2
        assert message in one_error(err)

    def test_a_method_without_a_ratio_or_invalid_task_json_is_one_error_line(
        self, command, tau: Path, monkeypatch
    ) -> None:
        where = ("run", "tau", "--data", tau, *REAL.split())
        monkeypatch.setenv("PRUNE_METHOD", "dart")
        code, _out, err = command(*where)
        assert (code, re.search("method dart: .*PRUNE_RATIO", one_error(err)) is not None) == (2, True)
        monkeypatch.delenv("PRUNE_METHOD")
        next(tau.rglob("*.json")).write_text("[{]")
        code, _out, err = command(*where)
        assert code == 2
        assert "acoustic_scene_task_meta.json" in one_error(err)


class TestRun:
    def test_a_run_prints_a_table_and_writes_its_run_folder(self, command, tau: Path, tiny_checkpoint: Path) -> None:
        options = "--method frame --ratio 0.5 --limit 2 --max-new-tokens 1"
        code, out, err = command(
            "run", "ASC", "--data", tau, *REAL.split(), "--model-path", tiny_checkpoint, *options.split()
        )
        assert code == 0
        assert "tau" in out
        assert "frame-0.5-layer2" in out
        folder = Path("results/tau/tiny-omni/frame-0.5-layer2")
        assert {p.name for p in folder.iterdir()} >= {"run.json", "samples.jsonl", "summary.json"}
        assert str(folder) in err
        code, out, err = command("score", "results")
        assert code == 0
        assert "frame-0.5-layer2" in out

    @pytest.mark.parametrize(
        "arguments",
        [["run"], ["run", "--model", "embedded"], ["sweep", "--methods", "base"], ["run", "--data", "mini"]],
        ids=" ".join,
    )
    def test_a_run_without_data_uses_the_embedded_model_and_the_mini_benchmark(
        self, command, tau: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
    ) -> None:
        monkeypatch.setattr(mini_benchmark, "mini_benchmark", lambda: tau)
        code, _out, err = command(*arguments, "tau", "--limit", "1", "--max-new-tokens", "1")
        assert code == 0, err
        assert ("no data root is set" in err) is ("--data" not in arguments)
        (run,) = Path("results").rglob("run.json")
        facts = json.loads(run.read_text())
        assert (facts["model"], facts["settings"]["data"], facts["data_folder"]) == ("embedded", "mini", str(tau))

    @pytest.mark.parametrize("limit", ["2", "1"])
    def test_repeating_a_finished_run_prints_its_table_without_loading_the_model(
        self, run_tau, monkeypatch, limit: str
    ) -> None:
        assert run_tau("--limit", "2")[0] == 0
        (file,) = Path("results").rglob("run.json")
        before = json.loads(file.read_text())
        monkeypatch.setattr(Qwen2_5Omni, "load", None)
        code, out, err = run_tau("--limit", limit)
        assert code == 0
        assert "base-0" in out
        assert f"{file.parent}: complete; nothing to do" in err
        after, summary = json.loads(file.read_text()), json.loads((file.parent / "summary.json").read_text())
        assert after["sessions"] == before["sessions"]
        assert len(after["samples"]) == summary["n"] == summary["expected"] == int(limit)

    def test_a_run_with_a_smaller_limit_reports_how_many_recorded_samples_it_leaves_out(self, run_tau) -> None:
        assert "not selected by this run" not in run_tau("--limit", "3")[2]
        said = run_tau("--limit", "1")[2]
        assert "2 more recorded samples" in said
        assert "last written by" not in said
        changed(next(Path("results").rglob("run.json")).parent, environment={"audiomarathon": "0.0.7"})
        assert "last written by audiomarathon 0.0.7" in run_tau("--limit", "1")[2]

    def test_a_damaged_clip_gives_exit_code_1_and_is_named(self, run_tau, tau: Path) -> None:
        clip = sorted((tau / "concatenated_resampled").iterdir())[0]
        clip.write_bytes(clip.read_bytes()[:100])
        code, out, err = run_tau()
        assert code == 1
        assert "1 error" in out
        assert re.search(rf"1 sample failed .*AudioError: .*{clip.name}", one_error(err))

    def test_ctrl_c_keeps_the_records_and_suggests_the_same_command_to_resume(
        self, tau: Path, tiny_checkpoint: Path, tmp_path: Path, no_env
    ) -> None:
        arguments = ["run", "tau", "--data", tau, "--model-path", tiny_checkpoint, "--decode-tokens", "100"]
        if (child := os.fork()) == 0:
            os.chdir(tmp_path)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            sys.argv = ["audiomarathon", *map(str, arguments)]
            code = 1
            with (tmp_path / "said").open("w") as sys.stderr:
                try:
                    main()
                except SystemExit as ended:
                    code = int(ended.code or 0)
                finally:
                    sys.stderr.flush()
                    os._exit(code)
        file = tmp_path / "results" / "tau" / "tiny-omni" / "base-0" / "samples.jsonl"
        while not os.waitpid(child, os.WNOHANG)[0] and not (file.exists() and file.stat().st_size):
            time.sleep(0.01)
        os.kill(child, signal.SIGINT)
        status, err = os.waitpid(child, 0)[1], (tmp_path / "said").read_text()
        assert os.waitstatus_to_exitcode(status) == 130, err
        assert "run the same command again" in err
        assert "Traceback" not in err
        assert file.read_text().endswith("}\n")


@pytest.mark.parametrize("arguments", [("demo",), ("certify",), ("certify", "-o", "no folder/c.json")])
def test_an_unwritable_output_path_is_refused_before_any_work(command, monkeypatch, tmp_path: Path, arguments) -> None:
    (tmp_path / "no folder").touch()
    if "-o" not in arguments:
        monkeypatch.setenv("AUDIOMARATHON_CACHE", str(tmp_path / "no folder" / "cache"))
    code, _out, err = command(*arguments)
    assert code == 2
    assert re.search("no folder.*cannot be written.*(Not a directory|not a folder)", one_error(err))
    assert "model embedded" not in err


def test_the_demo_warns_before_its_runs_if_pictures_cannot_be_drawn(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    ended = Mock(side_effect=SettingsError("here the runs would begin"))
    monkeypatch.setattr("audiomarathon.embedded.mini_benchmark.mini_benchmark", ended)
    assert "no picture will be drawn: pictures need vl-convert: pip install" in call("demo")[1]


#: Commands with a wrong word, and a pattern of the expected error. The folder `data` contains `build_tau`'s data.
WRONG = {
    "run taau": r"unknown task 'taau' \(did you mean 'tau'\?\)\s*$",
    "run zzz": "unknown task 'zzz'; allowed: librispeech.*tau",
    "run tau --model qwen2.5-omny": "unknown model.*did you mean 'qwen2.5-omni'",
    "run tau --method frme --ratio 0.5": "unknown method 'frme'.*mean 'frame'",
    "run tau --method frame --ratio 1.5": "--ratio=1.5: not allowed; allowed: .*from 0 to below 1",
    "run tau --ratio 0.5": "base with ratio 0.5: base drops nothing",
    "run tau --limit -1": "--limit=-1: not allowed; allowed: a whole number",
    f"run tau --data nowhere {REAL}": "nowhere is not a folder.*audiomarathon data download",
    f"run vesus {REAL}": "no data root is set. Get it with: audiomarathon data download.*AUDIOMARATHON_DATA",
    f"run tau {REAL}": "Start with the smallest task .VESUS, under 1 GB.: audiomarathon data download",
    "run tau --data data": "no model is named for the data in data: name one with --model",
    "sweep tau --data data": "no model is named for the data in data: name one with --model",
    "run tau,gtzan": "separate tasks by spaces: audiomarathon run tau gtzan",
    "run tau --method dart,frame": "audiomarathon sweep --methods dart,frame",
    "run tau --method dart --ratio 0.1,0.5": "--ratio=0.1,0.5: .*audiomarathon sweep --ratios",
    "list tsks": "unknown list 'tsks'; allowed: all, tasks, models, methods, judges",
    "sweep tau --model openai": "endpoint and shows only its replies; use it with `audiomarathon run`",
    "score data": "no run there",
    "models download gpt": "unknown model 'gpt'",
    "doctor --model nope": "unknown model 'nope'; allowed: embedded, ",
    "run tau --data data --model embedded --method fast_v --ratio 0.5 --layer 99": "layer 99",
    "run tau --data data --model embedded --method frame --ratio 0.5 --results file": "file",
    "run tau --data data --model embedded --method mine.py:Mine --ratio 0.5 --at input": "holds another run",
    "sweep tau --data data --model embedded --ratios 0.1-0.9": "--ratios=0.1-0.9",
    "sweep taau --data data --model embedded": "did you mean 'tau'",
    "sweep tau --data data --model embedded --methods fast_v --ratios 0.5 --layer 99": "layer 99",
    "explain x --methods fast_v:0.5 -o e.xyz": "-o e.xyz",
    "explain tau:x --data data --methods fast_v:0.5 --layer 99": "layer 99",
    "report results -o x.pdf": "-o x.pdf",
    "report results -o file/x.html": "file: cannot be written: not a folder",
    "report results --figures file": "file: cannot be written: not a folder",
    "plot results -o file": "file: cannot be written: not a folder",
    "plot results -o plots --format xyz": "xyz",
    "attention plot results -o file": "file: cannot be written: not a folder",
    "data card tau --data data -o file": "file: cannot be written: not a folder",
    "compare results -o .": "-o .",
    "encoder run control:logmel --tasks esc5": "did you mean 'esc50'",
    "encoder run control:logmel --tasks esc50 --data nowhere": "nowhere: not a folder",
    "encoder report results -o x.pdf": "-o x.pdf",
    "encoder prune embedded --tasks esc50 --ratios 0.1-0.9": "--ratios=0.1-0.9",
    "encoder layers embeded --tasks esc50": "did you mean 'embedded'",
}
#: A sweep, and a run that is part of it.
FINISHED = [
    f"{words} --data data --results done --model embedded --limit 1 --max-new-tokens 1"
    for words in ("sweep tau --methods frame --ratios 0.5", "run tau --method frame --ratio 0.5")
]
_EARLY = """
import functools, json, shlex, sys
import typer.testing
from audiomarathon.cli.app import app
typer.testing._get_command = functools.cache(typer.testing._get_command)  # built once, as in all tests
found = {}
for command in json.load(sys.stdin):
    done = typer.testing.CliRunner().invoke(app, shlex.split(command))
    found[command] = (done.exit_code, done.stderr, [name for name in ("torch", "transformers") if name in sys.modules])
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, list[str]]]:
    """Return exit code, error and slow imports of the wrong and the finished commands, from one fresh Python."""
    folder = tmp_path_factory.mktemp("early")
    task_folders.build_tau(folder / "data" / "TAU")
    (folder / "file").write_text("")
    source = "from audiomarathon.compression.pruners.frame import Frame\n\n\nclass Mine(Frame):\n    key = 'mine'\n"
    (folder / "mine.py").write_text(source)
    held = {"schema_version": 2, "identity": {"code of method mine": "0" * 16}}
    builders.write_run(folder / "results/tau/embedded/mine-0.5-input", held, [builders.a_record("a")])
    env = {name: value for name, value in os.environ.items() if name not in env_names()}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in env_names():
            patch.delenv(name, raising=False)
        succeed(*FINISHED[0].split())
    done = subprocess.run(
        [sys.executable, "-c", _EARLY], input=json.dumps([*WRONG, *FINISHED]), cwd=folder, env=env, capture_output=True,
        text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("words", WRONG)
def test_an_unknown_word_in_a_command_is_one_error_line_before_pytorch_is_imported(refused, words: str) -> None:
    code, stderr, imported = refused[words]
    assert (code, imported) == (2, [])
    assert re.search(WRONG[words], one_error(stderr)), stderr


@pytest.mark.parametrize(("words", "settings"), [*zip(FINISHED, (2, 1), strict=True)])
def test_repeating_a_finished_run_does_not_import_pytorch(refused, words: str, settings: int) -> None:
    code, stderr, imported = refused[words]
    assert (code, imported) == (0, []), stderr
    assert stderr.count("complete; nothing to do") == settings


def test_an_output_path_that_is_a_folder_gets_a_file_with_the_default_name_in_it(command, tmp_path: Path) -> None:
    code, _out, err = command("run", "tau", "--data", "mini", "--save-config", ".")
    assert code == 0, err
    assert (tmp_path / "audiomarathon.yaml").is_file()
    assert checked_file("-o", Path(), "report.html") == Path("report.html")
    assert checked_file("-o", tmp_path, "explain.png", *PICTURES) == tmp_path / "explain.png"


WEIGHTS, COMMIT = safetensors.numpy.save({"w": np.zeros(100)}), "0" * 40


def hub_folder(repository: Path) -> Path:
    """Make a repository with one empty snapshot in a hub cache; return the snapshot's folder."""
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    (snapshot := repository / "snapshots" / COMMIT).mkdir(parents=True)
    return snapshot


class TestDoctor:
    def test_doctor_lists_what_is_installed_and_the_download_commands_for_what_is_missing(
        self, command, tau: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("AUDIOMARATHON_DATA", str(tau))
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
        code, out, _err = command("doctor")
        assert code == 0
        assert "ok torch" in out
        assert "ok data tau: 10 samples" in out
        assert "-- data vesus: no " in out
        assert out.count("data download vesus") == 1
        assert "audiomarathon models download qwen2.5-omni-3b" in out

    def test_doctor_prints_paths_with_markup_characters_unchanged(self, command, monkeypatch, tmp_path: Path) -> None:
        folder = task_folders.build_tau(tmp_path / "[" / "b] [red]:b:" / "TAU")  # "[/b]" closes no markup
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("AUDIOMARATHON_DATA", "~/[")
        code, out, _err = command("doctor")
        assert code == 0
        assert f"ok data tau: 10 samples in {folder}" in out

    @pytest.mark.parametrize(
        ("files", "damage", "remedy"),
        [
            ((), "no config.json", "download qwen2.5-omni-3b  (resumes"),
            (("config.json",), "no weights", "download qwen2.5-omni-3b  (resumes"),
            (("config.json", "a.safetensors", "an index"), "1 of 2 weight files missing (b.safetensors", "resumes"),
            (("config.json", "a.safetensors", "half an index"), "index.json: cannot be read as JSON", "delete"),
            (("config.json", "half of a"), "a.safetensors is cut short", "delete that file"),
            (("config.json", "a.safetensors"), "", ""),
            (("config.json", "a.safetensors", "b.safetensors", "an index"), "", ""),
        ],
    )
    def test_doctor_tells_an_incomplete_checkpoint_download_from_a_complete_one(
        self, monkeypatch, tmp_path: Path, no_env, files: tuple[str, ...], damage: str, remedy: str
    ) -> None:
        snapshot = hub_folder(tmp_path / "models--Qwen--Qwen2.5-Omni-3B")
        index = b'{"weight_map": {"x": "a.safetensors", "y": "b.safetensors", "z": "a.safetensors"}}'
        contents = {"config.json": b"{}", "an index": index, "half an index": index[:30], "half of a": WEIGHTS[:-100]}
        index_file = "model.safetensors.index.json"
        names = {"half of a": "a.safetensors", "an index": index_file, "half an index": index_file}
        for file in files:
            (snapshot / names.get(file, file)).write_bytes(contents.get(file, WEIGHTS))
        download = functools.partial(huggingface_hub.snapshot_download, cache_dir=tmp_path)
        monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
        monkeypatch.setattr(doctor, "all_models", lambda: [get_model("qwen2.5-omni-3b")])
        (finding,) = [finding for finding in doctor.examine() if finding.text.startswith("model ")]
        assert (finding.good, bool(finding.remedy)) == (not damage, bool(damage))
        assert ("is damaged: " if damage else "") in finding.text
        assert damage in finding.text
        assert remedy in finding.remedy


def _response(status: int):
    http = sys.modules[hub_errors.HfHubHTTPError.__bases__[0].__module__.partition(".")[0]]  # httpx, or its successor
    return http.Response(status, request=http.Request("GET", "https://hub.invalid"))


class TestHub:
    """How each error of the hub is reported. No test uses the network."""

    @pytest.mark.parametrize(
        ("failure", "message"),
        [
            (lambda: hub_errors.GatedRepoError("gated", response=_response(403)), "is gated.*export HF_TOKEN"),
            (lambda: hub_errors.HfHubHTTPError("", response=_response(429)), "anonymous downloads.*export HF_TOKEN"),
            (lambda: hub_errors.HfHubHTTPError("oops", response=_response(503)), "answered 503"),
            (lambda: hub_errors.RepositoryNotFoundError("no", response=_response(404)), "no such model.*HF_TOKEN"),
            (lambda: hub_errors.RevisionNotFoundError("no", response=_response(404)), "no revision 'v9'"),
            (lambda: hub_errors.LocalEntryNotFoundError("offline"), "cannot be reached.*MODEL_PATH"),
            (lambda: ConnectionResetError("reset by peer"), "download failed"),
        ],
    )
    def test_an_error_of_the_hugging_face_hub_is_one_line_with_the_remedy(
        self, monkeypatch, failure, message: str
    ) -> None:
        monkeypatch.setattr(huggingface_hub, "snapshot_download", Mock(side_effect=failure()))
        with pytest.raises(ModelError, match=message) as caught:
            find_checkpoint("Qwen/Qwen2.5-Omni-3B@v9")
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("absent", "named"),
        [
            (("README.md", ".gitattributes", "LICENSE.txt", "spk_dict.pt", "pytorch_model.bin", "docs/a.json"), ""),
            (("README.md", "tokenizer.json"), "lacks tokenizer.json; run"),
            (("model-00002-of-00002.safetensors",), "lacks model-00002-of-00002.safetensors; run"),
            (("speech-lora/adapter_model.safetensors",), "lacks speech-lora/adapter_model.safetensors; run"),
            (tuple(f"{letter}.json" for letter in "abcdefg"), "lacks a.json, b.json, .*, e.json and 2 more"),
        ],
    )
    def test_an_offline_checkpoint_is_accepted_if_only_files_that_are_never_loaded_are_missing(
        self, monkeypatch, tmp_path: Path, absent: tuple[str, ...], named: str
    ) -> None:
        snapshot = hub_folder(tmp_path / "models--lab--tiny")
        (snapshot / "config.json").write_text("{}")
        (snapshot / "model.safetensors").write_bytes(WEIGHTS)
        names = ("config.json", "model.safetensors", *absent)
        listed = {name: {"size": 1, "blob_id": COMMIT} for name in names}
        (trees := snapshot.parents[1] / "trees").mkdir()
        (trees / f"{COMMIT}.json").write_text(json.dumps({"format_version": 1, "files": listed}))
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        for name in ("snapshot_download", "get_cached_repo_tree"):
            cached = functools.partial(getattr(huggingface_hub, name), cache_dir=tmp_path)
            monkeypatch.setattr(huggingface_hub, name, cached)
        for revision in ("", "@main", f"@{COMMIT}"):
            with pytest.raises(ModelError, match=named) if named else nullcontext():
                assert find_checkpoint(f"lab/tiny{revision}").path == snapshot

    def test_models_download_finds_the_hub_repository_of_a_model_name(
        self, monkeypatch, command, tiny_checkpoint
    ) -> None:
        monkeypatch.setattr(huggingface_hub, "snapshot_download", download := Mock(return_value=tiny_checkpoint))
        code, _out, err = command("models", "download", "qwen2.5-omni-3b")
        assert (code, download.call_args.args[0]) == (0, "Qwen/Qwen2.5-Omni-3B")
        assert str(tiny_checkpoint) in err
