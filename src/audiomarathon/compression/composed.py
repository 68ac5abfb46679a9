"""Two methods joined by `+`: a token pruner, then a press on the tokens that the pruner kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from audiomarathon.compression.method import Base, Method
from audiomarathon.compression.press import KVPress
from audiomarathon.compression.presses.pyramidkv import PyramidKV
from audiomarathon.compression.token_pruner import TokenPruner
from audiomarathon.errors import SettingsError
from audiomarathon.models.trace import Trace

if TYPE_CHECKING:
    from audiomarathon.models.audio_lm import AudioLM
    from audiomarathon.models.prompt import Inputs


@dataclass(frozen=True)
class Composed(Method):
    """A token pruner, and a press that removes its own ratio of the audio tokens that the pruner kept.

    Layers before the pruner's layer still have all audio tokens, so there the press's ratio applies to all audio
    tokens.
    """

    key: ClassVar[str] = "composed"
    title: ClassVar[str] = "token pruning, then a press"
    saves: ClassVar[str] = "what its two parts save"
    note: ClassVar[str] = "a reply of one token comes from prefill, before the press acts: it equals the pruner's"

    first: Method = field(default_factory=Base)
    second: Method = field(default_factory=Base)

    def __post_init__(self) -> None:
        """Raise SettingsError for methods that cannot be joined."""
        deeper = isinstance(self.first, TokenPruner) and (self.first.first_layer > 0 or len(self.first.drops) > 1)
        if isinstance(self.second, PyramidKV) and isinstance(self.first, TokenPruner) and deeper:
            raise SettingsError(
                f"{self.first.key}+{self.second.key}: from layer {self.first.first_layer} on, layers hold fewer "
                f"tokens, so {self.second.key} cannot hold its ratio on average over layers; join another press, or "
                "drop before the first layer (PRUNE_AT=input, --at input)"
            )
        if not isinstance(self.first, TokenPruner) or not isinstance(self.second, KVPress):
            raise SettingsError(
                f"{self.first.key}+{self.second.key}: only a token pruner and then a press can be joined, such as "
                "fast_v:0.5+snapkv:0.3"
            )

    @property
    def label(self) -> str:
        """The labels of the pruner and the press, joined by `+`."""
        return f"{self.first.label}+{self.second.label}"

    @property
    def decodes_statically(self) -> bool:
        """Whether decode may run as a CUDA graph under both the pruner and the press."""
        return self.first.decodes_statically and self.second.decodes_statically

    @property
    def prefills_in_chunks(self) -> bool:
        """Whether prefill may run in chunks under both the pruner and the press."""
        return self.first.prefills_in_chunks and self.second.prefills_in_chunks

    def parts(self) -> dict[str, object]:
        """Return {name: method} for the pruner and the press, whose source code helps to tell runs apart."""
        return {**self.first.parts(), **self.second.parts()}

    def parameters(self) -> dict[str, Any]:
        """Return {"first": the pruner's fields, "second": the press's fields}, which tell runs apart."""
        parts = {"first": self.first, "second": self.second}
        return {name: {"method": part.key, **part.parameters()} for name, part in parts.items()}

    def check_config(self, config: Any) -> None:
        """Raise an error if the pruner or the press cannot work with a model's config."""
        self.first.check_config(config)
        self.second.check_config(config)

    def check_family(self, family: type[AudioLM], depth: int) -> None:
        """Raise an error if the pruner cannot work with a model family."""
        self.first.check_family(family, depth)

    @property
    def changes_tower(self) -> bool:
        """Whether the pruner drops inside the audio tower."""
        return self.first.changes_tower

    def check(self, lm: AudioLM) -> None:
        """Raise an error if the pruner or the press cannot work with a loaded model."""
        self.first.check(lm)
        self.second.check(lm)

    @contextmanager
    def applied_to(self, lm: AudioLM, inputs: Inputs) -> Iterator[Trace]:
        """Apply the pruner, then the press to the tokens that it kept, inside the `with` block.

        Yield the report (trace) of both.
        """
        assert isinstance(self.second, KVPress)
        with self.first.applied_to(lm, inputs) as pruned:
            inputs = pruned.inputs or inputs  # the prompt is shorter if the pruner drops inside the tower
            with self.second.applied_to(lm, inputs, before=pruned) as trace:
                yield trace
