"""Score grades (numbers such as a rating) that a probe predicts for a clip: Pearson's r, and mean squared error."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from audiomarathon.records import Figure, Record, Verdict
from audiomarathon.scoring.scorer import Scorer, clusters_of

if TYPE_CHECKING:
    from audiomarathon.metrics.statistics import Floats, Sums


def grades_to_reply(predicted: Sequence[float]) -> str:
    """Write a probe's predicted grades of a clip as the text of a reply: a JSON list, in the reference's order."""
    return json.dumps([round(float(grade), 6) for grade in predicted])


class Graded(Scorer):
    """Score predicted grades (numbers) by Pearson's r of the first grade with the truth; a negative r gives 0.

    Pearson's r and the mean squared error of every grade are further figures.

    Errors are measured in standard deviations of the training clips' grades, so that grades of different scales can be
    compared: always predicting the training mean has a mean squared error of about 1.
    """

    key = "grades"
    figure = Figure("pearson", "Pearson r")
    needs = ("answer", "grades", "values", "spreads")
    modules = ("audiomarathon.wings.encoders.metrics.correlation",)

    def judge(self, record: Record) -> dict[str, Any]:
        """Return {"predicted": a clip's predicted grades, "errors": their errors}, two lists in the reference's order.

        Errors are in standard deviations of the training clips' grades.
        """
        predicted = json.loads(record.text)
        values, spreads = record.reference["values"], record.reference["spreads"]
        if not isinstance(predicted, list) or len(predicted) != len(values):
            raise ValueError(f"its reply is not a JSON list of {len(values)} grades")
        errors = [(grade - value) / spread for grade, value, spread in zip(predicted, values, spreads, strict=True)]
        return {"predicted": predicted, "errors": errors}

    def sums(self, verdicts: Sequence[Verdict]) -> Sums:
        """Return the sums over clips from which the scores and their intervals are computed, as :class:`Sums`.

        The scores are the headline score, and Pearson's r and the mean squared error of each grade.
        """
        import numpy as np

        from audiomarathon.metrics.statistics import Sums
        from audiomarathon.wings.encoders.metrics.correlation import moment_columns, pearson

        names = verdicts[0].record.reference["grades"]
        predicted, errors = (np.array([verdict.values[key] for verdict in verdicts]) for key in ("predicted", "errors"))
        true = np.array([verdict.record.reference["values"] for verdict in verdicts], dtype=np.float64)
        columns = np.concatenate([moment_columns(predicted, true), np.square(errors)[..., None]], axis=-1)

        def statistic(totals: Floats) -> Floats:
            each = totals.reshape(len(totals), len(names), 7)
            r = pearson(each[..., :6])
            return np.concatenate([r[:, :1].clip(0), r, each[..., 6] / each[..., 0]], axis=1)

        figures = (self.figure.name, *(f"r_{name}" for name in names), *(f"mse_{name}" for name in names))
        ends = {self.figure.name: (0.0, 1.0)}
        return Sums(figures, columns.reshape(len(verdicts), -1), statistic, clusters_of(verdicts), ends)

    def own_score(self, verdict: Verdict) -> float:
        """Return how close a clip's first grade is to the truth: 1 if exact, 0 from one standard deviation on."""
        return max(0.0, 1 - abs(float(verdict.values["errors"][0])))

    def shown(self, verdict: Verdict) -> str:
        """Return a text with the clip's first grade, predicted and true, such as `quality 3.1, true 4`."""
        reference = verdict.record.reference
        return f"{reference['grades'][0]} {verdict.values['predicted'][0]:.1f}, true {reference['values'][0]:g}"
