"""TOVA: keep the KV-cache entries that the last prompt token attends to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from audiomarathon.compression.press import Cached, KVPress

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Tova(KVPress):
    """Score each KV-cache entry by the attention of the last query, mean over heads; the last entry always stays.

    M. Oren et al., "Transformers are Multi-State RNNs", arXiv 2401.06104, section 4.
    """

    key: ClassVar[str] = "tova"
    title: ClassVar[str] = "entries that the last prompt token attends to most"
    paper: ClassVar[str] = "2401.06104"

    def score(self, cached: Cached) -> torch.Tensor:
        """Return each KV-cache entry's score, shape (key heads, entries): its attention from the last prompt token."""
        import torch

        score = cached.attention.of_last_queries()[0, :, 0].mean(0)
        score[-1:].fill_(torch.inf)  # a slice, since a plain index would copy the number to the GPU
        return score.expand(len(cached.key), -1)
