"""SnapKV: keep the KV-cache entries that the end of the prompt attends to, with scores smoothed over neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from audiomarathon.compression.press import Cached, KVPress

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class SnapKV(KVPress):
    """Score each KV-cache entry by the mean attention of the last `window` prompt positions, then pool along the
    prompt.

    Pooling averages each score with its neighbours' scores. The entries of the last positions always stay.

    Y. Li et al., "SnapKV: LLM Knows What You are Looking for Before Generation", arXiv 2404.14469, section 4.
    """

    key: ClassVar[str] = "snapkv"
    title: ClassVar[str] = "entries that the last 64 prompt positions attend to most, pooled"
    paper: ClassVar[str] = "2404.14469"

    window: int = 64
    kernel: int = 5

    def score(self, cached: Cached) -> torch.Tensor:
        """Return each KV-cache entry's score, shape (key heads, entries): pooled attention from the prompt's end."""
        import torch
        from torch.nn.functional import avg_pool1d

        groups, length = cached.key.shape[:2]
        window = min(self.window, length - 1)
        attention = cached.attention.of_last_queries(window)[0, :, :, : length - window].mean(1)  # (H, S − window)
        pooled = avg_pool1d(attention, self.kernel, stride=1, padding=self.kernel // 2)
        score = self.smoothed(pooled.reshape(groups, -1, length - window).mean(1), cached)
        return torch.nn.functional.pad(score, (0, window), value=torch.inf)

    def smoothed(self, score: torch.Tensor, cached: Cached) -> torch.Tensor:  # noqa: ARG002
        """Return the pooled scores, shape (Hkv, S − window), unchanged; a subclass may smooth them further."""
        return score
