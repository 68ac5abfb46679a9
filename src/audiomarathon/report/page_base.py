"""Each setting of a report beside base: by how much its score differs, how much sooner its first token comes, or why
neither can be said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from audiomarathon.errors import AudioMarathonError
from audiomarathon.report.lines import method_and_ratio
from audiomarathon.results.savings import STAGES
from audiomarathon.results.shared import Shared
from audiomarathon.results.systems import Side


@dataclass(frozen=True)
class Beside:
    """A setting beside base, on the samples of one task that both answered, or of several tasks.

    Attributes
    ----------
    difference
        Of the headline scores; of several tasks the mean.
    sooner
        Of each sample whose times can be set side by side, base's time to first token ÷ the setting's.
    why, untimed
        Why there is no difference, or no `sooner`; "" where there is.
    """

    difference: float | None
    samples: int
    sooner: tuple[float, ...]
    why: str = ""
    untimed: str = ""

    @classmethod
    def of(cls, side: Side, base: Side | None, task: str) -> Beside:
        """Pair a setting with base on one task."""
        if base is None or task not in base.runs:
            return cls(None, 0, (), why := f"{task}: base was not run under the same conditions", why)
        try:
            shared = Shared.of(side, base, task)
        except AudioMarathonError as error:
            return cls(None, 0, (), f"{task}: {error}", f"{task}: {error}")
        own, other = shared.pair.scores
        found = own - other if np.isfinite(own - other) else None
        of = STAGES["first_token"]
        times = [(of(base_record), of(own_record)) for base_record, own_record in shared.timed]
        sooner = tuple(before / after for before, after in times if before and after)
        untimed = "" if sooner else f"{task}: {shared.untimed or 'untimed runs'}"
        return cls(found, len(shared.pairs), sooner, "" if found is not None else f"{task}: no score", untimed)

    @classmethod
    def over(cls, tasks: Sequence[Beside]) -> Beside:
        """Return several tasks' in one; what one of them cannot say, they cannot together."""
        differences = [one.difference for one in tasks if one.difference is not None]
        why, untimed = (
            "; ".join(filter(None, texts)) for texts in zip(*((t.why, t.untimed) for t in tasks), strict=True)
        )
        mean = None if why else float(np.mean(differences))
        sooner = () if untimed else tuple(value for one in tasks for value in one.sooner)
        return cls(mean, sum(one.samples for one in tasks), sooner, why, untimed)

    def as_json(self) -> dict[str, Any]:
        """Return what the page reads: `sooner` is the median."""
        sooner = float(np.median(self.sooner)) if self.sooner else None
        return {
            "difference": self.difference,
            "shared": self.samples,
            "sooner": sooner,
            "timed": len(self.sooner),
            "why": self.why,
            "untimed": self.untimed,
        }


def bases_of(sides: Sequence[Side]) -> list[int | None]:
    """Return for each setting the place of its base: of the same checkpoint and control, under the same marks."""
    places = {
        (side.checkpoint, side.control, side.marks): index
        for index, side in enumerate(sides)
        if method_and_ratio(identity_of(side))[0] == "base"
    }
    return [places.get((side.checkpoint, side.control, side.marks)) for side in sides]


def identity_of(side: Side) -> dict[str, Any]:
    """Return what a setting's first run says of its identity."""
    return dict(next(iter(side.runs.values())).facts.get("identity") or {})
