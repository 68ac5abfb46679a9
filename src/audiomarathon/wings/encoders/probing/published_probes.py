"""X-ARES' probes as released (0.1.3), faults included; their scores compare only with X-ARES' published tables.

The linear probe ("MLP") is LayerNorm and a linear layer, trained by Adam on pooled embeddings. The training stops far
from convergence. Where X-ARES validates on the test part, the best epoch is chosen on test clips. For speed, embeddings
are normalised only once, gradients are written out by hand, and all seeds train at once as stacked tensors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import layer_norm, normalize, one_hot

from audiomarathon.errors import DataError
from audiomarathon.metrics.statistics import Floats
from audiomarathon.wings.encoders.probing.clips import Clips, Integers, Predictions, Split
from audiomarathon.wings.encoders.probing.scores import published_figure

SEEDS = (42, 43, 44, 45, 46)  # X-ARES uses 42 only, but scores differ by several points between seeds
NEIGHBOURS = 10
TEMPERATURE = 0.07
_BLOCK = 2048  # number of test clips scored at a time


@dataclass(frozen=True)
class PublishedScores:
    """Class scores (logits) of the test clips by X-ARES' linear probe.

    Attributes
    ----------
    rows
        Row numbers, in the embeddings, of the test clips of all splits.
    logits, last_logits
        Logits of the epoch with the best validation score, and of the last epoch, shape (seeds, test clips, classes).
    """

    rows: Integers
    logits: Floats
    last_logits: Floats


def learning_rate(start: float, epoch: int, epochs: int) -> float:
    """Return an epoch's learning rate by ignite's cosine schedule, from `start` to a tenth of it.

    With a single epoch it is `start`.
    """
    if epochs == 1:
        return start
    return start + (0.1 * start - start) / 2 * (1 - math.cos(math.pi * epoch / epochs))


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch to one thread in the `with` block.

    The matrix products are small, so more threads would mostly wait.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@one_thread()
def linear_probe(
    clips: Clips,
    splits: Sequence[Split],
    *,
    epochs: int = 10,
    batch: int = 32,
    lr: float = 1e-3,
    seeds: Sequence[int] = SEEDS,
) -> PublishedScores:
    """Train X-ARES' linear probe on each split with each seed, and score the test clips.

    The first epoch with the best validation score is kept.

    Each seed is set once, and the initial weights for all splits are drawn one after another, as in X-ARES. Unlike
    X-ARES, which shuffles clips within a buffer, each epoch takes them in a uniformly random order.
    """
    inputs = torch.as_tensor(clips.embeddings).float()
    inputs = layer_norm(inputs, inputs.shape[1:])
    targets = torch.as_tensor(clips.targets).long()
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    layers = [initial_heads(inputs.shape[1], clips.classes, len(splits), seed) for seed in seeds]
    best, last = [], []
    for place, split in enumerate(splits):
        train, valid, test = (torch.as_tensor(clips.rows(*part)) for part in (split.train, [split.valid], [split.test]))
        heads = Heads([drawn[place] for drawn in layers])
        kept, highest = heads.merged(), np.full(len(seeds), -1.0)
        for epoch in range(epochs):
            orders = torch.stack([train[torch.randperm(len(train), generator=each)] for each in generators])
            for drawn in torch.split(orders, batch, dim=1):
                heads.step(inputs[drawn], targets[drawn], learning_rate(lr, epoch, epochs))
            now = heads.merged()
            scores = _figures(now(inputs[valid]), targets[valid])
            better = torch.as_tensor(scores > highest)
            kept.weight[better], kept.bias[better] = now.weight[better], now.bias[better]
            highest = np.maximum(highest, scores)
        best.append(kept(inputs[test]).numpy())
        last.append(now(inputs[test]).numpy())
    rows = np.concatenate([clips.rows(split.test) for split in splits])
    return PublishedScores(rows, np.concatenate(best, axis=1), np.concatenate(last, axis=1))


def initial_heads(dim: int, classes: int, splits: int, seed: int) -> list[torch.nn.Linear]:
    """Return `splits` linear layers (`dim` to `classes`) with the weights that torch draws after `manual_seed(seed)`.

    The state of torch's global generator does not change.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return [torch.nn.Linear(dim, classes) for _ in range(splits)]


