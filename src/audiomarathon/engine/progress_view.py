"""Show progress while samples run: a live table on a terminal, else a line now and then.

Drawing happens only between samples, in :meth:`Watch.update`; no thread draws while a sample is timed. An update scores
the records of all settings, which takes milliseconds, so its cost is limited: see :data:`COST_A_SAMPLE_S`.
"""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from audiomarathon.errors import ANY_ERROR
from audiomarathon.records import Record, Verdict
from audiomarathon.runs.scored import judged
from audiomarathon.scoring.scorer import Scorer, figures_of
from audiomarathon.terminal import LINE_EVERY_S, fitted
from audiomarathon.text import Say, counted, flags_of, score_text

if TYPE_CHECKING:
    from rich.table import Table

    from audiomarathon.engine.batches import Plan
    from audiomarathon.runs.folder import Job

#: Budget for updates, 0 after each update. Each finished sample adds this many seconds to it, or this share of the
#: sample's own time if that is more. An update waits until the budget covers the time that the previous update took.
COST_A_SAMPLE_S = 0.0005
COST_SHARE = 0.001

LINE = 99  # characters of a line in a log
TABLE_EVERY_S = 1.0


@dataclass(frozen=True)
class Progress:
    """Progress of one setting of one task.

    Attributes
    ----------
    answered, errors, expected
        Number of samples with a reply, of failed samples, and of all samples.
    unparsed, cut
        Number of replies that could not be parsed, and of replies cut by the token limit.
    score, interval
        Headline score of the samples answered so far, and its 95 % interval, as in `summary.json`; None if unknown.
    """

    expected: int
    answered: int = 0
    errors: int = 0
    unparsed: int = 0
    cut: int = 0
    score: float | None = None
    interval: tuple[float, float] | None = None

    @property
    def complete(self) -> bool:
        """Whether every sample is answered and none has failed."""
        return self.answered == self.expected and not self.errors


def progress_of(
    scorer: Scorer | None,
    records: Sequence[Record],
    verdicts: Mapping[str, Verdict],
    expected: int,
    *,
    seed: int,
    summary: Mapping[str, Any] | None = None,
) -> Progress:
    """Return the progress of one setting, computed from its records and verdicts.

    Parameters
    ----------
    scorer
        The task's scorer; None if the task is not installed, and then there is no score.
    summary
        The content of `summary.json`, if it covers these records; its score is used instead of a new one.
    """
    answered = [record for record in records if record.answered]
    cut = sum(record.finish == "length" for record in answered)
    counts = expected, len(answered), len(records) - len(answered)
    if summary is None:
        try:
            scored = [verdicts[record.id] for record in answered if record.id in verdicts]
            summary = figures_of(scorer, scored, seed=seed) if scorer else {}
        except ANY_ERROR:  # a third-party scorer may raise anything; showing progress must never end a run
            summary = {}
    interval = (summary.get("intervals") or {}).get("score")
    low_high = (interval[0], interval[1]) if interval else None
    return Progress(*counts, summary.get("unparsed", 0), cut, summary.get("score"), low_high)


