"""Encoder output computed once and shared by every setting that looks at the same sample."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from audiomarathon.models.shadowing import shadowed

if TYPE_CHECKING:
    from audiomarathon.models.audio_lm import AudioLM


@contextmanager
def encoder_shared(lm: AudioLM) -> Iterator[list[Any]]:
    """Run the audio tower at the first call inside the block and answer the further ones from memory.

    Every `generate` inside the block must be given the same inputs. The memo shadows the instance's `forward` (the
    model still gets `input_ids`, so that nothing else about the call differs), and is gone when the block ends. What
    the block gets is the memory: cleared, the next call runs the tower again.
    """
    tower = lm.audio_tower
    forward = tower.forward
    memory: list[Any] = []

    def once(*args: Any, **kwargs: Any) -> Any:
        if not memory:
            memory.append(forward(*args, **kwargs))
        return memory[0]

    with shadowed(tower, "forward", once):
        try:
            yield memory
        finally:
            memory.clear()
