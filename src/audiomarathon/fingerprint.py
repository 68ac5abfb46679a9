"""Fingerprints of large files, such as a model's weights: hashes of some of their bytes, made by one of two rules.

Rule 1 (versions up to commit 8983bac) writes a hash of 16 digits. Rule 2 reads more parts of the file, and writes
`2:<hash by rule 1>:<hash by rule 2>`: with the hash by rule 1, it can be compared with an older fingerprint.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import IO, Any

BLOCK_BYTES = 4096
_WHOLE_BYTES = 65536  # a stretch up to this size is read whole
_MOST_GAPS = 64
_CHUNK_BYTES = 1 << 22
_RULE_1, _RULE_2 = re.compile("[0-9a-f]{16}"), re.compile("2:([0-9a-f]{16}):([0-9a-f]{16})")


def join_rules(rule_1: Any, rule_2: Any) -> str:
    """Return the fingerprint `2:<hash by rule 1>:<hash by rule 2>`, given the hashlib digests of both rules."""
    return f"2:{rule_1.hexdigest()[:16]}:{rule_2.hexdigest()[:16]}"


def is_weak(written: object) -> bool:
    """Tell whether a fingerprint was made by the older rule 1, which misses most changes of a large file."""
    return isinstance(written, str) and _RULE_1.fullmatch(written) is not None


def by_rule_1(written: Any) -> Any:
    """Return the hash by the older rule 1 that a fingerprint of rule 2 contains; return any other value unchanged."""
    match = _RULE_2.fullmatch(written) if isinstance(written, str) else None
    return match[1] if match else written


def same(fingerprint: object, other: object) -> bool:
    """Tell whether two fingerprints match. If either was made by the older rule 1, compare their hashes by rule 1.

    Two values that are no fingerprints match if they are equal.
    """
    return fingerprint == other or (
        (is_weak(fingerprint) or is_weak(other)) and by_rule_1(fingerprint) == by_rule_1(other)
    )


def stronger(written: object, among: Iterable[object]) -> object:
    """Return the fingerprint in `among` that was made by rule 2 and matches `written`, made by the older rule 1.

    `written` is a stored fingerprint. It is returned unchanged if it was not made by rule 1, or if not exactly one
    fingerprint in `among` matches.
    """
    stronger_ones = (
        [other for other in among if not is_weak(other) and same(written, other)] if is_weak(written) else []
    )
    return stronger_ones[0] if len(stronger_ones) == 1 else written


def short(written: object) -> str:
    """Return the first six digits of a fingerprint's hash, for use in names: by the newer rule (2) if it has both."""
    return str(written).rpartition(":")[2][:6] if _RULE_2.fullmatch(str(written)) else str(written)[:6]


def blocks(first: int, last: int, gap: int) -> Iterator[tuple[int, int]]:
    """Yield the byte ranges to hash between `first` and `last`: all bytes if they are few, else evenly spaced blocks.

    The first, the middle and the last block are always included. Blocks start at most `gap` bytes apart, or, if that
    would make more than 64 gaps, a 64th of the length apart.
    """
    length = last - first
    if length <= _WHOLE_BYTES:
        yield first, last
        return
    gaps = 2 * min(_MOST_GAPS // 2, -(-length // (2 * gap)))
    for index in range(gaps + 1):
        start = first + (length - BLOCK_BYTES) * index // gaps
        yield start, start + BLOCK_BYTES


def feed(digest: hashlib._Hash, stream: IO[bytes], spans: Iterable[tuple[int, int]]) -> None:
    """Update a hash with byte ranges of an open file; `spans` has pairs of start and end (exclusive)."""
    for start, end in spans:
        stream.seek(start)
        for at in range(start, end, _CHUNK_BYTES):
            digest.update(stream.read(min(_CHUNK_BYTES, end - at)))
