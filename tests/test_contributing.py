"""CONTRIBUTING.md's examples, taken from the page, installed as plug-ins and run through the engine."""

from __future__ import annotations

import importlib
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import tiny_qwen2_5_omni
from builders import a_record, write_run
from typer.testing import CliRunner

from audiomarathon import evaluate
from audiomarathon.cli.app import app
from audiomarathon.compression.method import kept_count
from audiomarathon.compression.registry import get_method
from audiomarathon.embedded.sounds import write_task
from audiomarathon.engine.run import run
from audiomarathon.judges.registry import open_judges
from audiomarathon.judges.room import Bench, Case, judge_run
from audiomarathon.records import Record
from audiomarathon.runs.folder import read_records
from audiomarathon.scoring.scorer import figures_of
from audiomarathon.settings import RunSettings

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
MODULES = {
    match[1]: match[0]
    for match in re.finditer(r"(?<=```python\n)# (\w+\.py)\n.*?(?=^```$)", PAGE, re.DOTALL | re.MULTILINE)
}
BIRDS = ("Blackbird", "Cuckoo", "Robin", "Wren")
SECONDS = (4, 5, 6, 8)


def entry_points() -> str:
    """The page's TOML as the `entry_points.txt` that an installer makes of it."""
    sections: list[str] = []
    for block in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL):
        for group, entries in tomllib.loads(block)["project"]["entry-points"].items():
            sections += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items()), ""]
    return "\n".join(sections)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The examples installed: their modules on the path, beside the metadata of a distribution."""
    site = tmp_path / "site"
    metadata = site / "audiomarathon_examples-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: audiomarathon-examples\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(entry_points())
    for name, code in MODULES.items():
        (site / name).write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(site)
    yield
    for name in MODULES:
        sys.modules.pop(name.removesuffix(".py"), None)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_qwen2_5_omni.checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.mark.usefixtures("installed")
def test_the_encoder_is_listed_and_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUDIOMARATHON_CACHE", str(tmp_path / "cache"))
    task = write_task(tmp_path, clips=2, seconds=(0.2, 0.4))
    assert "loudness" in CliRunner().invoke(app, ["encoder", "list", "encoders"]).stdout
    where = ["--data", str(tmp_path), "--results", str(tmp_path / "results"), "--protocol", "standard"]
    done = CliRunner().invoke(app, ["encoder", "run", "loudness", "--tasks", str(task), *where])
    assert done.exit_code == 0, done.stderr
    summary = json.loads((tmp_path / "results" / "own" / "sounds" / "loudness" / "linear" / "summary.json").read_text())
    assert summary["score"] > 0.4


@pytest.fixture
def aviary(tmp_path: Path) -> Path:
    """A data root with the task's folder somewhere in it: four clips of noise with a whistle."""
    folder = tmp_path / "data" / "some" / "Birds"
    (folder / "wav").mkdir(parents=True)
    draw = np.random.default_rng(0)
    rows = []
    for number, seconds in enumerate(SECONDS):
        time = np.arange(seconds * 16000) / 16000
        sound = 0.1 * np.sin(2 * np.pi * (800 + 300 * number) * time) + 0.01 * draw.standard_normal(len(time))
        soundfile.write(folder / "wav" / f"{number}.wav", sound, 16000)
        rows.append(
            {
                "path": f"{number}.wav",
                "question": "Which bird sings?",
                **{f"choice_{letter}": bird for letter, bird in zip("abcd", BIRDS, strict=True)},
                "answer_gt": "ABCD"[number] if number % 2 else BIRDS[number],
                "recordist": f"recordist {number // 2}",
            }
        )
    (folder / "birds.json").write_text(json.dumps(rows))
    return tmp_path / "data"


def records(folder: Path) -> list[dict[str, Any]]:
    """A run's records by sample: the order of a run is that of its stratified selection."""
    lines = (folder / "samples.jsonl").read_text(encoding="utf-8").splitlines()
    return sorted((json.loads(line) for line in lines), key=lambda record: record["id"])


def shown(what: str) -> str:
    done = CliRunner().invoke(app, ["list", what])
    assert done.exit_code == 0
    return done.output


def test_each_example_takes_less_than_forty_lines() -> None:
    assert set(MODULES) == {
        *("birds.py", "counting.py", "politeness.py", "shouting.py", "loudness.py"),
        *("keep_end.py", "large_values.py", "bare_omni.py"),
    }
    for name, code in MODULES.items():
        lines = [line for line in code.splitlines() if line.strip()]
        assert len(lines) < 40, name


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("what", "name"),
    [("tasks", "birds"), ("models", "bare-omni"), ("methods", "keep_end"), ("methods", "large_values")],
)
def test_list_shows_an_installed_example(what: str, name: str) -> None:
    assert any(line.split()[:1] == [name] for line in shown(what).splitlines())


def test_list_does_not_show_what_is_not_installed() -> None:
    assert "birds" not in shown("all")


