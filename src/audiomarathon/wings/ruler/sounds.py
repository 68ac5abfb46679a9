"""Sounds of a ruler: words and bells to plant, and backgrounds of any length, synthetic or from recordings."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from audiomarathon.audio.decode import decode, probe
from audiomarathon.benchmarks.locate import walk
from audiomarathon.benchmarks.rows import AUDIO_SUFFIXES, natural, shown, words_of
from audiomarathon.embedded import synthesis, world
from audiomarathon.embedded.signals import Signal, fade, float32, seconds_of
from audiomarathon.errors import AudioError, DataError
from audiomarathon.files import named_folder
from audiomarathon.records import LETTERS
from audiomarathon.wings.ruler.grid import BELL, OPTIONS, RATE

_BELL_S, _PIECE_S, _EDGE_S = 1.5, 30.0, 0.01
# Partials of a struck church bell: ratio to the strike note, level, and decay a second.
_PARTIALS = ((0.5, 0.6, 1.5), (1.0, 1.0, 2.0), (1.2, 0.7, 2.5), (1.5, 0.5, 3.0), (2.0, 0.8, 4.0), (2.67, 0.4, 6.0))
_STRIKE_HZ = 660.0


@dataclass(frozen=True)
class Sound:
    """A sound to plant (a word or a bell), or a background.

    Attributes
    ----------
    mark
        Unique name of the sound, such as the hash of its recording.
    make
        Function that returns mono audio samples at :data:`RATE`. For a sound to plant, its argument is a random
        generator; for a background, a number of samples (a shorter background is the beginning of a longer one).
    """

    mark: str
    make: Callable[[Any], Signal]


Voice = Mapping[str, Sound]
"""The sounds of the words and of the bell, as {name: sound}."""


def level(samples: Signal) -> float:
    """Return a sound's root mean square, computed in pieces, since an hour has 58 million samples."""
    total = sum(float(np.square(part, dtype=np.float64).sum()) for part in _parts(samples))
    return float(np.sqrt(total / max(1, len(samples))))


def _parts(samples: Signal) -> Iterator[Signal]:
    size = round(_PIECE_S * RATE)
    return (samples[start : start + size] for start in range(0, len(samples), size))


def voice(words: Path | None = None, bell: Path | None = None) -> dict[str, Sound]:
    """Return the sounds of the words and of the bell, as {name: sound}.

    Parameters
    ----------
    words
        A folder with a recording for each word, named after the word: `red_light.wav` says "red light". None: tones
        that only the embedded model (a tiny model in this package) understands as words, namely as its names of places.
    bell
        A recording; None synthesises a struck bell.

    Raises
    ------
    AudioMarathonError
        A recording cannot be read or is silent, two recordings have the same name, a name is not a word, or the folder
        holds no recording.
    """
    sounds: dict[str, Sound] = {}
    taken = {BELL}
    size = round(synthesis.EVENT_SECONDS * RATE)
    for word in [place.option for place in world.PLACES if words is None]:
        sounds[word] = Sound(f"tones {word}", partial(synthesis.spoken, word, n=size, rate=RATE))
    for file in recordings(words, "--words") if words else ():
        word = " ".join(file.stem.replace("_", " ").split())
        plain = "".join(words_of(word))  # compared as in replies: it's and its are one word
        if not plain or plain.upper() in LETTERS[:OPTIONS]:
            raise DataError(f"{file}: says {shown(word)}; allowed: a word, and none that is the letter of an option")
        if plain in taken:
            raise DataError(f"{file}: says {shown(word)}, which is taken; one recording a word, and none says bell")
        taken.add(plain)
        sounds[word] = _recorded(file)
    return sounds | {BELL: _recorded(named_folder(bell)) if bell else Sound("struck bell", _struck)}


def _recorded(file: Path) -> Sound:
    samples = _audible(file)
    return Sound(_hash(file), lambda _rng: samples)


