"""Cache work that transformers repeats hundreds of times in the tests: loading, spectrograms, and configs as text.

Loaded models and spectrograms depend on their arguments alone, so only the tests' speed differs. Every call gets a
copy. transformers formats a config as text whenever it reads one, for a log message that nobody sees.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import io
import pickle
import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

_MOST_MODELS, _MOST_SPECTROGRAMS = 40, 60  # 40 tiny models and 60 spectrograms of 40 s take about 150 MB


def spare_transformers(patch: pytest.MonkeyPatch) -> None:
    """Patch transformers until the patch is undone. Do not import it: that takes longer than many test files."""

    def models(module: ModuleType) -> None:
        load = module.PreTrainedModel.__dict__["from_pretrained"].__func__
        once = _once(load, _checkpoint, _copies, _MOST_MODELS)
        patch.setattr(module.PreTrainedModel, "from_pretrained", classmethod(once))

    def spectrograms(module: ModuleType) -> None:
        draw = module.WhisperFeatureExtractor._torch_extract_fbank_features
        once = _once(draw, _waveform, lambda features: features.copy, _MOST_SPECTROGRAMS)
        patch.setattr(module.WhisperFeatureExtractor, "_torch_extract_fbank_features", once)

    def configs(module: ModuleType) -> None:
        patch.setattr(module.PreTrainedConfig, "__repr__", object.__repr__)

    patches = {
        "transformers.modeling_utils": models,
        "transformers.models.whisper.feature_extraction_whisper": spectrograms,
        "transformers.configuration_utils": configs,
    }
    for name in patches.keys() & sys.modules.keys():
        patches.pop(name)(sys.modules[name])
    patch.setattr(sys, "meta_path", [_AtImport(patches), *sys.meta_path])


class _AtImport(MetaPathFinder):
    """Patches modules when they are imported."""

    def __init__(self, patches: Mapping[str, Callable[[ModuleType], None]]) -> None:
        self._patches = patches

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in self._patches or not (spec := PathFinder.find_spec(name, path)):
            return None
        load = spec.loader.exec_module

        def load_and_patch(module: ModuleType) -> None:
            load(module)
            self._patches[name](module)

        spec.loader.exec_module = load_and_patch
        return spec


def _once(
    work: Callable[..., Any], key_of: Callable[..., Hashable], copies: Callable[[Any], Callable[[], Any]], most: int
) -> Callable[..., Any]:
    """Cache the last `most` results of a function by key. `copies` turns a result into a function that copies it."""
    done: OrderedDict[Hashable, Callable[[], Any]] = OrderedDict()

    @functools.wraps(work)
    def call(*arguments: Any, **options: Any) -> Any:
        key = key_of(*arguments, **options)
        if key not in done:
            done[key] = copies(work(*arguments, **options))
        done.move_to_end(key)
        while len(done) > most:
            done.popitem(last=False)
        return done[key]()

    return call


def _copies(loaded: Any) -> Callable[[], Any]:
    """Return a function that copies a loaded model by pickle, which takes a quarter of the time of `copy.deepcopy`.

    Tensors are cloned beside the pickle, each once, so that tied weights stay tied.
    """
    import torch

    tensors: dict[int, torch.Tensor] = {}

    class Pickler(pickle.Pickler):
        def persistent_id(self, part: Any) -> int | None:
            return id(tensors.setdefault(id(part), part)) if isinstance(part, torch.Tensor) else None

    class Unpickler(pickle.Unpickler):
        def __init__(self, file: io.BytesIO) -> None:
            super().__init__(file)
            self.persistent_load = copy.deepcopy(tensors).__getitem__

    try:
        Pickler(pickled := io.BytesIO(), protocol=pickle.HIGHEST_PROTOCOL).dump(loaded)
    except (pickle.PicklingError, RuntimeError):  # torch refuses to pickle a module with a weight norm
        return lambda: copy.deepcopy(loaded)
    return lambda: Unpickler(io.BytesIO(pickled.getbuffer())).load()


def _checkpoint(native: type, path: Any, *_arguments: Any, **options: Any) -> Hashable:
    """Return the cache key of a loaded model: its class, the options, and the state of the folder's files."""
    files = sorted(Path(path).rglob("*"))
    stats = [(str(file), file.stat().st_mtime_ns, file.stat().st_size, file.stat().st_ino) for file in files]
    return native, repr(sorted(options.items())), repr(stats)


def _waveform(extractor: Any, waveform: np.ndarray, device: str = "cpu") -> Hashable:
    """Return the cache key of a spectrogram: the samples, the filters and the parameters."""
    content = hashlib.sha1(np.ascontiguousarray(waveform))
    content.update(np.ascontiguousarray(extractor.mel_filters))
    shapes = waveform.shape, str(waveform.dtype), extractor.mel_filters.shape
    return content.digest(), shapes, extractor.n_fft, extractor.hop_length, extractor.dither, str(device)
