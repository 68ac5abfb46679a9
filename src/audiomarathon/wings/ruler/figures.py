"""The ruler's figures: the score by length and place, and whether the needle of a wrong answer was kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from audiomarathon.metrics.statistics import Estimate, Resampler
from audiomarathon.records import Record, Verdict
from audiomarathon.report import charts
from audiomarathon.report.charts import Chart
from audiomarathon.report.page_data import PageData
from audiomarathon.report.render import Kind, Table, estimated
from audiomarathon.report.sections import Section
from audiomarathon.results.systems import System
from audiomarathon.runs.read import Run
from audiomarathon.runs.record_line import heard_tokens, tokens_within
from audiomarathon.scoring.scorer import means
from audiomarathon.settings import SEED
from audiomarathon.wings.ruler.benchmark import RULER

_KEPT = 0.5  # a needle counts as kept if at least this share of its tokens is
_NOTES = (
    "Accuracy; blind guessing gives 0.250. A cell of a picture is a length and a place of the needles.",
    "Needle tokens kept: the share of the audio tokens of the needles that decide the answer, from the recorded kept "
    "tokens; – where a run does not record them, as with a press. A wrong answer is *heard, not answered* if at least "
    "half of the tokens of each deciding needle were kept, else *dropped*; both are shares of all answers.",
    "Intervals resample backgrounds. Items are the same at every length and place.",
)


def kept_of_needles(record: Record, *, is_base: bool = False) -> list[float] | None:
    """Return the share of audio tokens kept of each needle that decides a sample's answer.

    None if the clip has no needle (a control), or the record does not say which tokens were kept.

    Parameters
    ----------
    is_base
        Whether nothing was removed, so that every share is 1.
    """
    spans = record.reference.get("needles")
    if not spans or is_base:
        return [1.0] * len(spans) if spans else None
    if (heard := heard_tokens(record)) is None:
        return None
    within = [heard[tokens_within(len(heard), record.clip_seconds, [span])] for span in spans]
    return [float(one.mean()) for one in within] if all(map(len, within)) else None


def figures(verdicts: Sequence[Verdict], *, is_base: bool) -> dict[str, Estimate]:
    """Return `accuracy`, `kept` (share of needle tokens), and shares of wrong answers: `unanswered`, `dropped`."""
    shares = [kept_of_needles(one.record, is_base=is_base) for one in verdicts]
    rights = [float(one.values["correct"]) for one in verdicts]
    whole = [None if one is None else float(min(one) >= _KEPT) for one in shares]
    columns: dict[str, list[float | None]] = {
        "accuracy": [*rights],
        "kept": [None if one is None else float(np.mean(one)) for one in shares],
        "unanswered": [None if all_ is None else all_ * (1 - right) for all_, right in zip(whole, rights, strict=True)],
        "dropped": [
            None if all_ is None else (1 - all_) * (1 - right) for all_, right in zip(whole, rights, strict=True)
        ],
    }
    return Resampler(SEED).of_sums(means(columns, verdicts, shares=True))


def section(data: PageData) -> Sequence[Section]:
    """Return the section on the ruler: a table by length, and a heat map for each task, setting and kind of needle."""
    rows, drawn = list[dict[str, Any]](), dict[str, list[Chart]]()
    several = len({one.checkpoint for one in data.systems}) > 1
    for task in RULER.tasks:
        for system in data.systems:
            if run := system.runs.get(task.key):
                name = system.name(with_checkpoint=several)
                rows += _by_length(run, system, name)
                drawn.setdefault(task.key, []).extend(_maps(run, name))
    if not rows:
        return ()
    percent = {one: Kind(title, ".2f") for one, title in _TITLES.items()}
    table = Table.of(
        rows, ("task", "setting", "minutes", *_TITLES, "n"), title="Score by length", group="task", notes=_NOTES,
        kinds={**percent, "accuracy": Kind("accuracy [95 %]", ".3f"), "minutes": Kind("minutes", "g")},
    )  # fmt: skip
    return (Section("ruler", "The ruler: length and place", [table.without_empty()], drawn),)


_TITLES = {
    "accuracy": "accuracy",
    "kept": "needle tokens kept",
    "unanswered": "wrong: heard, not answered",
    "dropped": "wrong: dropped",
}


def _by_length(run: Run, system: System, name: str) -> Iterator[dict[str, Any]]:
    for (minutes,), own in _grouped(run.verdicts.values(), "minutes"):
        row: dict[str, Any] = {"task": run.key, "setting": name, "minutes": float(minutes), "n": len(own)}
        for figure, estimate in figures(own, is_base=system.is_base).items():
            row |= estimated(figure, estimate)
        yield row


def _maps(run: Run, name: str) -> Iterator[Chart]:
    """Yield a heat map for each number of needles and loudness of a run."""
    for (needles, loudness), own in _grouped(run.verdicts.values(), "needles", "dB"):
        cells = [
            {"x": place, "y": f"{minutes} min", "said": f"n {len(members)}",
             "value": float(np.mean([one.values["correct"] for one in members]))}
            for (minutes, place), members in _grouped(own, "minutes", "place")
        ]  # fmt: skip
        size = 42 * len({one["x"] for one in cells}), 28 * len({one["y"] for one in cells})
        chart = charts.heat_map(cells, "place of the needles", "length", "accuracy", size=size)
        yield chart.with_title(f"{run.key}, {name}: needles {needles}, {loudness} dB")


def _grouped(verdicts: Iterable[Verdict], *names: str) -> list[tuple[tuple[str, ...], list[Verdict]]]:
    """Return the verdicts of each group of records, by rising numbers."""
    found: dict[tuple[str, ...], list[Verdict]] = {}
    for one in verdicts:
        groups = one.record.groups or {}
        found.setdefault(tuple(groups.get(name, "0") for name in names), []).append(one)
    return sorted(found.items(), key=lambda group: tuple(map(float, group[0])))
