"""Before anything runs, find clips that are too long for a model, or too short for a task, from their headers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from audiomarathon.benchmarks.fingerprint import lengths_of
from audiomarathon.benchmarks.manifest import read_manifest
from audiomarathon.benchmarks.task import Loaded, Sample, Task
from audiomarathon.models.registry import ModelSpec


def too_long(spec: ModelSpec, task: Task, samples: Sequence[Sample]) -> str:
    """Return a message: how many samples have a clip that is too long for the model, and which clip is the longest.

    Return "" if there are none.
    """
    if not spec.most_seconds:
        return ""
    longest = longest_clips(samples)
    over = {id_: seconds for id_, seconds in longest.items() if seconds > spec.most_seconds}
    if not over:
        return ""
    worst = max(over, key=over.__getitem__)
    return (
        f"{task.key}: {len(over)} of {len(samples)} samples have clips over {spec.most_seconds:g} s, the limit of "
        f"{spec.key} (the longest: {over[worst]:.1f} s, sample {worst})"
    )


def too_short(task: Task, data: Loaded, samples: Sequence[Sample]) -> str:
    """Return a message: how many samples have clips that are too short for the task, and which clip is the shortest.

    Too short is under half of the shortest length that the data's manifest or the paper states. Return "" if there are
    none.
    """
    expected = read_manifest(data.folder).expected(task)
    if not expected or not expected.seconds[0]:
        return ""
    below = {id_: seconds for id_, seconds in longest_clips(samples).items() if seconds < expected.seconds[0] / 2}
    if not below:
        return ""
    worst = min(below, key=below.__getitem__)
    return (
        f"{task.key}: {len(below)} of {len(samples)} samples have clips far below the task's {expected.seconds[0]:g} s "
        f"or more (the shortest: {below[worst]:.1f} s, sample {worst}); their scores say little about long audio"
    )


def longest_clips(samples: Sequence[Sample], *, together: bool = False, most: float = 0.0) -> dict[str, float]:
    """Return the length of each sample's longest clip, as {sample's id: seconds}. Leave out unreadable clips.

    Parameters
    ----------
    together
        Whether to add up the lengths of all clips of a sample instead.
    most
        If given, a longer clip counts as `most` seconds, since the model cuts it there.
    """
    seconds_by_id: dict[str, float] = {}
    lengths = lengths_of(samples)  # the run records why a clip cannot be read
    for sample in samples:
        if seconds := [min(lengths[clip], most or math.inf) for clip in sample.clips if clip in lengths]:
            seconds_by_id[sample.id] = sum(seconds) if together else max(seconds)
    return seconds_by_id
