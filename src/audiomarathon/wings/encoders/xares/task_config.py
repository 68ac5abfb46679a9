"""Read the task files that users wrote for X-ARES, and turn them into tasks of this suite.

The module also provides X-ARES' class `TaskConfig`, which the task files import.
"""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from operator import itemgetter
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from audiomarathon.errors import SettingsError, blaming
from audiomarathon.wings.encoders.xares import processed
from audiomarathon.wings.encoders.xares.captioned import CaptionedTask
from audiomarathon.wings.encoders.xares.framed import FramedTask
from audiomarathon.wings.encoders.xares.graded import GradedTask
from audiomarathon.wings.encoders.xares.processed import Processed
from audiomarathon.wings.encoders.xares.spoken import SpokenTask
from audiomarathon.wings.encoders.xares.task import EncoderTask, Recipe

_DEFAULTS: dict[str, Any] = dict(  # noqa: C408  # as X-ARES writes them
    formal_name="", xares_settings=None, env_root="./env", disabled=False, private=False, torch_num_threads=2, seed=42,
    label_processor=None, merge_processor=None, task_type="clip", eval_weight=0, train_split="train",
    valid_split="valid", test_split="test", k_fold_splits=None, use_mini_dataset=False, force_download=False,
    audio_tar_name_of_split={}, num_shards_rawaudio=4, zenodo_id=None, force_encode=False, encoder=None,
    pretrained_dependencies=None, encoded_tar_name_of_split={}, trim_length=None, save_encoded_per_batches=2000,
    batch_size_encode=16, num_encoder_workers=4, crop_length=None, force_retrain_mlp=False,
    ckpt_dir_name="checkpoints", embedding_dir_name="embeddings", ckpt_name="best.ckpt", criterion="CrossEntropyLoss",
    batch_size_train=32, batch_size_valid=None, learning_rate=1e-3, epochs=10, valid_every=1, num_training_workers=0,
    num_validation_workers=0, sort_by_length=False, model=None, output_dim=None, metric="accuracy", metric_args={},
    do_knn=True, released=None,
)  # fmt: skip


class TaskConfig(SimpleNamespace):
    """The settings of a task, with the names and defaults of X-ARES 0.1.3.

    Settings that do not apply here are ignored; an unknown setting raises TypeError.

    `released` holds our version of the task if the file is one of X-ARES' own files.
    """

    def __init__(self, name: str, **settings: Any) -> None:
        if unknown := settings.keys() - _DEFAULTS.keys():
            raise TypeError(f"TaskConfig has no setting {min(unknown)!r}")
        super().__init__(name=name, **{**deepcopy(_DEFAULTS), **settings})
        self.formal_name: str = settings.get("formal_name") or name
        self.batch_size_valid: int = settings.get("batch_size_valid") or self.batch_size_train
        self.update_tar_name_of_split()

    def update_tar_name_of_split(self) -> None:
        """Set the file names of the tars of each fold or split to X-ARES' default names."""
        if folds := self.k_fold_splits:
            self.audio_tar_name_of_split = {fold: f"wds-audio-fold-{fold}-*.tar" for fold in folds}
            self.encoded_tar_name_of_split = {fold: f"wds-encoded-fold-{fold}-*.tar" for fold in folds}
        else:
            splits = (self.train_split, self.valid_split, self.test_split)
            self.audio_tar_name_of_split = {split: f"{split}*.tar" for split in splits}
            self.encoded_tar_name_of_split = {split: f"wds-encoded-{split}*.tar" for split in splits}


@dataclass(frozen=True)
class _Kind:
    """A kind of task, recognised by the task type, criterion and metric in a user's configuration.

    Attributes
    ----------
    key
        Prefix of the keys of users' tasks of this kind.
    criteria, metrics
        Allowed names. X-ARES' own tasks have the first of each; in frame tasks, the metric's name contains `average`.
    least
        The smallest allowed number of classes; 0 for a kind without classes.
    facts
        Further arguments of the class `make` for users' tasks of this kind.
    """

    key: str
    make: type[EncoderTask]
    task_type: str
    criteria: tuple[str, ...]
    metrics: tuple[str, ...]
    least: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        return f"{self.task_type}, {' or '.join(self.criteria)} with {' or '.join(self.metrics)}"

    def fits(self, task_type: str, criterion: str, metric: str) -> bool:
        """Tell whether a configuration with these values is of this kind."""
        return task_type == self.task_type and criterion in self.criteria and metric in self.metrics


_LABELS, _EVENTS = {"label": itemgetter("labels")}, {"fields": ("start", "end", "label"), "average": "", "segment": 0.0}
CLASSES = _Kind("own", EncoderTask, "clip", ("CrossEntropyLoss",), ("accuracy",), 2, _LABELS)
TAGS = _Kind("own-tags", EncoderTask, "clip", ("BCEWithLogitsLoss",), ("mAP",), 2,
             {**_LABELS, "multi_label": True})  # fmt: skip
