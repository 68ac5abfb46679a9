"""Users' own X-ARES task files: `TaskConfig` as they know it, and the task that it describes."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

from audiomarathon.benchmarks.task import Filters, Loaded, Sample
from audiomarathon.benchmarks.xares.tars import read_tar
from audiomarathon.benchmarks.xares.task import EncoderTask, Recipe
from audiomarathon.errors import AudioMarathonError, PluginError, SettingsError, told

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
    """A task's settings under the names and with the defaults of X-ARES 0.1.3; those that do not apply are ignored.

    `released` is the task of ours that a released file describes. An unknown setting is a TypeError.
    """

    def __init__(self, name: str, **settings: Any) -> None:
        if unknown := settings.keys() - _DEFAULTS.keys():
            raise TypeError(f"TaskConfig has no setting {min(unknown)!r}")
        super().__init__(name=name, **{**deepcopy(_DEFAULTS), **settings})
        self.formal_name: str = settings.get("formal_name") or name
        self.batch_size_valid: int = settings.get("batch_size_valid") or self.batch_size_train
        self.update_tar_name_of_split()

    def update_tar_name_of_split(self) -> None:
        """Name the tars as X-ARES does by default, from the folds or splits."""
        if folds := self.k_fold_splits:
            self.audio_tar_name_of_split = {fold: f"wds-audio-fold-{fold}-*.tar" for fold in folds}
            self.encoded_tar_name_of_split = {fold: f"wds-encoded-fold-{fold}-*.tar" for fold in folds}
        else:
            splits = (self.train_split, self.valid_split, self.test_split)
            self.audio_tar_name_of_split = {split: f"{split}*.tar" for split in splits}
            self.encoded_tar_name_of_split = {split: f"wds-encoded-{split}*.tar" for split in splits}


OWN, OWN_TAGS = "own", "own-tags"
"""How the keys of users' own tasks begin: of those with one label a clip, and with several."""
_CLASSES = (("clip", "CrossEntropyLoss", "accuracy"), ("clip", "BCEWithLogitsLoss", "mAP"))
_PART = re.compile(r"fold-([^-]+)-|^(train|valid|test)")  # in the names that tars have by default


class _OnRecord(EncoderTask):
    """A user's own task of which there are runs, but not the file that describes it."""

    def load(self, folder: Path, filters: Filters = Filters()) -> Loaded:  # noqa: ARG002
        """Return the clips of tars with default names as samples, for players."""
        samples = [
            Sample(f"{found[1] or found[2]}/{entry.key}", (cast("Path", entry.audio),), "", "", entry.key)
            for tar in sorted(folder.glob("*.tar"))
            if (found := _PART.search(tar.name))
            for entry in read_tar(tar)[0]
        ]
        return Loaded(folder, tuple(samples))


def on_record(key: str) -> EncoderTask | None:
    """Return a user's own task by the key that its runs have; None for any other key."""
    kind, _, name = key.partition("/")
    if kind not in (OWN, OWN_TAGS) or not name:
        return None
    facts: dict[str, Any] = {
        "formal_name": name,
        "title": name,
        "domain": "own",
        "globs": {},
        "label": "",
        "classes": 0,
    }
    return _OnRecord(key=key, multi_label=kind == OWN_TAGS, **facts)


@dataclass(frozen=True)
class _Processed:
    """A label rule from a user's `label_processor`: class numbers, or 0 and 1 for each class, become labels."""

    process: Callable[[Any], Any] | None
    classes: int
    multi_label: bool

    def __call__(self, meta: Any) -> str | tuple[str, ...]:
        value = self.process(meta) if self.process else meta
        value = value.tolist() if hasattr(value, "tolist") else value  # a tensor or an array
        if not self.multi_label:
            if value != int(value):
                raise ValueError(f"label_processor returned {value!r}; allowed: a class number")
            return str(int(value))
        if len(value) != self.classes or not {*value} <= {0, 1}:
            raise ValueError(f"label_processor returned {len(value)} values; allowed: {self.classes}, each 0 or 1")
        return tuple(str(number) for number, one in enumerate(value) if one)


class LaterError(SettingsError):
    """A task is not clip-level."""


def later(name: str, kind: str) -> LaterError:
    """Return the refusal of a task that is not clip-level."""
    allowed = "clip tasks of classes, and X-ARES' own desed, maestro and speechocean762"
    return LaterError(f"{name}: {kind} tasks come with part 2 of X-ARES; allowed now: {allowed}")


