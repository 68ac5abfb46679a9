"""Hashes of what can change a run's numbers: a task's metadata as a whole, and each sample's clips.

They are apart so that one clip that was mended or downloaded again costs that sample, not the run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from audiomarathon.errors import DataError
from audiomarathon.tasks.task import Loaded, Sample

EDGE_BYTES = 4096


def fingerprint(loaded: Loaded) -> str:
    """Return the SHA-256 (hex) of a task's metadata: ids, questions, options, answers, labels, clusters, clip names.

    A copy of the data elsewhere, or with other file times, has the same hash.
    """
    digest = hashlib.sha256()
    for sample in sorted(loaded.samples, key=lambda sample: sample.id):
        facts = [sample.id, sample.question, sample.answer, sample.cluster, list(sample.options), list(sample.labels)]
        names = [
            clip.relative_to(loaded.folder).as_posix() if clip.is_relative_to(loaded.folder) else clip.name
            for clip in sample.clips
        ]
        digest.update(json.dumps([facts, names], ensure_ascii=True).encode() + b"\n")
    return digest.hexdigest()


def clip_hashes(samples: Iterable[Sample]) -> dict[str, str]:
    """Return for each sample, by id, a hash of its clips: each one's size and first and last 4 kB.

    Reading the edges only keeps 60 GB of clips to a second; a flipped sample in the middle of a clip goes unseen.

    Raises
    ------
    DataError
        A clip cannot be read.
    """
    edges: dict[Path, str] = {}
    hashes = {}
    for sample in samples:
        for clip in sample.clips:
            if clip not in edges:  # questions share passages
                edges[clip] = _edges(clip)
        together = "".join(edges[clip] for clip in sample.clips)
        hashes[sample.id] = hashlib.sha256(together.encode()).hexdigest()[:16]
    return hashes


def _edges(clip: Path) -> str:
    try:
        with clip.open("rb") as file:
            head = file.read(EDGE_BYTES)
            size = file.seek(0, 2)
            file.seek(max(0, size - EDGE_BYTES))
            return f"{size}:{hashlib.sha256(head + file.read(EDGE_BYTES)).hexdigest()}"
    except OSError as error:
        raise DataError(f"clip {clip} cannot be read ({error.strerror or error})") from error
