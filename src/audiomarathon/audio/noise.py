"""Make control audio: room tone taken from a clip, or noise of the same loudness."""

from __future__ import annotations

from typing import Literal

import numpy as np

from audiomarathon.audio.decode import Samples

Kind = Literal["audio", "silence", "noise", "mismatched"]

_FRAME_S = 0.064
_QUIET_SHARE = 0.1


def background(clip: Samples, frames: int, rate: int, rng: np.random.Generator) -> Samples:
    """Return room tone: noise with the mean spectrum and level of a clip's quietest tenth.

    Parameters
    ----------
    clip
        Mono samples, shape (n,).
    frames, rate
        Number of samples to make, and the sampling rate in Hz.

    Returns
    -------
    ndarray of float32, shape (frames,)
        Gaussian noise; silence if the clip's quiet parts are digital silence.
    """
    from scipy.signal import fftconvolve

    size = min(max(2, round(_FRAME_S * rate)), len(clip))
    pieces = clip[: len(clip) // size * size].reshape(-1, size).astype(np.float64)
    power = (pieces**2).mean(axis=1)
    quiet = pieces[np.argsort(power, kind="stable")[: max(1, round(len(pieces) * _QUIET_SHARE))]]
    level = float(np.sqrt((quiet**2).mean()))
    if not frames or not level:
        return np.zeros(frames, np.float32)
    window = np.hanning(size)
    spectrum = np.sqrt((np.abs(np.fft.rfft(quiet * window, axis=1)) ** 2).mean(axis=0))
    response = np.fft.fftshift(np.fft.irfft(spectrum, size)) * window
    shaped = fftconvolve(rng.standard_normal(frames + size), response, mode="same")[size // 2 :][:frames]
    made: Samples = (shaped * (level / np.sqrt((shaped**2).mean()))).astype(np.float32)
    return made


def noise_like(clip: Samples, frames: int, rng: np.random.Generator) -> Samples:
    """Return white noise, shape (frames,), with the loudness (root mean square) of a clip."""
    level = float(np.sqrt((clip.astype(np.float64) ** 2).mean()))
    return (rng.standard_normal(frames) * level).astype(np.float32)