GRADES = _Kind("own-grades", GradedTask, "clip", ("MSELoss", "L1Loss"), ("MSE", "MAE"),
               facts={"grades": ("grade",)})  # fmt: skip
FRAMES = _Kind("own-frames", FramedTask, "frame", ("BCEWithLogitsLoss",),
               ("segmentf1_macro", "segmentf1_micro"), 1, _EVENTS)  # fmt: skip
CAPTIONS = _Kind("own-captions", CaptionedTask, "contrastive", ("AudioTextContrastiveLoss",),
                 ("recallatk_r1",))  # fmt: skip
TRANSCRIPTS = _Kind("own-transcripts", SpokenTask, "asr", ("CrossEntropyLoss",), ("WER_inv",))
KINDS = (CLASSES, TAGS, GRADES, FRAMES, CAPTIONS, TRANSCRIPTS)


def kind_of(task: EncoderTask) -> _Kind:
    """Return the :class:`_Kind` (labels, frames, captions, …) to which one of X-ARES' own tasks belongs."""
    same = (kind for kind in KINDS if kind.make is type(task))
    return next(kind for kind in same if kind.facts.get("multi_label", False) == task.multi_label)


def on_record(key: str) -> EncoderTask | None:
    """Return a user's task rebuilt from its key in run folders, without its task file and tars; None for other keys."""
    start, _, name = key.partition("/")
    kind = next((candidate for candidate in KINDS if candidate.key == start), None)
    if kind is None or not name:
        return None
    return kind.make(key=key, formal_name=name, title=name, domain="own", globs={}, **kind.facts)


def load_task_file(path: Path, encoder: Any = None) -> TaskConfig:
    """Run a user's `*_task.py`, call its only function named `*_config`, and return the configuration that it returns.

    While the file runs, `from xares.task import TaskConfig` imports this module's class, even if X-ARES is installed.

    Raises
    ------
    PluginError
        The file raised an error.
    SettingsError
        The file has no such function or several, or the function does not return a `TaskConfig`.
    """
    with _stand_ins(), blaming(f"{path}: raised"):
        namespace = runpy.run_path(str(path))
        functions = {
            name: function for name, function in namespace.items() if name.endswith("_config") and callable(function)
        }
        if len(functions) != 1:
            raise SettingsError(f"{path}: must have one *_config function, has {', '.join(functions) or 'none'}")
        ((name, function),) = functions.items()
        config = function(encoder)
    if not isinstance(config, TaskConfig):
        raise SettingsError(f"{path}: {name}() returned {type(config).__name__}; must be a TaskConfig of xares.task")
    config.encoder = encoder if config.encoder is None else config.encoder
    return config


def task_of(config: TaskConfig) -> EncoderTask:
    """Turn the configuration from a user's task file into a task.

    Raises
    ------
    SettingsError
        X-ARES has no such kind of task, the file changes the kind of one of X-ARES' own tasks, or a setting is missing
        or not allowed.
    """
    name = config.name
    known = None if config.label_processor or config.merge_processor else config.released
    kind = _kind_of(config, known)
    if config.valid_every != 1:
        raise SettingsError(f"{name}: valid_every={config.valid_every}; allowed: 1")
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise SettingsError(f"name={name!r}: must consist of letters, digits, . _ and -, since it names a folder")
    if known is None and (config.output_dim or 0) < kind.least:
        allowed = f"must be the number of classes, {kind.least} or more"
        raise SettingsError(f"{name}: output_dim={config.output_dim}; {allowed}")
    tars, folds = config.audio_tar_name_of_split, config.k_fold_splits
    roles = {role: getattr(config, f"{role}_split") for role in ("train", "valid", "test")}
    split_of_part = {str(fold): fold for fold in folds} if folds else roles
    if without_tar := [part for part, split in split_of_part.items() if split not in tars]:
        raise SettingsError(
            f"{name}: audio_tar_name_of_split lacks {without_tar[0]}; it has {', '.join(map(str, tars))}"
        )
    globs = {part: tars[split] for part, split in split_of_part.items()}
    same = kind in (GRADES, CAPTIONS, TRANSCRIPTS) and globs.get("train") == globs.get("test")
    if (folds and config.task_type != "clip") or (same and not folds):
        given = f"k_fold_splits={folds}" if folds else "train_split and test_split with the same tars"
        allowed = "train_split and test_split" if folds else "different tars"
        raise SettingsError(f"{name}: {given} in a task of {config.metric}; allowed: {allowed}")
    recipe = Recipe(
        config.batch_size_train,
        config.epochs,
        config.learning_rate,
        config.crop_length,
        config.batch_size_encode,
        config.do_knn and kind is not TAGS and config.merge_processor is None,  # X-ARES' kNN does not merge
        config.eval_weight,
    )
    stated = _stated(config, known) if kind is FRAMES else {}
    return replace(known or _own(config, kind), globs=globs, folds=bool(folds), recipe=recipe, **stated)


