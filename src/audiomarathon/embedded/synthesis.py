"""Synthesise clips for the tasks of the mini benchmark, with the onsets of the events that decide the answers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audiomarathon.embedded.signals import Signal, fade, float32, noise, seconds_of, swing, voice
from audiomarathon.embedded.world import EVENTS, GENRES, NEEDLES, SCENES, SPOKEN, Label

EVENT_SECONDS = 2.0
WORD_SECONDS = 0.7


@dataclass(frozen=True)
class Event:
    """A sound in a clip, from `onset` on for `seconds`; `cue` is the word that identifies its class."""

    cue: str
    onset: float
    seconds: float


@dataclass(frozen=True)
class Clip:
    """A synthetic clip: mono samples in [-1, 1], their rate, and the events that can decide an answer, by onset."""

    samples: Signal
    rate: int
    events: tuple[Event, ...]


def texture(task: str, label: Label, rng: np.random.Generator, seconds: float, rate: int) -> Clip:
    """Synthesise a clip that sounds like its class (`label`) from start to end, for a task without single events."""
    render = {"tau": _scene, "gtzan": _music, "vesus": _emotion, "vox": _gender, "vox_age": _age}[task]
    samples = render(label, rng, round(seconds * rate), rate)
    return Clip(_finish(samples), rate, (Event(label.cue, 0.0, seconds),))


def needle(
    task: str,
    placed: Sequence[tuple[Label, float]],
    rng: np.random.Generator,
    seconds: float,
    rate: int,
    *,
    event_seconds: float = EVENT_SECONDS,
) -> Clip:
    """Synthesise a clip of background sound, with an event of `event_seconds` at each onset in `placed`."""
    if task not in NEEDLES:
        raise ValueError(f"{task!r} is not a needle task: {', '.join(NEEDLES)}")
    n, size = round(seconds * rate), round(event_seconds * rate)
    samples = _background(task, rng, n, rate)
    for label, onset in placed:
        start = round(onset * rate)
        if task == "had":  # the fake part replaces the speech instead of being mixed with it
            samples[start : start + size] = _artefact(rng, size, rate)
        elif task == "desed":
            samples[start : start + size] += _domestic(label, rng, size, rate)
        else:
            samples[start : start + size] += spoken(label.cue, rng, size, rate)
    events = tuple(Event(label.cue, onset, event_seconds) for label, onset in placed)
    return Clip(_finish(samples), rate, events)


def speech(words: Sequence[tuple[str, float]], rng: np.random.Generator, seconds: float, rate: int) -> Clip:
    """Synthesise a quiet clip in which each word is spoken once; `words` has (word, onset in seconds)."""
    samples = 0.01 * noise(rng, round(seconds * rate), rate, (200, 1.5))
    size, pitch = round(WORD_SECONDS * rate), rng.uniform(0.97, 1.03)
    for word, onset in words:
        start = round(onset * rate)
        samples[start : start + size] += spoken(word, rng, size, rate, pitch)
    return Clip(_finish(samples), rate, tuple(Event(word, onset, WORD_SECONDS) for word, onset in words))


def spoken(cue: str, rng: np.random.Generator, n: int, rate: int, pitch: float | None = None) -> Signal:
    """Synthesise the word `cue` as `n` samples of four simultaneous tones, at a speaker's pitch.

    Two words have at most two tones in common.
    """
    pitch = rng.uniform(0.97, 1.03) if pitch is None else pitch
    t = seconds_of(n, rate)
    tones = sum(np.sin(2 * np.pi * (f * pitch * t + rng.random())) for f in _signatures()[cue])
    syllables = 0.75 + 0.25 * np.sin(2 * np.pi * (rng.uniform(3, 6) * t + rng.random()))
    return float32(0.12 * tones * syllables * fade(n, rate))


@lru_cache
def _signatures() -> dict[str, tuple[float, ...]]:
    """Return {word: the frequencies of its four tones}.

    Each word has 4 of 18 tones, chosen greedily so that two words share at most two.
    """
    bands = 260 * 1.19 ** np.arange(18)
    chosen: list[tuple[int, ...]] = []
    for four in itertools.combinations(range(18), 4):
        # At another speaker's pitch neighbouring bands blur, so two tones of a word are never in neighbouring bands.
        if min(b - a for a, b in itertools.pairwise(four)) < 2 or any(len(set(four) & set(o)) > 2 for o in chosen):
            continue
        chosen.append(four)
    step = len(chosen) / len(SPOKEN)  # take sets from the whole list, since the first sets share low tones
    return {cue: tuple(float(bands[b]) for b in chosen[int(i * step)]) for i, cue in enumerate(SPOKEN)}


def _finish(samples: Signal) -> Signal:
    """Scale a clip to the peak that all clips have, since Whisper clamps features relative to the loudest point."""
    return float32(0.7 * samples / np.abs(samples).max())


# Each scene: bumps of its noise, rate and depth of its swell, and a whine (Hz, how often a second) or none.
_SCENES: dict[str, tuple[tuple[tuple[float, float], ...], float, float, tuple[float, float] | None]] = {
    "airport": (((1000, 1.5),), 0.5, 0.3, (1000, 0.8)),
    "bus": (((110, 0.5),), 3.0, 0.5, None),
    "metro": (((300, 0.4), (2500, 0.4)), 8.0, 0.8, None),
    "metro_station": (((600, 0.4),), 1.0, 0.6, (2200, 1.0)),
    "park": (((4500, 0.4),), 1.5, 0.4, (3300, 2.0)),
    "public_square": (((2000, 0.3),), 2.0, 0.7, None),
    "shopping_mall": (((400, 0.3), (1400, 0.3)), 0.7, 0.2, (660, 1.5)),
    "street_pedestrian": (((5500, 0.5), (180, 0.5)), 2.0, 0.9, None),
    "street_traffic": (((220, 1.0),), 0.8, 0.5, (440, 1.0)),
    "tram": (((800, 0.3), (3200, 0.2)), 12.0, 0.8, (5000, 0.9)),
}


def _scene(label: Label, rng: np.random.Generator, n: int, rate: int) -> Signal:
    bands, swell, depth, whine = _SCENES[label.name]
    shift = rng.uniform(0.94, 1.06)  # places of the same scene differ by this shift
    out = noise(rng, n, rate, *((centre * shift, width) for centre, width in bands))
    out *= swing(rng, n, rate, swell * rng.uniform(0.9, 1.1), depth)
    if whine:
        t = seconds_of(n, rate)
        on = np.sin(2 * np.pi * (whine[1] * t + rng.random())) > 0
        out += 0.7 * on * np.sin(2 * np.pi * whine[0] * shift * t)
    return out


# Each genre: chord (multiples of the root), harmonics, beats a minute, decay a beat, drum's band in Hz and level.
_GENRES: dict[str, tuple[tuple[float, ...], int, float, float, float, float]] = {
    "blues": ((1, 1.2, 1.5), 6, 75, 2.0, 300, 0.1),
    "classical": ((1, 1.25, 1.5, 2), 3, 60, 0.3, 1000, 0.0),
    "country": ((2, 2.5, 3), 4, 200, 6.0, 2500, 0.2),
    "disco": ((1, 1.5), 4, 125, 5.0, 6000, 1.5),
    "hiphop": ((0.5,), 8, 90, 3.0, 100, 2.5),
    "jazz": ((1, 1.26, 1.5, 1.89, 2.24), 3, 110, 4.0, 4500, 0.6),
    "metal": ((0.75, 1.125), 20, 180, 1.0, 3500, 0.5),
    "pop": ((4, 5, 6), 2, 115, 3.0, 1500, 0.5),
    "reggae": ((2, 2.4), 3, 70, 12.0, 180, 1.2),
    "rock": ((1, 1.5, 2), 12, 140, 4.0, 800, 0.8),
}


def _music(label: Label, rng: np.random.Generator, n: int, rate: int) -> Signal:
    chord, harmonics, bpm, decay, drum, level = _GENRES[label.name]
    root, t = rng.uniform(150, 190), seconds_of(n, rate)
    beat = (t * bpm * rng.uniform(0.96, 1.04) / 60 + rng.random()) % 1.0
    out = np.zeros(n, np.float32)
    grid = np.arange(1024) / 1024
    for tone in chord:
        wave = sum(np.sin(2 * np.pi * (k * grid + rng.random())) / k**0.7 for k in range(1, harmonics + 1))
        out += wave.astype(np.float32)[((root * tone * t + rng.random()) % 1.0 * 1024).astype(np.int32) % 1024]
    out *= np.exp(-decay * beat) / out.std()
    if level:
        out += level * np.exp(-8 * ((beat * 2) % 1.0)) * noise(rng, n, rate, (drum, 0.5))
    return out + 0.01 * noise(rng, n, rate, (1000, 3.0))


_NEUTRAL = (500.0, 1500.0, 2500.0)
# Each emotion: f0 in Hz, melody, syllables a second, spectral tilt, breath.
_EMOTIONS: dict[str, tuple[float, tuple[float, float], float, float, float]] = {
    "angry": (270, (2.0, 0.1), 7.0, 0.2, 0.0),
    "happy": (330, (3.0, 0.3), 4.5, 1.0, 0.0),
    "sad": (125, (0.7, 0.1), 1.2, 1.8, 0.1),
    "fearful": (420, (9.0, 0.12), 5.0, 0.8, 0.6),
    "monotone": (170, (0.0, 0.0), 3.0, 1.0, 0.0),
}


def _emotion(label: Label, rng: np.random.Generator, n: int, rate: int) -> Signal:
    f0, melody, syllables, tilt, breath = _EMOTIONS[label.name]
    f0, syllables = f0 * rng.uniform(0.93, 1.07), syllables * rng.uniform(0.9, 1.1)
    return voice(
        rng, n, rate, f0=f0, formants=_NEUTRAL, syllables=syllables, melody=melody, tilt=tilt, breath=breath
    ) + 0.01 * noise(rng, n, rate, (6000, 0.5))


def _gender(label: Label, rng: np.random.Generator, n: int, rate: int) -> Signal:
    male = label.name == "male"
    f0 = rng.uniform(90, 130) if male else rng.uniform(190, 250)
    formants = (650.0, 1100.0, 2900.0) if male else (800.0, 1350.0, 3300.0)
    speaker = voice(rng, n, rate, f0=f0, formants=formants, syllables=rng.uniform(3, 5), melody=(0.6, 0.05))
    return speaker + 0.08 * noise(rng, n, rate, (250, 1.0))


# Each age group: formants' scale, syllables a second, tremor (share of f0), breath.
_AGES: dict[str, tuple[float, float, float, float]] = {
    "Young": (1.35, 6.0, 0.01, 0.0),
    "Early": (1.15, 5.0, 0.01, 0.25),
    "Mid": (1.0, 4.0, 0.01, 0.7),
    "Senior": (0.85, 3.0, 0.06, 0.25),
    "Elderly": (0.7, 2.0, 0.12, 0.9),
}


def _age(label: Label, rng: np.random.Generator, n: int, rate: int) -> Signal:
    scale, syllables, tremor, breath = _AGES[label.cue]
    formants = tuple(scale * f for f in (900.0, 1900.0, 3600.0))
    speaker = voice(
        rng,
        n,
        rate,
        f0=rng.uniform(145, 165),
        formants=formants,
        syllables=syllables,
        melody=(6.0, tremor),
        breath=breath,
    )
    return speaker + 0.1 * noise(rng, n, rate, (5500, 0.3))


def _background(task: str, rng: np.random.Generator, n: int, rate: int) -> Signal:
    if task == "had":
        speaker = voice(
            rng, n, rate, f0=rng.uniform(105, 215), formants=(600.0, 1700.0, 2700.0), syllables=rng.uniform(3, 5)
        )
        return float32(0.2 * speaker + 0.005 * noise(rng, n, rate, (1000, 2.0)))
    centre, width = {"desed": (150, 1.0), "slue": (500, 0.8), "race": (350, 0.5)}[task]
    murmur = noise(rng, n, rate, (centre * rng.uniform(0.9, 1.1), width))
    return float32(0.02 * murmur * swing(rng, n, rate, rng.uniform(1, 4), 0.6))


def _artefact(rng: np.random.Generator, n: int, rate: int) -> Signal:
    """Synthesise `n` samples of what a poor vocoder produces: a buzz of constant pitch, and a whistle."""
    t = seconds_of(n, rate)
    buzz = np.sign(np.sin(2 * np.pi * rng.uniform(65, 85) * t)) * np.sin(2 * np.pi * rng.uniform(900, 1100) * t)
    whistle = np.sin(2 * np.pi * rng.uniform(5000, 5600) * t)
    return float32((0.25 * buzz + 0.2 * whistle) * fade(n, rate))


def _domestic(label: Label, rng: np.random.Generator, n: int, rate: int) -> Signal:
    """Synthesise `n` samples of the household sound that `label` names, such as a dog or a blender."""
    t, shift = seconds_of(n, rate), rng.uniform(0.94, 1.06)

    def tone(hertz: float) -> Signal:
        return float32(np.sin(2 * np.pi * (hertz * shift * t + rng.random())))

    def hum(hertz: float, count: int) -> Signal:
        return float32(sum(tone(k * hertz) for k in range(1, count + 1)) / np.sqrt(count))

    def hits(a_second: float, decay: float) -> Signal:
        return float32(np.exp(-decay * ((a_second * shift * t + rng.random()) % 1.0)))

    sounds: dict[str, Callable[[], NDArray[Any]]] = {
        "Alarm": lambda: np.sign(tone(2600)) * (np.sin(2 * np.pi * 5 * t) > 0),
        "Blender": lambda: hum(240, 12) + 0.5 * noise(rng, n, rate, (2000, 0.8)),
        "Cat": lambda: np.sin(
            2 * np.pi * np.arange(1, 4)[:, None] * (700 * shift * t - 40 * np.cos(2 * np.pi * t))
        ).sum(0),
        "Dishes": lambda: (tone(3100) + tone(4400) + tone(5900)) * hits(4.5, 9),
        "Dog": lambda: (hum(380, 3) + 0.5 * noise(rng, n, rate, (700, 0.4))) * hits(3.0, 7),
        "Shaver": lambda: hum(100, 50),
        "Frying": lambda: noise(rng, n, rate, (6000, 0.4)),
        "Water": lambda: noise(rng, n, rate, (1500, 0.5)) * swing(rng, n, rate, 11, 0.7),
        "Speech": lambda: voice(rng, n, rate, f0=140 * shift, formants=_NEUTRAL, syllables=4.0, melody=(1.5, 0.1)),
        "Vacuum": lambda: noise(rng, n, rate, (500, 0.6)) + tone(880),
    }
    out = sounds[label.cue]()
    return float32(0.2 * out / out.std() * fade(n, rate))


if not {label.name for label in SCENES} == set(_SCENES) or not {label.name for label in GENRES} == set(_GENRES):
    raise AssertionError("every scene and genre of the world needs a sound")
if len(EVENTS) != 10:
    raise AssertionError("desed has ten classes")
