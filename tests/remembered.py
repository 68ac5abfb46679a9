"""Work of transformers that tests repeat hundreds of times, done once for the same input: loading, spectrograms.

Both depend on their arguments alone, so a test sees no difference but the time. A loaded model is handed out as a copy.
"""

from __future__ import annotations

import copy
import functools
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedModel, WhisperFeatureExtractor

_MOST_MODELS, _MOST_SPECTROGRAMS = 40, 60  # 40 tiny models and 60 spectrograms of 40 s take about 150 MB


def remember(patch: Any) -> None:
    """Have transformers remember loaded models and spectrograms until the patch is undone."""
    load = PreTrainedModel.__dict__["from_pretrained"].__func__
    loaded = _once(load, _checkpoint, copy.deepcopy, _MOST_MODELS)
    patch.setattr(PreTrainedModel, "from_pretrained", classmethod(loaded))
    draw = WhisperFeatureExtractor._torch_extract_fbank_features
    patch.setattr(
        WhisperFeatureExtractor,
        "_torch_extract_fbank_features",
        _once(draw, _waveform, copy.copy, _MOST_SPECTROGRAMS),
    )


def _once(
    work: Callable[..., Any], key_of: Callable[..., Hashable], copied: Callable[[Any], Any], most: int
) -> Callable[..., Any]:
    """Wrap a function so that it works once for each key, of the `most` last ones."""
    done: OrderedDict[Hashable, Any] = OrderedDict()

    @functools.wraps(work)
    def call(*arguments: Any, **options: Any) -> Any:
        key = key_of(*arguments, **options)
        if key not in done:
            done[key] = work(*arguments, **options)
        done.move_to_end(key)
        while len(done) > most:
            done.popitem(last=False)
        return copied(done[key])

    return call


def _checkpoint(native: type, path: Any, *_arguments: Any, **options: Any) -> Hashable:
    """What a loaded model depends on: its class, the options, and the folder's files as they are."""
    files = sorted(Path(path).rglob("*"))
    stats = [(str(file), file.stat().st_mtime_ns, file.stat().st_size, file.stat().st_ino) for file in files]
    return native, repr(sorted(options.items())), repr(stats)


def _waveform(extractor: WhisperFeatureExtractor, waveform: np.ndarray, device: str = "cpu") -> Hashable:
    """What a spectrogram depends on: the samples, the filters and the steps."""
    content = hashlib.sha1(np.ascontiguousarray(waveform))
    content.update(np.ascontiguousarray(extractor.mel_filters))
    shapes = waveform.shape, str(waveform.dtype), extractor.mel_filters.shape
    return content.digest(), shapes, extractor.n_fft, extractor.hop_length, extractor.dither, str(device)
