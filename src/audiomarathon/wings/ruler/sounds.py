"""Sounds of a ruler: words and bells to plant, and backgrounds of any length; synthetic, or from folders."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from audiomarathon.audio.decode import blocks, decode, probe
from audiomarathon.benchmarks.rows import AUDIO_SUFFIXES, natural, shown
from audiomarathon.embedded import synthesis, world
from audiomarathon.embedded.signals import Signal, fade, float32, seconds_of
from audiomarathon.errors import AudioError, DataError
from audiomarathon.files import named_folder

RATE = 16_000
_BELL_S, _PIECE_S, _EDGE_S = 1.5, 30.0, 0.01
# Partials of a struck church bell: ratio to the strike note, level, and decay a second.
_PARTIALS = ((0.5, 0.6, 1.5), (1.0, 1.0, 2.0), (1.2, 0.7, 2.5), (1.5, 0.5, 3.0), (2.0, 0.8, 4.0), (2.67, 0.4, 6.0))
_STRIKE_HZ = 660.0


@dataclass(frozen=True)
class Sound:
    """A sound to plant.

    Attributes
    ----------
    mark
        What tells it from all others: its name, or the hash of its recording.
    make
        Function from a random stream to mono samples at :data:`RATE`.
    """

    mark: str
    make: Callable[[np.random.Generator], Signal]


@dataclass(frozen=True)
class Background:
    """What is heard around the needles.

    Attributes
    ----------
    name
        Its cluster.
    mark
        What tells it from all others.
    make
        Function from a number of samples to mono samples at :data:`RATE`; fewer are the beginning of more.
    """

    name: str
    mark: str
    make: Callable[[int], Signal]


def level(samples: Signal) -> float:
    """Return the root mean square, in pieces, since an hour has 58 million samples."""
    total = sum(float(np.square(part, dtype=np.float64).sum()) for part in _parts(samples))
    return float(np.sqrt(total / max(1, len(samples))))


def _parts(samples: Signal) -> Iterator[Signal]:
    size = round(_PIECE_S * RATE)
    return (samples[start : start + size] for start in range(0, len(samples), size))


def synthetic_words() -> dict[str, Sound]:
    """Return the places of the embedded model's world, spoken as tones: words for that model only."""

    def said(cue: str) -> Callable[[np.random.Generator], Signal]:
        return lambda rng: synthesis.spoken(cue, rng, round(synthesis.EVENT_SECONDS * RATE), RATE)

    return {label.option: Sound(f"tones {label.cue}", said(label.cue)) for label in world.PLACES}


def synthetic_bell() -> Sound:
    """Return a struck bell."""

    def ring(rng: np.random.Generator) -> Signal:
        t, strike = seconds_of(round(_BELL_S * RATE), RATE), _STRIKE_HZ * rng.uniform(0.97, 1.03)
        tones = (a * np.exp(-decay * t) * np.sin(2 * np.pi * strike * ratio * t) for ratio, a, decay in _PARTIALS)
        return float32(sum(tones) * fade(len(t), RATE, 0.002))

    return Sound("struck bell", ring)


def recorded_words(folder: Path) -> dict[str, Sound]:
    """Return the recordings of a folder by what they say, the name of each file: `red_light.wav` says "red light".

    Raises
    ------
    AudioMarathonError
        A recording cannot be read, is silent, or has the name of another; or the folder holds none.
    """
    found: dict[str, Sound] = {}
    for file in recordings(folder, "--words"):
        word = " ".join(file.stem.replace("_", " ").split())
        if word.casefold() in {one.casefold() for one in found} or word.casefold() == "bell":
            raise DataError(f"{file}: says {shown(word)}, which is taken; one recording a word, and none says bell")
        found[word] = recorded(file)
    return found


def recorded(file: Path) -> Sound:
    """Return a recording as a sound.

    Raises
    ------
    AudioError
        It cannot be read, or is silent.
    """
    samples = decode(file, RATE)
    if not level(samples):
        raise AudioError(file, "is digital silence, which has no loudness to set")
    return Sound(_hash(file), lambda _rng: samples)