def _kind_of(config: TaskConfig, known: EncoderTask | None) -> _Kind:
    loss = config.criterion
    criterion = loss if isinstance(loss, str) else type(loss).__name__
    allowed = [kind_of(known)] if known else KINDS
    kind = next(
        (candidate for candidate in allowed if candidate.fits(config.task_type, criterion, config.metric)), None
    )
    weights = ["weight"] + ["pos_weight"] * (kind is not FRAMES)
    weighted = any(getattr(loss, argument, None) is not None for argument in weights) or bool(
        getattr(loss, "label_smoothing", 0)
    )
    weighted |= getattr(loss, "reduction", "mean") != "mean" or getattr(loss, "ignore_index", -100) != -100
    if kind is None or weighted:
        near = [candidate for candidate in allowed if candidate.task_type == config.task_type] or allowed
        said = (
            f"{config.task_type} task, criterion {criterion} with metric {config.metric}{', with arguments' * weighted}"
        )
        fits = "; ".join(map(str, near))
        raise SettingsError(f"{config.name}: {said}; allowed: {fits}; loss arguments: only pos_weight, in frame tasks")
    return kind


def _stated(config: TaskConfig, known: EncoderTask | None) -> dict[str, Any]:
    """Return a frame task's settings of loss and metric, as {field of :class:`FramedTask`: value}.

    `known` is our version of the task if the configuration is one of X-ARES' own; its values must then be unchanged.
    """
    args = {"segment_length_in_s": 1.0, "hop_size_in_ms": 0.0, **config.metric_args}  # the first is X-ARES' default
    weight = getattr(config.criterion, "pos_weight", None)
    weights = {1.0} if weight is None else {*np.ravel(weight).tolist()}
    segment, hop, *unknown = args.values()
    numbers = all(isinstance(number, int | float) for number in (segment, hop)) and segment > 0
    if unknown or len(weights) != 1 or not numbers:
        allowed = "segment_length_in_s above 0, hop_size_in_ms; one pos_weight for all classes"
        raise SettingsError(
            f"{config.name}: metric_args={config.metric_args}, pos_weight={weights}; allowed: {allowed}"
        )
    stated = {"segment": segment, "average": config.metric.removeprefix("segmentf1_"), "pos_weight": weights.pop()}
    for name, value in stated.items():
        if known and getattr(known, name) != value:
            allowed = f"{getattr(known, name)}; under another name it is your own task"
            raise SettingsError(f"{config.name}: {name}={value} in X-ARES' own task; allowed: {allowed}")
    return {**stated, "stated_hop": hop}


def _own(config: TaskConfig, kind: _Kind) -> EncoderTask:
    many, hop = config.output_dim or 0, getattr(config.encoder, "hop_size_in_ms", 0)
    read: dict[str, Callable[[Sequence[Any]], Iterable[Any]]] = {
        CLASSES.key: partial(map, processed.label),
        TAGS.key: partial(map, partial(processed.labels, many)),
        GRADES.key: partial(map, processed.grade),
        FRAMES.key: partial(map, partial(processed.events, many, hop)),
        CAPTIONS.key: processed.captions,
        TRANSCRIPTS.key: iter,
    }
    return kind.make(
        key=f"{kind.key}/{config.name}",
        formal_name=config.formal_name,
        title=config.formal_name,
        domain="own",
        globs={},
        classes=frozenset(map(str, range(many if kind.least else 0))),
        exact=False,
        zenodo=config.zenodo_id or "",
        private=config.private,
        disabled=config.disabled,
        made=Processed(config.name, config.label_processor, config.merge_processor, read[kind.key]),
        **kind.facts,
    )


class _Logger:
    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_args, **_settings: None


@contextmanager
def _stand_ins() -> Iterator[None]:
    """Replace `xares.task` (and `loguru`, if it is missing) by our modules during the `with` block."""
    modules = {name: ModuleType(name) for name in ("xares", "xares.task")}
    modules["xares"].__path__ = []
    modules["xares.task"].TaskConfig = TaskConfig  # type: ignore[attr-defined]
    if "loguru" not in sys.modules and find_spec("loguru") is None:
        modules["loguru"] = ModuleType("loguru")
        modules["loguru"].logger = _Logger()  # type: ignore[attr-defined]
    before = {name: module for name, module in sys.modules.items() if name in modules or name.startswith("xares.")}
    for name in before:
        del sys.modules[name]
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            del sys.modules[name]
        sys.modules.update(before)
