"""Send a task's runs to trackers, such as MLflow, while they are running.

Scores and times are sent now and then, so that a run does not wait for a server after every sample, and never while a
sample is timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from audiomarathon.benchmarks.task import Task
from audiomarathon.errors import ANY_ERROR, told
from audiomarathon.records import Record, Verdict
from audiomarathon.runs.folder import Job
from audiomarathon.runs.scored import judged
from audiomarathon.scoring.scorer import sums_of
from audiomarathon.text import Say, plain
from audiomarathon.tracking.tracker import Point, TrackedRun, Tracker

EVERY_S = 10.0
_SCORES = 20  # limit of running scores per update, since each score is computed from all verdicts so far
_STAGES = ("encoder", "llm_prefill", "prefill", "decode")


class _Curve:
    """Collects one run's new records in `fresh`, and turns them into points of the run's curves in trackers."""

    def __init__(self, task: Task, run: TrackedRun) -> None:
        self.run, self._task = run, task
        self.fresh: list[Record] = []
        self._verdicts: dict[str, Verdict] = {}
        self._count = 0
        self.sent = time.monotonic()

    def points(self) -> list[Point]:
        """Return the points to send: one for each sample that was answered since the last call.

        A point has the measured seconds of the sample's stages. The last point also has the score so far; few others
        have one, since scoring takes time.
        """
        records, self.fresh = [record for record in self.fresh if record.answered], []
        scorer, points = self._task.scorer, []
        stride = max(1, -(-len(records) // _SCORES))
        for n, record in enumerate(records, 1):
            self._count += 1
            figures = {f"{stage}_s": record.time[stage] for stage in _STAGES} if record.time else {}
            figures |= {f"{name}_latency_s": seconds for name, seconds in (record.latency or {}).items()}
            if scorer.instant:
                self._verdicts |= judged(scorer, [record])
                if n % stride == 0 or n == len(records):
                    figures |= self._score()
            points.append(Point(self._count, figures))
        self.sent = time.monotonic()
        return points

    def _score(self) -> dict[str, float]:
        """Return {"score": score of all samples so far}; empty if there is no score."""
        scorer = self._task.scorer
        try:
            score = sums_of(scorer, list(self._verdicts.values())).figures[scorer.figure.name]
        except ANY_ERROR:  # a third-party scorer may raise anything; without a running score, the run still continues
            return {}
        return {} if score is None else {"score": score}


@contextmanager
def following(
    trackers: list[Tracker], task: Task, jobs: Sequence[Job], checkpoint: str, clips: Mapping[str, str], say: Say
) -> Iterator[Callable[[Job, Mapping[str, Any] | None], None]]:
    """Send a task's runs to trackers during the `with` block.

    Yield a function that takes a finished run's job and summary, and sends the summary to the trackers.

    Parameters
    ----------
    trackers
        A tracker that fails is removed from this list, so that it does not slow later tasks.
    jobs
        The runs, whose folders must already be open (inside their `with` block).
    clips
        Hash of each selected sample's clips, as {sample id: hash}.
    say
        Receives a line for the user when a tracker fails.
    """

    def send(hook: str, *what: Any) -> None:
        for tracker in list(trackers):
            try:
                getattr(tracker, hook)(*what)
            except ANY_ERROR as error:  # a missing server must not end the run
                trackers.remove(tracker)
                say(f"warning: {tracker.key} failed in {task.key} ({plain(told(error))}); nothing more is sent to it")

    def send_points(curve: _Curve) -> None:
        if points := curve.points():
            send("scored", curve.run, points)

    def start(job: Job) -> _Curve:
        method, folder = job.method, job.folder
        run = TrackedRun(
            *(task.key, checkpoint, method.key, method.label, float(method.ratio)),
            *(folder.path, folder.identity, len(jobs) > 1),
        )
        curve = _Curve(task, run)
        send("started", run)
        done = folder.done(clips)
        curve.fresh += [record for id_, record in folder.records.items() if id_ in done and id_ in clips]

        def appended(record: Record) -> None:
            curve.fresh.append(record)
            if time.monotonic() - curve.sent >= EVERY_S:
                send_points(curve)

        folder.appended = appended
        return curve

    def finished(job: Job, summary: Mapping[str, Any] | None) -> None:
        if curve := curves.pop(job.method.label, None):
            send_points(curve)
            send("finished", curve.run, summary)

    curves = {job.method.label: start(job) for job in jobs} if trackers else {}
    try:
        yield finished
    finally:
        for job in jobs:
            finished(job, None)  # interrupted
