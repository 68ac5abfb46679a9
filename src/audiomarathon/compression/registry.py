"""The table of methods, and how a name and a ratio select a method.

A method from elsewhere is named by its file or module (`FILE.py:CLASS`, `PACKAGE.MODULE:CLASS`), or gets a name by an
entry point in the group `audiomarathon.methods`, which names a :class:`Method` subclass.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

from audiomarathon.compression.composed import Composed
from audiomarathon.compression.external import Foreign
from audiomarathon.compression.method import Base, Method
from audiomarathon.compression.own_methods import method_at
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
from audiomarathon.compression.pruners.a_tome_like import ATomeLike
from audiomarathon.compression.pruners.dart import Dart
from audiomarathon.compression.pruners.divprune import DivPrune
from audiomarathon.compression.pruners.fast_v import FastV
from audiomarathon.compression.pruners.fastadasp_like import FastAdaSPLike
from audiomarathon.compression.pruners.frame import Frame
from audiomarathon.compression.pruners.keep_loud import KeepLoud
from audiomarathon.compression.pruners.keep_speech import KeepSpeech
from audiomarathon.compression.pruners.merge_adjacent import MergeAdjacent
from audiomarathon.compression.pruners.merge_frame import MergeFrame
from audiomarathon.compression.pruners.random import Random
from audiomarathon.compression.pruners.segment_fast_v import SegmentFastV
from audiomarathon.compression.pruners.speechprune_like import SpeechPruneLike
from audiomarathon.compression.token_pruner import TokenPruner
from audiomarathon.errors import MethodError, SettingsError
from audiomarathon.object_reference import is_reference
from audiomarathon.plugins import look_up, plugins
from audiomarathon.settings import RISING, RunSettings, Schedule, schedule_of

_PRUNERS = (Random(), Frame(), FastV(), Dart(), SegmentFastV(), MergeAdjacent(), MergeFrame())
_RIVALS = (FastAdaSPLike(), SpeechPruneLike(), DivPrune(), KeepLoud(), KeepSpeech())
_PRESSES = (Knorm(), KVRandom(), KeyDiff(), StreamingLLM(), Tova(), SnapKV(), ExpectedAttention())
_VARIANTS = (PyramidKV(), AudioKV(), AdaSnapKV(), AdaExpectedAttention())  # of SnapKV and expected attention
#: Keep this order: it determines the methods' colours in charts.
BUILT_IN: tuple[Method, ...] = (Base(), *_PRUNERS, *_PRESSES, *_VARIANTS, ATomeLike(), *_RIVALS)


def all_methods() -> tuple[Method, ...]:
    """Return every known method with ratio 0: first the built-in methods, then those of plug-ins."""
    return (*BUILT_IN, *plugins("audiomarathon.methods", Method, BUILT_IN))  # type: ignore[type-abstract]


def get_method(
    name: str,
    ratio: float | None = None,
    layer: int = 2,
    scope: str = "audio",
    at: str = "layer",
    tower_layer: int | None = None,
    schedule: str = "",
) -> Method:
    """Return the method `name` with its ratio; the other arguments set its fields of the same names.

    Parameters
    ----------
    name
        A method's name, or its file or module (`FILE.py:CLASS`, `PACKAGE.MODULE:CLASS`). `name:ratio` includes the
        ratio, and `pruner:ratio+press:ratio` joins two methods.
    ratio
        The ratio if `name` does not include it; None if there is none. Every method but `base` needs a ratio.
    schedule
        Layers at which a token pruner drops in steps, with the fraction removed by then, such as `2:0.3,8:0.5`; "" for
        one step. The last fraction is the ratio, so `ratio` may be None.

    Raises
    ------
    SettingsError
        The name is unknown, the ratio is missing or outside [0, 1), `base` has a ratio above 0, a schedule does not
        rise to the ratio, or the method drops at once and takes no schedule.
    """
    if "," in name:
        raise SettingsError(
            f"method {name[:60]!r}: a run takes one method; for several use audiomarathon sweep --methods {name[:60]}"
        )
    first, *after = name.split("+")
    parts = [
        _get_one(first, ratio, layer, scope, at, tower_layer, schedule),
        *(_get_one(part, ratio, layer, scope, "layer", None) for part in after),
    ]
    if len(parts) == 1:
        return parts[0]
    if len(parts) > 2:
        raise SettingsError(f"method {name!r}: only two methods can be joined, a token pruner and then a press")
    return Composed(first=parts[0], second=parts[1])


def split_ratio(name: str) -> tuple[str, str | None]:
    """Split text such as `fast_v:0.5` or `my_pruner.py:Novelty:0.5` into (name, ratio), ratio being None if missing."""
    name = name.strip()
    if is_reference(name, _names(all_methods())):
        return name, None
    head, colon, ratio = name.rpartition(":")
    return (head, ratio) if colon else (name, None)


def find_method(name: str, ratio: float | None = None) -> Method:
    """Return the method with this name, file or module, with ratio 0.

    Only an external press (an object used as `with press(model):`) gets `ratio` here.
    """
    known = all_methods()
    if is_reference(name, _names(known)):
        return method_at(name, ratio, known)
    try:
        return look_up(name, known, kind="method")
    except SettingsError as error:
        more = ", FILE.py:CLASS, PACKAGE.MODULE:CLASS" if "allowed: " in str(error) else ""
        raise SettingsError(f"{error}{more}") from None


def _names(methods: tuple[Method, ...]) -> set[str]:
    return {word.lower() for method in methods for word in (method.key, *method.aliases)}


def _get_one(
    name: str, ratio: float | None, layer: int, scope: str, at: str, tower_layer: int | None, schedule: str = ""
) -> Method:
    name, written = split_ratio(name)
    if written is not None:
        try:
            ratio = float(written)
        except ValueError:
            raise SettingsError(
                f"method {name}:{written}: ratio must be a number from 0 to below 1, got {written!r}"
            ) from None
    method = find_method(name, ratio)
    steps = _steps(method, schedule)
    ratio = steps[-1][1] if steps and ratio is None else ratio
    if not 0 <= (ratio or 0) < 1:
        raise SettingsError(
            f"ratio must be from 0 to below 1, got {ratio:g}; it is the fraction of audio tokens to remove"
        )
    if isinstance(method, Base) and ratio:
        raise SettingsError(
            f"method base with ratio {ratio:g}: base drops nothing; name another method, or set the ratio to 0"
        )
    if isinstance(method, (Base, Foreign)):  # an external press already got its ratio from find_method
        return method
    if ratio is None:
        raise SettingsError(
            f"method {name}: the ratio is missing; give the fraction of audio tokens to remove with PRUNE_RATIO, "
            f"--ratio or {name}:0.5 (0 runs the method without dropping anything)"
        )
    if ratio == 0:
        warnings.warn(f"method {method.key} with ratio 0: NOTHING IS PRUNED, this run equals base", stacklevel=2)
    places = getattr(method, "places", (at,))
    if at == "layer" and at not in places:  # the setting's default, which does not apply to a method with its own place
        at = places[0]
    settings: dict[str, Any] = {"ratio": ratio, "layer": layer, "scope": scope, "at": at, "tower_layer": tower_layer}
    names = {field.name for field in dataclasses.fields(method)}
    if scope != "audio" and "scope" not in names:
        raise SettingsError(f"PRUNE_SCOPE={scope}: {method.key} drops audio tokens only; allowed: audio")
    if at != "layer" and "at" not in names:
        raise SettingsError(f"PRUNE_AT={at} (--at): {method.key} works on the layers' caches; allowed: layer")
    method = dataclasses.replace(method, **{name: value for name, value in settings.items() if name in names})
    return _in_steps(method, steps) if steps and ratio else method


def _in_steps(method: Method, steps: Schedule) -> Method:
    """Return a token pruner with a schedule of steps; raise SettingsError if the pruner does not allow this schedule.

    A schedule of one step has the effect of the setting `layer`.
    """
    stepped = dataclasses.replace(method, schedule=steps)  # type: ignore[call-arg]
    try:
        stepped.check_schedule()  # type: ignore[attr-defined]
    except MethodError as error:
        raise SettingsError(str(error)) from None
    return stepped if len(steps) > 1 else dataclasses.replace(method, layer=steps[0][0])  # type: ignore[call-arg]


def _steps(method: Method, schedule: str) -> Schedule:
    """Read a schedule from text; return its pairs (layer, fraction removed from this layer on).

    Return () without a schedule, and for base, which drops nothing.
    """
    if not schedule or isinstance(method, Base):
        return ()
    try:
        steps = schedule_of(schedule)
    except ValueError:
        raise SettingsError(f"schedule {schedule[:60]!r}: not allowed; allowed: {RISING}") from None
    if not isinstance(method, TokenPruner):
        raise SettingsError(
            f"PRUNE_SCHEDULE={schedule} (--schedule): {method.key} drops no tokens at layers; allowed: token pruners"
        )
    return steps


def as_method(method: object, settings: RunSettings) -> Method:
    """Turn an argument of the Python API, such as `"fast_v:0.5"`, into a method.

    Parameters
    ----------
    method
        A method; a name, file or module (:func:`get_method`), which gets ratio, layer, scope and `at` from the settings
        (`fast_v:0.5` includes its ratio); or an external press. A press whose repr shows its memory address needs a
        name: `("mine-0.3", press)`.

    Raises
    ------
    SettingsError
        `method` is none of these.
    """
    if isinstance(method, Method):
        return method
    if isinstance(method, str):
        return get_method(method, settings.ratio, **settings.places)
    if isinstance(method, tuple) and len(method) == 2 and isinstance(method[0], str) and callable(method[1]):
        return Foreign(press=method[1], name=method[0])
    if callable(method):
        return Foreign(press=method)
    raise SettingsError(f"{method!r} is not a method: pass a name, a Method, or an object used as `with press(model):`")
