"""What tells trackers of a task's runs: it sees each record as it is stored, between samples.

Trackers are told now and then, so that no run waits for a server after every sample; nothing is timed meanwhile.
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
_SCORES = 20  # running scores worked out a time: each looks at all verdicts so far
_STAGES = ("encoder", "llm_prefill", "prefill", "decode")


class Following:
    """The runs of one task, told to trackers."""

    def __init__(self, trackers: list[Tracker], task: Task, say: Callable[[str], None]) -> None:
        self._trackers, self._task, self._say = trackers, task, say
        self._curves: dict[str, _Curve] = {}

    def start(self, job: Job, checkpoint: str, *, swept: bool, clips: Mapping[str, str]) -> None:
        """Tell of a setting's run, whose folder is entered, and of what is on record; follow its records from now."""
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
        """Tell of the last points, and of the summary; None of a run that was interrupted."""
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
            except (Exception, SystemExit) as error:  # a server that is gone must not cost the night
                self._trackers.remove(tracker)
                self._say(f"warning: {tracker.key} failed in {self._task.key}, is told no more: {plain(told(error))}")


class _Curve:
    """A run's records that trackers were not told of yet, and the verdicts so far."""

    def __init__(self, task: Task, run: TrackedRun) -> None:
        self.run, self._task = run, task
        self.fresh: list[Record] = []
        self._verdicts: dict[str, Verdict] = {}
        self._count = 0
        self.told = time.monotonic()

    def points(self) -> list[Point]:
        """Return a point an answered sample; the last, and some between, with the running score."""
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
        """Return the score of all samples so far; empty where there is none."""
        scorer = self._task.scorer
        try:
            found = sums_of(scorer, list(self._verdicts.values())).figures[scorer.figure.name]
        except Exception:  # a third party's scorer may raise anything, of few verdicts above all; records matter more
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
    """Tell trackers of a task's runs for the length of the block; take each run's summary at its end.

    Parameters
    ----------
    trackers
        One that fails is taken out: it would hold up every task to come.
    jobs
        Their folders must be entered.
    clips
        Hash of each selected sample's clips.
    say
        Told when a tracker fails.
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
