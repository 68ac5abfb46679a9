"""Make tables of encoders' scores: per probe (ours and X-ARES'), per task, and beside X-ARES' published scores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from audiomarathon.metrics.statistics import Estimate, mean_over
from audiomarathon.report.render import Kind, Table, estimated
from audiomarathon.wings.encoders.probing.probe_input import PUBLISHED, STANDARD
from audiomarathon.wings.encoders.results.scores import Score, mean_scores
from audiomarathon.wings.encoders.xares.published import ENCODERS, STATED, published, published_mean, weight

_HEADINGS = {
    "linear": "linear",
    "knn": "kNN",
    "knn-centred": "kNN, centred",
    PUBLISHED[0]: "X-ARES MLP (± sd)",
    PUBLISHED[1]: "X-ARES kNN",
}
_KINDS = {
    "encoder": Kind(left=True),
    **{probe: Kind(heading, ".3f") for probe, heading in _HEADINGS.items()},
    "majority": Kind("majority", ".3f"),
}


def encoder_scores(scores: Sequence[Score]) -> Table:
    """Make a table of each encoder's scores, one column per probe; its rows are tasks, then means over tasks."""
    rows = []
    for score in sorted(
        [*scores, *mean_scores(scores)], key=lambda task_score: task_score.encoder
    ):  # stable: tasks, then means
        row: dict[str, object] = {"encoder": score.encoder, "task": score.task}
        for probe, estimate in score.by_probe.items():
            row |= {probe: estimate.value} if probe in PUBLISHED else estimated(probe, estimate)
            if score.sd is not None and probe == PUBLISHED[0]:
                row[f"{probe}_said"] = f"± {score.sd:.3f}"
        rows.append(row | {"majority": score.majority, "n": score.n or None})
    shown = ["encoder", "task", *(name for name in _HEADINGS if any(name in row for row in rows)), "majority", "n"]
    least = ("n", "majority", "knn-centred")
    return Table.of(rows, shown, title="Encoders", group="encoder", kinds=_KINDS, least=least, notes=notes_of(scores))


def notes_of(scores: Sequence[Score]) -> tuple[str, ...]:
    """Return notes for a table of encoders' scores: what columns mean, and on which tasks scores cannot be compared."""
    standard = "linear, kNN: our scores, with 95 % intervals over test clips; trust these"
    figures = "a task's figure: accuracy, mAP, Pearson r, segment F1, R@1 (clotho) or 1 - WER (librispeech)"
    released = "X-ARES: its released probes with their faults, mean over folds; compare only with its published tables"
    majority = "majority: always the most frequent label"
    clips: dict[str, set[str]] = {}
    for score in scores:
        clips.setdefault(score.task, set()).add(score.data)
    apart = [task for task, datasets in clips.items() if len(datasets) > 1]
    other = [
        f"{task_score.task}: X-ARES' columns use {task_score.released_n:,} items"
        for task_score in scores
        if _other_clips(task_score)
    ]
    differ = [f"{', '.join(apart)}: rows use different clips, so their scores cannot be compared"] * bool(apart)
    return (standard, figures, released, majority, *dict.fromkeys(other), *differ)


def _other_clips(score: Score) -> bool:
    return score.released_n not in (0, score.n) and len(score.by_probe) > 1


def by_task(scores: Sequence[Score], probe: str = STANDARD[0]) -> Table:
    """Make a table of one probe's scores: one row per task, one column per encoder; the best of each row is marked."""
    rows = []
    for task in dict.fromkeys(score.task for score in scores):
        estimates = {
            score.encoder: score.by_probe[probe] for score in scores if score.task == task and probe in score.by_probe
        }
        row: dict[str, object] = {"task": task}
        for encoder, estimate in estimates.items():
            best = estimate.value == max(other.value for other in estimates.values())
            row |= estimated(encoder, estimate) | {f"{encoder}_mark": "best" if best else ""}
        rows.append(row)
    shown = ["task", *dict.fromkeys(score.encoder for score in scores)]
    return Table.of(rows, shown, title=f"{probe}, task by task", foreign=True)


def beside_published(scores: Sequence[Score], encoder: str, table: str) -> Table:
    """Make a table of our scores by X-ARES' protocol beside X-ARES' published scores of an encoder.

    The last rows have the means of both kinds of scores, over the same tasks.
    """
    rows, notes = list[dict[str, object]](), list[str]()
    for place, (name, probe) in enumerate(zip(("MLP", "kNN"), PUBLISHED, strict=True)):
        pairs = [
            (score.task, score.by_probe[probe], theirs, score.released_n)
            for score in scores
            if probe in score.by_probe and (theirs := published(table, encoder, score.task)[place]) is not None
        ]
        rows += [_beside(task, name, ours, theirs, n) for task, ours, theirs, n in pairs]
        if len(pairs) > 1:
            weights = [weight(table, task) for task, *_ in pairs]
            for title, each in (("mean", [1] * len(pairs)), ("weighted mean", weights)):
                shares = [task_weight * len(pairs) / sum(each) for task_weight in each]
                theirs = float(np.average([theirs for _, _, theirs, _ in pairs], weights=each))
                ours = mean_over([ours for _, ours, _, _ in pairs], shares)
                rows.append(_beside(f"{title} of these {len(pairs)}", name, ours, theirs, None))
        stated, computed = STATED[table][place][ENCODERS.index(encoder)], published_mean(table, encoder, place)
        alike = published_mean(table, encoder, place, weighted=False)
        notes.append(
            f"{name}, mean of all public tasks: X-ARES states {stated:.3f}; its published scores give {computed:.3f} "
            f"weighted, {alike:.3f} unweighted"
        )
    rows.sort(key=lambda row: "mean of these" in str(row["task"]))  # stable
    kinds = {
        "ours": Kind("ours [95 %]", ".3f"),
        "theirs": Kind("published", ".3f"),
        "apart": Kind("difference", "+.3f"),
        "inside": Kind("published in interval", left=True),
    }
    said = "ours: X-ARES' protocol on the weights and clips found here; published: X-ARES' scores on all clips"
    return Table.of(rows, title=f"{encoder}: ours and published", kinds=kinds, notes=(said, *notes))


def _beside(task: str, probe: str, ours: Estimate, theirs: float, n: int | None) -> dict[str, object]:
    low, high = ours.interval or (None, None)
    inside = low is not None and high is not None and low <= theirs <= high
    row = {"task": task, "probe": probe, **estimated("ours", ours)}
    return row | {"n": n, "theirs": theirs, "apart": ours.value - theirs, "inside": "yes" if inside else "no"}
