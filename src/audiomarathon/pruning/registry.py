"""Which methods there are, and how a name and a ratio become one.

A third party adds one by an entry point in the group `audiomarathon.methods` that yields a :class:`Method` subclass.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

from audiomarathon.errors import SettingsError
from audiomarathon.kvpress.presses.audio_kv import AudioKV
from audiomarathon.kvpress.presses.expected_attention import ExpectedAttention
from audiomarathon.kvpress.presses.keydiff import KeyDiff
from audiomarathon.kvpress.presses.knorm import Knorm
from audiomarathon.kvpress.presses.kv_random import KVRandom
from audiomarathon.kvpress.presses.pyramidkv import PyramidKV
from audiomarathon.kvpress.presses.snapkv import SnapKV
from audiomarathon.kvpress.presses.streaming_llm import StreamingLLM
from audiomarathon.kvpress.presses.tova import Tova
from audiomarathon.plugins import look_up, plugins
from audiomarathon.pruning.composed import Composed
from audiomarathon.pruning.dart import Dart
from audiomarathon.pruning.fast_v import FastV
from audiomarathon.pruning.frame import Frame
from audiomarathon.pruning.method import Base, Method
from audiomarathon.pruning.random import Random
from audiomarathon.pruning.segment_fast_v import SegmentFastV

_PRUNERS = (Random(), Frame(), FastV(), Dart(), SegmentFastV())
_PRESSES = (
    Knorm(),
    KVRandom(),
    KeyDiff(),
    StreamingLLM(),
    Tova(),
    SnapKV(),
    ExpectedAttention(),
    PyramidKV(),
    AudioKV(),
)


def all_methods() -> tuple[Method, ...]:
    """Return every known method, unset (ratio 0): the built-in ones, then third parties'."""
    return (Base(), *_PRUNERS, *_PRESSES, *plugins("audiomarathon.methods", Method))  # type: ignore[type-abstract]


def get_method(name: str, ratio: float = 0.0, layer: int = 2, scope: str = "audio") -> Method:
    """Return the method that `name` stands for, with its ratio and, where it has them, its layer and scope.

    Parameters
    ----------
    name
        A method's name; `name:ratio` gives a ratio of its own, and `pruner:ratio+press:ratio` joins two.

    Raises
    ------
    SettingsError
        For an unknown name, a ratio outside [0, 1), or `base` with a ratio above 0.
    """
    parts = [_get_one(part, ratio, layer, scope) for part in name.split("+")]
    if len(parts) == 1:
        return parts[0]
    if len(parts) > 2:
        raise SettingsError(f"method {name!r}: two methods can be joined, a token pruner and then a press")
    return Composed(first=parts[0], second=parts[1])


def _get_one(name: str, ratio: float, layer: int, scope: str) -> Method:
    name, colon, own = name.strip().partition(":")
    found: Method = look_up(name, all_methods(), kind="method")
    if colon:
        try:
            ratio = float(own)
        except ValueError:
            raise SettingsError(f"method {name}:{own}: {own!r} is no ratio") from None
    if not 0 <= ratio < 1:
        raise SettingsError(f"ratio {ratio:g} is not allowed: the fraction of audio tokens to remove is in [0, 1)")
    if isinstance(found, Base):
        if ratio > 0:
            raise SettingsError(
                f"method base with ratio {ratio:g}: base drops nothing; name a method, or leave the ratio 0"
            )
        return found
    if ratio == 0:
        warnings.warn(f"method {found.key} with ratio 0: NOTHING IS PRUNED, this run equals base", stacklevel=2)
    settings: dict[str, Any] = {"ratio": ratio, "layer": layer, "scope": scope}
    names = {field.name for field in dataclasses.fields(found)}
    if scope != "audio" and "scope" not in names:
        raise SettingsError(f"PRUNE_SCOPE={scope}: {found.key} drops audio tokens only; allowed: audio")
    return dataclasses.replace(found, **{name: value for name, value in settings.items() if name in names})
