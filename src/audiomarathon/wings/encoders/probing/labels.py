"""Run the probes of tasks whose clips have labels, one or several each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from scipy.special import softmax

from audiomarathon.wings.encoders.probing import linear_and_knn, published_probes
from audiomarathon.wings.encoders.probing.clips import Clips, Predictions, Split
from audiomarathon.wings.encoders.probing.probe_input import PUBLISHED, Predicted, Problem, targets_of
from audiomarathon.wings.encoders.scoring.probe import labels_to_reply, scores_to_reply

_PROBES: Mapping[str, Callable[[Clips, Sequence[Split]], Predictions]] = {
    "linear": linear_and_knn.linear_probe,
    "knn": linear_and_knn.knn,
    "knn-centred": partial(linear_and_knn.knn, centred=True),
    PUBLISHED[1]: published_probes.knn,
}


def predict_labels(problem: Problem) -> list[Predicted]:
    """Predict each test clip's label (in multi-label tasks, a score for each label) with the chosen probe.

    Return (clip, reply's text with the prediction, reference with the true labels) for each test clip.
    """
    encoded, clips, splits = problem.encoded, problem.clips, problem.splits
    task, labels = encoded.task, encoded.data.classes
    given = Clips(problem.embeddings, targets_of(task, encoded.data, clips), problem.parts)
    last: list[list[str]] = []
    if problem.setting == PUBLISHED[0]:
        recipe = task.recipe
        trained = published_probes.linear_probe(
            given, splits, epochs=recipe.epochs, batch=recipe.batch, lr=recipe.lr, seeds=problem.seeds
        )
        rows, scores = trained.rows, softmax(trained.logits, axis=-1) if not task.multi_label else trained.logits
        last = [[labels[index] for index in row] for row in trained.last_logits.argmax(axis=-1).T]
    else:
        probe = encoded.probes.get(problem.setting)
        predictions = (probe or _PROBES[problem.setting])(given, splits)
        rows, scores = predictions.rows, predictions.scores[None]
        scores = softmax(scores, axis=-1) if (probe or problem.setting == "linear") and not task.multi_label else scores
    by_clip, tested = scores.swapaxes(0, 1), [clips[row] for row in rows]
    places = {label: place for place, label in enumerate(labels)}
    known: list[dict[str, Any]] = [{"answer": "; ".join(clip.labels), "classes": len(places)} for clip in tested]
    if task.multi_label:
        replies = [scores_to_reply(clip_scores) for clip_scores in by_clip]
        known = [
            reference | {"positives": [places[label] for label in clip.labels]}
            for reference, clip in zip(known, tested, strict=True)
        ]
    else:
        best = [[(labels[seed.argmax()], float(seed.max())) for seed in clip_scores] for clip_scores in by_clip]
        replies = [labels_to_reply(*pair) for pair in zip(best, last or [[] for _ in best], strict=True)]
    return [*zip(tested, replies, known, strict=True)]
