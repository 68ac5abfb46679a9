"""A compression method's report about one `generate` call: what it kept, and how long the choice took."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch.utils.hooks import RemovableHandle

    from audiomarathon.models.merge import Merge
    from audiomarathon.models.prompt import Inputs
    from audiomarathon.models.timing import Clock


@dataclass
class Trace:
    """A compression method's report about one batch, which the method fills during the `generate` call.

    This class is not in :mod:`audiomarathon.models.generation`, so that importing it does not load torch.

    Attributes
    ----------
    kept_audio_tokens
        Number of audio tokens kept, for each sample; None if the method does not report it.
    kept_positions
        For each sample, the prompt positions that were kept, audio and text, in order. Positions count the padding on
        the left. None if nothing was dropped. Set when the method's `with` block ends.
    kept_steps
        For a pruner that drops in several steps: each step's first layer, and the positions of each sample that remain
        from this layer on, like `kept_positions`. None for other methods.
    merges
        How each sample's audio tokens were merged; None for a sample whose tokens were not. None instead of the tuple
        if the method merges nothing.
    spans
        Pairs of clock marks (:meth:`Clock.mark`): just before and just after the method chose what to keep.
    asides
        Pairs of clock marks around measurements that the suite makes during prefill for its records; they count for no
        stage.
    positions
        Function that takes a layer and a sample's row, and returns the prompt positions that the layer computes in
        prefill, in order, without fillers. None if every layer computes all positions.
    row_lengths
        Number of positions that a layer computes in prefill: for each sample, a number for each layer. None if every
        layer computes all positions.
    prompts
        The new length of each sample's prompt, if it was shortened at the input; None otherwise.
    expected_lengths
        Number of KV-cache entries of each layer after prefill, as the method predicts it. It is compared with the real
        number.
    kept_entries
        A list that the caller sets, to which a press appends which KV-cache entries it keeps: for each layer a boolean
        tensor over the entries before the press, shape (Hkv key heads, entries), or (B, Hkv, entries) in a batch of B
        samples. None collects nothing.
    kept_shares
        For each sample, the share of (layer, head) pairs whose cache keeps each prompt position, shape (S,), padding
        included. None unless the method is an external press whose kept entries are known.
    redundancy
        For base: the mean cosine similarity of neighbouring audio tokens that enter the LLM, for each sample; at least
        0, and None without neighbours. None for other methods, and for encoder-decoders.
    entries
        Number of KV-cache entries that a press left: for each sample, a number for each layer, without fillers. None
        without a press.
    decode_hooks
        Handles of hooks that decode steps of transformers need; a static step (:mod:`.static_decode`) removes them.
    inputs
        The batch that replaces the caller's batch if the audio tower returns fewer audio tokens; None otherwise.
        Positions refer to the caller's batch.
    """

    kept_audio_tokens: tuple[int | None, ...]
    kept_positions: tuple[torch.Tensor, ...] | None = None
    kept_steps: tuple[tuple[int, tuple[torch.Tensor, ...]], ...] | None = None
    merges: tuple[Merge | None, ...] | None = None
    spans: list[tuple[Any, Any]] = field(default_factory=list)
    asides: list[tuple[Any, Any]] = field(default_factory=list)
    positions: Callable[[int, int], torch.Tensor] | None = None
    row_lengths: tuple[tuple[int, ...], ...] | None = None
    prompts: tuple[int, ...] | None = None
    expected_lengths: tuple[int, ...] | None = None
    kept_entries: list[torch.Tensor] | None = None
    kept_shares: tuple[torch.Tensor, ...] | None = None
    redundancy: tuple[float | None, ...] | None = None
    entries: tuple[tuple[int, ...], ...] | None = None
    decode_hooks: list[RemovableHandle] = field(default_factory=list)
    inputs: Inputs | None = None

    @contextmanager
    def scoring(self, clock: Clock) -> Iterator[None]:
        """Count the time of the `with` block as `scoring`: the time in which a method chooses what to keep."""
        start = clock.mark()
        yield
        self.spans.append((start, clock.mark()))

    @contextmanager
    def looking(self, clock: Clock) -> Iterator[None]:
        """Leave the time of the `with` block out of LLM prefill: the block runs during prefill, but only measures."""
        start = clock.mark()
        yield
        self.asides.append((start, clock.mark()))