@pytest.mark.usefixtures("installed")
def test_the_task_runs_and_is_scored(aviary: Path, checkpoint: Path, tmp_path: Path) -> None:
    settings = RunSettings.read(
        {}, data=str(aviary), model_path=str(checkpoint), results=tmp_path / "out", max_new_tokens=4
    )
    (result,) = run(["birds"], "embedded", settings, progress=False)
    assert result.summary["complete"]
    assert result.summary["n"] == len(BIRDS)
    found = records(result.folder)
    assert [record["reference"]["answer"] for record in found] == ["A", "B", "C", "D"]
    assert [record["reference"]["labels"][i] for i, record in enumerate(found)] == [
        "blackbird",
        "cuckoo",
        "robin",
        "wren",
    ]
    assert {record["cluster"] for record in found} == {"recordist 0", "recordist 1"}
    assert 0 <= result.summary["score"] <= 1


@pytest.mark.usefixtures("installed")
def test_the_method_drops_exactly_k_and_keeps_the_end(aviary: Path, checkpoint: Path, tmp_path: Path) -> None:
    settings = RunSettings.read(
        {}, data=str(aviary), model_path=str(checkpoint), results=tmp_path / "out", max_new_tokens=4
    )
    methods = [get_method("base"), get_method("keep_end", 0.5, layer=2)]
    base, pruned = run(["birds"], "embedded", settings, methods, progress=False)
    assert pruned.folder.name == "keep_end-0.5-layer2"
    for whole, cut in zip(records(base.folder), records(pruned.folder), strict=True):
        dropped = whole["audio_tokens"] - kept_count(whole["audio_tokens"], 0.5)
        assert dropped > 0
        assert cut["kept_audio_tokens"] == whole["kept_audio_tokens"] - dropped
        full = whole["kv_lengths"][0]
        assert cut["kv_lengths"] == [full, full, full - dropped, full - dropped]

    import torch

    from audiomarathon.compression.token_pruner import Evidence

    chosen = get_method("keep_end", 0.75).select(Evidence(torch.arange(10, 18), 2, seed=0))
    assert chosen.tolist() == [6, 7]


@pytest.mark.usefixtures("installed")
def test_the_press_runs_from_python_as_the_page_says(aviary: Path, checkpoint: Path, tmp_path: Path) -> None:
    from large_values import LargeValues

    settings = {"data": str(aviary), "model_path": str(checkpoint), "results": tmp_path / "out", "max_new_tokens": 4}
    base, pressed = evaluate("birds", model="embedded", method=["base", LargeValues(0.5)], limit=2, **settings)
    assert pressed.folder.name == "large_values-0.5"
    for whole, cut in zip(records(base.folder), records(pressed.folder), strict=True):
        dropped = whole["audio_tokens"] - kept_count(whole["audio_tokens"], 0.5)
        assert cut["kv_lengths"] == [length - dropped for length in whole["kv_lengths"]]


@pytest.mark.usefixtures("installed")
def test_the_model_answers_under_every_method_alone_and_in_a_batch(
    aviary: Path, checkpoint: Path, tmp_path: Path
) -> None:
    methods = [get_method(name, ratio) for name, ratio in (("base", 0.0), ("keep_end", 0.5))]
    replies: dict[str, list[list[str]]] = {}
    for flags in ({}, {"timing": False, "batch_size": 4}):
        out = tmp_path / f"out{len(replies)}{len(flags)}"
        settings = RunSettings.read(
            {}, data=str(aviary), model_path=str(checkpoint), results=out, max_new_tokens=8, **flags
        )
        for result in run(["birds"], "bare-omni", settings, methods, progress=False):
            assert result.summary["complete"], records(result.folder)
            assert [record["audio_tokens"] for record in records(result.folder)] == [25 * s for s in SECONDS]
            replies.setdefault(result.method, []).append([record["reply"] for record in records(result.folder)])
    assert all(alone == batched for alone, batched in replies.values())


@pytest.mark.usefixtures("installed")
def test_the_scorer_judges() -> None:
    scorer = importlib.import_module("counting").Counting()
    records = [
        Record(str(place), f"c{place}", reply=reply, reference={"count": 3})
        for place, reply in enumerate(("3", "I hear 4 calls.", "many"))
    ]
    found = figures_of(scorer, list(scorer.verdicts(records)), seed=1)
    assert (found["score"], found["n"]) == (0.5, 3)


@pytest.mark.usefixtures("installed")
def test_the_judge_judges_by_the_protocol(tmp_path: Path) -> None:
    scorer, ((name, judge),) = importlib.import_module("politeness").Politeness(), open_judges("shouting").items()
    facts = {"task": "polite", "method": "base-0"}
    folder = write_run(tmp_path, facts, [a_record(str(place), reply="Hey!" * place) for place in range(4)])
    judge_run(Case(folder, list(read_records(folder).values()), scorer.protocol), Bench(name, judge))
    found = figures_of(scorer, list(scorer.verdicts(list(read_records(folder).values()))), seed=1)
    assert found["score"] == 0.5
    assert found["judged"]["judges"]["shouting"]["weak"] == ["rude"]
