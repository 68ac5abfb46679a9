"""Grade tasks: a clip has numbers (grades, such as a rating) instead of a label, and a probe predicts them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from audiomarathon.wings.encoders.scoring.grades import Graded
from audiomarathon.wings.encoders.xares.task import EncoderTask


@dataclass(frozen=True, kw_only=True)
class GradedTask(EncoderTask):
    """A task whose clips have grades (numbers such as ratings) instead of labels.

    Attributes
    ----------
    grades
        JSON fields with the grades; the first decides the score, and every clip must have it.
    """

    grades: tuple[str, ...]
    kind: ClassVar[str] = "graded"
    scorer = Graded()  # scored by Pearson's r of the first grade

    @property
    def lacking(self) -> str:
        """Why X-ARES' probes are not run here: their loss compares each prediction with every grade of the batch."""
        reason = "its loss compares each prediction with every grade of the batch, so these probes cannot learn"
        return super().lacking or reason

    def facts(self, meta: Any) -> tuple[float, ...]:
        """Return a clip's grades as numbers, from its JSON, in the order of `grades`; NaN for a missing grade.

        Raises
        ------
        ValueError
            The first grade is missing, or a grade is infinite.
        """
        grades = tuple(float(meta.get(name, math.nan)) for name in self.grades)
        if not math.isfinite(grades[0]) or any(map(math.isinf, grades)):
            raise ValueError(
                f"{', '.join(self.grades)} are {grades}; allowed: numbers ({self.grades[0]} in every clip)"
            )
        return grades
