"""Building blocks of synthetic sound: shaped noise, envelopes, and a voice."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.fft import irfft, next_fast_len, rfft

Signal = NDArray[np.float32]


def float32(values: ArrayLike) -> Signal:
    """Return the values as a float32 array."""
    return np.asarray(values, np.float32)


def seconds_of(n: int, rate: int) -> NDArray[np.float64]:
    """Return the time of each of `n` samples in seconds, as float64: float32 phases grow noisy within a minute."""
    return np.arange(n) / rate


def fade(n: int, rate: int, seconds: float = 0.03) -> Signal:
    """Return an envelope of `n` samples that fades in and out for `seconds`, so that a sound makes no click."""
    ramp = np.minimum(np.arange(n), np.arange(n)[::-1]) / (seconds * rate)
    return float32(np.minimum(ramp, 1.0))


def noise(rng: np.random.Generator, n: int, rate: int, *bands: tuple[float, float]) -> Signal:
    """Return `n` samples of noise with standard deviation 1, whose spectrum has a bump for each of the `bands`.

    A band is (centre in Hz, width in octaves).
    """
    size = next_fast_len(n, real=True)
    spectrum = rfft(rng.standard_normal(size, dtype=np.float32))
    octaves = np.log2(np.maximum(np.linspace(0, rate / 2, len(spectrum), dtype=np.float32), 20.0))
    gain = sum(np.exp(-(((octaves - np.log2(centre)) / width) ** 2)) for centre, width in bands)
    out = irfft(spectrum * gain, size)[:n]
    return float32(out / out.std())


def swing(rng: np.random.Generator, n: int, rate: int, hertz: float, depth: float) -> Signal:
    """Return an envelope of `n` samples that swings between 1 - depth and 1, `hertz` times a second."""
    phase = 2 * np.pi * (hertz * seconds_of(n, rate) + rng.random())
    return float32(1 - depth * (0.5 + 0.5 * np.sin(phase)))


def voice(
    rng: np.random.Generator,
    n: int,
    rate: int,
    *,
    f0: float,
    formants: tuple[float, ...],
    syllables: float,
    melody: tuple[float, float] = (0.0, 0.0),
    tilt: float = 1.0,
    breath: float = 0.0,
) -> Signal:
    """Return `n` samples of a synthetic voice: harmonics of the pitch `f0` (Hz), shaped by formants.

    `melody` is (Hz, share of f0): how often and how far the pitch swings.
    """
    t = seconds_of(n, rate)
    wobble, share = melody
    phase = f0 * t  # integrate the swing in closed form, which replaces a cumulative sum
    if share:
        phase = phase - f0 * share / (2 * np.pi * wobble) * np.cos(2 * np.pi * (wobble * t + rng.random()))
    harmonics = np.arange(1, int(min(7000, rate * 0.45) / (f0 * (1 + share))) + 1)
    frequencies = harmonics * f0
    peaks = np.exp(-(((frequencies - np.array(formants)[:, None]) / 180) ** 2)).sum(0)
    gain = (peaks + 0.05) * harmonics**-tilt
    grid = np.arange(2048) / 2048
    phases = rng.random(len(harmonics))
    table = (gain[:, None] * np.sin(2 * np.pi * (harmonics[:, None] * grid + phases[:, None]))).sum(0)
    table = (table / table.std()).astype(np.float32)
    out = table[((phase % 1.0) * 2048).astype(np.int32) % 2048]
    if breath:
        out = out + breath * noise(rng, n, rate, (3500, 0.8))
    return float32(out * swing(rng, n, rate, syllables, 0.8))
