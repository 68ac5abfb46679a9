"""What makes two runs the same run: each thing that can change a number is refused by name, nothing else is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import task_folders
import tiny_qwen2_5_omni

from audiomarathon.errors import RecordError
from audiomarathon.evaluation import environment
from audiomarathon.evaluation.run import Result, run
from audiomarathon.pruning.registry import get_method
from audiomarathon.settings import RunSettings
from audiomarathon.tasks import multiple_choice

PRESS = "knorm-0.5"


def go(place: Path, checkpoint: Path, method: tuple = ("frame", 0.5), **flags) -> Result:
    """Run one setting on the data at a place, with its results there."""
    flags = {"data": str(place / "data"), "results": place / "out", "model_path": str(checkpoint), **flags}
    settings = RunSettings.read({}, **{"max_new_tokens": 2, "limit": 1, "decode_tokens": 0, **flags})
    return next(run(["tau"], "qwen2.5-omni", settings, [get_method(*method)], progress=False))


@pytest.fixture(scope="module")
def first(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A place with data and the finished runs of a token pruner and a press, one sample each."""
    place = tmp_path_factory.mktemp("first")
    task_folders.build_tau(place / "data" / "TAU")
    for method in (("frame", 0.5), ("knorm", 0.5)):
        go(place, tiny_checkpoint, method)
    return place


@pytest.fixture
def place(first: Path, tmp_path: Path, no_env) -> Path:
    """A copy of it, to change."""
    return shutil.copytree(first, tmp_path / "copy")


def rename(place: Path, old: str, new: str) -> None:
    """Give a run's folder the name under which another setting looks for its own."""
    (found,) = (place / "out").rglob(old)
    found.rename(found.with_name(new))


def other_prompts(place: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(multiple_choice, "INSTRUCTION", "Say the letter.")


def other_data(place: Path, patch: pytest.MonkeyPatch) -> None:
    """Correct the answer of one row, which changes no prompt."""

    def correct(row: dict) -> None:
        row.update(answer_gt="ABCD"["ABCD".index(row["answer_gt"]) - 1])
        row.pop("scene_label")

    (file,) = (place / "data").rglob("acoustic_scene_task_meta.json")
    task_folders.edit_rows(file, lambda rows: correct(rows[-1]))


def other_device(place: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(environment, "device_name", lambda *_where: "another machine")


CHANGES: dict[str, tuple[Callable[[Path, pytest.MonkeyPatch], object] | None, dict]] = {
    "dtype": (None, {"dtype": "bfloat16"}),
    "attention": (None, {"attn_implementation": "eager"}),
    "method": (lambda at, _: rename(at, "frame-0.5-layer2", "random-0.5-layer2"), {"method": ("random", 0.5)}),
    "ratio": (lambda at, _: rename(at, "frame-0.5-layer2", "frame-0.3-layer2"), {"method": ("frame", 0.3)}),
    "layer": (lambda at, _: rename(at, "frame-0.5-layer2", "frame-0.5-layer1"), {"method": ("frame", 0.5, 1)}),
    "scope": (lambda at, _: rename(at, PRESS, f"{PRESS}-all"), {"method": ("knorm", 0.5, 2, "all")}),
    "prompts": (other_prompts, {}),
    "data": (other_data, {}),
    "max_new_tokens": (None, {"max_new_tokens": 3}),
    "decode_tokens": (None, {"decode_tokens": 2}),
    "seed": (None, {"seed": 7}),
    "device": (other_device, {}),
}


def differing(message: str) -> list[str]:
    """The names that a refusal gives."""
    inside = message.partition("holds another run (")[2].rpartition(" now)")[0]
    return [part.partition(":")[0] for part in inside.split("; ")]


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_refused_by_its_name(
    name: str, place: Path, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, flags = CHANGES[name]
    if change is not None:
        change(place, monkeypatch)
    before = {file: file.read_bytes() for file in (place / "out").rglob("*.json*")}
    with pytest.raises(RecordError) as caught:
        go(place, tiny_checkpoint, **flags)
    assert differing(str(caught.value)) == [name]
    assert {file: file.read_bytes() for file in (place / "out").rglob("*.json*")} == before


def test_another_checkpoint_of_the_same_name_is_refused(place: Path, tiny_checkpoint: Path) -> None:
    other = tiny_qwen2_5_omni.checkpoint(place / "elsewhere" / tiny_checkpoint.name, seed=1)
    with pytest.raises(RecordError) as caught:
        go(place, other)
    assert differing(str(caught.value)) == ["checkpoint"]


def test_sample_limit_and_places_are_no_part_of_it(place: Path, tiny_checkpoint: Path) -> None:
    """A larger limit, moved data and results, and a moved checkpoint go on from what is there."""
    (file,) = (place / "out").rglob("frame*/samples.jsonl")
    before = file.read_text()
    (place / "data").rename(place / "moved")
    (place / "out").rename(place / "results")
    checkpoint = shutil.copytree(tiny_checkpoint, place / "models" / tiny_checkpoint.name)
    result = go(place, checkpoint, limit=2, data=str(place / "moved"), results=place / "results")
    after = (result.folder / "samples.jsonl").read_text()
    assert after.startswith(before)
    assert len(after.splitlines()) == 2
    assert result.summary["complete"] is True


def test_the_device_is_no_part_of_it_where_nothing_is_timed(
    place: Path, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = {"timing": False, "results": place / "untimed"}
    before = go(place, tiny_checkpoint, **flags)
    other_device(place, monkeypatch)
    after = go(place, tiny_checkpoint, limit=2, **flags)
    assert json.loads((after.folder / "run.json").read_text())["identity"]["device"] is None
    assert (before.summary["n"], after.summary["n"]) == (1, 2)
