"""Run the audio encoder once per sample: every setting, and the next sample of the same clip, reuse its output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from audiomarathon.benchmarks.task import Sample
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.generation import Generation
from audiomarathon.models.loading import patched_attribute


@dataclass
class Tower:
    """The audio tower's last output, its batch, and the call that ran the tower, whose time and memory are recorded.

    Samples of one bundle with the same clip share the output, such as the eight prompts of a JASCO clip.
    """

    heard: Sequence[tuple[str, tuple[Path, ...]]] = ()
    output: list[Any] = field(default_factory=list)
    ran_in: Generation | None = None

    def turn_to(self, samples: Sequence[Sample]) -> None:
        """Forget the output unless the batch has the same clips."""
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
    """Run the audio tower at the first call inside the block, and return its output again at later calls.

    Every `generate` inside the block must get the same audio. Only the instance's `forward` is replaced, until the
    block ends; the model still gets `input_ids`, so the call is the same otherwise.

    Parameters
    ----------
    tower
        Keeps the output beyond the block, for a later block on the same clips.
    """
    kept = tower or Tower()
    forward = lm.audio_tower.forward

    def once(*args: Any, **kwargs: Any) -> Any:
        if not kept.output:
            kept.output.append(forward(*args, **kwargs))
        return kept.output[0]

    with patched_attribute(lm.audio_tower, "forward", once):
        try:
            yield kept
        finally:
            if tower is None:
                kept.clear()
