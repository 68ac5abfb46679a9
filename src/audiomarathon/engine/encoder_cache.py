"""Encoder output computed once and shared by every setting, and by neighbouring samples of one clip."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from audiomarathon.models.shadowing import shadowed

if TYPE_CHECKING:
    from audiomarathon.benchmarks.task import Sample
    from audiomarathon.models.audio_lm import AudioLM
    from audiomarathon.models.generation import Generation


@dataclass
class Tower:
    """What the audio tower last made, of which batch, and the call that ran it: its time and memory count.

    Samples of one bundle that ask about the same clip share the output, as the eight prompts of a clip of JASCO do.
    """

    heard: Sequence[tuple[str, tuple[Path, ...]]] = ()
    output: list[Any] = field(default_factory=list)
    ran_in: Generation | None = None

    def turn_to(self, samples: Sequence[Sample]) -> None:
        """Forget the output unless it is of the same clips."""
        heard = [(sample.bundle or f"alone: {sample.id}", sample.clips) for sample in samples]
        if heard != self.heard:
            self.clear()
            self.heard = heard

    def clear(self) -> None:
        """Forget the output: the next call runs the tower again."""
        self.output.clear()
        self.ran_in = None


@contextmanager
def encoder_shared(lm: AudioLM, tower: Tower | None = None) -> Iterator[Tower]:
    """Run the audio tower at the first call inside the block and answer the further ones from memory.

    Every `generate` inside the block must be given the same audio. The memo shadows the instance's `forward` (the
    model still gets `input_ids`, so that nothing else about the call differs), and is gone when the block ends.

    Parameters
    ----------
    tower
        Outlives the block, so that a later block on the same clips goes on with its output.
    """
    kept = tower or Tower()
    forward = lm.audio_tower.forward

    def once(*args: Any, **kwargs: Any) -> Any:
        if not kept.output:
            kept.output.append(forward(*args, **kwargs))
        return kept.output[0]

    with shadowed(lm.audio_tower, "forward", once):
        try:
            yield kept
        finally:
            if tower is None:
                kept.clear()
