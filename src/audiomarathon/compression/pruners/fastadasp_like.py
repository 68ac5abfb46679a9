"""FastAdaSP's weighted merge (EMNLP 2024): neighbours with similar keys, averaged by the attention they receive."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from audiomarathon.compression.pruners.merge_adjacent import starts_of_runs
from audiomarathon.compression.token_pruner import Evidence, TokenPruner
from audiomarathon.models.merge import Merge


@dataclass(frozen=True)
class FastAdaSPLike(TokenPruner):
    """Join the N − k pairs of neighbours with the most similar keys; weigh each token by the attention it receives.

    N is the number of audio tokens, k the number to keep. Y. Lu et al., "FastAdaSP: Multitask-Adapted Efficient
    Inference for Large Speech Language Model", arXiv 2410.03007, and its public code for Qwen-Audio. Similarity is the
    cosine of two neighbours' keys, all heads joined. A token's weight w is the sum over heads and queries of the
    attention that it receives, and a run of joined neighbours becomes Σ w·h / Σ w. This is the paper's step in one
    layer. We leave out the choice of that layer by transfer entropy, which needs labelled data of the task, and the
    schedules for dense tasks, which merge again in later layers. The paper's code differs: it merges between layer K's
    attention and its feed-forward part; here states are merged before layer K, by keys and attention of layer K − 1,
    and k is exact.
    """

    key: ClassVar[str] = "fastadasp_like"
    title: ClassVar[str] = "neighbours with similar keys averaged by the attention they receive"
    paper: ClassVar[str] = "2410.03007"
    needs: ClassVar[str] = "K ≥ 1, full attention in layer K − 1"
    scored: ClassVar[bool] = True
    ranks_by_attention: ClassVar[bool] = True
    in_steps: ClassVar[bool] = False

    def select(self, evidence: Evidence) -> Merge:
        """Return the rule that merges neighbouring audio tokens with similar keys into k groups."""
        import torch

        positions, seen = evidence.positions, evidence.seen
        keys = seen.key[:, positions].float().transpose(0, 1).flatten(1)  # (N, Hkv · d)
        starts = starts_of_runs(keys, positions, evidence.n_keep)
        runs, weight = Merge.average_from(starts, len(positions)), seen.received(positions)
        total = torch.zeros_like(weight[: len(starts)]).index_add_(0, runs.group, weight)
        return replace(runs, weight=weight / total[runs.group])
