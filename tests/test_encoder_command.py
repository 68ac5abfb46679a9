"""`audiomarathon encoder`: what its commands print, refuse and write."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from archive_makers import npy
from test_cli import one_error
from typer.testing import CliRunner
from xares_tars import write_tar

from audiomarathon.cli.app import app
from audiomarathon.report.charts import script
from audiomarathon.wings.encoders.probing.probe_input import PUBLISHED, STANDARD
from audiomarathon.wings.encoders.sounds_task import write_task

Command = Callable[..., tuple[int, str, str]]

ENCODER = """
import torch

class MeansEncoder(torch.nn.Module):
    sampling_rate, output_dim, hop_size_in_ms = 16000, 8, 10

    def __init__(self, scale: float = 1.0):
        super().__init__()
        self.scale = scale

    def forward(self, audio):
        frames = torch.nn.functional.pad(audio, (0, -audio.shape[1] % 160)).unfold(1, 160, 160)
        spectrum = torch.fft.rfft(frames, dim=-1).abs()[..., :80].unflatten(-1, (8, 10)).mean(-1)
        return (self.scale * spectrum + 1e-4).log()
"""


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("env")
    write_task(root, clips=2, seconds=(0.2, 0.4))
    (root / "means_encoder.py").write_text(ENCODER)
    return root


@pytest.fixture
def command(no_env, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, env: Path) -> Command:
    """Run `audiomarathon encoder …` in an empty folder; returns (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AUDIOMARATHON_CACHE", str(env / "cache"))
    monkeypatch.setenv("AUDIOMARATHON_ENCODER_DATA", str(env))
    monkeypatch.setenv("COLUMNS", "160")

    def call(*arguments: object) -> tuple[int, str, str]:
        result = CliRunner().invoke(app, ["encoder", *map(str, arguments)])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.stdout, result.stderr

    return call


@pytest.fixture(scope="module")
def vega() -> str:
    """The page's scripts from the cache of all tests; in a cache of its own, `command` would bundle them again."""
    return script() if find_spec("vl_convert") else ""


def test_an_encoder_run_prints_scores_that_the_table_and_compare_commands_show_too(
    command: Command, env: Path, tmp_path: Path, vega: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, task = env / "means_encoder.py", env / "sounds_task.py"
    code, out, err = command("run", mine, "--tasks", task, "--seeds", "1", "--encoder-arg", "scale=2.0")
    assert code == 0, err
    folder = tmp_path / "results" / "own" / "sounds" / "MeansEncoder"
    assert {file.name for file in folder.iterdir()} == {*STANDARD, *PUBLISHED}
    summary = json.loads((folder / "linear" / "summary.json").read_text())
    low, high = summary["intervals"]["score"]
    assert summary["score"] > 0.3 > summary["chance"] == 0.1
    assert f"{summary['score']:.3f} [{low:.3f}, {high:.3f}]" in out
    facts = json.loads((folder / "linear" / "run.json").read_text())
    assert facts["encoder"]["arguments"] == {"scale": 2.0}
    assert command("run", mine, "--tasks", task, "--seeds", "1", "--encoder-arg", "scale=2.0")[2].count("complete") == 5
    assert command("run", "control:noise", "--tasks", task, "--protocol", "standard")[0] == 0
    table = command("table", "results")[1]
    assert "MeansEncoder" in table
    assert f"{summary['score']:.3f}" in table
    code, out, err = command("compare", "results", "--against", "noise")
    assert code == 0
    assert "against noise linear" in out
    noise = json.loads((folder.parent / "noise" / "linear" / "summary.json").read_text())["score"]
    assert f"{summary['score'] - noise:+.3f}" in out
    assert "at least two" in one_error(command("compare", "results", "--probe", "mlp-xares-0.1.3")[2])
    assert "linear" in command("status", "results")[1]
    pytest.importorskip("vl_convert")
    monkeypatch.setattr("audiomarathon.report.page.script", lambda: vega)
    assert command("report", "results", "-o", "page.html", "--audio", "embed", "--samples", "5")[0] == 0
    page = (tmp_path / "page.html").read_text()
    for part in ("What encoders know", "What is confused", "Surest mistakes", "data:audio/ogg"):
        assert part in page
    assert "No recommendation" not in page


def test_an_encoder_run_into_another_results_folder_reuses_cached_embeddings(command: Command, env: Path) -> None:
    parts = []
    for results in ("first", "second"):
        assert (
            command("run", "control:logmel", "--tasks", env / "sounds_task.py", "--results", results, "--seeds", 1)[0]
            == 0
        )
        parts.append({file: file.stat().st_mtime_ns for file in (env / "cache").rglob("part-*")})
    assert parts[0] == parts[1] != {}
    plan = command("run", "control:logmel", "--tasks", env / "sounds_task.py", "--plan")[2]
    assert "100 clips, 0.01 hours of audio. Encoding the missing 0.00 hours" in plan
    assert "cache 0.0 MB" in plan


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "control:logmal"], "did you mean 'control:logmel'"),
        (["run", "control:logmel", "--tasks", "esc50"], "audiomarathon encoder download esc50"),
        (["run", "control:logmel", "--tasks", "speech,gtzan"], "audiomarathon encoder download"),
        (["run", "control:logmel", "--encoder-arg", "scale"], "--encoder-arg scale: allowed: name=value"),
        (["run", "no_such_encoder.py"], "no_such_encoder.py"),
        (["run", "control:noise", "--device", "gpu"], "--device gpu: allowed: auto, cpu"),
        (["list", "models"], "unknown list 'models'; allowed: tasks, encoders"),
        (["download", "esc50,gtzan_genre", "--from", "."], "--from works with a single task"),
        (["download", "liveenv"], "private"),
        (["reproduce", "wav2vec"], "allowed: dasheng, wav2vec2, whisper, data2vec"),
        (["reproduce", "whisper", "--table", "second"], "--table readme, first"),
        (["import", ".", "--encoder", "NoEncoder"], "no embeddings/NoEncoder"),
        (["import", ".", "--encoder", "../../Theirs"], "must be the name of a folder in embeddings/"),
        (["run", "control:noise", "--protocol", "fair"], "--protocol fair: allowed: both, standard, as_published"),
        (["table", "."], "no run there"),
    ],
)
def test_a_wrong_encoder_argument_is_a_one_line_error(command: Command, arguments: list[str], said: str) -> None:
    code, _, err = command(*arguments)
    assert code == 2
    assert said in one_error(err)


