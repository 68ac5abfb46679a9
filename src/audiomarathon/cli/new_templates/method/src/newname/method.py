"""Keep the audio tokens whose hidden states have the largest norm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from audiomarathon.compression.token_pruner import Evidence, TokenPruner


@dataclass(frozen=True)
class NewName(TokenPruner):
    """Keep the tokens with the largest norm. Fields are settings, and part of a run's identity.

    A method that drops KV-cache entries derives from `audiomarathon.compression.press.KVPress`, any other from
    `Method`.
    """

    key: ClassVar[str] = "newname"
    title: ClassVar[str] = "audio tokens with the largest norm"
    scored: ClassVar[bool] = True  # ask for the hidden states that enter the layer

    power: float = 2.0

    def select(self, evidence: Evidence) -> torch.Tensor:
        """Return the indices of the `n_keep` kept tokens among the N audio tokens, shape (n_keep,), in any order."""
        audio = evidence.seen.entering[evidence.positions.to(evidence.seen.entering.device)]  # (N, D)
        norms = torch.linalg.vector_norm(audio.float(), ord=self.power, dim=-1)
        return norms.topk(evidence.n_keep).indices
