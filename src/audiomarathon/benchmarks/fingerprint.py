"""Hash the data behind a run's numbers: a task's metadata as a whole, and each sample's clips.

The hashes are separate so that a replaced clip invalidates one sample, not the run.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

from audiomarathon.benchmarks.task import Loaded, Sample
from audiomarathon.errors import DataError
from audiomarathon.files import state_of
from audiomarathon.fingerprint import BLOCK_BYTES, blocks, feed, join_rules

_GAP_BYTES = 1 << 18  # bytes between the blocks of a clip: 8 s of 16-bit audio at 16 kHz


def fingerprint(loaded: Loaded) -> str:
    """Return the SHA-256 (hex) of a task's metadata: ids, questions, options, answers, labels, clusters, clip names.

    A copy of the data elsewhere, or with other file times, has the same hash.
    """
    digest = hashlib.sha256()
    top = str(loaded.folder / "_")[:-1]  # as text, since comparing Path objects would take most of the time
    for sample in sorted(loaded.samples, key=lambda sample: sample.id):
        facts = [sample.id, sample.question, sample.answer, sample.cluster, list(sample.options), list(sample.labels)]
        names = [
            str(clip).removeprefix(top).replace(os.sep, "/") if str(clip).startswith(top) else clip.name
            for clip in sample.clips
        ]
        digest.update(json.dumps([facts, names], ensure_ascii=True).encode() + b"\n")
    return digest.hexdigest()


def clip_hashes(samples: Iterable[Sample]) -> dict[str, str]:
    """Return a fingerprint of each sample's clips, by the sample's id.

    It covers a clip's size, its first and last 4,096 bytes, and evenly spaced blocks between them. Only these parts are
    read, so 60 GB of clips take seconds. A fingerprint joins two hashes: one by rule 1 of older versions (size and
    ends), and one by rule 2 (all of these parts).

    Raises
    ------
    DataError
        A clip cannot be read.
    """
    samples = list(samples)
    clips = list(dict.fromkeys(clip for sample in samples for clip in sample.clips))  # questions may share a clip
    with ThreadPoolExecutor() as pool:  # a disk serves several reads at once
        read = dict(zip(clips, pool.map(_read_once, clips), strict=True))
    return {sample.id: _joined([read[clip] for clip in sample.clips]) for sample in samples}


def clip_hash(sample: Sample) -> str:
    """Return the fingerprint of one sample's clips; see :func:`clip_hashes`."""
    return _joined([_read(clip) for clip in sample.clips])


def _joined(clips: Sequence[tuple[str, str]]) -> str:
    rules = ("".join(clip[rule] for clip in clips) for rule in (0, 1))
    return join_rules(*(hashlib.sha256(together.encode()) for together in rules))


def _read_once(clip: Path) -> tuple[str, str]:
    """Return the hashes of :func:`_read`; read a clip again only if its file changed, by the time of change.

    Programs cannot set back a file's time of change. A run that has decoded a clip always reads it again
    (:func:`clip_hash`).
    """
    state = state_of(clip)
    return _known(clip, state) if state else _read(clip)


@lru_cache(1 << 16)
def _known(clip: Path, _state: tuple[int, ...]) -> tuple[str, str]:
    return _read(clip)


def _read(clip: Path) -> tuple[str, str]:
    """Return a clip's hashes by rule 1 and by rule 2; see :func:`clip_hashes`."""
    try:
        if not stat.S_ISREG(clip.stat().st_mode):  # reading a pipe would wait for ever
            raise DataError(f"clip {clip} is not a plain file")
        with clip.open("rb") as file:
            size = file.seek(0, 2)
            edges, inside = hashlib.sha256(), hashlib.sha256()
            feed(edges, file, [(0, min(size, BLOCK_BYTES)), (max(0, size - BLOCK_BYTES), size)])
            feed(inside, file, blocks(0, size, _GAP_BYTES))
            return f"{size}:{edges.hexdigest()}", f"{size}:{inside.hexdigest()}"
    except OSError as error:
        raise DataError(f"clip {clip} cannot be read ({error.strerror or error})") from error
