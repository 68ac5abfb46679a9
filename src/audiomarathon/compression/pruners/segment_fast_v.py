"""FastV within time segments, so that attention's bias towards the end of the audio matters less."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from audiomarathon.compression.pruners.fast_v import attention_received
from audiomarathon.compression.token_pruner import Evidence, TokenPruner

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class SegmentFastV(TokenPruner):
    """Cut the audio into equal time segments; in each, keep the tokens with FastV's highest scores.

    Compare arXiv 2511.14293. Each segment's number of tokens to keep is rounded by the largest-remainder method, so
    that the numbers sum to k; ties go to the earlier segment.
    """

    key: ClassVar[str] = "segment_fast_v"
    title: ClassVar[str] = "fast_v's score, within equal time segments"
    paper: ClassVar[str] = "2511.14293"
    needs: ClassVar[str] = "K ≥ 1, full attention in layer K − 1"
    scored: ClassVar[bool] = True
    ranks_by_attention: ClassVar[bool] = True

    segments: int = 10

    def select(self, evidence: Evidence) -> torch.Tensor:
        """Return the indices of the audio tokens with FastV's highest scores in each segment."""
        import torch

        score = attention_received(evidence)
        total, chosen, start = len(score), [], 0
        for index, share in enumerate(shares(total, evidence.n_keep, self.segments)):
            end = total * (index + 1) // self.segments
            chosen.append(start + score[start:end].topk(share).indices)
            start = end
        return torch.cat(chosen)


def shares(total: int, budget: int, segments: int) -> list[int]:
    """Cut `total` tokens into equal segments; return how many tokens each segment keeps, `budget` in all.

    The numbers are proportional to the segments' sizes, and rounded by the largest-remainder method.
    """
    sizes = [total * (i + 1) // segments - total * i // segments for i in range(segments)]
    whole = [size * budget // total for size in sizes]
    by_remainder = sorted(range(segments), key=lambda i: (-(sizes[i] * budget % total), i))
    for index in by_remainder[: budget - sum(whole)]:
        whole[index] += 1
    return whole
