"""Probes that predict the labels of each frame: ridge regression with a threshold, and X-ARES' trained probe."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product
from operator import add

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import layer_norm

from audiomarathon.metrics.statistics import Floats
from audiomarathon.text import counted
from audiomarathon.wings.encoders.metrics.events import counts_of, f1, mean_f1, onset_counts, segments
from audiomarathon.wings.encoders.probing.clips import Split
from audiomarathon.wings.encoders.probing.linear_and_knn import RIDGE_PENALTIES, Moments, moments, ridge
from audiomarathon.wings.encoders.probing.probe_input import Predicted, Problem
from audiomarathon.wings.encoders.probing.published_probes import (
    Heads,
    Merged,
    initial_heads,
    learning_rate,
    one_thread,
)
from audiomarathon.wings.encoders.scoring.segments import counts_to_reply
from audiomarathon.wings.encoders.xares.framed import Event, FramedTask
from audiomarathon.wings.encoders.xares.task import Recipe

Active = npt.NDArray[np.bool_]
THRESHOLDS = np.arange(1, 100) / 100
# Frames are normalised anew in every epoch: the normalised frames of all of MAESTRO would take 44 GB.
_BLOCK = 256  # number of frames normalised at a time: few enough for the CPU's cache
_PRODUCT = 2048  # number of frames, of several clips, multiplied at a time


@dataclass(frozen=True)
class Framed:
    """The frames of a task's clips, with the labels to predict for each frame.

    Attributes
    ----------
    frames, active
        Each clip's embeddings, shape (frames, dim), and whether each label is active, shape (frames, labels).
    parts
        The part of the data that each clip belongs to, such as "train", shape (clips,).
    segment
        Number of frames in a segment; a label counts once per segment.
    macro
        Whether the score is the mean of the labels' F1 (macro), instead of one F1 of all labels together (micro).
    """

    frames: Sequence[Floats]
    active: Sequence[Active]
    parts: npt.NDArray[np.str_]
    segment: int
    macro: bool

    def rows(self, *parts: str) -> list[int]:
        """Return the row numbers of the clips that belong to the given parts of the data, such as "train"."""
        return [row for row, part in enumerate(self.parts) if part in parts]

    def moments(self, *parts: str) -> Moments:
        """Return the :class:`Moments` (sums from which ridge is computed) of all frames in the given parts."""
        lengths = {row: len(self.frames[row]) for row in self.rows(*parts)}
        batches = _batches(self, [*lengths], max(1, _PRODUCT // max(1, *lengths.values())))
        each = (map(_doubles, pair) for pair in batches)
        sums = reduce(add, (moments(inputs, active, active.shape[1]) for inputs, active in each))
        return replace(sums, clips=sum(lengths.values()))  # padding frames are 0: they change only the count


def columns(seconds: float, hop: float) -> int:
    """Return the index of the first frame at or after a time in seconds, rounded as in X-ARES.

    `hop` is the time between frames in milliseconds.
    """
    return math.ceil(seconds / (hop / 1000))


def activity(
    events: Sequence[Event], labels: Sequence[str], hop: float, frames: int, until: float, *, released: bool = False
) -> Active:
    """Return whether each label is active in each frame of a clip, shape (frames, labels), from the clip's events.

    An event covers the frames from the first at or after its start to the last before its end, so a short event may
    cover none. Events of labels that are not in `labels` are left out. Nothing is active from `until` seconds on,
    unless `until` is 0. With `released`, rows are added for events that end after the clip's last frame, because
    X-ARES' released code cuts labels at the end of the padded batch, not at the end of the clip.
    """
    places = {label: place for place, label in enumerate(labels)}
    if released:
        frames = max([frames, *(columns(end, hop) for _, end, _ in events)])
    last = columns(until, hop) if until else frames
    hot = np.zeros((frames, len(labels)), dtype=np.bool_)
    for start, end, label in events:
        if label in places:
            hot[columns(start, hop) : min(columns(end, hop), last), places[label]] = True
    return hot


def onsets_in(
    predicted: Active, events: Sequence[Event], labels: Sequence[str], hop: float, tolerance: float
) -> list[int]:
    """Count how many predicted onsets (frames where a label becomes active) are at the start of a true event.

    A predicted onset is right within `tolerance` seconds of a true start; `hop` is in milliseconds. Return [true
    positives, false positives, false negatives], summed over all labels.
    """
    begins = predicted & ~np.vstack([np.zeros_like(predicted[:1]), predicted[:-1]])
    counts = []
    for place, label in enumerate(labels):
        true = sorted(start for start, _, name in events if name == label and columns(start, hop) < len(predicted))
        times = np.flatnonzero(begins[:, place]) * hop / 1000
        counts.append(onset_counts(times.tolist(), true, tolerance))
    return [*map(sum, zip(*counts, strict=True))]


def frame_ridge(given: Framed, splits: Sequence[Split]) -> Iterator[tuple[int, Active]]:
    """Yield (test clip's row number, whether each label is active in each frame), predicted by ridge and a threshold.

    For each split, choose the penalty and the threshold with the best F1 over the segments of the validation part
    (among equals, the largest penalty, then the largest threshold). Then fit ridge on train and valid.
    """
    for split in splits:
        train, valid = given.moments(*split.train), given.rows(split.valid)
        heads = ridge(train, RIDGE_PENALTIES)
        counts = np.zeros((len(heads), len(THRESHOLDS), given.active[0].shape[1], 3), np.int64)
        for batch, active in _batches(given, valid, 1):
            inputs, true = _doubles(batch), segments(active[0].bool().numpy(), given.segment)
            counts += np.stack([_at_thresholds(segments(head(inputs), given.segment), true) for head in heads])
        figures = np.nan_to_num(mean_f1(counts, macro=given.macro))
        grid = product(RIDGE_PENALTIES, THRESHOLDS.tolist())
        _, (penalty, threshold) = max(zip(figures.ravel().tolist(), grid, strict=True))
        (head,) = ridge(train + given.moments(split.valid), [penalty])
        test = given.rows(split.test)
        for row, (batch, _) in zip(test, _batches(given, test, 1), strict=True):
            yield row, head(_doubles(batch)) > threshold


def _at_thresholds(scores: Floats, true: Active) -> npt.NDArray[np.int64]:
    """Count true positives, false positives and false negatives of scores at each threshold from 0.01 to 0.99.

    The shape of the counts is (thresholds, labels, 3).
    """
    bins = np.searchsorted(THRESHOLDS, scores)  # number of thresholds that a score exceeds
    place = bins * scores.shape[1] + np.arange(scores.shape[1])
    shape = (len(THRESHOLDS) + 1, scores.shape[1])
    positives, hits = (
        np.bincount(which.ravel(), minlength=math.prod(shape)).reshape(shape)[::-1].cumsum(axis=0)[::-1][1:]
        for which in (place, place[true])
    )
    return np.stack([hits, positives - hits, true.sum(axis=0) - hits], axis=-1)


@one_thread()
def published_frames(
    given: Framed, split: Split, recipe: Recipe, *, seeds: Sequence[int], positive: float
) -> npt.NDArray[np.int64]:
    """Train X-ARES' frame probe with each seed, and count right and wrong segments of the test clips.

    The first epoch with the best F1 on the validation part is kept.

    Clips of a batch are padded with frames of zeros. The padding is trained on as inactive frames and scored too, as
    in X-ARES. `positive` is the weight of active labels in the loss (torch's `pos_weight`).

    Returns
    -------
    Segments that are true positives, false positives and false negatives, shape (seeds, test clips, labels, 3).
    """
    train, valid, test = (given.rows(*parts) for parts in (split.train, [split.valid], [split.test]))
    dim, labels = given.frames[0].shape[1], given.active[0].shape[1]
    per_seed = []
    for seed in seeds:
        heads, generator = Heads(initial_heads(dim, labels, 1, seed)), torch.Generator().manual_seed(seed)
        kept, highest = heads.merged(), -1.0
        for epoch in range(recipe.epochs):
            order = [train[place] for place in torch.randperm(len(train), generator=generator)]
            for inputs, active in _batches(given, order, recipe.batch):
                rate = learning_rate(recipe.lr, epoch, recipe.epochs)
                heads.step(inputs.reshape(1, -1, dim), active.reshape(1, -1, labels), rate, positive)
            now = heads.merged()
            counts = _counts(now, given, valid, recipe.batch).sum(axis=0)
            score = float(np.nan_to_num(f1(counts if given.macro else counts.sum(axis=0))).mean())
            if score > highest:
                kept, highest = now, score
        per_seed.append(_counts(kept, given, test, recipe.batch))
    return np.stack(per_seed)


def _batches(given: Framed, rows: Sequence[int], size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield (normalised frames, whether each label is active) for batches of at most `size` of the clips `rows`.

    Shapes are (clips, frames, dim) and (clips, frames, labels), zero-padded to the longest clip of the batch. Each
    batch overwrites the arrays of the previous batch.
    """
    lengths = {row: len(given.frames[row]) for row in rows}
    widths = [each[0].shape[1] for each in (given.frames, given.active)]
    kept = [torch.empty(min(size, len(rows)) * max(lengths.values(), default=0) * width) for width in widths]
    for start in range(0, len(rows), size):
        batch = rows[start : start + size]
        shape = (len(batch), max(lengths[row] for row in batch))
        inputs, active = (
            flat[: math.prod(shape) * width].view(*shape, width) for flat, width in zip(kept, widths, strict=True)
        )
        for row, frames, hot in zip(batch, inputs, active, strict=True):
            blocks = (torch.split(each, _BLOCK) for each in (torch.from_numpy(given.frames[row]), frames))
            for block, into in zip(*blocks, strict=False):
                into[: len(block)] = layer_norm(block.float(), block.shape[1:])
            known = torch.from_numpy(given.active[row][: shape[1]])
            hot[: len(known)], hot[len(known) :], frames[lengths[row] :] = known, 0, 0
        yield inputs, active


def _doubles(batch: torch.Tensor) -> Floats:
    return batch.flatten(0, 1).double().numpy()


def _counts(head: Merged, given: Framed, rows: Sequence[int], size: int) -> npt.NDArray[np.int64]:
    """Count each clip's true positive, false positive and false negative segments, shape (clips, labels, 3).

    `head` is the trained probe, `rows` are the clips' row numbers, and `size` is the number of clips in a batch.
    """
    clip_counts = []
    for inputs, active in _batches(given, rows, size):
        likely = (head(inputs.flatten(0, 1))[0] > 0).reshape(active.shape).numpy()
        pairs = zip(likely, active.bool().numpy(), strict=True)
        clip_counts += [counts_of(*(segments(each, given.segment) for each in pair)) for pair in pairs]
    return np.stack(clip_counts)


def predict_frames(problem: Problem) -> list[Predicted]:
    """Predict the labels of each test clip's frames, by ridge or X-ARES' probe.

    Return (clip, reply's text, reference) for each test clip.

    The text does not hold the predicted labels, only counts: how many segments (and onsets) of the clip are true
    positives, false positives and false negatives.
    """
    encoded, clips, frames = problem.encoded, problem.clips, problem.embeddings
    task, seeds = encoded.task, problem.seeds if problem.released else ()
    assert isinstance(task, FramedTask)
    hop, labels = encoded.hop, [label for label in encoded.data.classes if not (seeds and label in task.unreleased)]
    if dropped := sum(label not in labels for clip in clips for *_, label in clip.facts):
        odd = ", ".join(sorted(task.unreleased))
        problem.say(f"{task.name}: as_published leaves out {counted(dropped, 'event')}: X-ARES has no class for {odd}")
    if task.stated_hop not in (0, hop):
        problem.say(f"{task.name}: hop_size_in_ms={task.stated_hop:g} is ignored: the encoder's is {hop:g}")
    active = [
        activity(clip.facts, labels, hop, len(its), task.until, released=bool(seeds))
        for clip, its in zip(clips, frames, strict=True)
    ]
    given = Framed(frames, active, problem.parts, columns(task.segment, hop), task.average == "macro")
    results = list[tuple[int, npt.NDArray[np.int64], list[int] | None]]()
    timed = task.onset > 0 and hop <= 1000 * task.onset and not seeds
    if seeds:
        (split,) = problem.splits
        tested = given.rows(split.test)
        counts = published_frames(given, split, task.recipe, seeds=seeds, positive=task.pos_weight).swapaxes(0, 1)
        results += [(row, each, None) for row, each in zip(tested, counts, strict=True)]
    else:
        for row, predicted in frame_ridge(given, problem.splits):
            counts = counts_of(*(segments(each, given.segment) for each in (predicted, active[row])))
            onsets = onsets_in(predicted, clips[row].facts, labels, hop, task.onset) if timed else None
            results.append((row, counts[None], onsets))
    known = {"labels": labels, "average": task.average}
    return [
        (
            clips[row],
            counts_to_reply(
                [
                    {labels[at]: seed_counts[at].tolist() for at in seed_counts.any(axis=1).nonzero()[0]}
                    for seed_counts in each
                ],
                on,
            ),
            {"answer": "; ".join(clips[row].labels), **known},
        )
        for row, each, on in results
    ]