class Heads:
    """Several linear probes ("heads") as stacked tensors, each trained on batches of its own.

    A head is LayerNorm's gain γ and bias β, then a linear layer with weight W, shape (classes, dim), and bias b. Logits
    of a normalised embedding x are x (γ ⊙ W)ᵀ + Wβ + b.
    """

    def __init__(self, layers: Sequence[torch.nn.Linear]) -> None:
        self.weight = torch.stack([layer.weight.detach() for layer in layers])
        self.bias = torch.stack([layer.bias.detach() for layer in layers])
        self.gain = torch.ones(len(layers), self.weight.shape[2])
        self.shift = torch.zeros_like(self.gain)
        self.adam = torch.optim.Adam([self.weight, self.bias, self.gain, self.shift], fused=True)

    def merged(self) -> Merged:
        """Return the heads as plain linear layers, with LayerNorm's gain and bias multiplied into their weights."""
        offset = torch.bmm(self.weight, self.shift.unsqueeze(-1)).squeeze(-1) + self.bias
        return Merged(self.weight * self.gain.unsqueeze(1), offset)

    def step(self, inputs: torch.Tensor, targets: torch.Tensor, rate: float, positive: float = 1.0) -> None:
        """Take one step of Adam at learning rate `rate` on the mean cross-entropy (binary for multi-hot targets).

        Parameters
        ----------
        inputs, targets
            One batch per head. Shapes: (heads, clips, dim), and (heads, clips) or, multi-hot, (heads, clips, classes).
        positive
            Weight of the ones among multi-hot targets (torch's `pos_weight`).
        """
        logits = self.merged()(inputs)
        if targets.ndim == 2:
            slope = (logits.softmax(-1) - one_hot(targets, logits.shape[-1])) / targets.shape[1]
        else:
            likely = logits.sigmoid() * (1 + (positive - 1) * targets)
            slope = (likely - positive * targets) / targets[0].numel()
        outer, summed = torch.bmm(slope.transpose(1, 2), inputs), slope.sum(1)
        self.gain.grad = (outer * self.weight).sum(1)
        self.shift.grad = torch.bmm(summed.unsqueeze(1), self.weight).squeeze(1)
        self.weight.grad = outer.mul_(self.gain.unsqueeze(1)).baddbmm_(summed.unsqueeze(-1), self.shift.unsqueeze(1))
        self.bias.grad = summed
        self.adam.param_groups[0]["lr"] = rate
        self.adam.step()


@dataclass
class Merged:
    """Several linear layers as stacked tensors: weight, shape (heads, classes, dim); bias, shape (heads, classes)."""

    weight: torch.Tensor
    bias: torch.Tensor

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return logits, shape (heads, clips, classes); `inputs` has a batch per head, or one batch for all heads."""
        return inputs @ self.weight.transpose(1, 2) + self.bias.unsqueeze(1)


def _figures(logits: torch.Tensor, targets: torch.Tensor) -> Floats:
    return np.array([published_figure(scores, targets.numpy()) for scores in logits.numpy()])


@one_thread()
def knn(clips: Clips, splits: Sequence[Split]) -> Predictions:
    """Classify each test clip by a vote of 10 train clips, weighted by softmax(similarity / 0.07), as X-ARES does.

    All computation is in single precision.

    X-ARES scales each test clip to length 1; in the train part it scales each *feature* over all clips. So the
    similarity, a dot product, is not a cosine.
    """
    if clips.multi_label:
        raise DataError("kNN votes for one class a clip; allowed: single-label targets")
    x, y = torch.as_tensor(clips.embeddings).float(), torch.as_tensor(clips.targets).long()
    rows = [clips.rows(split.test) for split in splits]
    scores = []
    for split, test in zip(splits, rows, strict=True):
        train = clips.rows(*split.train)
        known = normalize(x[train].T, dim=1)
        for asked in torch.split(normalize(x[test], dim=1), _BLOCK):
            nearest = (asked @ known).topk(min(NEIGHBOURS, len(train)), dim=1)
            votes = torch.zeros(len(asked), clips.classes)
            votes.scatter_add_(1, y[train][nearest.indices], (nearest.values / TEMPERATURE).softmax(dim=1))
            scores.append(votes.numpy())
    return Predictions(np.concatenate(rows), np.concatenate(scores))
