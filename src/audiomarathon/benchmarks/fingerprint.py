"""Hash the data that a run uses: a task's metadata as a whole, and each sample's clips.

The hashes are separate so that a replaced clip invalidates one sample, not the run.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, TypeVar

from audiomarathon.audio.decode import probe
from audiomarathon.benchmarks.task import Loaded, Sample
from audiomarathon.errors import AudioError, DataError
from audiomarathon.files import open_plain, state_of
from audiomarathon.fingerprint import BLOCK_BYTES, blocks, feed, join_rules

T = TypeVar("T")

_GAP_BYTES = 1 << 18  # between the blocks of a clip: 8 s of 16-bit audio at 16 kHz
_hashes: dict[Path, tuple[tuple[int, ...], tuple[str, str]]] = {}  # a clip's state when it was read, and what was read
_seconds: dict[Path, tuple[tuple[int, ...], float | None]] = {}


def fingerprint(loaded: Loaded) -> str:
    """Return the SHA-256 (hex) of a task's metadata: ids, questions, options, answers, labels, clusters, clip names.

    A copy of the data in another folder, or with other file times, has the same hash.
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
    """Return a fingerprint of each sample's clips, as {sample's id: fingerprint}.

    The fingerprint covers a clip's size, its first and last 4,096 bytes, and evenly spaced blocks between them. No
    other bytes are read, so 60 GB of clips take seconds. A fingerprint joins two hashes: one by rule 1 of older
    versions (size and ends), and one by rule 2 (all of these parts).

    Raises
    ------
    DataError
        A clip cannot be read.
    """
    samples = list(samples)
    read = _each(samples, _hash_once)
    return {sample.id: _joined([read[clip] for clip in sample.clips]) for sample in samples}


def clip_hash(sample: Sample) -> str:
    """Return the fingerprint of one sample's clips (see :func:`clip_hashes`).

    A file is read again only if it changed.
    """
    return _joined([_hash_once(clip) for clip in sample.clips])


def lengths_of(samples: Iterable[Sample]) -> dict[Path, float]:
    """Return the length of each clip by its header, as {clip: seconds}. Clips that cannot be read are left out.

    The clips' hashes, which a run needs next, are computed and cached while the files are open.
    """
    return {clip: seconds for clip, seconds in _each(samples, _length_once).items() if seconds is not None}


def _each(samples: Iterable[Sample], read: Callable[[Path], T]) -> dict[Path, T]:
    """Call `read` on every clip of the samples, and return {clip: result}.

    A clip is read once, since questions may share it, and in threads, since a disk serves several reads at once.
    """
    clips = list(dict.fromkeys(clip for sample in samples for clip in sample.clips))
    with ThreadPoolExecutor() as pool:
        return dict(zip(clips, pool.map(read, clips), strict=True))


def _joined(clips: Sequence[tuple[str, str]]) -> str:
    rules = ("".join(clip[rule] for clip in clips) for rule in (0, 1))
    return join_rules(*(hashlib.sha256(together.encode()) for together in rules))


def _hash_once(clip: Path) -> tuple[str, str]:
    """Return a clip's hashes by the older and the newer rule of `audiomarathon.fingerprint`.

    The file is read again only if it changed.
    """
    state = state_of(clip)
    if not state or _hashes.get(clip, ((),))[0] != state:
        try:
            with open_plain(clip, buffering=0) as file:
                _hashes[clip] = state, _hashed(file)
        except OSError as error:
            raise DataError(f"clip {clip} cannot be read ({error.strerror or error})") from error
    return _hashes[clip][1]


def _length_once(clip: Path) -> float | None:
    """Return a clip's length in seconds; None if it cannot be read. The file is read again only if it changed.

    The clip's hashes are computed and cached while the file is open.
    """
    state = state_of(clip)
    if not state or _seconds.get(clip, ((),))[0] != state:
        try:
            with open_plain(clip, buffering=0) as file:
                _hashes[clip] = state, _hashed(file)
                _seconds[clip] = state, probe(clip, file).seconds
        except (OSError, AudioError):
            _seconds[clip] = state, None
    return _seconds[clip][1]


def _hashed(file: IO[bytes]) -> tuple[str, str]:
    """Return (hash by rule 1, hash by rule 2) of an open clip; :func:`clip_hashes` explains the rules."""
    size = file.seek(0, 2)
    edges, inside = hashlib.sha256(), hashlib.sha256()
    feed(edges, file, [(0, min(size, BLOCK_BYTES)), (max(0, size - BLOCK_BYTES), size)])
    feed(inside, file, blocks(0, size, _GAP_BYTES))
    return f"{size}:{edges.hexdigest()}", f"{size}:{inside.hexdigest()}"
