"""Methods from elsewhere: any object that is used as `with press(model):`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from audiomarathon.errors import SettingsError
from audiomarathon.pruning.method import Method, Trace
from audiomarathon.pruning.registry import get_method
from audiomarathon.settings import RunSettings

if TYPE_CHECKING:
    from audiomarathon.models.audio_lm import AudioLM
    from audiomarathon.models.prompt import Inputs


@dataclass(frozen=True)
class Foreign(Method):
    """A context manager around the transformers model, made by calling `press` with it.

    What it did is read off the cache (`kv_lengths`, `kv_bytes`); how many of the entries are audio only the press
    knows, so `kept_audio_tokens` is null in the records.
    """

    key: ClassVar[str] = "foreign"
    title: ClassVar[str] = "an object used as `with press(model):`"
    saves: ClassVar[str] = "what it saves"

    press: Callable[[Any], AbstractContextManager[Any]] = nullcontext

    @property
    def label(self) -> str:
        """The press as it prints itself, where that says something; else its class."""
        return re.sub(r"[^\w.=-]+", "-", self.parameters()["press"]).strip("-")

    def parameters(self) -> dict[str, Any]:
        """The press as text; addresses, which change from run to run, are no part of it."""
        text = repr(self.press)
        name = getattr(self.press, "__qualname__", type(self.press).__qualname__)
        return {"press": name if " at 0x" in text else text}

    @contextmanager
    def applied_to(self, lm: AudioLM, inputs: Inputs) -> Iterator[Trace]:
        """See :meth:`Method.applied_to`."""
        with self.press(lm.model):
            yield Trace((None,) * len(inputs.seeds))


def as_method(method: object, settings: RunSettings) -> Method:
    """Return a method for what Python callers pass: a method, a name, or a press of their own.

    Parameters
    ----------
    method
        A name takes its ratio, layer and scope from the settings; `fast_v:0.5` has its own ratio.

    Raises
    ------
    SettingsError
        For anything else.
    """
    if isinstance(method, Method):
        return method
    if isinstance(method, str):
        return get_method(method, settings.ratio, settings.layer, settings.scope)
    if callable(method):
        return Foreign(press=method)
    raise SettingsError(f"{method!r} is no method: pass a name, a Method, or an object used as `with press(model):`")
