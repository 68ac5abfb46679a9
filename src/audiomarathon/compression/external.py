"""External methods: any object that is used as `with press(model):`, such as a press of NVIDIA's kvpress."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from audiomarathon.compression.method import Method
from audiomarathon.errors import SettingsError, warn
from audiomarathon.models.trace import Trace

if TYPE_CHECKING:
    from audiomarathon.models.audio_lm import AudioLM
    from audiomarathon.models.prompt import Inputs

_NAME = re.compile(r"\w[\w.=-]{0,100}")


@dataclass(frozen=True)
class Foreign(Method):
    """A press from another library: `press(model)` returns a context manager around the transformers model.

    Which KV-cache entries the press keeps is read from the cache (:mod:`.gathered`) if it only gathers keys and values,
    or hides entries of single heads as kvpress does. Otherwise this stays unknown, and a warning gives the reason.
    The record's `kept_audio_tokens` is None if the entries are unknown, or layers or heads keep different numbers.
    """

    key: ClassVar[str] = "foreign"
    title: ClassVar[str] = "an object used as `with press(model):`"
    saves: ClassVar[str] = "depends on the object"

    press: Callable[[Any], AbstractContextManager[Any]] = nullcontext
    name: str = ""

    def __post_init__(self) -> None:
        """Raise SettingsError for a name that cannot name a folder, or a press without name and without a stable repr.

        A repr that shows a memory address is not stable.
        """
        if self.name and not _NAME.fullmatch(self.name):
            allowed = "letters, digits and _, and after the first character also . = -"
            raise SettingsError(f"method name {self.name!r}: not allowed; allowed: {allowed}")
        if not self.name and " at 0x" in repr(self.press):
            raise SettingsError(
                f"method {self.press!r}: its repr shows a memory address, so other objects could share its records; "
                'name it: method=("mine-0.3", press), or define __repr__'
            )

    @property
    def label(self) -> str:
        """Name for folders and tables: the name of the press, or its repr."""
        return re.sub(r"[^\w.=-]+", "-", self.parameters()["press"]).strip("-")

    def parts(self) -> dict[str, object]:
        """Return {label: press}: the object whose source code helps to tell runs apart."""
        return {self.label: self.press}

    def parameters(self) -> dict[str, Any]:
        """Return {"press": name or repr, "ratio": ratio if known}, which tell runs apart."""
        return {"press": self.name or repr(self.press), **({"ratio": self.ratio} if self.ratio else {})}

    @contextmanager
    def applied_to(self, lm: AudioLM, inputs: Inputs) -> Iterator[Trace]:
        """Enter the press around the transformers model inside the `with` block; yield the method's report (trace)."""
        import torch

        from audiomarathon.compression.gathered import Gathered

        rows, audio = range(len(inputs.seeds)), inputs.audio_mask
        trace, gathered = Trace((None,) * len(inputs.seeds)), Gathered(lm, audio.shape[1])
        with self.press(lm.model), gathered.watching(trace):
            yield trace
            entries = gathered.kept()
        if entries is None:
            warn(f"{self.label}: the cache entries that it keeps are not recorded, since {gathered.why}")
            return
        if trace.kept_entries is not None:
            trace.kept_entries += [layer[0] if len(layer) == 1 else layer for layer in entries]
        trace.kept_shares = tuple(
            torch.stack([layer[row].double().mean(0).cpu() for layer in entries]).mean(0) for row in rows
        )
        counts = [
            {count for layer in entries for count in layer[row][:, audio[row].to(layer.device)].sum(-1).tolist()}
            for row in rows
        ]
        trace.kept_audio_tokens = tuple(head_counts.pop() if len(head_counts) == 1 else None for head_counts in counts)
