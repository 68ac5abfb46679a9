"""Join short clips to a long clip: choose the clips, place them, and write the samples.

All positions and lengths are samples at the output's rate. Clips are taken whole and in order, each at most once.
The output is 16-bit; a 16-bit mono source at the output's rate is copied sample for sample.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from audiomarathon.audio.decode import pcm_blocks, write_pcm
from audiomarathon.errors import AudioError, DataError


@dataclass(frozen=True)
class Joining:
    """Settings for joining clips: shortest and longest joined clip, gap or crossfade (all in seconds), rate (Hz)."""

    low: float
    high: float
    gap: float
    crossfade: float
    rate: int

    def __post_init__(self) -> None:
        check_lengths(self.low, self.high, self.rate)
        between = (self.gap, self.crossfade)
        if not all(0 <= seconds < math.inf for seconds in between) or all(between):
            raise DataError(f"--gap {self.gap:g} --crossfade {self.crossfade:g}: use only one, 0 or more seconds")

    @property
    def settings(self) -> dict[str, float]:
        """The settings as {name: value}, as `build.json` stores them."""
        lengths = {"min_seconds": self.low, "max_seconds": self.high}
        return {**lengths, "gap_seconds": self.gap, "crossfade_seconds": self.crossfade, "rate": self.rate}

    def span(self, chance: random.Random, *, cut: bool) -> Span:
        """Return the settings for one joined clip in samples, as a :class:`Span`; its target length is drawn at random.

        The target lies between the shortest and the longest allowed length. `cut` says whether the last part may be
        shortened.
        """
        low, high, gap, crossfade = (
            round(seconds * self.rate) for seconds in (self.low, self.high, self.gap, self.crossfade)
        )
        return Span(low, high, chance.randint(low, high), cut, gap, crossfade)


def check_lengths(low: float, high: float, rate: int) -> None:
    """Raise :class:`DataError` if the lengths or the sampling rate are impossible."""
    if not 0 < low <= high < math.inf:
        raise DataError(f"--min {low:g} --max {high:g}: expected 0 < min <= max, in seconds")
    if not 1_000 <= rate <= 192_000:
        raise DataError(f"--rate {rate}: expected 1000 to 192000 Hz")


@dataclass(frozen=True)
class Piece:
    """One source clip, with its length, before it is joined.

    Attributes
    ----------
    path
        The audio file.
    frames
        Length in samples at the output's rate.
    """

    path: Path
    frames: int


@dataclass(frozen=True)
class Part:
    """The position of a source clip in a joined clip, in samples.

    Attributes
    ----------
    piece
        The source clip.
    offset
        Start in the joined clip.
    frames
        Number of samples used, from the start of the source clip.
    overlap
        Number of samples at the start that are mixed with the end of the previous part.
    """

    piece: Piece
    offset: int
    frames: int
    overlap: int = 0


@dataclass(frozen=True)
class Plan:
    """A joined clip that is planned but not written: its parts, and its length in samples."""

    parts: tuple[Part, ...]
    frames: int


@dataclass(frozen=True)
class Span:
    """Allowed length of one joined clip, and the gap or crossfade between its parts, in samples.

    Attributes
    ----------
    low, high
        Shortest and longest length.
    target
        Clips are added until this length is reached.
    cut
        Whether to shorten the last part if the joined clip would exceed `high` with it and be below `low` without it.
    gap
        Silence between two parts.
    crossfade
        Overlap of two parts, mixed with equal power; at most half of each part.
    """

    low: int
    high: int
    target: int
    cut: bool = False
    gap: int = 0
    crossfade: int = 0


def plan(pieces: Iterable[Piece], span: Span) -> tuple[Plan | None, int]:
    """Plan the next joined clip: take source clips from the front until the target length is reached.

    Returns
    -------
    Plan or None
        None if the source clips taken are too short or too long for a joined clip.
    int
        Number of source clips taken. If there is no plan, the caller leaves these out.
    """
    parts: list[Part] = []
    end = 0
    for piece in pieces:
        if end >= span.target:
            break
        part = _after(parts, piece, end, span)
        if part.offset + part.frames > span.high:
            if end >= span.low:
                break
            if not span.cut:
                # Leave out this piece if it alone exceeds `high`, else the pieces before it: they are too short.
                return None, max(1, len(parts))
            if part.offset >= span.target:
                return Plan(tuple(parts), span.target), len(parts)  # end within the gap before this piece
            part = Part(piece, part.offset, span.target - part.offset, part.overlap)
        parts.append(part)
        end = part.offset + part.frames
    return (Plan(tuple(parts), end) if parts and end >= span.low else None), len(parts)


def _after(parts: Sequence[Part], piece: Piece, end: int, span: Span) -> Part:
    if not parts:
        return Part(piece, 0, piece.frames)
    overlap = min(span.crossfade, parts[-1].frames // 2, piece.frames // 2)
    return Part(piece, end + span.gap - overlap, piece.frames, overlap)


def length_at(frames: int, rate: int, wanted: int) -> int:
    """Return the number of samples of a clip after resampling from `rate` to `wanted`."""
    return frames if rate == wanted else math.ceil(frames * (float(wanted) / rate))


def write(joined: Plan, file: Path, rate: int, container: str = "WAV") -> None:
    """Join the parts of a planned clip and write it; it is held in memory (5 minutes at 16 kHz: 9.6 MB).

    Raises
    ------
    AudioError
        A source clip cannot be decoded, or its length is not that in its header; the error's `path` is the source clip.
    """
    samples = np.zeros(joined.frames, np.int16)
    for part in joined.parts:
        source = np.concatenate(list(pcm_blocks(part.piece.path, rate)))
        if len(source) != part.piece.frames:
            raise AudioError(
                part.piece.path, f"holds {len(source)} samples at {rate} Hz, its header says {part.piece.frames}"
            )
        target = samples[part.offset : part.offset + part.frames]
        fading = target[: part.overlap].copy()
        target[:] = source[: part.frames]
        angle = (np.arange(part.overlap) + 0.5) / max(1, part.overlap) * (np.pi / 2)
        mixed = np.rint(np.cos(angle) * fading + np.sin(angle) * target[: part.overlap])
        target[: part.overlap] = np.clip(mixed, -32_768, 32_767)
    write_pcm(file, samples, rate, container)
