"""Find the part of the waveform that each audio token, or each state of an encoder-decoder, stands for."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from audiomarathon.errors import MethodError

if TYPE_CHECKING:
    from audiomarathon.models.audio_lm import AudioLM
    from audiomarathon.models.prompt import Inputs, Waveform


def heard_by_token(lm: AudioLM, inputs: Inputs) -> list[Sequence[Waveform]]:
    """Return the part of the waveform that each audio token stands for: a list with an item for each sample.

    A sample's item is a list with an array for each audio token. A clip's tokens share it evenly. A tower with windows
    pads a clip to whole windows, so tokens that stand for this silence get arrays that are shorter or empty.

    Raises
    ------
    MethodError
        The family keeps no waveforms in its inputs.
    """
    from audiomarathon.models.prompt import by_clip

    rate, window = lm.sampling_rate, lm.encoder_window_seconds
    waveforms: list[Sequence[Waveform]] = []
    for row, (clips, tokens) in enumerate(zip(_clips(lm, inputs), inputs.audio_tokens, strict=True)):
        sample_waveforms: list[Waveform] = []
        split = by_clip(np.arange(tokens), inputs, [len(clip) / rate for clip in clips], row) if clips else ()
        for clip, places in zip(clips, split, strict=True):
            whole = math.ceil(len(clip) / rate / window) * window * rate if inputs.window_padding else len(clip)
            sample_waveforms += _shared(clip, np.linspace(0, whole, len(places) + 1))
        waveforms.append(sample_waveforms)
    return waveforms


def heard_by_state(lm: AudioLM, inputs: Inputs) -> list[Sequence[Waveform]]:
    """Return the part of the waveform that each encoder state stands for: a list with an item for each window.

    A window's item is a list with an array of samples for each of its states, without those of the window's padding.
    """
    size: int = lm.samples_per_state  # type: ignore[attr-defined]
    windows = [window for clip_windows in _clips(lm, inputs) for window in clip_windows]
    counts = [count for counts in inputs.states for count in counts]
    return [_shared(window, np.arange(count + 1) * size) for window, count in zip(windows, counts, strict=True)]


def _clips(lm: AudioLM, inputs: Inputs) -> Sequence[Sequence[Waveform]]:
    if len(inputs.clips) != len(inputs.seeds):
        raise MethodError(f"{lm.title}'s inputs hold no waveforms (Inputs.clips), which this method listens to")
    return inputs.clips


def _shared(clip: Waveform, edges: Sequence[float] | np.ndarray) -> list[Waveform]:
    places = np.round(edges).astype(int)
    return [clip[start:end] for start, end in itertools.pairwise(places)]
