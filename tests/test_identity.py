"""What makes two runs the same run: any change that can alter results is refused by name, other changes are not."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import task_folders
import tiny_qwen2_5_omni
from builders import a_record, one_load, write_run  # noqa: F401 (a fixture)

from audiomarathon.benchmarks import get_task, multiple_choice
from audiomarathon.compression.registry import get_method
from audiomarathon.engine import environment, setup
from audiomarathon.engine.identity import fresh_results
from audiomarathon.engine.run import Result, known_as_finished, load_task, run
from audiomarathon.engine.sweep import grid
from audiomarathon.errors import RecordError
from audiomarathon.models.registry import get_model
from audiomarathon.settings import RunSettings

pytestmark = pytest.mark.usefixtures("one_load")


PRESS = "knorm-0.5"


def settings_of(place: Path, checkpoint: Path, **flags) -> RunSettings:
    flags = {"data": str(place / "data"), "results": place / "out", "model_path": str(checkpoint), **flags}
    return RunSettings.read({}, **{"max_new_tokens": 2, "limit": 1, "decode_tokens": 0, **flags})


def go(place: Path, checkpoint: Path, method: tuple = ("frame", 0.5), say=lambda _line: None, **flags) -> Result:
    """Run one setting on the data in a folder, with results in the same folder."""
    settings = settings_of(place, checkpoint, **flags)
    return next(run(["tau"], "qwen2.5-omni", settings, [get_method(*method)], say=say, progress=False))


@pytest.fixture(scope="module")
def first(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data and the finished runs of a token pruner and a press, of one sample each."""
    place = tmp_path_factory.mktemp("first")
    task_folders.build_tau(place / "data" / "TAU")
    for method in (("frame", 0.5), ("knorm", 0.5)):
        go(place, tiny_checkpoint, method)
    return place


@pytest.fixture
def place(first: Path, tmp_path: Path, no_env) -> Path:
    """A copy of `first` to change."""
    return shutil.copytree(first, tmp_path / "copy")


def rename(place: Path, old: str, new: str) -> None:
    """Rename a run's folder so that another setting finds it as its own."""
    (path,) = (place / "out").rglob(old)
    path.rename(path.with_name(new))


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
    patch.setattr(environment, "_cpu_model", lambda: "another machine")


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
    "decode": (None, {"decode": "graph"}),
    "seed": (None, {"seed": 7}),
    "device": (other_device, {}),
}


def refused(place: Path, checkpoint: Path, **flags: Any) -> list[str]:
    """Return the names in the refusal of a run."""
    with pytest.raises(RecordError) as caught:
        go(place, checkpoint, **flags)
    return differing(caught.value)


def differing(error: Exception) -> list[str]:
    inside = str(error).partition("holds another run (")[2].rpartition(" now)")[0]
    assert "None" not in inside
    return [part.partition(":")[0] for part in inside.split("; ")]


@pytest.mark.parametrize("name", CHANGES)
def test_a_run_whose_model_data_or_setting_changed_is_refused_naming_the_change(
    name: str, place: Path, tiny_checkpoint: Path, monkeypatch
) -> None:
    change, flags = CHANGES[name]
    if change is not None:
        change(place, monkeypatch)
    before = {file: file.read_bytes() for file in (place / "out").rglob("*.json*")}
    assert refused(place, tiny_checkpoint, **flags) == [name]
    assert {file: file.read_bytes() for file in (place / "out").rglob("*.json*")} == before


