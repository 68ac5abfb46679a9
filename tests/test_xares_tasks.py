"""X-ARES' tasks by name, users' own task files, and the published tables."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from xares_tars import clips, write_tar

from audiomarathon.benchmarks import all_tasks, get_task
from audiomarathon.engine.run import load_task
from audiomarathon.errors import PluginError, SettingsError
from audiomarathon.report import listings
from audiomarathon.settings import RunSettings
from audiomarathon.wings.encoders.xares.benchmark import XARES
from audiomarathon.wings.encoders.xares.task import EncoderTask, Recipe
from audiomarathon.wings.encoders.xares.task_config import load_task_file, task_of
from audiomarathon.wings.encoders.xares.tasks import TASKS, config_of, named

FILES = Path(__file__).parents[1] / "X-ARES" / "src" / "tasks"


def names(*asked: str) -> list[str]:
    return [task.name for task in named(asked)]


def test_encoder_tasks_are_found_by_key_name_file_and_group() -> None:
    for task in TASKS:
        asked = (task.key, task.name, task.formal_name, task.formal_name.upper())
        assert {named_task.key for alias in asked for named_task in named([alias])} == {task.key}
    assert names("crema_d_task.py", "ESC50_task", "gtzan", "Esc50") == ["cremad", "esc50", "gtzan_genre"]
    assert len(names("all")) == 23
    assert names("music") == ["freemusicarchive", "gtzan_genre", "maestro", "nsynthinstument"]
    assert sorted(names("speech", "environment", "music")) == sorted(names("all"))
    assert not any(task.private for task in named(["all"]))
    with pytest.raises(SettingsError, match=r"unknown encoder task 'esc51' \(did you mean 'esc50'"):
        named(["esc51"])


def test_encoder_tasks_cannot_be_run_with_a_language_model(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"asvspoof2015 has a command of its own; .* encoder run"):
        load_task(TASKS[0], RunSettings.read({}, data=str(tmp_path)), print)
    assert get_task("xares/asvspoof2015") is TASKS[0]
    assert TASKS[0] not in all_tasks()
    assert XARES.groups["music"] == (
        *("xares/freemusicarchive", "xares/gtzan_genre", "xares/maestro", "xares/nsynthinstument"),
    )
    assert listings.tasks()


def test_every_task_file_of_the_release_creates_its_built_in_task() -> None:
    files = sorted(FILES.glob("*_task.py"))
    assert len(files) == 27
    made = set()
    for file in files:
        config = load_task_file(file, encoder := object())
        assert config.encoder is encoder
        assert [task_of(config)] == named([config.name]) == named([str(file)]) == named([file.name])
        made.add(f"xares/{config.name}")
    assert made == {task.key for task in TASKS if task.in_release}


def test_a_changed_epoch_count_or_tar_name_of_a_released_config_applies_to_its_task() -> None:
    config = config_of("gtzan", None)
    assert (config.k_fold_splits, config.output_dim, config.zenodo_id) == ([*range(10)], 10, "14722472")
    assert config.audio_tar_name_of_split[3] == "gtzan_fold_3_0000000.tar"
    config.epochs = 2
    assert task_of(config).recipe.epochs == 2
    assert task_of(config).label == "genre"
    config = config_of("vocalsound")
    config.audio_tar_name_of_split[config.train_split] = "train-0.tar"
    assert task_of(config).parts == {"train": "train-0.tar", "valid": "valid*.tar", "test": "test*.tar"}


K_FOLD = """
from loguru import logger
from xares.task import TaskConfig

def ships_config(encoder) -> TaskConfig:
    class_label_maps = {"tug": 0, "ferry": 1, "yacht": 2}
    config = TaskConfig(
        encoder=encoder, name="ships", k_fold_splits=[1, 2], output_dim=len(class_label_maps), crop_length=5,
        label_processor=lambda x: class_label_maps[x["kind"]], eval_weight=9, torch_num_threads=4,
    )
    config.audio_tar_name_of_split = {fold: f"ships-{fold}.tar" for fold in config.k_fold_splits}
    logger.warning(f"{config.name} is small")
    return config
"""
SPLITS = """
import xares
from xares.task import TaskConfig

def normal_config(encoder):
    return TaskConfig(name="normal", output_dim=2, label_processor=lambda x: int(x["anomaly"]), do_knn=False,
                      train_split="tr", valid_split="te", test_split="te", batch_size_train=8)
"""
TAGS = """
import torch
from xares.task import TaskConfig

def tags_config(encoder):
    def many_hot(x):
        target = torch.zeros(4)
        target.scatter_(0, torch.tensor([int(one) for one in x["tags"]]), 1)
        return target
    return TaskConfig(name="tags", output_dim=4, label_processor=many_hot, criterion=torch.nn.BCEWithLogitsLoss(),
                      metric="mAP")
