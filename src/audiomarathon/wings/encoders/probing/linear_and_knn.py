"""Our probes of labels, all without randomness: LDA and ridge regression in closed form, and kNN by cosine similarity.

The penalty of LDA and ridge is chosen by validation.

Embeddings are normalised like LayerNorm without gain and bias, so that one grid of penalties fits every encoder.
Single-label tasks use shrinkage LDA, since ridge to one-hot targets fails if classes differ in fewer dimensions than
there are classes. Multi-label tasks use ridge.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import numpy.typing as npt

from audiomarathon.errors import DataError
from audiomarathon.metrics.statistics import Floats
from audiomarathon.wings.encoders.probing.clips import Clips, Integers, Predictions, Split, one_hot
from audiomarathon.wings.encoders.probing.scores import figure

LDA_PENALTIES = tuple(10.0**power for power in range(-5, 3))
RIDGE_PENALTIES = tuple(10.0**power for power in range(-6, 3))  # they are multiplied by the number of clips
NEIGHBOURS = 10
TEMPERATURE = 0.07
_EPSILON = 1e-5  # as in torch's LayerNorm
_BLOCK = 4096  # number of rows converted to double precision at a time
_SIMILARITIES = 1 << 24  # number of pairs (test clip, train clip) computed at a time: 128 MB


@dataclass(frozen=True)
class Moments:
    """Sums over clips, from which LDA and ridge are computed; the sums of several parts of the data can be added.

    Attributes
    ----------
    gram, cross
        Sums of x xᵀ, shape (dim, dim), and of x yᵀ, shape (dim, classes), for embeddings x and their targets y.
    inputs, targets
        Sums of x and of y (multi-hot).
    clips
        Number of clips.
    """

    gram: Floats
    cross: Floats
    inputs: Floats
    targets: Floats
    clips: int

    def __add__(self, other: Moments) -> Moments:
        return Moments(*map(add, vars(self).values(), vars(other).values()))


@dataclass(frozen=True)
class Head:
    """A fitted linear probe: the class scores of an embedding x are x W + b, with W of the shape (dim, classes)."""

    weights: Floats
    bias: Floats

    def __call__(self, inputs: Floats) -> Floats:
        return inputs @ self.weights + self.bias


def standardised(embeddings: npt.NDArray[np.floating[Any]]) -> Floats:
    """Scale each row to mean 0 and variance 1, like LayerNorm without gain and bias; a constant row becomes 0."""
    x: Floats = np.asarray(embeddings, dtype=np.float64)
    x = x - x.mean(axis=1, keepdims=True)
    deviation: Floats = np.sqrt(np.square(x).mean(axis=1, keepdims=True) + _EPSILON)
    return x / deviation


def moments(inputs: Floats, targets: Integers | Floats, classes: int) -> Moments:
    """Compute the :class:`Moments` of clips; `targets` are class numbers, or a row of numbers for each clip."""
    y = one_hot(targets.astype(np.int64), classes) if targets.ndim == 1 else targets.astype(np.float64)
    return Moments(inputs.T @ inputs, inputs.T @ y, inputs.sum(axis=0), y.sum(axis=0), len(y))


def lda(sums: Moments, penalties: Sequence[float]) -> list[Head]:
    """Fit shrinkage LDA for each penalty λ; return one :class:`Head` (weights and bias) per penalty.

    Class c is a Gaussian with mean μ_c, and all classes share the covariance S + λI.

    S is the covariance within classes, μ the mean of all n clips, and n_c the number of clips of class c. The score of
    an embedding x is (x − μ)ᵀ(S + λI)⁻¹(μ_c − μ) − ½(μ_c − μ)ᵀ(S + λI)⁻¹(μ_c − μ) + ln(n_c / n). The score is the log
    of the posterior, up to a constant that all classes share. A class without clips gets the score −∞.
    """
    share = sums.targets / sums.clips
    mean = sums.inputs / sums.clips
    centres = sums.cross / np.maximum(sums.targets, 1)
    within = (sums.gram - (centres * sums.targets) @ centres.T) / sums.clips
    apart = centres - mean[:, None]
    prior = np.log(share, out=np.full(len(share), -np.inf), where=share > 0)
    return [
        Head(weights, prior - (apart * weights).sum(axis=0) / 2 - mean @ weights)
        for weights in _solutions(within, apart, penalties)
    ]


def ridge(sums: Moments, penalties: Sequence[float]) -> list[Head]:
    """Fit ridge regression for each penalty λ; return one :class:`Head` (weights and bias) per penalty.

    A fit minimises Σ(y − xW − b)² + λ n ‖W‖².

    x are the embeddings of the n clips, y their targets, W and b the weights and bias.
    """
    mean, share = sums.inputs / sums.clips, sums.targets / sums.clips
    covariance = sums.gram / sums.clips - np.outer(mean, mean)
    cross = sums.cross / sums.clips - np.outer(mean, share)
    return [Head(weights, share - mean @ weights) for weights in _solutions(covariance, cross, penalties)]


def _solutions(covariance: Floats, right: Floats, penalties: Sequence[float]) -> Iterator[Floats]:
    """Yield (`covariance` + λI)⁻¹ `right` for each penalty λ."""
    values, vectors = np.linalg.eigh(covariance)
    turned = vectors.T @ right
    for penalty in penalties:
        yield vectors @ (turned / (values + penalty)[:, None])


def linear_probe(clips: Clips, splits: Sequence[Split]) -> Predictions:
    """Fit LDA (multi-label: ridge) on train, choose the penalty on valid, refit on both, and score the test clips.

    If penalties score equally on valid, the largest is chosen. The :class:`Moments` (sums over clips) of each part of
    the data are computed once; a split adds those of its parts.
    """
    fit, grid = (ridge, RIDGE_PENALTIES) if clips.multi_label else (lda, LDA_PENALTIES)
    _refuse_leaks(splits)
    parts = {part for split in splits for part in (*split.train, split.valid)}
    sums = {part: _moments_of(clips, clips.rows(part)) for part in sorted(parts)}
    chosen, scores, best = [], [], []
    for split in splits:
        train, valid = reduce(add, (sums[part] for part in split.train)), clips.rows(split.valid)
        inputs, targets = standardised(clips.embeddings[valid]), clips.targets[valid]
        figures = [figure(head(inputs), targets) for head in fit(train, grid)]
        chosen.append(max(zip(figures, grid, strict=True))[1])
        best.append(max(figures))
        (head,) = fit(train + sums[split.valid], chosen[-1:])
        scores.append(head(standardised(clips.embeddings[clips.rows(split.test)])))
    rows = np.concatenate([clips.rows(split.test) for split in splits])
    return Predictions(rows, np.concatenate(scores), tuple(chosen), tuple(best))


def _moments_of(clips: Clips, rows: Integers) -> Moments:
    blocks = np.array_split(rows, 1 + len(rows) // _BLOCK)
    return reduce(add, (moments(standardised(clips.embeddings[i]), clips.targets[i], clips.classes) for i in blocks))


def knn(clips: Clips, splits: Sequence[Split], *, centred: bool = False) -> Predictions:
    """Classify each test clip by a vote of its 10 nearest clips in train and valid, weighted by exp(cosine / 0.07).

    All clips that are as near as the tenth also vote, so that the order of clips never matters.

    Parameters
    ----------
    centred
        First subtract the mean of train and valid from every embedding.
    """
    if clips.multi_label:
        raise DataError("kNN votes for one class a clip; allowed: single-label targets")
    _refuse_leaks(splits)
    scores = []
    for split in splits:
        known, asked = clips.rows(*split.train, split.valid), clips.rows(split.test)
        train, test = (clips.embeddings[rows].astype(np.float64) for rows in (known, asked))
        mean = train.mean(axis=0) if centred else 0.0
        train, test = _unit(train - mean), _unit(test - mean)
        blocks = np.array_split(test, 1 + len(test) * len(train) // _SIMILARITIES)
        scores += [_votes(block @ train.T, clips.targets[known], clips.classes) for block in blocks]
    return Predictions(np.concatenate([clips.rows(split.test) for split in splits]), np.concatenate(scores))


def _votes(similarities: Floats, targets: Integers, classes: int) -> Floats:
    similarities = similarities.round(12)  # otherwise rounding makes similarities of parallel embeddings differ
    last = max(similarities.shape[1] - NEIGHBOURS, 0)
    tenth = np.partition(similarities, last, axis=1)[:, last, None]
    rows, near = np.nonzero(similarities >= tenth)
    votes = np.exp((similarities - similarities.max(axis=1, keepdims=True))[rows, near] / TEMPERATURE)
    totals = np.zeros((len(similarities), classes))
    np.add.at(totals, (rows, targets[near]), votes)
    whole: Floats = totals.sum(axis=1, keepdims=True)
    return totals / whole


def _unit(x: Floats) -> Floats:
    length = np.linalg.norm(x, axis=1, keepdims=True)
    unit: Floats = np.divide(x, length, out=np.zeros_like(x), where=length > 0)
    return unit


def _refuse_leaks(splits: Sequence[Split]) -> None:
    for split in splits:
        parts = (*split.train, split.valid, split.test)
        if len({*parts}) < len(parts) or not split.train:
            raise DataError(f"{split}: train, valid and test must be different parts")
