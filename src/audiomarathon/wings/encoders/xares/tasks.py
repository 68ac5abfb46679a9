"""The tasks of X-ARES, read from tasks.toml, and functions that find them by name."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from audiomarathon.errors import SettingsError
from audiomarathon.plugins import look_up
from audiomarathon.wings.encoders.xares.captioned import CaptionedTask
from audiomarathon.wings.encoders.xares.framed import FramedTask
from audiomarathon.wings.encoders.xares.graded import GradedTask
from audiomarathon.wings.encoders.xares.spoken import SpokenTask
from audiomarathon.wings.encoders.xares.task import EncoderTask, LabelRule, Recipe
from audiomarathon.wings.encoders.xares.task_config import TaskConfig, kind_of, load_task_file, task_of

DOMAINS = ("speech", "environment", "music")
#: {name in tasks.toml: class of the task}.
KINDS = {task_class.kind: task_class for task_class in (EncoderTask, CaptionedTask, FramedTask, GradedTask, SpokenTask)}


def _gender(meta: Any) -> str:
    return "M" if meta["gender"] == "M" else "F"


def _broadcast(meta: Any) -> str:
    return str(int(meta["broadcasting"]))


_RULES: Mapping[str, LabelRule] = {"gender()": _gender, "broadcast()": _broadcast}


def _task(name: str, facts: dict[str, Any]) -> EncoderTask:
    """Make the task `name` of X-ARES from its fields in tasks.toml; the top of that file explains the fields."""
    label, classes = facts.pop("label"), facts.pop("classes")
    splits, folds, tars = facts.pop("splits", ""), facts.pop("folds", []), facts.pop("tars", "")
    by_split = dict(zip(("train", "valid", "test"), (f"{split}*.tar" for split in splits.split()), strict=False))
    recipe = {field.name: facts.pop(field.name) for field in fields(Recipe) if field.name in facts}
    options: dict[str, Any] = {
        fact: tuple(value) if isinstance(value, list) else value for fact, value in facts.items()
    }
    options |= {"unreleased": frozenset(options["unreleased"])} if "unreleased" in options else {}
    return KINDS[options.pop("kind", "labels")](
        key=f"xares/{name}",
        aliases=(name, options["formal_name"], options.pop("file", name)),
        globs={str(k): tars.format(k) for k in folds} or by_split,
        folds=bool(folds),
        label=_RULES.get(label, label),
        classes=classes if isinstance(classes, int) else frozenset(classes.split("|")),
        names=dict(zip(str(classes).split("|"), options.pop("names").split("|"), strict=True))
        if "names" in options
        else {},
        recipe=Recipe(**recipe),
        **options,
    )


def _read() -> tuple[EncoderTask, ...]:
    table = tomllib.loads((files(__package__) / "tasks.toml").read_text("utf-8"))
    return tuple(_task(name, facts) for name, facts in table.items())


TASKS = _read()


def named(names: Sequence[str], encoder: Any = None) -> list[EncoderTask]:
    """Return the encoder tasks that these names stand for.

    A name is a task's key, name, formal name or file name in X-ARES; a domain; "private"; "all" (all public tasks); or
    the path of a user's task file. The functions in such a file get the encoder, since labels of frames depend on the
    encoder's hop (the time between frames).

    Raises
    ------
    SettingsError
        The task does not exist.
    """
    tasks: list[EncoderTask] = []
    for name in names:
        word = name.strip().lower().removeprefix("xares/")
        if word.endswith(".py") and Path(name).is_file():
            tasks.append(task_of(config_in(Path(name), encoder)))
        elif word == "private":
            tasks += [task for task in TASKS if task.private]
        elif word in ("all", *DOMAINS):
            tasks += [task for task in TASKS if not task.private and word in ("all", task.domain)]
        elif word.endswith(".py") and word.removesuffix(".py").removesuffix("_task") not in _known():
            raise SettingsError(f"{name}: no such file or task; see `audiomarathon encoder list tasks`")
        else:
            tasks.append(_one(word.removesuffix(".py").removesuffix("_task")))
    return list({task.key: task for task in tasks}.values())


def equipped(task: EncoderTask, *, llm: str = "", tokenizer: str = "") -> EncoderTask:
    """Return the task with a causal LM or a tokenizer set, if it is of a kind that uses one.

    The names are given as arguments, or in $XARES_LLM and $XARES_TOKENIZER.
    """
    llm, tokenizer = llm or os.environ.get("XARES_LLM", ""), tokenizer or os.environ.get("XARES_TOKENIZER", "")
    if isinstance(task, SpokenTask) and llm:
        return replace(task, llm=llm)
    return replace(task, tokenizer=tokenizer) if isinstance(task, CaptionedTask) and tokenizer else task


def _known() -> set[str]:
    return {name.lower() for task in TASKS for name in (task.name, *task.aliases)}


def _one(word: str) -> EncoderTask:
    return look_up(word, TASKS, kind="encoder task")


def config_in(file: Path, encoder: Any = None) -> TaskConfig:
    """Return the configuration in a task file; for one of X-ARES' own files, its `released` is our version of the task.

    X-ARES' own files are recognised by the task's name, Zenodo record and tars, and by whether they have a label
    processor.
    """
    config = load_task_file(file, encoder)
    ours = next(
        (task for task in TASKS if task.name == config.name and (task.zenodo or None) == config.zenodo_id), None
    )
    tars = {str(tar) for tar in config.audio_tar_name_of_split.values()}
    if ours and tars == {*ours.globs.values()} and bool(config.label_processor) == ours.labelled:
        config.released, config.label_processor, config.merge_processor = ours, None, None
    return config


def config_of(name: str, encoder: Any = None) -> TaskConfig:
    """Return the :class:`TaskConfig` of one of X-ARES' own tasks, with the settings that X-ARES' task file has."""
    task, recipe = _one(name), _one(name).recipe
    roles = {} if task.folds else {f"{role}_split": glob.removesuffix("*.tar") for role, glob in task.globs.items()}
    kind = kind_of(task)
    config = TaskConfig(
        name=task.name, task_type=kind.task_type, criterion=kind.criteria[0], metric=kind.metrics[0],
        formal_name=task.formal_name, encoder=encoder, private=task.private, disabled=task.disabled,
        zenodo_id=task.zenodo or None, eval_weight=recipe.weight, batch_size_train=recipe.batch, epochs=recipe.epochs,
        learning_rate=recipe.lr, crop_length=recipe.crop, batch_size_encode=recipe.encode_batch, do_knn=recipe.knn,
        output_dim=task.classes if isinstance(task.classes, int) else len(task.classes),
        k_fold_splits=[int(fold) for fold in task.globs] if task.folds else None,
        released=task, **roles,
    )  # fmt: skip
    if isinstance(task, FramedTask):
        from torch import nn, tensor

        config.metric, config.metric_args = f"segmentf1_{task.average}", {"segment_length_in_s": task.segment}
        config.criterion = nn.BCEWithLogitsLoss(pos_weight=tensor(task.pos_weight))
    if task.folds:
        config.audio_tar_name_of_split = {int(fold): glob for fold, glob in task.globs.items()}
    return config
