"""Expected attention: keep the KV-cache entries that future queries will probably attend to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from audiomarathon.compression.press import Cached, KVPress

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class ExpectedAttention(KVPress):
    """Score each KV-cache entry by the attention expected from future queries, times the norm of its value.

    A. Devoto et al., "Expected Attention: KV Cache Compression by Estimating Attention from Future Queries
    Distribution", arXiv 2510.00636, as NVIDIA's kvpress computes it. Queries before rotation are assumed to be
    Gaussian, and rotated by the mean rotation of the next positions. Then E[exp(q·k)] = exp(μ·k + kᵀΣk / 2). The first
    entries always stay.
    """

    key: ClassVar[str] = "expected_attention"
    title: ClassVar[str] = "entries that future queries are expected to attend to"
    paper: ClassVar[str] = "2510.00636"

    future: int = 512
    sinks: int = 4

    def score(self, cached: Cached) -> torch.Tensor:
        """Return each KV-cache entry's score, shape (key heads, entries): expected attention × norm of its value."""
        import torch

        groups, length, size = cached.key.shape
        query = _unrotated(cached.query.float(), *cached.rotation)[:, self.sinks :]  # (H, S − sinks, d)
        mean = query.mean(1)
        centred = query - mean[:, None]
        covariance = centred.transpose(1, 2) @ centred / query.shape[1]
        turn = _mean_rotation(*cached.future_rotation(self.future), size)
        mean, covariance = mean @ turn.T, turn @ covariance @ turn.T
        scaling = cached.attention.scaling
        key = cached.key.float()[:, self.sinks :].repeat_interleave(len(query) // groups, dim=0)  # (H, S − sinks, d)
        logits = (key @ mean[:, :, None])[..., 0] * scaling + ((key @ covariance) * key).sum(-1) * scaling**2 / 2
        expected = logits.softmax(-1).reshape(groups, -1, length - self.sinks).mean(1)
        score = expected * cached.value.float()[:, self.sinks :].norm(dim=-1)
        return torch.nn.functional.pad(score, (self.sinks, 0), value=torch.inf)


def _unrotated(query: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Return queries as they were before the rotary embedding, which rotated and scaled their first `cos.shape[-1]`
    dimensions.
    """
    import torch

    turned = cos.shape[-1]
    cos, sin = cos.float(), sin.float()
    rotated, rest = query[..., :turned], query[..., turned:]
    first, second = rotated.chunk(2, dim=-1)
    back = rotated * cos - torch.cat([-second, first], dim=-1) * sin
    return torch.cat([back / (cos.square() + sin.square()), rest], dim=-1)


def _mean_rotation(cos: torch.Tensor, sin: torch.Tensor, size: int) -> torch.Tensor:
    """Return the mean of the rotary embedding's rotations over the given positions, as a matrix of shape (size, size).

    Dimensions that are not rotated stay as they are.
    """
    import torch

    turned = cos.shape[-1]
    half = turned // 2
    cos, sin = cos.float().mean(0), sin.float().mean(0)
    swap = torch.zeros(turned, turned, device=cos.device)
    swap[half:, :half] = torch.eye(half, device=cos.device)
    swap[:half, half:] = -torch.eye(half, device=cos.device)
    turn = torch.eye(size, device=cos.device)
    turn[:turned, :turned] = cos[:, None] * torch.eye(turned, device=cos.device) + sin[:, None] * swap
    return turn
