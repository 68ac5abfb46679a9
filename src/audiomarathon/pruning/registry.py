"""Which methods there are, and how a name and a ratio become one.

A third party adds one by an entry point in the group `audiomarathon.methods` that yields a :class:`Method` subclass.
"""

from __future__ import annotations

import dataclasses
import warnings

from audiomarathon.errors import SettingsError
from audiomarathon.plugins import look_up, plugins
from audiomarathon.pruning.dart import Dart
from audiomarathon.pruning.fast_v import FastV
from audiomarathon.pruning.frame import Frame
from audiomarathon.pruning.method import Base, Method
from audiomarathon.pruning.random import Random
from audiomarathon.pruning.segment_fast_v import SegmentFastV


def all_methods() -> tuple[Method, ...]:
    """Return every known method, unset (ratio 0): the built-in ones, then third parties'."""
    return (Base(), Random(), Frame(), FastV(), Dart(), SegmentFastV(), *plugins("audiomarathon.methods", Method))  # type: ignore[type-abstract]


def get_method(name: str, ratio: float = 0.0, layer: int = 2) -> Method:
    """Return the method that `name` stands for, with its ratio and, where it has one, its layer.

    Raises
    ------
    SettingsError
        For an unknown name, a ratio outside [0, 1), or `base` with a ratio above 0.
    """
    found: Method = look_up(name, all_methods(), kind="method")
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
    settings = {"ratio": ratio, "layer": layer}
    names = {field.name for field in dataclasses.fields(found)}
    return dataclasses.replace(found, **{name: value for name, value in settings.items() if name in names})