def synthetic_backgrounds(count: int, seed: int) -> list[Background]:
    """Return backgrounds of murmuring noise."""

    def murmur(number: int) -> Callable[[int], Signal]:
        def make(frames: int) -> Signal:
            whole = np.empty(frames, np.float32)
            for place, part in enumerate(_parts(whole)):
                rng = np.random.default_rng([seed, number, place])
                piece = synthesis.needle("slue", [], rng, _PIECE_S, RATE).samples
                part[:] = _smooth(piece)[: len(part)]
            return whole

        return make

    return [Background(f"murmur-{one}", f"murmur {seed} {one}", murmur(one)) for one in range(count)]


def recorded_backgrounds(folder: Path, count: int, seed: int, frames: int) -> list[Background]:
    """Return backgrounds made of a folder's recordings.

    The recordings are dealt out, so none is in two backgrounds. A background plays its recordings one after another,
    all equally loud, and begins again where they are too short. Only the recordings that `frames` samples need are
    read.

    Raises
    ------
    AudioMarathonError
        A recording cannot be read, or is silent as a whole; or the folder holds fewer than two recordings.
    """
    files = recordings(folder, "--background")
    if len(files) < 2:  # without two clusters there is no interval
        raise DataError(f"--background {folder}: holds 1 recording; allowed: 2 or more, so that scores get intervals")
    order = [files[int(one)] for one in np.random.default_rng([seed, len(files)]).permutation(len(files))]
    found = []
    for number in range(min(count, len(files))):
        own, seconds = list[Path](), 0.0
        for file in order[number::count]:
            if seconds * RATE < frames:
                own.append(file)
                seconds += probe(file).seconds
        mark = hashlib.sha256(" ".join(map(_hash, own)).encode()).hexdigest()[:16]
        found.append(Background(f"{own[0].stem}-{mark[:6]}", mark, partial(_repeated, tuple(own))))
    return found


def _repeated(files: Sequence[Path], frames: int) -> Signal:
    """Return recordings one after another, equally loud, from the start again until `frames` samples are full."""
    whole, end, played = np.empty(frames, np.float32), 0, dict[Path, Signal]()
    while end < frames:
        for file in files:
            if end < frames:
                piece = played.get(file)
                if piece is None:
                    piece = played[file] = _equalised(file, frames)
                part = whole[end : end + len(piece)]
                part[:] = piece[: len(part)]
                end += len(part)
    return whole


def _equalised(file: Path, frames: int) -> Signal:
    """Return at most `frames` samples of a recording, with a root mean square of 1."""
    parts, left = [], frames
    for block in blocks(file, RATE):
        parts.append(block[:left])
        left -= len(parts[-1])
        if not left:
            break
    samples = np.concatenate(parts)
    if not (own := level(samples)):
        raise AudioError(file, "is digital silence, which has no loudness to set")
    return _smooth(float32(samples / own))


def _smooth(piece: Signal) -> Signal:
    """Fade a piece in and out for 10 ms, so that the next one begins without a click."""
    return piece * fade(len(piece), RATE, _EDGE_S)


def recordings(folder: Path, flag: str) -> list[Path]:
    """Return the recordings in a folder and below, by name; refuse a folder without any."""
    place = named_folder(folder)
    if not place.is_dir():
        raise DataError(f"{flag} {folder}: is not a folder")
    hidden = [file.relative_to(place).parts for file in place.rglob("*")]
    names = ["/".join(parts) for parts in hidden if not any(part.startswith(".") for part in parts)]
    found = [place / name for name in sorted(names, key=natural) if name.lower().endswith(AUDIO_SUFFIXES)]
    if not found:
        raise DataError(f"{flag} {folder}: holds no recordings; allowed: {', '.join(AUDIO_SUFFIXES)}")
    return found


def _hash(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


Voice = Mapping[str, Sound]
"""Words, and the bell, by name."""