def test_the_encoder_check_command_prints_interface_errors_and_undesirable_properties(
    command: Command, env: Path, tmp_path: Path
) -> None:
    code, out, _ = command("check", env / "means_encoder.py")
    assert code == 0
    assert "follows X-ARES' interface" in out
    assert "finding: gain sensitive" in out
    broken = tmp_path / "broken_encoder.py"
    for old, new, said in (
        ("output_dim, hop", "output_dims, hop", "output_dim"), (".log()", ".log() * float('nan')", "not finite"),
        ("16000, 8, 10", "16000, 9, 10", "output_dim=9"), ("16000, 8, 10", "16000, 8, 25", "hop off"),
    ):  # fmt: skip
        broken.write_text(ENCODER.replace(old, new))
        code, out, err = command("check", broken)
        assert code == 1
        assert said in err
        assert "keeps" not in out


def test_the_encoder_list_commands_name_every_task_and_encoder(command: Command) -> None:
    tasks, encoders = command("list")[1], command("list", "encoders")[1]
    assert {"asvspoof2015", "voxlingua33", "liveenv"} <= set(tasks.split())
    assert {"control:logmel", "baseline:whisper"} <= set(encoders.split())


def test_imported_x_ares_embeddings_are_evaluated_by_probes(command: Command, env: Path, tmp_path: Path) -> None:
    """Both protocols see the mean over frames of the first item of each key."""
    rng, stored = np.random.default_rng(0), tmp_path / "old" / "sounds" / "embeddings" / "TheirEncoder"
    for fold in range(1, 6):
        members = []
        with tarfile.open(env / "sounds" / f"wds-audio-fold-{fold}-000000.tar") as tar:
            for name in (name for name in tar.getnames() if name.endswith(".json")):
                meta = tar.extractfile(name).read()  # type: ignore[union-attr]
                label = sum(json.loads(meta)["label"].encode()) % 97
                frames = np.sin(label * np.arange(16)) + 0.1 * rng.standard_normal((5, 16))
                members += [(f"{name[:-5]}0.npy", npy(frames.astype(np.float32))), (f"{name[:-5]}0.json", meta)]
        write_tar(stored / f"wds-encoded-fold-{fold}-000000.tar", members)
    code, out, err = command("import", tmp_path / "old", "--encoder", "TheirEncoder", "--tasks", env / "sounds_task.py")
    assert code == 0, err
    assert "TheirEncoder (imported)" in out
    folder = tmp_path / "results" / "own" / "sounds" / "TheirEncoder (imported)" / "linear"
    assert json.loads((folder / "summary.json").read_text())["score"] == 1.0
    assert json.loads((folder / "run.json").read_text())["origin"] == "imported"


def test_an_encoder_task_with_over_one_percent_of_bad_rows_needs_the_allow_bad_rows_option(
    command: Command, tmp_path: Path
) -> None:
    task = write_task(tmp_path / "odd", clips=2, seconds=(0.1, 0.2))
    task.write_text(task.read_text().replace("output_dim=10", "output_dim=9"))
    given = ("run", "control:noise", "--tasks", task, "--data", tmp_path / "odd", "--protocol", "standard")
    code, _, err = command(*given)
    assert code == 2
    assert "10 bad rows of 100" in one_error(err)
    assert not (tmp_path / "results").exists()
    assert command(*given, "--allow-bad-rows")[0] == 0