def load_task_file(path: Path, encoder: Any = None) -> TaskConfig:
    """Run a user's `*_task.py` and return what its one `*_config(encoder)` function returns.

    `from xares.task import TaskConfig` finds the class above while the file runs, whether X-ARES is installed or not.

    Raises
    ------
    PluginError
        The file raised an error.
    SettingsError
        It has no such function, several, or one that returns something else.
    """
    with _stand_ins():
        found = _told(path, lambda: runpy.run_path(str(path)))
        functions = {name: one for name, one in found.items() if name.endswith("_config") and callable(one)}
        if len(functions) != 1:
            raise SettingsError(f"{path}: must have one *_config function, has {', '.join(functions) or 'none'}")
        ((name, function),) = functions.items()
        config = _told(path, lambda: function(encoder))
    if not isinstance(config, TaskConfig):
        raise SettingsError(f"{path}: {name}() returned {type(config).__name__}; must be a TaskConfig of xares.task")
    return config


def task_of(config: TaskConfig) -> EncoderTask:
    """Return the task that a configuration describes.

    Raises
    ------
    SettingsError
        It is neither a clip-level task of classes nor a released one, or lacks what one needs.
    """
    name, loss = config.name, config.criterion
    known = config.released if config.label_processor is None else None
    criterion = loss if isinstance(loss, str) else type(loss).__name__
    asked = (config.task_type, criterion, config.metric)
    if known is None or asked != known.trained_as:
        if config.task_type != "clip" or config.merge_processor:
            raise later(name, config.task_type if config.task_type != "clip" else "merge_processor")
        if criterion in ("L1Loss", "MSELoss"):
            raise later(name, "regression")
    if config.valid_every != 1:
        raise SettingsError(f"{name}: valid_every={config.valid_every}; allowed: 1")
    plain = all(getattr(loss, one, None) is None for one in ("weight", "pos_weight"))
    plain = (plain and not getattr(loss, "label_smoothing", 0)) or config.task_type == "frame"  # its weight is known
    if not plain or asked not in (*_CLASSES, known and known.trained_as):
        allowed = "CrossEntropyLoss with accuracy, BCEWithLogitsLoss with mAP, without weights"
        raise SettingsError(f"{name}: criterion {criterion} with metric {config.metric}; allowed: {allowed}")
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise SettingsError(f"name={name!r}: must be of letters, digits, . _ and -, since it names a folder")
    if known is None and (not config.output_dim or config.output_dim < 2):
        raise SettingsError(f"{name}: output_dim={config.output_dim}; must be the number of classes, 2 or more")
    tars, folds = config.audio_tar_name_of_split, config.k_fold_splits
    roles = {role: getattr(config, f"{role}_split") for role in ("train", "valid", "test")}
    names = {str(fold): fold for fold in folds} if folds else roles
    if lost := [part for part, split in names.items() if split not in tars]:
        raise SettingsError(f"{name}: audio_tar_name_of_split lacks {lost[0]}; it has {', '.join(map(str, tars))}")
    multi = criterion == "BCEWithLogitsLoss"
    task = known or EncoderTask(
        key=f"{OWN_TAGS if multi else OWN}/{name}",
        formal_name=config.formal_name,
        title=config.formal_name,
        domain="own",
        globs={},
        label=_Processed(config.label_processor, config.output_dim, multi),
        classes=frozenset(map(str, range(config.output_dim))),
        exact=False,
        multi_label=multi,
        zenodo=config.zenodo_id or "",
        private=config.private,
        disabled=config.disabled,
    )
    recipe = Recipe(
        config.batch_size_train,
        config.epochs,
        config.learning_rate,
        config.crop_length,
        config.batch_size_encode,
        config.do_knn and not multi,
        config.eval_weight,
    )
    return replace(task, globs={part: tars[split] for part, split in names.items()}, folds=bool(folds), recipe=recipe)


def _told(path: Path, work: Callable[[], Any]) -> Any:
    """Run a stranger's code; whatever it raises is one line."""
    try:
        return work()
    except (AudioMarathonError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise PluginError(f"{path}: raised {told(error)}") from error


class _Logger:
    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_args, **_settings: None


@contextmanager
def _stand_ins() -> Iterator[None]:
    """Let `xares.task` (and `loguru`, if it is not installed) be ours; what was imported before comes back."""
    modules = {name: ModuleType(name) for name in ("xares", "xares.task")}
    modules["xares"].__path__ = []
    modules["xares.task"].TaskConfig = TaskConfig  # type: ignore[attr-defined]
    if "loguru" not in sys.modules and find_spec("loguru") is None:
        modules["loguru"] = ModuleType("loguru")
        modules["loguru"].logger = _Logger()  # type: ignore[attr-defined]
    before = {name: one for name, one in sys.modules.items() if name in modules or name.startswith("xares.")}
    for name in before:
        del sys.modules[name]
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            del sys.modules[name]
        sys.modules.update(before)
