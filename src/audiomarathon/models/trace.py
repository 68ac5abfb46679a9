"""A method's report on one `generate` call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from audiomarathon.models.merge import Merge
    from audiomarathon.models.timing import Clock


@dataclass
class Trace:
    """A method's record of its work on a batch; filled while the method is applied.

    Separate from :mod:`audiomarathon.models.generation` so that importing it loads no torch.

    Attributes
    ----------
    kept_audio_tokens
        Audio tokens kept of each sample; None if the method does not tell.
    kept_positions
        Prompt positions kept of each sample, audio and text, in order (left padding counts as positions). None if
        nothing was dropped. Known when the block ends.
    merges
        How each sample's audio tokens were merged; None for a sample without merging, or for all.
    spans
        Marks of the model's clock before and after choosing.
    positions
        Maps a layer to the prompt positions that it computes in prefill, in order (batch 1). None if every layer
        computes all.
    prompt
        Length of a prompt that was shortened at the input; None if it was not.
    expected_lengths
        Each layer's promised cache length after prefill. It is checked against the cache.
    kept_entries
        A list that the caller sets to collect what a press keeps: for each layer a boolean tensor over the cache's
        entries before the press, shape (Hkv, entries). None collects nothing.
    """

    kept_audio_tokens: tuple[int | None, ...]
    kept_positions: tuple[torch.Tensor, ...] | None = None
    merges: tuple[Merge | None, ...] | None = None
    spans: list[tuple[Any, Any]] = field(default_factory=list)
    positions: Callable[[int], torch.Tensor] | None = None
    prompt: int | None = None
    expected_lengths: tuple[int, ...] | None = None
    kept_entries: list[torch.Tensor] | None = None

    @contextmanager
    def scoring(self, clock: Clock) -> Iterator[None]:
        """Count the time of the block as scoring."""
        start = clock.mark()
        yield
        self.spans.append((start, clock.mark()))
