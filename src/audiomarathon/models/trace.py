"""What was done to a model during one `generate` call, as whoever did it says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from audiomarathon.models.merge import Merge
    from audiomarathon.models.timing import CpuClock


@dataclass
class Trace:
    """What a method really did to the batch at hand; filled while it is applied.

    Kept apart from :mod:`audiomarathon.models.generation` so that naming it loads no torch.

    Attributes
    ----------
    kept_audio_tokens
        Audio tokens left, a sample; None where the method does not say.
    kept_positions
        For each sample the prompt positions left, audio and text, in order (left padding counts as positions); None
        when nothing was dropped. Known when the block ends.
    merges
        For each sample how its audio tokens were merged into those left; None for one that was not, or for all.
    spans
        Marks of the model's clock around the work of choosing.
    positions
        Given a layer, the prompt positions that it computes in prefill, in order (at batch 1); None where it is all.
    prompt
        How many positions the prompt takes where it was shortened at the input; None where they stay as they are.
    expected_lengths
        How long each layer's cache is to be after prefill, if the method does what it says; held against the cache.
    kept_entries
        A list that the caller sets to be told what a press keeps: a boolean tensor a layer over the entries of that
        layer's cache before the press, shape (Hkv, entries). None asks for nothing.
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
    def scoring(self, clock: CpuClock) -> Iterator[None]:
        """Count the time inside the block as scoring."""
        start = clock.mark()
        yield
        self.spans.append((start, clock.mark()))
