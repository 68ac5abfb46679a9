"""Find clips that are too long for a model, from their headers, before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from audiomarathon.audio.decode import probe
from audiomarathon.benchmarks.task import Sample, Task
from audiomarathon.errors import AudioError
from audiomarathon.models.registry import ModelSpec


def too_long(spec: ModelSpec, task: Task, samples: Sequence[Sample]) -> str:
    """Return a warning that counts the samples with a clip too long for the model, and names the longest.

    Return "" if there are none.
    """
    if not spec.most_seconds:
        return ""
    longest: dict[str, float] = {}
    for sample in samples:
        for clip in sample.clips:
            with suppress(AudioError):  # the run will record the error
                longest[sample.id] = max(longest.get(sample.id, 0.0), probe(clip).seconds)
    over = {id_: seconds for id_, seconds in longest.items() if seconds > spec.most_seconds}
    if not over:
        return ""
    worst = max(over, key=over.__getitem__)
    return (
        f"{task.key}: {len(over)} of {len(samples)} samples have clips over {spec.most_seconds:g} s, the limit of "
        f"{spec.key}; they will become errors (the longest: {over[worst]:.1f} s, sample {worst})"
    )