@dataclass(frozen=True)
class Look:
    """The progress of one task under all settings at one moment.

    `done` of `expected` samples are done under all settings, `fresh` of them in this session, which has taken
    `seconds`. `audio_s` is the seconds of audio of this session's samples; a sample counts once, however many settings
    answered it. `settings` has each setting's progress, as {label: progress}.
    """

    task: str
    done: int
    expected: int
    fresh: int
    seconds: float
    audio_s: float
    settings: Mapping[str, Progress]

    @property
    def left_s(self) -> float | None:
        """Estimated seconds until the task is finished, at this session's rate so far; None before its first sample."""
        return self.seconds * (self.expected - self.done) / self.fresh if self.fresh and self.seconds > 0 else None

    def heading(self, now: datetime.datetime, *, audio: bool = True) -> str:
        """Return one line above the table: samples done, samples per minute, and the expected end.

        With `audio`, also the seconds of audio per second.
        """
        parts = [f"{self.task}: {self.done:,} of {counted(self.expected, 'sample')}"]
        if self.fresh and self.seconds > 0:
            parts.append(rates(self.fresh, self.audio_s if audio else None, self.seconds))
        if self.done >= self.expected:
            parts.append(f"took {span(self.seconds)}")
        elif self.left_s is not None:
            parts.append(ending(self.left_s, now))
        return ", ".join(parts)

    def line(self, now: datetime.datetime) -> str:
        """Return one line for a log file: samples done, expected end, errors, and as many running scores as fit."""
        line = self.heading(now, audio=False)
        if errors := sum(setting.errors for setting in self.settings.values()):
            line += f", {counted(errors, 'error')}"
        for label, setting in self.settings.items():
            score = f"; {label} {score_text(setting.score, setting.interval)}"
            if len(line) + len(score) > LINE:
                break
            line += score
        return line


class Watch:
    """Follows the progress of one task under all settings, and shows it at intervals, between samples."""

    def __init__(
        self,
        plan: Plan,
        jobs: Sequence[Job],
        show: Callable[[Look], None],
        every_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plan, self._jobs, self._show, self._every_s, self._clock = plan, jobs, show, every_s, clock
        finished = [job.folder.done(plan.clips or None) for job in jobs]
        ids = [sample.id for sample in plan.samples]
        # Old records of samples that will run again are not counted; each stays in the folder until it is replaced.
        self._stale = [
            {id_: job.folder.records[id_] for id_ in ids if id_ in job.folder.records and id_ not in done}
            for job, done in zip(jobs, finished, strict=True)
        ]
        self._verdicts: list[dict[str, Verdict]] = [{} for _ in jobs]
        self._before = {id_ for id_ in ids if all(id_ in done for done in finished)}
        self.fresh = self.shown = 0  # finished samples, and those already shown
        self._began = self._shown = self._last = clock()
        self._cost = self._earned = 0.0

    def update(self, samples: int = 1) -> None:
        """Add `samples` to the number of finished samples; show the progress if it is due and cheap.

        Showing is cheap if it takes little of the time that the samples take (:data:`COST_A_SAMPLE_S`).
        """
        self.fresh += samples
        now = self._clock()
        self._earned += max(COST_A_SAMPLE_S * samples, COST_SHARE * (now - self._last))
        self._last = now
        if now - self._shown >= self._every_s and self._earned >= self._cost:
            self.show()

    def show(self) -> None:
        """Show the progress now, and note how many seconds showing it took."""
        begin = self._clock()
        self._show(self.look())
        self.shown = self.fresh
        self._shown = self._last = self._clock()
        self._cost, self._earned = self._shown - begin, 0.0

    def look(self) -> Look:
        """Return the task's progress at this moment, as a :class:`Look`."""
        settings, heard = dict[str, Progress](), dict[str, float]()
        for job, stale, verdicts in zip(self._jobs, self._stale, self._verdicts, strict=True):
            records_found = (job.folder.records.get(sample.id) for sample in self._plan.samples)
            records = [record for record in records_found if record is not None and record is not stale.get(record.id)]
            settings[job.method.label] = self._progress(records, verdicts)
            heard |= {record.id: record.clip_seconds for record in records if record.id not in self._before}
        done, seconds = len(self._before) + self.fresh, self._clock() - self._began
        expected = len(self._plan.samples)
        return Look(self._plan.task.key, done, expected, self.fresh, seconds, sum(heard.values()), settings)

    def _progress(self, records: Sequence[Record], verdicts: dict[str, Verdict]) -> Progress:
        """Compute one setting's :class:`Progress` from its records.

        `verdicts`, as {sample id: verdict}, keeps verdicts between calls, and is updated here.
        """
        plan = self._plan
        if not plan.task.scorer.instant:
            return progress_of(None, records, {}, len(plan.samples), seed=plan.seed)
        fresh = [record for record in records if record.id not in verdicts or verdicts[record.id].record is not record]
        verdicts |= judged(plan.task.scorer, fresh)
        return progress_of(plan.task.scorer, records, verdicts, len(plan.samples), seed=plan.seed)


@contextmanager
def watching(plan: Plan, jobs: Sequence[Job], say: Say, *, progress: bool | None = None) -> Iterator[Watch]:
    """Show a task's progress during the `with` block. Yield a :class:`Watch`, whose `update` is called after each
    sample.

    On a terminal the progress is a table, in a notebook a line that is rewritten, elsewhere a line every half minute
    and at the end.

    Parameters
    ----------
    jobs
        Each setting with its run folder, which the caller has entered (locked) by `with`.
    say
        Receives the lines.
    progress
        False shows nothing.
    """
    if progress is False:
        yield Watch(plan, jobs, lambda _look: None, float("inf"))
        return
    if not sys.stderr.isatty():
        in_notebook = type(sys.stderr).__module__.startswith("ipykernel.")
        show_line, every_s = (_over_the_last, TABLE_EVERY_S) if in_notebook else (say, LINE_EVERY_S)
        watch = Watch(plan, jobs, lambda look: show_line(look.line(_now())), every_s)
        yield watch
        if watch.fresh != watch.shown:
            watch.show()
        if in_notebook:
            print(file=sys.stderr)  # noqa: T201
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), auto_refresh=False) as live:  # no thread may draw while the timer runs

        def draw(look: Look) -> None:
            live.update(fitted(look_table(look, _now()), live.console.width), refresh=True)

        watch = Watch(plan, jobs, draw, TABLE_EVERY_S)
        watch.show()
        try:
            yield watch
        finally:
            watch.show()


