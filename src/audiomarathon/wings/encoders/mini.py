"""Synthetic data for trials (the mini benchmark) of encoder tasks: each public X-ARES task, as tars of short clips.

The clips come from a small pool of sounds, so in a large task several classes share a sound. Scores on them mean
nothing.
"""

from __future__ import annotations

import io
import itertools
import json
import tarfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from audiomarathon.embedded import signals, world
from audiomarathon.embedded.signals import Signal
from audiomarathon.files import write_bytes
from audiomarathon.wings.encoders.xares.captioned import CaptionedTask
from audiomarathon.wings.encoders.xares.framed import FramedTask
from audiomarathon.wings.encoders.xares.graded import GradedTask
from audiomarathon.wings.encoders.xares.spoken import SpokenTask
from audiomarathon.wings.encoders.xares.task import EncoderTask, written_out
from audiomarathon.wings.encoders.xares.tasks import TASKS

_RATE = 16_000
_SOUNDS, _TAKES, _FEW = 40, 24, 6  # sounds and recordings of each; clips a class in a part of a small task
_SECONDS, _PARTS = 0.2, 4  # seconds of a sound; number of sounds in a clip in which each sound has a label
_LARGE = 60  # a task with more classes has one clip per class in each part


def write(root: Path) -> None:
    """Write synthetic clips for each public X-ARES task into `xares/<name>/` of a data root."""
    for task in TASKS:
        if not task.private:
            takes = itertools.count()
            for role, glob in {task.part(role): (role, glob) for role, glob in task.globs.items()}.values():
                tars = written_out(task.mini.get(role, glob.replace("*", "-000000")))
                clips = list(_clips(task, takes))
                for place, tar in enumerate(tars):
                    write_bytes(root / task.key / tar, _tar(clips[place :: len(tars)]))


def _clips(task: EncoderTask, takes: Iterator[int]) -> Iterator[tuple[str, bytes, Any]]:
    """Yield (key, FLAC bytes, JSON) for each clip of one part ("train", a fold, …) of a task's data.

    For each number taken from the iterator `takes`, every sound is synthesised anew, with a seed from that number.
    """
    classes = sorted(task.classes) if isinstance(task.classes, frozenset) else [f"c{n:04}" for n in range(task.classes)]
    classes = classes or [str(n) for n in range(10)]
    repeats = 5 if isinstance(task, FramedTask) else 1  # an event is longer than the segments by which it is scored
    several = isinstance(task, FramedTask | SpokenTask) or task.multi_label
    count = len(classes) // _PARTS + 1 if several else len(classes)
    for _ in range(1 if len(classes) > _LARGE else _FEW if not task.folds else 2):
        take = next(takes)
        for number in range(count):
            heard = [(number * _PARTS + n) % len(classes) for n in range(_PARTS)] if several else [number]
            speaker = dict.fromkeys(task.cluster_fields[:1], f"speaker{take}")
            key = f"mini_{number:04}_{take:02}"
            sounds = tuple(label_number % _SOUNDS for label_number in heard for _ in range(repeats))
            yield key, _sound(sounds, take % _TAKES), _meta(task, classes, heard, speaker, repeats * _SECONDS)


def _meta(task: EncoderTask, classes: list[str], heard: list[int], speaker: dict[str, str], lasts: float) -> Any:
    if isinstance(task, CaptionedTask):
        return {f"caption_{n}": f"{world.WORDS[heard[0]]} number {n} is heard" for n in range(1, 6)}
    if isinstance(task, FramedTask):
        spans = ((n * lasts, (n + 1) * lasts, classes[index]) for n, index in enumerate(heard))
        return [dict(zip(task.fields, span, strict=True)) for span in spans]
    if isinstance(task, SpokenTask):
        return {task.transcript: " ".join(world.WORDS[index] for index in heard), **speaker}
    if isinstance(task, GradedTask):
        return {name: float(heard[0]) for name in task.grades} | speaker
    label = ";".join(classes[index] for index in heard)
    return {task.label if isinstance(task.label, str) else "gender": label, **speaker}


@cache
def _sound(sounds: tuple[int, ...], take: int) -> bytes:
    """Return the bytes of a FLAC file with the sounds of the given numbers, one after the other.

    `take` is the seed of the noise with which the sounds are made.
    """
    stream = io.BytesIO()
    samples = np.concatenate([_part(sound, take) for sound in sounds])
    soundfile.write(stream, samples, _RATE, format="FLAC", subtype="PCM_16")
    return stream.getvalue()


@cache
def _part(sound: int, take: int) -> Signal:
    """Return a synthetic sound: noise with a bump in its spectrum, and a hum. `take` is the seed of the noise.

    The number `sound` sets the frequencies of bump and hum.
    """
    rng = world.stream(42, "benchmark", 103, sound, take)
    n, shift = round(_SECONDS * _RATE), rng.uniform(0.98, 1.02)
    hum = np.sin(2 * np.pi * 110 * 1.09 ** (sound * 7 % _SOUNDS) * shift * signals.seconds_of(n, _RATE))
    out = signals.noise(rng, n, _RATE, (150 * 1.1**sound * shift, 0.2)) + hum
    return signals.float32(0.2 * out * signals.fade(n, _RATE, 0.01))


def _tar(clips: list[tuple[str, bytes, Any]]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for key, sound, meta in clips:
            for suffix, content in (("flac", sound), ("json", json.dumps(meta).encode())):
                member = tarfile.TarInfo(f"{key}.{suffix}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return stream.getvalue()
