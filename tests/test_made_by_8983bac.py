"""A results folder of an earlier version: it is read and resumed, and no answered sample runs again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from builders import one_load, with_identity  # noqa: F401 (a fixture)

from audiomarathon.compression.registry import get_method
from audiomarathon.engine.environment import device_name
from audiomarathon.engine.run import Result, run, score
from audiomarathon.fingerprint import is_weak
from audiomarathon.results.beside import apart
from audiomarathon.results.pairs import Pairs
from audiomarathon.results.sweep_summary import read_outcome
from audiomarathon.results.systems import read_systems
from audiomarathon.settings import RunSettings

pytestmark = pytest.mark.usefixtures("one_load")


FIXTURE = Path(__file__).parent / "data" / "made_by_8983bac"
METHODS = [("base", 0.0), ("frame", 0.5), ("snapkv", 0.5)]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Copy the folder, and set its device to that of this machine."""
    copy = shutil.copytree(FIXTURE / "runs", tmp_path / "runs")
    for file in copy.rglob("run.json"):
        with_identity(file.parent, device=device_name("cpu"))
    return copy


def records(results: Path) -> dict[str, list[str]]:
    return {
        file.parent.relative_to(results).as_posix(): file.read_text().splitlines()
        for file in results.rglob("samples.jsonl")
    }


def go(results: Path, methods: Sequence[tuple[str, float]] = METHODS, **flags: Any) -> list[Result]:
    settings = RunSettings.read(
        {}, data=str(FIXTURE / "data"), results=results, device="cpu", timing=True, decode_tokens=4
    )
    chosen = [get_method(name, ratio) for name, ratio in methods]
    return list(run(["tau", "librispeech"], "embedded", settings, chosen, progress=False, **flags))


def test_scoring_results_of_commit_8983bac_gives_the_scores_that_the_commit_stored(results: Path) -> None:
    groups = read_outcome(results, seed=42).groups
    assert {key: len(group) for key, group in groups.items()} == dict.fromkeys(
        [("embedded", "tau"), ("embedded", "librispeech")], 3
    )
    for file in sorted(results.glob("*/*/*/summary.json")):
        before, after = json.loads(file.read_text()), score(file.parent).summary
        names = {"n", "errors", "expected", "score", "unparsed"} & before.keys()
        assert {name: after[name] for name in names} == {name: before[name] for name in names}


def test_resuming_results_of_commit_8983bac_repeats_only_failed_samples(results: Path) -> None:
    """Only the sample that failed is tried again, and fails again."""
    before = records(results)
    done = go(results)
    assert [result.summary["errors"] for result in done] == [1, 1, 1, 0, 0, 0]
    after = records(results)
    assert after.keys() == before.keys()
    for name, lines in before.items():
        assert after[name][: len(lines)] == lines
        added = [json.loads(line) for line in after[name][len(lines) :]]
        assert [(record["id"], bool(record["error"])) for record in added] == (
            [("concatenated_resampled/park-lisbon-1002-0-a.wav", True)] if name.startswith("tau") else []
        )


def test_resuming_a_run_with_a_weak_checkpoint_fingerprint_warns_and_stores_a_strong_one(results: Path) -> None:
    """The old records stay uncertain, so the warning stays, but the weak fingerprint is not written again."""
    for _ in range(2):
        said: list[str] = []
        go(results, [("base", 0.0)], say=said.append)
        assert sum("weak fingerprint" in line for line in said) == 2
        for file in results.glob("*/*/base-0/run.json"):
            assert not is_weak(json.loads(file.read_text())["identity"]["checkpoint"])


def test_a_new_setting_is_compared_with_the_base_run_of_commit_8983bac(results: Path) -> None:
    go(results, [("random", 0.5)])
    sides = {side.method: side for side in read_systems([results])}
    assert {side.checkpoint for side in sides.values()} == {"embedded"}
    pairs = Pairs.of(*(sides[name].runs["librispeech"] for name in ("random-0.5-layer2", "base-0"))).pairs
    assert len(pairs) == len(sides["base-0"].runs["librispeech"].records)
    assert apart(*(sides[name].runs["tau"] for name in ("random-0.5-layer2", "base-0"))) == ""