def _over_the_last(line: str) -> None:
    """Print a line in place of the last printed line, by a carriage return, since notebooks cannot move the cursor."""
    print(f"\r{line:<{LINE}}", end="", file=sys.stderr, flush=True)  # noqa: T201


def look_table(look: Look, now: datetime.datetime) -> Table:
    """Return the live table of a task's progress, with one row per setting."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(look.heading(now)), box=box.SIMPLE_HEAD, title_justify="left")
    for heading in ("setting", "answered", "running score [95 %]"):
        table.add_column(heading, justify="left" if heading == "setting" else "right")
    for label, setting in look.settings.items():
        table.add_row(Text(label), answered_text(setting), Text(score_text(setting.score, setting.interval)))
    return table


def answered_text(setting: Progress) -> str:
    """Return a table cell's text: how many samples are answered, then a line for each problem, such as `2 errors`."""
    troubles = {"errors": setting.errors, "unparsed": setting.unparsed, "cut_by_token_limit": setting.cut}
    return "\n".join([f"{setting.answered:,} of {setting.expected:,}", *flags_of(troubles)])


def rates(samples: float, audio_s: float | None, seconds: float) -> str:
    """Return a speed as text: samples per minute and, if `audio_s` is given, seconds of audio per second."""
    rate = f"{_figure(60 * samples / seconds)} samples/min"
    return rate if audio_s is None else f"{rate}, {_figure(audio_s / seconds)} s of audio/s"


def ending(left_s: float, now: datetime.datetime) -> str:
    """Return when a run will end, as text: the time left and the time of day, such as `ends in 5 min 0 s (14:30)`."""
    if left_s > 10 * 365 * 86_400:
        return "time left unknown"
    end = now + datetime.timedelta(seconds=left_s)
    day = "" if end.date() == now.date() else f"{end:%Y-%m-%d} "
    return f"ends in {span(left_s)} ({day}{end:%H:%M})"


def span(seconds: float) -> str:
    """Return a duration as text in its two largest units, such as `1 h 5 min`."""
    whole = round(max(0.0, seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _now() -> datetime.datetime:
    return datetime.datetime.now().astimezone()
