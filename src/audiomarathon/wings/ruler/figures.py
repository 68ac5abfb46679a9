"""The ruler's figures: the score by clip length and needle position, and whether wrong answers lost their needle."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from audiomarathon.metrics.statistics import Estimate, Resampler
from audiomarathon.records import Record, Verdict
from audiomarathon.report.charts import Chart, heat_map
from audiomarathon.report.page_data import PageData
from audiomarathon.report.render import Kind, Table, estimated
from audiomarathon.report.sections import Section
from audiomarathon.runs.record_line import heard_tokens, tokens_within
from audiomarathon.scoring.scorer import means
from audiomarathon.settings import SEED
from audiomarathon.wings.ruler.task import RULER

_TITLES = {"kept": "needle tokens kept", "unanswered": "wrong: heard, not answered", "dropped": "wrong: dropped"}
_NOTES = (
    "Accuracy; blind guessing gives 0.250. Intervals resample backgrounds; items are the same in all cells.",
    "Needle tokens kept: the share of the audio tokens of the needles that decide the answer, from the recorded kept "
    "tokens; – where a run does not record them, as with a press. A wrong answer is dropped if no token of such a "
    "needle was kept; else heard, not answered, though often by few tokens. Both are shares of all answers.",
)


def kept_of_needles(record: Record, *, is_base: bool = False) -> list[float] | None:
    """Return, for each needle that decides a sample's answer, the share of its audio tokens that was kept.

    A needle is a word or bell planted into the clip. Return None if the clip has no needle (a control), or if the
    record does not say which tokens were kept.

    Parameters
    ----------
    is_base
        Whether this is the run without compression, so that every share is 1.
    """
    spans = record.reference.get("needles")
    if not spans or is_base:
        return [1.0] * len(spans) if spans else None
    heard = heard_tokens(record)
    needles = [] if heard is None else [heard[tokens_within(len(heard), record.clip_seconds, [span])] for span in spans]
    return [float(needle.mean()) for needle in needles] if needles and all(map(len, needles)) else None


def figures(verdicts: Sequence[Verdict], *, is_base: bool) -> dict[str, Estimate]:
    """Return four figures of the given verdicts (scored replies), as {name: estimate with interval}.

    `accuracy` is the share of right answers, and `kept` the mean share of the needles' audio tokens that were kept.
    `unanswered` is the share of samples answered wrongly although something of each needle was kept, `dropped` the
    share of samples answered wrongly that lost all tokens of a needle.
    """
    columns: dict[str, list[float | None]] = {"accuracy": [], **{name: [] for name in _TITLES}}
    for verdict in verdicts:
        right, shares = float(verdict.values["correct"]), kept_of_needles(verdict.record, is_base=is_base)
        whole = min(shares) > 0 if shares else None
        wrong = [None if whole is None else (1 - right) * (whole is kept) for kept in (True, False)]
        row = (right, float(np.mean(shares)) if shares else None, *wrong)
        for column, value in zip(columns.values(), row, strict=True):
            column.append(value)
    estimates = Resampler(SEED).of_sums(means(columns, verdicts, shares=True))
    # The run without compression keeps all tokens by construction, so these figures need no interval.
    return estimates | {name: replace(estimates[name], interval=None) for name in ("kept", "dropped") if is_base}


def section(data: PageData) -> Sequence[Section]:
    """Return the page's section on the ruler: a table of scores by clip length, and heat maps; () without runs of it.

    Needles are words and bells planted into the clips. A heat map shows accuracy by clip length and position of the
    needles, for one task, setting, number of needles and loudness.
    """
    rows, drawn = [], dict[str, list[Chart]]()
    several = len({system.checkpoint for system in data.systems}) > 1
    runs = [(task.key, system) for task in RULER.tasks for system in data.systems if task.key in system.runs]
    for key, system in runs:
        verdicts, name = system.runs[key].verdicts.values(), system.name(with_checkpoint=several)
        drawn.setdefault(key, []).extend(_maps(verdicts, f"{key}, {name}"))
        for (minutes,), group in _grouped(verdicts, "minutes"):
            facts = {"task": key, "setting": name, "minutes": float(minutes), "n": len(group)}
            estimates = figures(group, is_base=system.is_base)
            rows.append(
                facts
                | {end: value for figure in estimates for end, value in estimated(figure, estimates[figure]).items()}
            )
    kinds = {name: Kind(title, ".2f") for name, title in _TITLES.items()} | {"minutes": Kind("", "g")}
    shown = ("task", "setting", "minutes", "accuracy", *_TITLES, "n")
    table = Table.of(rows, shown, title="Score by length", group="task", notes=_NOTES, kinds=kinds)
    return (Section("ruler", "The ruler: length and place", [table.without_empty()], drawn),) if rows else ()


def _maps(verdicts: Iterable[Verdict], name: str) -> Iterator[Chart]:
    """Yield a heat map of accuracy by clip length and needle position, for each number and loudness of needles.

    Needles are words and bells planted into the clips of the run. The maps' titles begin with `name`.
    """
    for (needles, loudness), group in _grouped(verdicts, "needles", "dB"):
        cells = [
            {"x": place, "y": f"{minutes} min", "said": f"n {len(members)}",
             "value": float(np.mean([verdict.values["correct"] for verdict in members]))}
            for (minutes, place), members in _grouped(group, "minutes", "place")
        ]  # fmt: skip
        chart = heat_map(cells, "place of the needles", "length", "accuracy")
        yield chart.with_title(f"{name}: needles {needles}, {loudness} dB")


def _grouped(verdicts: Iterable[Verdict], *names: str) -> list[tuple[tuple[str, ...], list[Verdict]]]:
    """Group verdicts (scored replies) by their records' values of `names`, such as "minutes".

    Return (values, verdicts) of each group, sorted by the values.
    """
    groups: dict[tuple[str, ...], list[Verdict]] = {}
    for verdict in verdicts:
        groups.setdefault(tuple((verdict.record.groups or {}).get(name, "0") for name in names), []).append(verdict)
    return sorted(groups.items(), key=lambda group: tuple(map(float, group[0])))
