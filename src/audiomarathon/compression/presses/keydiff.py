"""KeyDiff: keep the KV-cache entries whose keys differ most from the mean key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from audiomarathon.compression.press import Cached, KVPress

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class KeyDiff(KVPress):
    """Score each KV-cache entry by −cosine(key, mean of the normalised keys).

    J. Park et al., "KeyDiff: Key Similarity-Based KV Cache Eviction for Long-Context LLM Inference", arXiv 2504.15364.
    """

    key: ClassVar[str] = "keydiff"
    title: ClassVar[str] = "entries whose keys are least like the mean key"
    paper: ClassVar[str] = "2504.15364"

    def score(self, cached: Cached) -> torch.Tensor:
        """Return each KV-cache entry's score, shape (key heads, entries): how its key differs from the mean key."""
        from torch.nn.functional import cosine_similarity, normalize

        keys = cached.key.float()
        mean = normalize(keys, dim=-1).mean(dim=1, keepdim=True)
        return -cosine_similarity(keys, mean, dim=-1)
