"""Collect encoders' scores per task and probe (ours and X-ARES'), with intervals, and their means over tasks."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from audiomarathon.wings.encoders.xares.task import EncoderTask
from audiomarathon.wings.encoders.xares.tasks import DOMAINS, TASKS
from audiomarathon.errors import RecordError
from audiomarathon.fingerprint import short
from audiomarathon.metrics.statistics import Estimate, Resampler, mean_over
from audiomarathon.wings.encoders.probing.probe_input import PROTOCOLS, PUBLISHED
from audiomarathon.runs.read import Run


@dataclass(frozen=True)
class Score:
    """An encoder's scores on one task, or their means over tasks, one for each probe.

    Attributes
    ----------
    task
        The name of the task or of the mean.
    by_probe
        {probe's name: score}; probes that were not run are left out.
    n
        Number of test clips; 0 for a mean.
    sd
        Standard deviation, over training seeds, of the score of X-ARES' MLP probe.
    majority
        Score of always answering the most frequent label.
    data
        Identity of the clips and labels, equal for equal data; "" for a mean.
    released_n
        Number of test items of X-ARES' probes; 0 for a mean, or if none of them was run.
    """

    encoder: str
    task: str
    domain: str
    by_probe: dict[str, Estimate]
    n: int = 0
    sd: float | None = None
    majority: float | None = None
    data: str = ""
    released_n: int = 0


def task_scores(runs: Sequence[Run]) -> list[Score]:
    """Return each encoder's score on each task, sorted by encoder, then in X-ARES' order of tasks.

    For X-ARES' own probes, the score is the mean over folds and seeds, as X-ARES computes it.

    Raises
    ------
    RecordError
        There is no encoder's run, or two runs have the same encoder, task and probe.
    """
    order = {task.key: place for place, task in enumerate(TASKS)}
    probed = [run for run in runs if isinstance(run.task, EncoderTask)]
    if not probed:
        raise RecordError("no run of an encoder found; audiomarathon encoder run makes one")
    contents: dict[str, set[object]] = {}
    for run in probed:
        contents.setdefault(run.checkpoint, set()).add(run.identity.get("checkpoint"))
    scores: dict[tuple[str, str], Score] = {}
    for run in sorted(probed, key=lambda run: (run.checkpoint, order.get(run.key, len(order)), run.key)):
        task = run.task
        assert isinstance(task, EncoderTask)
        if run.method not in PROTOCOLS["both"] or not run.verdicts:
            continue
        verdicts = list(run.verdicts.values())
        several = len(contents[run.checkpoint]) > 1
        name = f"{run.checkpoint} {short(run.identity.get('checkpoint'))}" if several else run.checkpoint
        score = scores.setdefault((name, run.key), Score(name, task.name, task.domain, {}, len(verdicts)))
        if run.method in score.by_probe:
            raise RecordError(
                f"{run.folder}: {name}, {task.name}, {run.method} is there twice; name only one of the folders"
            )
        score.by_probe[run.method] = run.headline
        if run.method in PUBLISHED and (sums := task.scorer.published(verdicts)):
            score.by_probe[run.method] = Resampler(run.seed).of_sums(sums)[task.scorer.figure.name]
        summary = task.scorer.summary(verdicts)
        sd = summary.get("sd") if run.method == PUBLISHED[0] else score.sd
        majority, data = summary.get("majority"), str(run.identity.get("data"))
        n, released = (score.n, len(verdicts)) if run.method in PUBLISHED else (len(verdicts), score.released_n)
        scores[name, run.key] = replace(score, sd=sd, majority=majority, data=data, n=n, released_n=released)
    return list(scores.values())


def mean_scores(scores: Sequence[Score]) -> list[Score]:
    """Return each encoder's mean scores: per domain, over all tasks, and over public tasks with X-ARES' weights."""
    weights = {task.name: task.recipe.weight for task in TASKS if not task.private}
    neighbours = {task.name for task in TASKS if task.recipe.knn and task.one_label}
    means = []
    for encoder in dict.fromkeys(score.encoder for score in scores):
        encoder_scores = [score for score in scores if score.encoder == encoder]
        if len(encoder_scores) < 2:
            continue
        domains = list(dict.fromkeys(score.domain for score in encoder_scores))
        groups = {f"{name}: mean": [score for score in encoder_scores if score.domain == name] for name in domains}
        if len(domains) > 1:
            groups["all: mean"] = encoder_scores
        for name, members in groups.items():
            means.append(_mean(encoder, f"{name} of {len(members)}", members))
        if weighed := [score for score in encoder_scores if score.domain in DOMAINS and weights.get(score.task)]:
            means.append(_mean(encoder, f"weighted, public: {len(weighed)}", weighed, weights, neighbours))
    return means


def _mean(
    encoder: str, name: str, members: Sequence[Score], weights: dict[str, int] | None = None,
    neighbours: Collection[str] = ()
) -> Score:  # fmt: skip
    """Return an encoder's mean scores over the tasks `members`, for each probe that was run on all of them.

    With `weights` (of each task), compute X-ARES' weighted mean. A kNN probe then needs scores only on the tasks
    `neighbours`, on which X-ARES runs kNN.
    """
    by_probe = {}
    for probe in PROTOCOLS["both"]:
        have = [score for score in members if probe in score.by_probe and not math.isnan(score.by_probe[probe].value)]
        wanted = [score for score in members if weights is None or "knn" not in probe or score.task in neighbours]
        if not have or len(have) < len(wanted):
            continue
        task_weights = [weights[score.task] if weights else 1 for score in have]
        by_probe[probe] = mean_over(
            [score.by_probe[probe] for score in have], [weight * len(have) / sum(task_weights) for weight in task_weights]
        )
    return Score(encoder, name, "", by_probe)
