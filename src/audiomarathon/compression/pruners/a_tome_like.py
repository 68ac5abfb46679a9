"""A-ToMe's schedule, without its training: merge neighbours with similar keys, a share in each of several layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from audiomarathon.compression.pruners.merge_adjacent import MergeAdjacent


@dataclass(frozen=True)
class ATomeLike(MergeAdjacent):
    """Average the neighbouring states of the audio tower whose keys are most alike, step by step in several layers.

    Y. Li et al., "Accelerating Transducers through Adjacent Token Merging", arXiv 2306.16009, with its fixed merge
    ratio: each of several modules merges the same share of the states that it sees. Here up to `modules` layers,
    evenly spread from the tower's layer L on, each remove the fraction 1 − (1 − ratio)^(1/modules) of their states.

    Differences from A-ToMe:

    - The model is not trained for it.
    - Exactly k states remain in each window of the tower. The paper's other choice, a similarity threshold, is not
      offered.
    - The keys are those of the layer that the states enter, and are computed only for this choice. A-ToMe merges inside
      a layer, after its attention, by the keys of that attention.
    - A run of similar neighbours of any length becomes one state in a step, as in :class:`MergeAdjacent`. An average of
      averages weighs each part equally, however many states it stands for.
    - The layers are our choice, and states of padding are dropped at a uniform stride, by the same share.
    """

    key: ClassVar[str] = "a_tome_like"
    title: ClassVar[str] = "neighbours with alike keys averaged in several layers of the tower"
    needs: ClassVar[str] = "a tower of Whisper's kind"
    saves: ClassVar[str] = "later layers of the audio tower, LLM prefill, KV cache, decode"
    sees_keys: ClassVar[bool] = True
    places: ClassVar[tuple[str, ...]] = ("tower",)
    in_steps: ClassVar[bool] = False

    at: str = "tower"
    modules: int = 4

    def steps(self, depth: int) -> Sequence[tuple[int, float]]:
        """Return a pair for each layer of the tower that merges: (layer, share of all merges that are done by then)."""
        first = self.in_tower(depth)
        count = max(1, min(self.modules, depth - first))
        gone = [(1 - (1 - self.ratio) ** (nth / count)) / self.ratio for nth in range(1, count + 1)]
        return [(first + nth * (depth - first) // count, share) for nth, share in enumerate(gone)]
