"""StreamingLLM: keep the first KV-cache entries (attention sinks) and the most recent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from audiomarathon.compression.press import Cached, KVPress

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class StreamingLLM(KVPress):
    """Of the KV-cache entries that may be removed, keep the first few (attention sinks) and the most recent.

    G. Xiao et al., "Efficient Streaming Language Models with Attention Sinks", arXiv 2309.17453, section 3.2.
    """

    key: ClassVar[str] = "streaming_llm"
    title: ClassVar[str] = "the first 4 audio entries and the most recent"
    paper: ClassVar[str] = "2309.17453"

    sinks: int = 4

    def score(self, cached: Cached) -> torch.Tensor:
        """Return each KV-cache entry's score, shape (key heads, entries): its position; infinity for the first few."""
        import torch

        heads, length = cached.key.shape[:2]
        recency = torch.arange(length, dtype=torch.float32, device=cached.key.device)
        recency.index_fill_(0, cached.candidates[: self.sinks], torch.inf)
        return recency.expand(heads, -1)
