"""Tasks of frames: a clip has events in time, and a probe labels each frame of its embedding."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from audiomarathon.benchmarks.xares.task import EncoderTask, LabelRule
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
        Seconds in which a label counts once.
    until
        Seconds that labels reach; 0 for the whole clip.
    pos_weight
        Weight of active frames in X-ARES' loss.
    onset
        Seconds that a predicted onset may be off; 0 scores no onsets.
    unreleased
        Labels that X-ARES has no class for.
    stated_hop
        Milliseconds from frame to frame as a user's file states them; 0 for no statement.
    """

    fields: tuple[str, str, str]
    average: str
    segment: float
    until: float = 0.0
    pos_weight: float = 1.0
    onset: float = 0.0
    unreleased: frozenset[str] = frozenset()
    stated_hop: float = 0.0
    label: str | LabelRule = ""

    @property
    def scorer(self) -> Scorer:  # type: ignore[override]
        """F1 over segments."""
        return Segmented()

    @property
    def one_label(self) -> bool:
        """Frames have any number of labels."""
        return False

    @property
    def framed(self) -> bool:
        """Frames are what is labelled."""
        return True

    @property
    def trained_as(self) -> tuple[str, str, str]:
        """Binary cross-entropy of every frame and label."""
        return "frame", "BCEWithLogitsLoss", f"segmentf1_{self.average}"

    def made_with(self, *, released: bool) -> dict[str, str]:
        """Return what a user's file says of segments; X-ARES' own tasks do not change theirs."""
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
