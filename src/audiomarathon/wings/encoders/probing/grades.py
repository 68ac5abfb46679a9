"""Predict grades (numbers that a task has for each clip) by ridge regression, with a penalty chosen by validation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from audiomarathon.metrics.statistics import Floats
from audiomarathon.wings.encoders.metrics.correlation import moment_columns, pearson
from audiomarathon.wings.encoders.probing.clips import Integers, Split
from audiomarathon.wings.encoders.probing.linear_and_knn import RIDGE_PENALTIES, moments, ridge, standardised
from audiomarathon.wings.encoders.probing.probe_input import Predicted, Problem
from audiomarathon.wings.encoders.scoring.grades import grades_to_reply
from audiomarathon.wings.encoders.xares.graded import GradedTask


@dataclass(frozen=True)
class PredictedGrades:
    """Predicted grades of the test clips of all splits.

    Attributes
    ----------
    rows
        For each prediction: the row number of its clip in the embeddings, shape (clips,).
    values, spreads
        The predicted grades; and the standard deviation of the true grades in the parts on which the probe was fitted
        (1 if they do not vary). Both have the shape (clips, grades).
    """

    rows: Integers
    values: Floats
    spreads: Floats


def grade_probe(
    embeddings: Floats, grades: Floats, parts: npt.NDArray[np.str_], splits: Sequence[Split]
) -> PredictedGrades:
    """For each split: fit ridge on train, choose the penalty on valid, refit on both, and predict the test clips.

    The penalty with the highest Pearson's r of the first grade wins; among equals, the largest. Grades need no z-scores
    here: ridge with an unpenalised bias predicts the same in any unit.
    """
    inputs = standardised(embeddings)
    rows, values, spreads = [], [], []
    for split in splits:
        train, valid, test = (np.flatnonzero(np.isin(parts, part)) for part in (split.train, split.valid, split.test))
        sums = moments(inputs[train], grades[train], grades.shape[1])
        heads = ridge(sums, RIDGE_PENALTIES)
        correlations = [
            pearson(moment_columns(head(inputs[valid])[:, 0], grades[valid, 0]).sum(axis=0)) for head in heads
        ]
        penalty = max(zip(np.nan_to_num(correlations).tolist(), RIDGE_PENALTIES, strict=True))[1]
        (head,) = ridge(sums + moments(inputs[valid], grades[valid], grades.shape[1]), [penalty])
        known = grades[np.concatenate([train, valid])].std(axis=0)
        rows.append(test)
        values.append(head(inputs[test]))
        spreads.append(np.tile(np.where(known > 0, known, 1.0), (len(test), 1)))
    return PredictedGrades(np.concatenate(rows), np.concatenate(values), np.concatenate(spreads))


def predict_grades(problem: Problem) -> list[Predicted]:
    """Predict the grades of each test clip, and return (clip, reply's text, reference) for each.

    A grade that any clip of the task lacks is left out for all clips.
    """
    task, clips = problem.encoded.task, problem.clips
    assert isinstance(task, GradedTask)
    grades = np.array([clip.facts for clip in clips])
    whole = np.flatnonzero(~np.isnan(grades).any(axis=0))
    names = [task.grades[place] for place in whole]
    predictions = grade_probe(problem.embeddings, grades[:, whole], problem.parts, problem.splits)
    predicted: list[Predicted] = []
    for row, values, spreads in zip(predictions.rows, predictions.values, predictions.spreads, strict=True):
        true = grades[row, whole].tolist()
        said = ", ".join(f"{name} {value:g}" for name, value in zip(names, true, strict=True))
        known = {"answer": said, "grades": names, "values": true, "spreads": spreads.tolist()}
        predicted.append((clips[row], grades_to_reply(values), known))
    return predicted
