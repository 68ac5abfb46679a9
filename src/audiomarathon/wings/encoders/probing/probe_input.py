"""The input of a probe: a task's embeddings, and the splits to train, validate and test on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from audiomarathon.errors import DataError
from audiomarathon.wings.encoders.probing.clips import Clips, Integers, Predictions, Split, grouped, held_out, rotated
from audiomarathon.wings.encoders.xares.task import Clip, Dataset, EncoderTask

XARES = "xares-0.1.3"
STANDARD = ("linear", "knn", "knn-centred")
PUBLISHED = (f"mlp-{XARES}", f"knn-{XARES}")
PROTOCOLS = {"both": (*STANDARD, *PUBLISHED), "standard": STANDARD, "as_published": PUBLISHED}
_FEWEST = 3  # least number of folds: one to train on, one to validate on, one to test on
_FOLDS = 5  # number of new folds, made of whole clusters, if a task's own parts cannot be used

Step = Callable[[int], object]
"""A function to call with the number of items done since the last call, for a progress bar."""
Material = tuple[Sequence[Clip], Any]
"""Clips and their embeddings: an array of the shape (clips, dim), or in frame tasks a list of arrays (frames, dim)."""


@dataclass(frozen=True)
class Encoded:
    """A task's embeddings by one encoder, with what every probe of them needs.

    Attributes
    ----------
    name
        Name of the encoder.
    identity
        Facts on which the embeddings depend; they are part of each run's identity.
    facts
        Other facts, such as a note, to store in each run's `run.json`.
    per_clip, released
        Functions that return clips with embeddings: `per_clip` encodes each clip independently of the others,
        `released` encodes batches and crops as X-ARES does.
    failed
        {clip's id: why the clip has no embedding}.
    seconds
        {clip's id: its length in seconds}; clips of unknown length are missing.
    hop
        Milliseconds between frames; 0 without frames.
    device
        Device on which probes of speech recognition and retrieval are trained; other probes use the CPU.
    probes
        {setting's name: probe of labels to use instead of the usual one}.
    """

    name: str
    task: EncoderTask
    data: Dataset
    identity: Mapping[str, Any]
    facts: Mapping[str, Any]
    per_clip: Callable[[], Material]
    released: Callable[[], Material]
    failed: Mapping[str, str] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    hop: float = 0.0
    device: str = "cpu"
    probes: Mapping[str, Callable[[Clips, Sequence[Split]], Predictions]] = field(default_factory=dict)


Predicted = tuple[Clip, str, Mapping[str, Any]]
"""(test clip, the probe's prediction as the text of a reply, the reference with which it is scored)."""


@dataclass(frozen=True)
class Problem:
    """The input of one probe on one task.

    Attributes
    ----------
    setting
        Name of the probe.
    clips, embeddings, parts
        The clips, with the embedding (or frames) and the part of the data of each. Clips that X-ARES counts twice
        occur twice.
    seeds
        Seeds of trained probes.
    say
        Function that is called with each line for the user.
    """

    encoded: Encoded
    setting: str
    clips: Sequence[Clip]
    embeddings: Any
    parts: npt.NDArray[np.str_]
    splits: Sequence[Split]
    seeds: Sequence[int]
    say: Callable[[str], None]

    @property
    def released(self) -> bool:
        """Whether the probe is one of X-ARES' own, instead of ours."""
        return self.setting in PUBLISHED

    def rows(self, *parts: str) -> list[int]:
        """Return the row numbers of the clips in the given parts of the data.

        Raises
        ------
        DataError
            No clip is in these parts.
        """
        rows = [row for row, part in enumerate(self.parts) if part in parts]
        if not rows:
            raise DataError(f"{self.encoded.task.name}: no clips in {', '.join(parts)}")
        return rows


def problem_of(encoded: Encoded, setting: str, seeds: Sequence[int], say: Callable[[str], None]) -> Problem:
    """Make the input of the probe called `setting` from a task's embeddings."""
    task, released = encoded.task, setting in PUBLISHED
    clips, embeddings = encoded.released() if released else encoded.per_clip()
    if released:
        parts, splits = [clip.part for clip in clips], published_splits(task)
    else:
        parts, splits = standard_splits(task, clips, targets_of(task, encoded.data, clips), say)
    return Problem(encoded, setting, clips, embeddings, np.array(parts), splits, seeds, say)


def targets_of(task: EncoderTask, data: Dataset, clips: Sequence[Clip]) -> Integers:
    """Return each clip's class number; if clips can have no label or several, a row with 0 or 1 for each class."""
    places = {label: place for place, label in enumerate(data.classes)}
    if task.one_label:
        return np.array([places[clip.labels[0]] for clip in clips])
    if not places:
        return np.zeros(len(clips), dtype=np.int64)  # a task without classes: treat all clips as one class
    hot = np.zeros((len(clips), len(places)), dtype=np.int64)
    for row, clip in zip(hot, clips, strict=True):
        row[[places[label] for label in clip.labels]] = 1
    return hot


def standard_splits(
    task: EncoderTask, clips: Sequence[Clip], targets: Integers, say: Callable[[str], None]
) -> tuple[list[str], list[Split]]:
    """Return (part of each clip, splits) with which our probes are trained, validated and tested.

    If the task has folds, each is tested in turn, and the next fold is used for validation. Otherwise the task's own
    parts are used; if it has no validation part, 15 % of train are held out, in whole clusters (dependent clips). If a
    fold or the tested part shares clusters with another part, or if there are too few parts, clips are distributed
    over five new folds of whole clusters.
    """
    parts, clusters = [clip.part for clip in clips], [clip.cluster for clip in clips]
    valid, test = ("test", "valid") if task.swapped else ("valid", "test")
    tested = {(clip.cluster, clip.part if task.folds else clip.part == test) for clip in clips}
    why = "share clusters" if len(tested) > len({*clusters}) else ""
    if (task.folds and len(task.parts) < _FEWEST) or not (task.folds or "train" in parts):
        why = f"({len(task.parts)}) leave none to train or to validate on"
    if why:
        say(f"{task.name}: its parts {why}; the standard probes use {_FOLDS} new folds of whole clusters instead")
        pairs = {*zip(targets.tolist(), clusters, strict=True)} if task.one_label else set()
        cluster_counts = Counter(label for label, _cluster in pairs)
        if len(cluster_counts) > 1 and (alone := sum(count == 1 for count in cluster_counts.values())):
            say(
                f"{task.name}: {alone} of {len(cluster_counts)} classes have one cluster of clips each: "
                "every probe misses them, because no other clip of such a class is there to learn from"
            )
        parts = grouped(clusters, _FOLDS)
        return parts, rotated(sorted({*parts}))
    if task.folds:
        return parts, rotated([*task.parts])
    if "valid" not in parts:
        train = [place for place, part in enumerate(parts) if part == "train"]
        held = held_out([clusters[place] for place in train], targets[train])
        for place, out in zip(train, held, strict=True):
            parts[place] = "valid" if out else "train"
    return parts, [Split(("train",), valid, test)]


def published_splits(task: EncoderTask) -> list[Split]:
    """Return the splits on which X-ARES trains, validates and tests its own probes.

    X-ARES validates on the test fold if there are folds, and on the test part if there is no validation part.
    """
    if task.folds:
        return rotated([*task.parts], as_published=True)
    return [Split((task.part("train"),), task.part("valid"), task.part("test"))]