def edit_the_package(place: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(setup, "__file__", str(shutil.copytree(Path(setup.__file__).parent, place / "own") / "setup.py"))


def clip_changed(place: Path, _patch: pytest.MonkeyPatch) -> None:
    for clip in (place / "data").rglob("*.wav"):
        clip.write_bytes(clip.read_bytes()[:-2] + b"ab")


def frame_file(place: Path, name: str) -> Path:
    (file,) = (place / "out").rglob(f"frame*/{name}")
    return file


def decided(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[Path, pytest.MonkeyPatch], object]:
    """Change the recorded facts that decided the setup of a run."""

    def alter(place: Path, _patch: pytest.MonkeyPatch) -> None:
        facts = json.loads((file := frame_file(place, "run.json")).read_text())
        file.write_text(json.dumps(change(facts)))

    return alter


DOUBTS: dict[str, tuple[Callable[[Path, pytest.MonkeyPatch], object] | None, dict]] = {
    **CHANGES,
    "more samples": (None, {"limit": 2}),
    "the device that auto means, by name": (None, {"device": "cpu"}),
    "a graph": (None, {"decode": "eager"}),
    "attention to save": (None, {"save_attn": True}),
    "a lost record": (lambda at, _: frame_file(at, "samples.jsonl").write_text(""), {}),
    "changed clips": (clip_changed, {}),
    "an older version's record": (decided(lambda facts: {n: v for n, v in facts.items() if n != "decided"}), {}),
    "a damaged record": (decided(lambda facts: facts | {"decided": facts["decided"] | {"hardware": 1}}), {}),
    "an edited package": (edit_the_package, {}),
    "another PyTorch": (lambda _, patch: patch.setattr(environment, "_versions", lambda: {"torch": "9"}), {}),
    "other visible GPUs": (lambda _, patch: patch.setenv("CUDA_VISIBLE_DEVICES", "1"), {}),
    "a folder that holds another run": (lambda at, _: rename(at, PRESS, "knorm-0.3"), {"method": ("knorm", 0.3)}),
}


def finished(place: Path, checkpoint: Path, method: tuple = ("frame", 0.5), **flags) -> bool:
    """Return whether a run is known to be finished without loading PyTorch."""
    settings = settings_of(place, checkpoint, **flags)
    data = load_task(tau := get_task("tau"), settings, lambda _line: None)
    return known_as_finished([(tau, data)], "qwen2.5-omni", settings, [get_method(*method)]) is not None


def test_a_run_counts_as_finished_only_if_its_whole_identity_can_be_determined(
    place: Path, tiny_checkpoint, monkeypatch
) -> None:
    assert finished(place, tiny_checkpoint)
    assert finished(place, tiny_checkpoint, ("knorm", 0.5))
    monkeypatch.setattr("audiomarathon.engine.run.check_able", lambda spec, *_: spec.load_family().a_new_fact)
    assert not finished(place, tiny_checkpoint)


@pytest.mark.parametrize("name", DOUBTS)
def test_a_run_counts_as_unfinished_if_any_part_of_its_recorded_identity_is_doubtful(
    name: str, place: Path, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, flags = DOUBTS[name]
    if change is not None:
        change(place, monkeypatch)
    assert not finished(place, tiny_checkpoint, **flags)


def test_a_run_counts_as_unfinished_after_its_checkpoint_weights_changed(place: Path, tiny_checkpoint: Path) -> None:
    checkpoint = shutil.copytree(tiny_checkpoint, place / "model")
    go(place, checkpoint)
    assert finished(place, checkpoint)
    tiny_qwen2_5_omni.checkpoint(checkpoint, seed=1)
    assert not finished(place, checkpoint)


def test_a_run_is_not_resumed_with_another_checkpoint_of_the_same_name(place: Path, tiny_checkpoint: Path) -> None:
    other = tiny_qwen2_5_omni.checkpoint(place / "elsewhere" / tiny_checkpoint.name, seed=1)
    assert refused(place, other) == ["checkpoint"]


def test_a_run_is_resumed_with_a_larger_limit_and_with_moved_folders(place: Path, tiny_checkpoint: Path) -> None:
    """With a larger limit, and with moved data, results and checkpoint, the stored records are kept."""
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


def test_untimed_runs_are_resumed_on_another_device(place: Path, tiny_checkpoint: Path, monkeypatch) -> None:
    flags = {"timing": False, "results": place / "untimed"}
    before = go(place, tiny_checkpoint, **flags)
    other_device(place, monkeypatch)
    after = go(place, tiny_checkpoint, limit=2, **flags)
    assert json.loads((after.folder / "run.json").read_text())["identity"]["device"] is None
    assert (before.summary["n"], after.summary["n"]) == (1, 2)


class TestThirdParties:
    """The code of plug-ins is part of a run: after an edit, the same command does not reuse the old records."""

    MODULES: ClassVar = {
        "mine_method": """
from audiomarathon.compression.pruners.frame import Frame
class Mine(Frame):
    key = "mine"
""",
        "mine_task": """
from audiomarathon.benchmarks.audiomarathon.tau import Tau
class Mine(Tau):
    pass
""",
        "mine_model": """
from audiomarathon.models.qwen2_5_omni import Qwen2_5Omni
from audiomarathon.models.registry import ModelSpec

class Mine(Qwen2_5Omni):
    pass

SPEC = ModelSpec("mine", "mine_model:Mine", "Qwen/Qwen2.5-Omni-3B", 25, "mine")
""",
    }

    @pytest.fixture
    def site(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        site = tmp_path / "site"
        site.mkdir()
        for name, code in self.MODULES.items():
            (site / f"{name}.py").write_text(code)
        monkeypatch.syspath_prepend(site)
        return site

    @pytest.fixture
    def again(self, place: Path, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Result]:
        """Import the modules anew and run their method, task and model on so many samples."""

        def go(limit: int) -> Result:
            for name in self.MODULES:
                monkeypatch.delitem(sys.modules, name, raising=False)
            mine = {name: importlib.import_module(name) for name in self.MODULES}
            monkeypatch.setattr("audiomarathon.models.registry.plugins", lambda *_: [mine["mine_model"].SPEC])
            flags = {"max_new_tokens": 2, "limit": limit, "decode_tokens": 0, "model_path": str(tiny_checkpoint)}
            settings = RunSettings.read({}, data=str(place / "data"), results=place / "mine", **flags)
            method, task = mine["mine_method"].Mine(0.5), mine["mine_task"].Mine()
            return next(run([task], "mine", settings, [method], progress=False))

        return go

    def test_a_run_is_not_resumed_after_a_plug_in_module_was_edited(self, site: Path, again: Any) -> None:
        again(1)
        assert again(2).summary["n"] == 2
        for module, name in zip(self.MODULES, ("method mine", "task tau", "model mine"), strict=True):
            (site / f"{module}.py").write_text(self.MODULES[module] + "\nEDITED = True\n")
            with pytest.raises(RecordError) as caught:
                again(1)
            assert differing(caught.value) == [f"code of {name}"]
            (site / f"{module}.py").write_text(self.MODULES[module])

    def test_a_run_folder_without_a_hash_of_plug_in_code_is_resumed(self, site: Path, again: Any) -> None:
        """Earlier versions wrote such folders."""
        file = again(1).folder / "run.json"
        facts = json.loads(file.read_text())
        for name in [name for name in facts["identity"] if name.startswith("code of ")]:
            del facts["identity"][name]
        file.write_text(json.dumps(facts))
        assert again(2).summary["n"] == 2
        facts = json.loads(file.read_text())
        assert facts["weak_fingerprint"] is True
        (site / "mine_task.py").write_text(self.MODULES["mine_task"] + "\nEDITED = True\n")
        with pytest.raises(RecordError, match="code of task tau"):
            again(1)


def test_another_audiomarathon_version_is_reported_and_not_refused(place: Path, tiny_checkpoint: Path) -> None:
    (file,) = (place / "out").rglob("frame*/run.json")
    facts = json.loads(file.read_text())
    facts["environment"] |= {"audiomarathon": "0.0.9", "commit": "0123456789"}
    file.write_text(json.dumps(facts))
    said: list[str] = []
    assert go(place, tiny_checkpoint, limit=2, say=said.append).summary["n"] == 2
    assert sum("0.0.9 (0123456)" in line for line in said) == 1
    said.clear()
    go(place, tiny_checkpoint, limit=2, say=said.append)
    assert not any("0.0.9" in line for line in said)


def test_the_fresh_option_gives_each_edited_version_of_a_method_its_own_results_folder(tmp_path: Path) -> None:
    for name in ("Mine", "Other"):
        source = f"from audiomarathon.compression.pruners.frame import Frame\n\nclass {name}(Frame):\n    pass\n"
        (tmp_path / f"{name.lower()}.py").write_text(source)
    mine, other = f"{tmp_path}/mine.py:Mine", f"{tmp_path}/other.py:Other"
    method = get_method(mine, 0.5, at="input")
    tau, spec, settings = get_task("tau"), get_model("embedded"), RunSettings.read({}, results=tmp_path / "out")

    def place(*names: str) -> Path:
        return fresh_results([tau], spec, settings, grid(names, [0.3, 0.5], base=True, at="input")).results

    assert fresh_results([tau], spec, settings, [method]) is settings
    held = {"schema_version": 2, "identity": {f"code of method {method.key}": "0" * 16}}
    write_run(tmp_path / "out" / "tau" / "embedded" / method.label, held, [a_record("a")])
    fresh = fresh_results([tau], spec, settings, [method])
    assert fresh.results.parent == tmp_path
    assert fresh.results.name.startswith("out-")
    assert fresh_results([tau], spec, settings, [method]) == fresh
    assert fresh.results == place(mine)
    assert place(mine, other) not in (place(mine), settings.results)  # two edited methods hash differently from one