def _struck(rng: np.random.Generator) -> Signal:
    t, strike = seconds_of(round(_BELL_S * RATE), RATE), _STRIKE_HZ * rng.uniform(0.97, 1.03)
    tones = (a * np.exp(-decay * t) * np.sin(2 * np.pi * strike * ratio * t) for ratio, a, decay in _PARTIALS)
    return float32(sum(tones) * fade(len(t), RATE, 0.002))


def synthetic_backgrounds(count: int, seed: int) -> list[Sound]:
    """Return `count` different backgrounds of synthetic, murmuring noise."""
    return [Sound(f"murmur-{seed}-{number}", partial(_murmur, seed, number)) for number in range(count)]


def _murmur(seed: int, number: int, frames: int) -> Signal:
    whole = np.empty(frames, np.float32)
    for place, part in enumerate(_parts(whole)):
        rng = np.random.default_rng([seed, number, place])
        part[:] = _smooth(synthesis.needle("slue", [], rng, _PIECE_S, RATE).samples)[: len(part)]
    return whole


def recorded_backgrounds(folder: Path, count: int, seed: int, frames: int) -> list[Sound]:
    """Return up to `count` backgrounds made of a folder's recordings.

    Each recording is used in one background only. A background plays its recordings one after another, all equally
    loud, and repeats them if they are too short. Only the recordings needed for `frames` samples are read.

    Raises
    ------
    AudioMarathonError
        A recording cannot be read, or the folder holds fewer than two.
    """
    files = recordings(folder, "--background")
    if len(files) == 1:
        raise DataError(f"--background {folder}: holds 1 recording; allowed: 2 or more, so that scores get intervals")
    order, backgrounds = np.random.default_rng([seed, len(files)]).permutation(len(files)), []
    for number in range(min(count, len(files))):
        group, seconds = list[Path](), 0.0
        for file in (files[index] for index in order[number::count]):
            if seconds * RATE < frames:
                group.append(file)
                seconds += probe(file).seconds
        marks = " ".join(map(_hash, group))
        backgrounds.append(
            Sound(f"{group[0].stem}-{hashlib.sha256(marks.encode()).hexdigest()[:16]}", partial(_joined, group))
        )
    return backgrounds


def _joined(files: Sequence[Path], frames: int) -> Signal:
    """Join recordings, made equally loud, and repeat them until `frames` samples are filled."""
    return np.resize(np.concatenate([_smooth(_audible(file)) for file in files]), frames)


def _audible(file: Path) -> Signal:
    """Return a recording scaled to a root mean square of 1; raise :class:`AudioError` if it is digital silence."""
    samples = decode(file, RATE)
    if not (loudness := level(samples)):
        raise AudioError(file, "is digital silence, which has no loudness to set")
    samples /= loudness
    return samples


def _smooth(piece: Signal) -> Signal:
    """Fade a piece in and out for 10 ms, in place, so that the next piece begins without a click."""
    ramp = np.linspace(0, 1, min(len(piece), round(_EDGE_S * RATE)), dtype=np.float32)
    piece[: len(ramp)] *= ramp
    piece[len(piece) - len(ramp) :] *= ramp[::-1]
    return piece


def recordings(folder: Path, flag: str) -> list[Path]:
    """Return the audio files under a folder, sorted naturally by path; raise :class:`DataError` if there are none."""
    place = named_folder(folder)
    if not place.is_dir():
        raise DataError(f"{flag} {folder}: is not a folder")
    files = [
        directory.path.relative_to(place.absolute()) / name for directory in walk(place) for name in directory.files
    ]
    paths = [place / file for file in sorted(files, key=lambda file: natural(file.as_posix()))]
    paths = [file for file in paths if file.name.lower().endswith(AUDIO_SUFFIXES)]
    if not paths:
        raise DataError(f"{flag} {folder}: holds no recordings; allowed: {', '.join(AUDIO_SUFFIXES)}")
    return paths


def _hash(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
