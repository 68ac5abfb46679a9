"""External methods: any object that is used as `with press(model):`, such as a press of NVIDIA's kvpress."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from audiomarathon.compression.method import Method
from audiomarathon.errors import SettingsError
from audiomarathon.models.trace import Trace

if TYPE_CHECKING:
    from audiomarathon.models.audio_lm import AudioLM
    from audiomarathon.models.prompt import Inputs

_NAME = re.compile(r"\w[\w.=-]{0,100}")


@dataclass(frozen=True)
class Foreign(Method):
    """A press from another library: `press(model)` returns a context manager around the transformers model.

    Records have the measured effect on the cache (`kv_lengths`, `kv_bytes`). Only the press knows how many of the kept
    entries are audio, so `kept_audio_tokens` is null.
    """

    key: ClassVar[str] = "foreign"
    title: ClassVar[str] = "an object used as `with press(model):`"
    saves: ClassVar[str] = "depends on the object"

    press: Callable[[Any], AbstractContextManager[Any]] = nullcontext
    name: str = ""

    def __post_init__(self) -> None:
        """Refuse a name that cannot name a folder, and an unnamed press whose repr shows a memory address."""
        if self.name and not _NAME.fullmatch(self.name):
            start = "letters, digits and _, and after the first character also . = -"
            raise SettingsError(f"method name {self.name!r}: not allowed; allowed: {start}")
        if not self.name and " at 0x" in repr(self.press):
            raise SettingsError(
                f"method {self.press!r}: its repr shows a memory address, so other objects could share its records; "
                'name it: method=("mine-0.3", press), or define __repr__'
            )

    @property
    def label(self) -> str:
        """The name of the press, or its repr."""
        return re.sub(r"[^\w.=-]+", "-", self.parameters()["press"]).strip("-")

    def parts(self) -> dict[str, object]:
        """Return the press as the object whose source is hashed; see :meth:`Method.parts`."""
        return {self.label: self.press}

    def parameters(self) -> dict[str, Any]:
        """Return the press's name (or its repr), and, if known, the ratio with which the press was made."""
        return {"press": self.name or repr(self.press), **({"ratio": self.ratio} if self.ratio else {})}

    @contextmanager
    def applied_to(self, lm: AudioLM, inputs: Inputs) -> Iterator[Trace]:
        """Enter the press around the transformers model; see :meth:`Method.applied_to`."""
        with self.press(lm.model):
            yield Trace((None,) * len(inputs.seeds))
