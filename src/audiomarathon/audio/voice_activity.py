"""Find the speech in a clip with silero-vad, a small model whose weights come with its package."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import soxr

from audiomarathon.audio.decode import Samples
from audiomarathon.errors import SettingsError

#: (start, end) of each stretch of speech, in seconds.
Spans = Sequence[tuple[float, float]]
_VAD_HZ = 16_000


def find_speech(samples: Samples, rate: int) -> Spans:
    """Return (start, end) in seconds of each stretch of speech in a clip of shape (n,), as silero-vad finds it.

    The threshold is 0.5.

    Raises
    ------
    SettingsError
        silero-vad is not installed.
    """
    import torch

    timestamps, model = _detector()
    heard = samples if rate == _VAD_HZ else soxr.resample(samples, rate, _VAD_HZ)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more threads are many times slower, as the package itself warns
    try:
        stretches = timestamps(torch.from_numpy(heard), model, threshold=0.5, sampling_rate=_VAD_HZ)
    finally:
        torch.set_num_threads(threads)
    return tuple((stretch["start"] / _VAD_HZ, stretch["end"] / _VAD_HZ) for stretch in stretches)


def check_detector() -> None:
    """Raise SettingsError if silero-vad is not installed."""
    _detector()


@functools.cache
def _detector() -> tuple[Any, Any]:
    try:
        from silero_vad import get_speech_timestamps, load_silero_vad
    except ImportError as error:
        raise SettingsError("finding speech needs silero-vad: pip install 'audiomarathon[vad]'") from error
    return get_speech_timestamps, load_silero_vad()
