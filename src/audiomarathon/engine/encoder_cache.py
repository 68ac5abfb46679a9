"""Run the audio encoder once per sample: every setting, and the next sample about the same clip, reuse its output."""

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
    """The audio tower's last output, the clips that it was computed from, and the `generate` call in which the tower
    ran.

    Records take the tower's time and memory from that call. Samples about the same clip share the output only if they
    belong to one bundle (samples that always run together), such as the eight prompts about one JASCO clip.
    """

    heard: Sequence[tuple[str, tuple[Path, ...]]] = ()
    output: list[Any] = field(default_factory=list)
    ran_in: Generation | None = None

    def turn_to(self, samples: Sequence[Sample]) -> None:
        """Prepare for the next batch of samples: keep the tower's output only if it was computed from these samples'
        clips.
        """
        heard = [(sample.bundle or f"alone: {sample.id}", sample.clips) for sample in samples]
        if heard != self.heard:
            self.clear()
            self.heard = heard

    def clear(self) -> None:
        """Forget the tower's output, so that the next call runs the tower again."""
        self.output.clear()
        self.ran_in = None


@contextmanager
def encoder_shared(lm: AudioLM, tower: Tower | None = None) -> Iterator[Tower]:
    """Run the audio tower in the first `generate` call inside the `with` block, and reuse its output in later calls.

    Yield the object that keeps the output. Every call inside the `with` block must get the same audio. A method that
    changes the tower always runs the tower itself. Only the `forward` of this tower is replaced, until the `with` block
    ends. All other parts of a call are unchanged.

    Parameters
    ----------
    tower
        Object that keeps the output after the `with` block ends, for a later `with` block on the same clips; None keeps
        nothing.
    """
    kept = tower or Tower()
    forward = lm.audio_tower.forward

    def once(*args: Any, **kwargs: Any) -> Any:
        if not lm.shares_tower:
            return forward(*args, **kwargs)
        if not kept.output:
            kept.output.append(forward(*args, **kwargs))
        return kept.output[0]

    with patched_attribute(lm.audio_tower, "forward", once):
        try:
            yield kept
        finally:
            if tower is None:
                kept.clear()
