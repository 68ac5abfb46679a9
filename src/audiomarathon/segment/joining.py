"""Join short clips to a long one: which clips, where each begins, and the samples, streamed.

Everything is counted in samples at the output's rate. Clips are taken whole and in the order given, and none is used
twice. Output is 16-bit; a 16-bit mono source at the output's rate comes through sample for sample.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

from audiomarathon.audio.decode import Pcm, pcm_blocks
from audiomarathon.errors import AudioError, DataError

_SILENCE = np.zeros(1 << 16, np.int16)


@dataclass(frozen=True)
class Joint:
    """What lies between two clips.

    Attributes
    ----------
    gap
        Samples of silence.
    crossfade
        Samples over which one clip fades out while the next fades in (equal power); at most half of either.
    """

    gap: int = 0
    crossfade: int = 0


@dataclass(frozen=True)
class Joining:
    """How clips are joined: the range of lengths and what lies between two clips, in seconds; the rate in Hz."""

    low: float
    high: float
    gap: float
    crossfade: float
    rate: int

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high < math.inf:
            raise DataError(f"--min {self.low:g} --max {self.high:g}: expected 0 < min <= max, in seconds")
        between = (self.gap, self.crossfade)
        if not all(0 <= seconds < math.inf for seconds in between) or all(between):
            raise DataError(f"--gap {self.gap:g} --crossfade {self.crossfade:g}: expected one of them, 0 or more")
        if not 1_000 <= self.rate <= 192_000:
            raise DataError(f"--rate {self.rate}: expected 1000 to 192000 Hz")

    @property
    def settings(self) -> dict[str, float]:
        """By the names under which they stand in `build.json`."""
        lengths = {"min_seconds": self.low, "max_seconds": self.high}
        return {**lengths, "gap_seconds": self.gap, "crossfade_seconds": self.crossfade, "rate": self.rate}

    @property
    def joint(self) -> Joint:
        """What lies between two clips, in samples."""
        return Joint(round(self.gap * self.rate), round(self.crossfade * self.rate))


@dataclass(frozen=True)
class Piece:
    """One source clip, ready to be joined.

    Attributes
    ----------
    path
        The audio.
    frames
        Its length at the output's rate.
    """

    path: Path
    frames: int


@dataclass(frozen=True)
class Part:
    """A source clip's place in a joined clip.

    Attributes
    ----------
    piece
        The source.
    offset
        Where it begins.
    frames
        How much of it is used, from its start.
    overlap
        How many of its first samples are mixed with the end of the part before it.
    """

    piece: Piece
    offset: int
    frames: int
    overlap: int = 0


@dataclass(frozen=True)
class Plan:
    """A joined clip: its parts and its length."""

    parts: tuple[Part, ...]
    frames: int


@dataclass(frozen=True)
class Range:
    """How long a joined clip may be, in samples; `target` is where joining stops.

    With `cut` a last clip that would lead beyond `high` is shortened where the joined clip would else be too short.
    """

    low: int
    high: int
    target: int
    cut: bool = False


def plan(pieces: Iterable[Piece], span: Range, joint: Joint) -> tuple[Plan | None, int]:
    """Take pieces from the front until the target is reached.

    Returns
    -------
    Plan or None
        None where no clip can be made of the pieces that are used up.
    int
        How many pieces are used up: in the plan, or too short or too long for one.
    """
    parts: list[Part] = []
    end = 0
    for piece in pieces:
        if end >= span.target:
            break
        part = _after(parts, piece, end, joint)
        if part.offset + part.frames > span.high:
            if end >= span.low:
                break
            if not span.cut:
                return None, max(1, len(parts))  # a piece too long for any clip, or those before the one that would be
            if part.offset >= span.target:
                return Plan(tuple(parts), span.target), len(parts)  # only part of the gap is missing
            part = Part(piece, part.offset, span.target - part.offset, part.overlap)
        parts.append(part)
        end = part.offset + part.frames
    return (Plan(tuple(parts), end) if parts and end >= span.low else None), len(parts)


def _after(parts: Sequence[Part], piece: Piece, end: int, joint: Joint) -> Part:
    if not parts:
        return Part(piece, 0, piece.frames)
    overlap = min(joint.crossfade, parts[-1].frames // 2, piece.frames // 2)
    return Part(piece, end + joint.gap - overlap, piece.frames, overlap)


def length_at(frames: int, rate: int, wanted: int) -> int:
    """Return how many samples a clip of `frames` at `rate` has once it is resampled; what decoding yields."""
    return frames if rate == wanted else math.ceil(frames * (float(wanted) / rate))


def write(joined: Plan, file: Path, rate: int, container: str = "WAV") -> None:
    """Write a joined clip, reading each source in blocks.

    Raises
    ------
    AudioError
        A source cannot be decoded, or is not as long as its header says; its `path` says which. What is written until
        then is not to be used.
    """
    with soundfile.SoundFile(file, "w", rate, 1, subtype="PCM_16", format=container) as target:
        position, tail = 0, _SILENCE[:0]
        for part, following in itertools.zip_longest(joined.parts, joined.parts[1:]):
            _write_silence(target, part.offset - position)
            hold = following.overlap if following else 0
            tail = _write_part(target, part, tail, hold, rate)
            position = part.offset + part.frames
        _write_silence(target, joined.frames - position)


def _write_silence(target: soundfile.SoundFile, frames: int) -> None:
    while frames > 0:
        target.write(_SILENCE[:frames])
        frames -= len(_SILENCE)


def _write_part(target: soundfile.SoundFile, part: Part, fading: Pcm, hold: int, rate: int) -> Pcm:
    """Write a part whose start is mixed with what fades out; return its last `hold` samples, which are not written."""
    done, tail = 0, _SILENCE[:0]
    for decoded in pcm_blocks(part.piece.path, rate):
        block = _crossfaded(fading, decoded[: part.frames - done], done)
        done += len(decoded)
        if hold:
            tail = np.concatenate((tail, block))
            block, tail = tail[:-hold], tail[-hold:]
        target.write(block)
        if part.frames <= done < part.piece.frames:
            return tail  # shortened
    if done != part.piece.frames:
        raise AudioError(part.piece.path, f"holds {done} samples at {rate} Hz, its header says {part.piece.frames}")
    return tail


def _crossfaded(fading: Pcm, block: Pcm, start: int) -> Pcm:
    """Return the block, mixed with the rest of what fades out from `start` on."""
    fading, length = fading[start : start + len(block)], len(fading)
    if not len(fading):
        return block
    angle = (np.arange(start, start + len(fading)) + 0.5) / length * (np.pi / 2)
    mixed = np.rint(np.cos(angle) * fading + np.sin(angle) * block[: len(fading)])
    return np.concatenate((np.clip(mixed, -32_768, 32_767).astype(np.int16), block[len(fading) :]))
