"""Merge frame: average the audio tokens within each of k equal spans of time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from audiomarathon.compression.method import at_stride
from audiomarathon.compression.token_pruner import Evidence, TokenPruner
from audiomarathon.models.merge import Merge


@dataclass(frozen=True)
class MergeFrame(TokenPruner):
    """Average the audio tokens of each of k equal spans, at the positions that :class:`Frame` keeps.

    The only difference from :class:`Frame` is that the tokens between kept positions are averaged, not dropped.
    """

    key: ClassVar[str] = "merge_frame"
    title: ClassVar[str] = "averages of equal spans of audio tokens"
    in_steps: ClassVar[bool] = False

    def select(self, evidence: Evidence) -> Merge:
        """Return the rule that averages the audio tokens of each of k equal spans."""
        return Merge.average_from(at_stride(len(evidence.positions), evidence.n_keep), len(evidence.positions))
