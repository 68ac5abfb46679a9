"""Frame tasks: a clip contains events in time, and a probe predicts labels for each frame of its embedding."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from audiomarathon.wings.encoders.scoring.segments import Segmented
from audiomarathon.wings.encoders.xares.task import EncoderTask

Event = tuple[float, float, str]
"""An event: start and end in seconds, and the label."""


@dataclass(frozen=True, kw_only=True)
class FramedTask(EncoderTask):
    """A task whose clips' JSON is a list of events (start, end, label); probes predict the labels of each frame.

    Attributes
    ----------
    fields
        Names of an event's fields: start, end, and labels joined by commas.
    average
        "macro" takes the mean of the labels' F1; "micro" takes F1 of all labels' counts together.
    segment
        Length in seconds of the segments by which F1 is computed; within a segment, a label counts once.
    until
        Time in seconds up to which a clip is labelled; 0 if the whole clip is labelled.
    pos_weight
        Weight of active frames in X-ARES' loss.
    onset
        Largest error in seconds with which a predicted onset is right; if it is 0, onsets are not scored.
    unreleased
        Labels in the data that X-ARES' released code has no class for.
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
    kind: ClassVar[str] = "framed"
    framed: ClassVar[bool] = True
    scorer = Segmented()  # scored by F1 over segments

    def made_with(self, *, released: bool) -> dict[str, str]:
        """Return {"segments": how a user's task counts them}, a fact on which a probe's predictions depend.

        Return {} for a task of X-ARES itself, whose settings are fixed.
        """
        weight = f", positive {self.pos_weight:g}" if released else ""
        return {"segments": f"{self.average}, {self.segment:g} s{weight}"} if self.made else {}

    def facts(self, meta: Any) -> tuple[Event, ...]:
        """Return (start, end, label) of each event of a clip, from its JSON, in seconds.

        An event with several labels becomes an event for each label.
        """
        start, end, label = self.fields
        events = [
            (float(event[start]), float(event[end]), name) for event in meta for name in str(event[label]).split(",")
        ]
        if odd := [event for event in events if not 0 <= event[0] <= event[1] < math.inf]:
            raise ValueError(f"an event is {odd[0]}; allowed: 0 <= {start} <= {end} in seconds")
        return tuple(events)

    def _named(self, meta: Any) -> set[str]:
        return {label for _, _, label in self.facts(meta)}
