"""Send a task's runs to trackers: each record is seen when it is stored, between samples.

Points are sent now and then, so that no run waits for a server after every sample, and never while the timer runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from audiomarathon.benchmarks.task import Task
from audiomarathon.errors import told
from audiomarathon.records import Record, Verdict
from audiomarathon.runs.folder import Job
from audiomarathon.runs.scored import judged
from audiomarathon.scoring.scorer import sums_of
from audiomarathon.text import plain
from audiomarathon.tracking.tracker import Point, TrackedRun, Tracker

EVERY_S = 10.0
_SCORES = 20  # running scores per update: each reads all verdicts so far
_STAGES = ("encoder", "llm_prefill", "prefill", "decode")


class Following:
    """Sends the runs of one task to trackers."""

    def __init__(self, trackers: list[Tracker], task: Task, say: Callable[[str], None]) -> None:
        self._trackers, self._task, self._say = trackers, task, say
        self._curves: dict[str, _Curve] = {}

    def start(self, job: Job, checkpoint: str, *, swept: bool, clips: Mapping[str, str]) -> None:
        """Start a setting's run with the records so far, and follow new ones; its folder must be entered."""
        method, folder = job.method, job.folder
        run = TrackedRun(
            *(self._task.key, checkpoint, method.key, method.label, float(method.ratio)),
            *(folder.path, folder.identity, swept),
        )
        curve = self._curves[method.label] = _Curve(self._task, run)
        self._tell("started", run)
        done = folder.done(clips)
        curve.fresh += [record for id_, record in folder.records.items() if id_ in done and id_ in clips]

        def appended(record: Record) -> None:
            curve.fresh.append(record)
            if time.monotonic() - curve.told >= EVERY_S:
                self._score(curve)

        folder.appended = appended

    def finish(self, job: Job, summary: Mapping[str, Any] | None) -> None:
        """Send the last points and the summary; None for an interrupted run."""
        curve = self._curves.pop(job.method.label)
        self._score(curve)
        self._tell("finished", curve.run, summary)

    def _score(self, curve: _Curve) -> None:
        if points := curve.points():
            self._tell("scored", curve.run, points)

    def _tell(self, hook: str, *what: Any) -> None:
        for tracker in list(self._trackers):
            try:
                getattr(tracker, hook)(*what)
            except (Exception, SystemExit) as error:  # a missing server must not end the run
                self._trackers.remove(tracker)
                self._say(f"warning: {tracker.key} failed in {self._task.key}, is told no more: {plain(told(error))}")


class _Curve:
    """A run's records that were not sent yet, and the verdicts so far."""

    def __init__(self, task: Task, run: TrackedRun) -> None:
        self.run, self._task = run, task
        self.fresh: list[Record] = []
        self._verdicts: dict[str, Verdict] = {}
        self._count = 0
        self.told = time.monotonic()

    def points(self) -> list[Point]:
        """Return a point per answered sample; the last point and some others have the running score."""
        records, self.fresh = [record for record in self.fresh if record.answered], []
        scorer, found = self._task.scorer, []
        stride = max(1, -(-len(records) // _SCORES))
        for n, record in enumerate(records, 1):
            self._count += 1
            figures = {f"{stage}_s": record.time[stage] for stage in _STAGES} if record.time else {}
            figures |= {f"{name}_latency_s": seconds for name, seconds in (record.latency or {}).items()}
            if scorer.instant:
                self._verdicts |= judged(scorer, [record])
                if n % stride == 0 or n == len(records):
                    figures |= self._score()
            found.append(Point(self._count, figures))
        self.told = time.monotonic()
        return found

    def _score(self) -> dict[str, float]:
        """Return the score of all samples so far; empty if there is none."""
        scorer = self._task.scorer
        try:
            found = sums_of(scorer, list(self._verdicts.values())).figures[scorer.figure.name]
        except Exception:  # a third-party scorer may raise anything, above all with few verdicts; records matter more
            return {}
        return {} if found is None else {"score": found}


@contextmanager
def following(
    trackers: list[Tracker],
    task: Task,
    jobs: Sequence[Job],
    checkpoint: str,
    clips: Mapping[str, str],
    say: Callable[[str], None],
) -> Iterator[Callable[[Job, Mapping[str, Any]], None]]:
    """Send a task's runs to trackers for the duration of the block; yields a function for each run's summary.

    Parameters
    ----------
    trackers
        A failing tracker is removed: it would slow every later task.
    jobs
        Their folders must be entered.
    clips
        Hash of each selected sample's clips.
    say
        Called when a tracker fails.
    """
    follower = Following(trackers, task, say)
    left = {job.method.label: job for job in jobs} if trackers else {}
    for job in left.values():
        follower.start(job, checkpoint, swept=len(jobs) > 1, clips=clips)

    def finished(job: Job, summary: Mapping[str, Any]) -> None:
        if left.pop(job.method.label, None):
            follower.finish(job, summary)

    try:
        yield finished
    finally:
        for job in left.values():
            follower.finish(job, None)
