"""Frame tasks: a clip has events in time, and a probe labels each frame of its embedding."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from audiomarathon.benchmarks.xares.task import EncoderTask
from audiomarathon.scoring.scorer import Scorer
from audiomarathon.scoring.segments import Segmented

Event = tuple[float, float, str]
"""Start and end in seconds, and the label."""


@dataclass(frozen=True, kw_only=True)
class FramedTask(EncoderTask):
    """A task whose clips' JSON is a list of events.

    Attributes
    ----------
    fields
        An event's fields: start, end, and its labels, joined by commas.
    average
        "macro" takes the mean of the labels' F1; "micro" counts all labels together.
    segment
        Seconds of a segment, in which a label counts once.
    until
        Only the first seconds of a clip, up to this time, have labels; 0 if the whole clip has.
    pos_weight
        Weight of active frames in X-ARES' loss.
    onset
        Tolerance of predicted onsets in seconds; 0 scores no onsets.
    unreleased
        Labels without a class in X-ARES.
    stated_hop
        Milliseconds between frames, as stated in a user's file; 0 if not stated.
    """

    fields: tuple[str, str, str]
    average: str
    segment: float
    until: float = 0.0
    pos_weight: float = 1.0
    onset: float = 0.0
    unreleased: frozenset[str] = frozenset()
    stated_hop: float = 0.0
    framed: ClassVar[bool] = True

    @property
    def scorer(self) -> Scorer:  # type: ignore[override]
        """F1 over segments."""
        return Segmented()

    @property
    def trained_as(self) -> tuple[str, str, str]:
        """See :attr:`EncoderTask.trained_as`: binary cross-entropy of every frame and label."""
        return "frame", "BCEWithLogitsLoss", f"segmentf1_{self.average}"

    def made_with(self, *, released: bool) -> dict[str, str]:
        """Return the segment settings of a user's task; nothing for tasks of X-ARES, whose settings are fixed."""
        weight = f", positive {self.pos_weight:g}" if released else ""
        return {"segments": f"{self.average}, {self.segment:g} s{weight}"} if self.made else {}

    def facts(self, meta: Any) -> tuple[Event, ...]:
        """Return the events."""
        start, end, label = self.fields
        found = [(float(one[start]), float(one[end]), name) for one in meta for name in str(one[label]).split(",")]
        if odd := [event for event in found if not 0 <= event[0] <= event[1] < math.inf]:
            raise ValueError(f"an event is {odd[0]}; allowed: 0 <= {start} <= {end} in seconds")
        return tuple(found)

    def _named(self, meta: Any) -> set[str]:
        return {label for _, _, label in self.facts(meta)}
