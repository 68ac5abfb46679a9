"""The embedded model behind `transformers serve` gives the same replies to real audio as in this process."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import succeed
from transformers import Qwen2_5OmniThinkerForConditionalGeneration
from transformers_server import serving

from audiomarathon import embedded
from audiomarathon.embedded.mini_benchmark import generate
from audiomarathon.runs.read import Run, read_runs

pytestmark = pytest.mark.real

TASKS = ("tau", "gtzan", "desed", "librispeech")


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save the embedded checkpoint as the class that the server loads."""
    folder = tmp_path_factory.mktemp("thinker") / "embedded"
    checkpoint = Path(embedded.__file__).parent / "checkpoint"
    Qwen2_5OmniThinkerForConditionalGeneration.from_pretrained(checkpoint).save_pretrained(folder)
    for file in checkpoint.iterdir():
        if file.name not in ("config.json", "model.safetensors"):
            shutil.copy(file, folder)
    return folder


@pytest.fixture(scope="module")
def served(thinker: Path) -> Iterator[str]:
    with serving(thinker) as address:
        yield address


def test_replies_of_an_endpoint_equal_local_replies(thinker: Path, served: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", served)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    data = generate(tmp_path / "data", tasks=TASKS, limit=4, progress=False)
    common = (*TASKS, "--data", data, "--results", tmp_path / "out")
    for model, *options in (("openai", "--model-path", thinker), ("embedded", "--dtype", "float32")):
        succeed("run", *common, "--model", model, *options)
    runs = {(run.key, run.facts["model"]): run for run in read_runs([tmp_path / "out"])}
    for task in TASKS:
        there, here = (replies(runs[task, model]) for model in ("openai", "embedded"))
        assert len(there) == 4
        assert there == here
        latency = [record.latency for record in runs[task, "openai"].records.values()]
        assert all(times and 0 < times["first_token"] <= times["total"] for times in latency), json.dumps(latency)


def replies(run: Run) -> dict[str, str]:
    return {name: record.text for name, record in run.records.items()}
