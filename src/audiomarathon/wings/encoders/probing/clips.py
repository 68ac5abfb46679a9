"""The data of probes that predict labels: one embedding per clip, its target, and the parts to train and test on."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from audiomarathon.errors import DataError
from audiomarathon.metrics.statistics import Floats

Integers = npt.NDArray[np.integer[Any]]
HELD_OUT = 0.15


@dataclass(frozen=True)
class Clips:
    """The embeddings of a task's clips, with the labels to predict.

    Attributes
    ----------
    embeddings
        Shape (clips, dim), finite.
    targets
        Single-label: each clip's class number, from 0, shape (clips,). Multi-label: 1 for each of a clip's labels, else
        0, shape (clips, classes).
    parts
        The part that each clip belongs to ("train", "valid", "test" or a fold), shape (clips,).
    """

    embeddings: npt.NDArray[np.floating[Any]]
    targets: Integers
    parts: npt.NDArray[np.str_]

    def __post_init__(self) -> None:
        x, y = self.embeddings, self.targets
        if x.ndim != 2 or not x.size:
            raise DataError(f"embeddings have the shape {x.shape}; allowed: (clips, dim), both at least 1")
        if y.ndim not in (1, 2) or not len(x) == len(y) == len(self.parts):
            shapes = f"{len(x)} embeddings, targets of the shape {y.shape} and {len(self.parts)} parts"
            raise DataError(f"{shapes}; allowed: a target and a part for each embedding")
        finite = np.isfinite(x).all(axis=1)
        if not finite.all():
            raise DataError(f"embeddings: row {int(finite.argmin())} holds NaN or infinity; allowed: finite numbers")
        if not np.issubdtype(y.dtype, np.integer) or y.min(initial=0) < 0 or (y.ndim == 2 and y.max(initial=0) > 1):
            allowed = "0 or 1" if y.ndim == 2 else "class numbers from 0"
            raise DataError(f"targets of the type {y.dtype} from {y.min()} to {y.max()}; allowed: integers, {allowed}")

    @property
    def multi_label(self) -> bool:
        """Whether a clip can have several labels."""
        return self.targets.ndim == 2

    @property
    def classes(self) -> int:
        """Number of classes in the targets."""
        return int(self.targets.shape[1] if self.multi_label else self.targets.max() + 1)

    def rows(self, *parts: str) -> Integers:
        """Return the row numbers of the clips that belong to the given parts of the data, in ascending order."""
        missing = sorted({*parts} - {*self.parts.tolist()})
        if missing:
            raise DataError(f"no clips in {', '.join(missing)}; parts with clips: {', '.join(np.unique(self.parts))}")
        return np.flatnonzero(np.isin(self.parts, parts))


@dataclass(frozen=True)
class Split:
    """The parts of the data (such as "train", or folds) on which to train, validate and test a probe."""

    train: tuple[str, ...]
    valid: str
    test: str


@dataclass(frozen=True)
class Predictions:
    """A probe's class scores for the test clips of all splits.

    Attributes
    ----------
    rows
        For each row of `scores`: the row number of its clip in the embeddings, shape (clips,).
    scores
        A score for each class, shape (clips, classes); the class with the highest score is predicted.
    penalties, valid
        For each split, the penalty chosen on its validation part, and the accuracy (multi-label: mean average
        precision) reached there. Empty for kNN.
    """

    rows: Integers
    scores: Floats
    penalties: tuple[float, ...] = ()
    valid: tuple[float, ...] = ()

    @property
    def predicted(self) -> Integers:
        """The predicted class of each clip, which has the highest score."""
        best: Integers = self.scores.argmax(axis=1)
        return best


def rotated(folds: Sequence[str], *, as_published: bool = False) -> list[Split]:
    """Return one split per fold: test on this fold, validate on the next fold, train on the rest.

    With `as_published`, validate on the test fold, as X-ARES does.
    """
    fewest = 2 if as_published else 3
    if len({*folds}) != len(folds) or len(folds) < fewest:
        raise DataError(f"folds {', '.join(folds) or 'missing'}; allowed: {fewest} or more, all different")
    splits = []
    for test, following in zip(folds, [*folds[1:], folds[0]], strict=True):
        valid = test if as_published else following
        splits.append(Split(tuple(fold for fold in folds if fold not in (test, valid)), valid, test))
    return splits


def held_out(clusters: Sequence[str], targets: Integers, *, share: float = HELD_OUT, seed: int = 0) -> npt.NDArray[Any]:
    """Choose about `share` of each class for validation, in whole clusters (dependent clips, such as a speaker's).

    Returns
    -------
    Booleans, shape (clips,), True where a clip is held out. Clusters are tried in the order of a hash, and each is
    held out if that brings the shares of the classes nearer to `share`. At least one cluster is held out, and at least
    one is not.
    """
    names, codes = np.unique(np.asarray(clusters, dtype=np.str_), return_inverse=True)
    if len(names) < 2:
        raise DataError(f"{len(names)} cluster; to hold out whole clusters for validation, two or more are needed")
    hot = one_hot(targets, int(targets.max()) + 1) if targets.ndim == 1 else targets
    counts = np.zeros((len(names), hot.shape[1]))
    np.add.at(counts, codes, hot)
    order = sorted(range(len(names)), key=lambda code: hashlib.sha256(f"{seed}:{names[code]}".encode()).digest())
    missing, taken = share * counts.sum(axis=0), []
    for code in order[:-1]:
        if np.abs(missing - counts[code]).sum() < np.abs(missing).sum():
            missing = missing - counts[code]
            taken.append(code)
    return np.isin(codes, taken or order[:1])


def one_hot(targets: Integers, classes: int) -> Floats:
    """Turn class numbers into one-hot rows, shape (clips, classes)."""
    return np.eye(classes)[targets]


def grouped(clusters: Sequence[str], folds: int) -> list[str]:
    """Distribute clips over folds so that a cluster (dependent clips, such as a speaker's) stays in one fold.

    Return the fold of each clip ("1", "2", …).

    Clusters are taken in the order of a hash of their names; each goes to the fold with the fewest clips so far.
    """
    sizes, taken, counts = Counter(clusters), dict[str, int](), [0] * folds
    for name in sorted(sizes, key=lambda name: hashlib.sha256(name.encode()).digest()):
        taken[name] = counts.index(min(counts))
        counts[taken[name]] += sizes[name]
    return [str(taken[cluster] + 1) for cluster in clusters]