"""


def own_task(folder: Path, text: str) -> EncoderTask:
    (folder / "own_task.py").write_text(text)
    (task,) = named([str(folder / "own_task.py")])
    return task


def test_a_user_task_file_with_k_folds_runs_unchanged(tmp_path: Path) -> None:
    before = {name for name in sys.modules if name.startswith(("xares", "loguru"))}
    task = own_task(tmp_path, K_FOLD)
    assert {name for name in sys.modules if name.startswith(("xares", "loguru"))} == before
    write_tar(tmp_path / "ships" / "ships-1.tar", clips([("a", {"kind": "tug"}), ("b", {"kind": "yacht"})]))
    write_tar(tmp_path / "ships" / "ships-2.tar", clips([("a", {"kind": "tug"}), ("c", {"kind": "raft"})]))
    dataset = task.read(tmp_path)
    assert [(clip.id, clip.labels) for clip in dataset.clips] == [("1/a", ("0",)), ("1/b", ("2",)), ("2/a", ("0",))]
    assert dataset.classes == ("0", "1", "2")
    assert "KeyError: 'raft'" in dataset.bad_rows[0].reason
    assert (task.key, task.folds, task.recipe) == ("own/ships", True, Recipe(crop=5, weight=9))


def labels_of(task: EncoderTask, meta: Any) -> tuple[str, ...]:
    ((_, labels, _, _),) = task.items("k", meta)
    return labels


def test_a_user_task_file_may_set_splits_and_tags(tmp_path: Path) -> None:
    task = own_task(tmp_path, SPLITS)
    assert task.parts == {"train": "tr*.tar", "test": "te*.tar"}
    assert task.recipe == Recipe(batch=8, knn=False)
    assert labels_of(task, {"anomaly": True}) == ("1",)
    for odd in (2, -1):
        with pytest.raises(ValueError, match="none of the task's 2 classes"):
            labels_of(task, {"anomaly": odd})
    task = own_task(tmp_path, TAGS)
    assert (task.multi_label, task.recipe.knn) == (True, False)
    assert labels_of(task, {"tags": "130"}) == ("0", "1", "3")
    assert labels_of(task, {"tags": ""}) == ()
    with pytest.raises(ValueError, match="no usable label"):
        labels_of(task, {"tags": "7"})


OWN = "from xares.task import TaskConfig\ndef own_config(encoder): return TaskConfig('own', {})"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (OWN.format("output_dim=2, task_type='frame'"), "own: frame task, criterion CrossEntropyLoss with metric acc"),
        (OWN.format("output_dim=2, metric='mAP'"), "CrossEntropyLoss with metric mAP; allowed"),
        (OWN.format("output_dim=2, criterion=print"), "builtin_function_or_method with metric accuracy; allowed"),
        (OWN.format(""), "output_dim=None; must be the number of classes"),
        (OWN.format("output_dim=2").replace("'own'", "'../x'"), "name='../x': must consist of letters"),
        (OWN.format("colour=2"), "own_task.py: raised TypeError: TaskConfig has no setting 'colour'"),
        (OWN.format("output_dim=2") + "\ndef b_config(e): 0", "must have one .*has own_config, b_config"),
        ("x = 1", "must have one .*has none"),
        ("def own_config(encoder): return 3", r"own_config\(\) returned int"),
        ("raise SystemExit(3)", "raised SystemExit"),
        ("def own_config(encoder:", "raised SyntaxError"),
        ("import xares.trainer", "raised ModuleNotFoundError"),
    ],
)
def test_an_unusable_task_file_is_a_one_line_error(text: str, line: str, tmp_path: Path) -> None:
    with pytest.raises((SettingsError, PluginError), match=line) as caught:
        own_task(tmp_path, text)
    assert "\n" not in str(caught.value)


def test_the_crema_d_task_file_of_x_ares_creates_the_built_in_task(tmp_path: Path) -> None:
    """Its label_processor gives numbers; the built-in task keeps labels and clusters."""
    text = """
from xares.task import TaskConfig

def cremad_config(encoder):
    return TaskConfig(
        name="cremad", formal_name="CREMA-D", encoder=encoder, label_processor=lambda x: "HSAFDN".index(x["label"]),
        output_dim=6, zenodo_id="14646870", train_split="wds-audio-train", valid_split="wds-audio-valid",
        test_split="wds-audio-test", epochs=3,
    )
"""
    task = own_task(tmp_path, text)
    assert (task.key, task.recipe.epochs) == ("xares/cremad", 3)
    assert task.described("1001_DFA_ANG", {"label": "A"}) == (("A",), "1001")
    assert own_task(tmp_path, text.replace("wds-audio-train", "mine")).key == "own/cremad"
