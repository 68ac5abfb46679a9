"""Which methods there are, and how a name and a ratio become one.

A third party adds one by an entry point in the group `audiomarathon.methods` that yields a :class:`Method` subclass, or
names it by where it lies: `FILE.py:CLASS`, `PACKAGE.MODULE:CLASS`.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

from audiomarathon.compression.composed import Composed
from audiomarathon.compression.external import Foreign
from audiomarathon.compression.from_place import method_at
from audiomarathon.compression.method import Base, Method
from audiomarathon.compression.presses.ada_expected_attention import AdaExpectedAttention
from audiomarathon.compression.presses.ada_snapkv import AdaSnapKV
from audiomarathon.compression.presses.audio_kv import AudioKV
from audiomarathon.compression.presses.expected_attention import ExpectedAttention
from audiomarathon.compression.presses.keydiff import KeyDiff
from audiomarathon.compression.presses.knorm import Knorm
from audiomarathon.compression.presses.kv_random import KVRandom
from audiomarathon.compression.presses.pyramidkv import PyramidKV
from audiomarathon.compression.presses.snapkv import SnapKV
from audiomarathon.compression.presses.streaming_llm import StreamingLLM
from audiomarathon.compression.presses.tova import Tova
from audiomarathon.compression.pruners.dart import Dart
from audiomarathon.compression.pruners.fast_v import FastV
from audiomarathon.compression.pruners.frame import Frame
from audiomarathon.compression.pruners.merge_adjacent import MergeAdjacent
from audiomarathon.compression.pruners.merge_frame import MergeFrame
from audiomarathon.compression.pruners.random import Random
from audiomarathon.compression.pruners.segment_fast_v import SegmentFastV
from audiomarathon.errors import SettingsError
from audiomarathon.object_reference import is_reference
from audiomarathon.plugins import look_up, plugins
from audiomarathon.settings import RunSettings

_PRUNERS = (Random(), Frame(), FastV(), Dart(), SegmentFastV(), MergeAdjacent(), MergeFrame())
_PRESSES = (Knorm(), KVRandom(), KeyDiff(), StreamingLLM(), Tova(), SnapKV(), ExpectedAttention())
_VARIANTS = (PyramidKV(), AudioKV(), AdaSnapKV(), AdaExpectedAttention())  # of SnapKV and expected attention
BUILT_IN: tuple[Method, ...] = (Base(), *_PRUNERS, *_PRESSES, *_VARIANTS)


def all_methods() -> tuple[Method, ...]:
    """Return every known method, unset (ratio 0): the built-in ones, then third parties'."""
    return (*BUILT_IN, *plugins("audiomarathon.methods", Method, BUILT_IN))  # type: ignore[type-abstract]


def get_method(
    name: str, ratio: float | None = None, layer: int = 2, scope: str = "audio", at: str = "layer"
) -> Method:
    """Return the method that `name` stands for, with its ratio and, where it has them, its layer, its scope and `at`.

    Parameters
    ----------
    name
        A method's name, or where it lies (`FILE.py:CLASS`, `PACKAGE.MODULE:CLASS`); `name:ratio` gives a ratio of its
        own, and `pruner:ratio+press:ratio` joins two.
    ratio
        None when nobody gave one: `base` needs none, any other method does.

    Raises
    ------
    SettingsError
        For an unknown name, a ratio that is missing or outside [0, 1), or `base` with a ratio above 0.
    """
    if "," in name:
        raise SettingsError(
            f"method {name[:60]!r}: one method a run; a sweep takes several: audiomarathon sweep --methods {name[:60]}"
        )
    first, *after = name.split("+")
    parts = [
        _get_one(first, ratio, layer, scope, at),
        *(_get_one(part, ratio, layer, scope, "layer") for part in after),
    ]
    if len(parts) == 1:
        return parts[0]
    if len(parts) > 2:
        raise SettingsError(f"method {name!r}: two methods can be joined, a token pruner and then a press")
    return Composed(first=parts[0], second=parts[1])


def split_ratio(name: str) -> tuple[str, str | None]:
    """Return a method's name and the ratio after it as written: `fast_v:0.5`, `my_pruner.py:Novelty:0.5`."""
    name = name.strip()
    if is_reference(name, _names(all_methods())):
        return name, None
    head, colon, own = name.rpartition(":")
    return (head, own) if colon else (name, None)


def find_method(name: str, ratio: float | None = None) -> Method:
    """Return the method of a name or a place, unset; a press that has no name here is made with the ratio."""
    known = all_methods()
    if is_reference(name, _names(known)):
        return method_at(name, ratio, known)
    try:
        return look_up(name, known, kind="method")
    except SettingsError as error:
        more = ", FILE.py:CLASS, PACKAGE.MODULE:CLASS" if "allowed: " in str(error) else ""
        raise SettingsError(f"{error}{more}") from None


def _names(methods: tuple[Method, ...]) -> set[str]:
    return {word.lower() for one in methods for word in (one.key, *one.aliases)}


def _get_one(name: str, ratio: float | None, layer: int, scope: str, at: str) -> Method:
    name, own = split_ratio(name)
    if own is not None:
        try:
            ratio = float(own)
        except ValueError:
            raise SettingsError(f"method {name}:{own}: {own!r} is no ratio") from None
    found = find_method(name, ratio)
    if not 0 <= (ratio or 0) < 1:
        raise SettingsError(f"ratio {ratio:g} is not allowed: the fraction of audio tokens to remove is in [0, 1)")
    if isinstance(found, Base) and ratio:
        raise SettingsError(
            f"method base with ratio {ratio:g}: base drops nothing; name a method, or leave the ratio 0"
        )
    if isinstance(found, (Base, Foreign)):  # an external press got its ratio when it was made
        return found
    if ratio is None:
        raise SettingsError(
            f"method {name}: no ratio is given; name the fraction of audio tokens to remove with PRUNE_RATIO, "
            f"--ratio or {name}:0.5 (0 on purpose runs it without dropping anything)"
        )
    if ratio == 0:
        warnings.warn(f"method {found.key} with ratio 0: NOTHING IS PRUNED, this run equals base", stacklevel=2)
    settings: dict[str, Any] = {"ratio": ratio, "layer": layer, "scope": scope, "at": at}
    names = {field.name for field in dataclasses.fields(found)}
    if scope != "audio" and "scope" not in names:
        raise SettingsError(f"PRUNE_SCOPE={scope}: {found.key} drops audio tokens only; allowed: audio")
    if at != "layer" and "at" not in names:
        raise SettingsError(f"PRUNE_AT={at}: {found.key} works on the caches of the layers; allowed: layer")
    return dataclasses.replace(found, **{name: value for name, value in settings.items() if name in names})


def as_method(method: object, settings: RunSettings) -> Method:
    """Return a method for what Python callers pass: a method, a name, or a press of their own.

    Parameters
    ----------
    method
        A name or a place (:func:`get_method`) takes its ratio, and where it works, from the settings; `fast_v:0.5` has
        its own ratio. A press that prints itself by its address is named: `("mine-0.3", press)`.

    Raises
    ------
    SettingsError
        For anything else.
    """
    if isinstance(method, Method):
        return method
    if isinstance(method, str):
        return get_method(method, settings.ratio, **settings.places)
    if isinstance(method, tuple) and len(method) == 2 and isinstance(method[0], str) and callable(method[1]):
        return Foreign(press=method[1], name=method[0])
    if callable(method):
        return Foreign(press=method)
    raise SettingsError(f"{method!r} is no method: pass a name, a Method, or an object used as `with press(model):`")
