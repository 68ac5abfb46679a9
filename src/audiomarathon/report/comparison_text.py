"""Write the text below a comparison's table: why values are missing, what tests show, which setting is best."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from audiomarathon.metrics.betting import MOST_PLANNED, NO_WORSE, OPEN, POWER, WORSE
from audiomarathon.metrics.paired import PairedResult
from audiomarathon.results.beside import ACROSS
from audiomarathon.results.best import SETTLE, Ranked, Ranking
from audiomarathon.results.compare import Compared, Comparison, LeftOut, is_clear, lines_by_reason
from audiomarathon.results.pairs import AS_BASE, Pairs
from audiomarathon.results.systems import sweeps_of
from audiomarathon.text import counted

FEW_CLUSTERS = 10  # with fewer clusters, accuracy's 95 % intervals covered 91 to 94 % in simulation (docs/report.md)
MOST_NAMED = 12  # limit of differences named in one line


def notes(compared: Compared, missing: Mapping[str, str]) -> list[str]:
    """Return the lines of text below a comparison's table: on missing or doubtful values, then the conclusion.

    Parameters
    ----------
    missing
        Runs of the control `random` that are missing, as {name: method's label}, such as `random-0.9-layer2`.
    """
    lines = []
    if missing:
        sweeps = "; ".join(
            f"audiomarathon sweep … --methods random {options}" for options in sweeps_of(missing.values())
        )
        lines.append(f"a method should beat random at the same ratio, but random was not run; run it with {sweeps}")
    of_tasks = [row for row in compared.rows if len(row.tasks) == 1]
    every = {row.side for row in of_tasks}
    for timed, what in ((False, "no speed-ups"), (True, "no decode speed-up")):
        without = [row for row in of_tasks if row.untimed and bool(row.speed_ups["first_token"]) == timed]
        lines += [
            f"{what} for {line}"
            for line in lines_by_reason((LeftOut(row.side, row.scope, row.untimed) for row in without), every)
        ]
    lines += [
        f"no samples a second for {line}"
        for line in lines_by_reason(
            (LeftOut(row.side, row.scope, row.unbatched) for row in of_tasks if row.unbatched), every
        )
    ]
    partly = [row for row in of_tasks if 0 < row.timed < row.samples]
    lines += [f"{row.side} in {row.scope}: speed-ups use {row.timed} of the {row.samples} samples" for row in partly]
    remarks = (
        LeftOut(side, task, remark)
        for side, tasks in compared.shared.items()
        for task, pairs in tasks.items()
        for remark in _remarks(pairs)
    )
    lines += lines_by_reason(remarks, every)
    lines += [f"{row.side} in {row.scope}: {gap}" for row in compared.rows if (gap := _undefined(row.verdict))]
    lines += [f"left out: {line}" for line in lines_by_reason(compared.left_out)]
    few = dict.fromkeys(row.scope for row in of_tasks if row.clusters < FEW_CLUSTERS and row.verdict.interval)
    lines += [f"{', '.join(few)}: fewer than ten clusters, so intervals are slightly too narrow"] * bool(few)
    return lines + _conclusion(compared.rows) + at_margins(compared.rows)


def at_margins(rows: Sequence[Comparison]) -> list[str]:
    """Return lines of text on tests of margins (allowed losses of score): how many had which verdict, and the risk of
    error.

    [] if no margin was tested.
    """
    tested = [(row, row.decision) for row in rows if row.decision]
    figures: dict[tuple[float, str], list[str]] = {}
    for row, decision in tested:
        scopes = figures.setdefault((decision.margin, decision.figure), [])
        scopes += [row.scope] * (row.scope not in scopes)
    lines = [f"margin {margin:g} of {figure}: {', '.join(scopes)}" for (margin, figure), scopes in figures.items()]
    if lines:
        counts = Counter(row_decision.verdict for _, row_decision in tested)
        said = ", ".join(f"{counts[name]} {name}" for name in (NO_WORSE, WORSE, OPEN) if counts[name])
        lines.append(
            f"of {counted(len(tested), 'verdict')} about a margin: {said}. Each error has a chance of at most "
            f"{tested[0][1].alpha:.0%} in the whole table (betting on whole clusters, Holm; docs/lossless.md)"
        )
    return lines


def _conclusion(rows: Sequence[Comparison]) -> list[str]:
    """Return a line that names the settings whose score differs significantly from the reference's.

    If there are none, it says how wide the intervals are. [] if nothing was tested.
    """
    tested = [row for row in rows if row.p_adjusted is not None and row.alike != AS_BASE]
    clear = [f"{row.side} in {row.scope} ({row.verdict.difference or 0:+.3f})" for row in tested if is_clear(row)]
    if clear:
        more = f" and {len(clear) - MOST_NAMED:,} more" if len(clear) > MOST_NAMED else ""
        return [f"significant after Holm's correction: {', '.join(clear[:MOST_NAMED])}{more}"]
    if not tested:
        return []
    counts = sorted({row.samples for row in tested if len(row.tasks) == 1})
    least = f"{counts[0]:,}–" if len(counts) > 1 else ""
    samples = f"{least}{counted(counts[-1], 'sample')} a task" if counts else ""
    most = max(len(row.tasks) for row in tested)
    ends = [(row.verdict.interval or (0, 0), row.scope) for row in tested if len(row.tasks) == most]
    reaches = [((high - low) / 2, scope) for (low, high), scope in ends if high > low]  # without width it says nothing
    half, scope = max(reaches, default=(0.0, ""))
    reach = f"{scope} ±{half:.2f}" if scope else ""
    if len({scope for _, scope in reaches}) > 1:
        reach = f"at most ±{half:.2f} (in {scope})"
    facts = ", ".join(filter(None, [samples, reach]))
    return ["; ".join(filter(None, ["no clear difference: none has p (Holm) under 0.05", facts]))]


def _remarks(pairs: Pairs) -> list[str]:
    """Return notes for the reader on how a setting was measured: in other sessions, on a busy machine, …"""
    lines = [ACROSS] if pairs.across else []
    lines += ["the machine was busy while times were taken"] if pairs.timed and pairs.busy else []
    if versions := pairs.other_versions:
        lines.append(f"other library versions than the reference's: {versions}")
    return lines + pairs.notes


def power_lines(compared: Compared, row: Comparison) -> list[str]:
    """Return a list with one line of text: how much data would show that a setting loses no more than the margin.

    A margin is an allowed loss of score. The estimate is a number of clusters (dependent samples, such as the questions
    about one clip) like those of the comparison `row`. [] if no margin was tested, or if the replies must equal base's.
    """
    decision, pairs = row.decision, compared.shared[row.side][row.scope]
    if decision is None or decision.by_construction:
        return []
    needed = pairs.to_settle(decision, compared.seed)
    about = (
        f"{row.side} in {row.scope}: {decision.discordant} of {counted(decision.clusters, 'cluster')} differ from base;"
    )
    if needed is None:
        return [f"{about} more than {MOST_PLANNED:,} such clusters are needed for a margin of {decision.margin:g}"]
    count, samples = needed
    among = f" as one of {decision.tests}" * (decision.tests > 1)
    return [
        f"{about} {count:,} such clusters ({samples:,} samples) show no loss above {decision.margin:g}{among} in "
        f"{POWER:.0%} of cases, if nothing is lost"
    ]


def _undefined(verdict: PairedResult) -> str:
    """Return a note if a score has no value on the compared samples, or not in some random resamples or swaps.

    Resamples give its interval, swaps its p. "" if the score always has a value.
    """
    if verdict.difference is None:
        return "the score has no value on these samples"
    draws = {"resamples": verdict.undefined_resamples, "swaps": verdict.undefined_swaps}
    lost = " and ".join(f"{count:,} {what}" for what, count in draws.items() if count)
    return f"{lost}, in which the score is undefined, were left out" if lost else ""


def answer(ranking: Ranking, *, latency: float | None = None, score: float | None = None) -> dict[str, Any]:
    """Find the best setting under a limit; return a dict for JSON.

    Keys: `latency` and `score` (the arguments), `text` (a line for the user), `best` (name, score and speed-up of the
    best setting; None if there is none) and `row` (its comparison with the reference), `best_but_random` (the best
    setting except the control `random`), `tasks`, `samples` (their number) and `left_out` (what was not ranked).

    With `latency`: the best-scoring setting that takes at most `latency` × the reference's time to first token. With
    `score`: the fastest setting that reaches at least `score` × the reference's score.
    """
    share = f"within {latency:g} of" if latency is not None else f"with at least {score:g} of"
    asked = f"{share} {ranking.reference}'s {'time to first token' if latency is not None else 'score'}"
    best = ranking.best(latency=latency, score=score)
    method = ranking.best(latency=latency, score=score, random=False)
    row = ranking.row(best) if best else None
    if best is not None:
        text = _shown(best, row)
        if best.is_random:
            text += f"; that is the control; the best other setting is {method.name if method else 'none'}"
        if doubts := ranking.doubts(best, None if score is None else (1 - score) * ranking.candidates[0].score):
            text += f"; but {', '.join(doubts)}: {SETTLE}"
    else:
        text = "no setting" if ranking.candidates else f"no setting's times can be compared with {ranking.reference}'s"
    return {
        "latency": latency,
        "score": score,
        "text": f"{asked}: {text}",
        "best": asdict(best) if best else None,
        "best_but_random": asdict(method) if method else None,
        "row": asdict(row) if row else None,
        "tasks": list(ranking.ids),
        "samples": ranking.samples,
        "left_out": [asdict(left) for left in ranking.left_out],
    }


def _shown(best: Ranked, row: Comparison | None) -> str:
    if row is None or row.verdict.difference is None:
        return f"{best.name} itself (score {best.score:.3f})"
    interval = row.verdict.interval
    between = f" [{interval[0]:+.3f}, {interval[1]:+.3f}]" if interval else ""
    difference = f"{row.verdict.difference:+.3f}{between}"
    return f"{best.name} (score {best.score:.3f}, {difference}; first token {best.speed:.2f}× as fast)"


def ranked(ranking: Ranking) -> str:
    """Return a line that says on which samples settings were ranked, and which settings and tasks were left out."""
    left_out = "".join(f"; left out {line}" for line in lines_by_reason(ranking.left_out))
    if not ranking.ids:
        return f"nothing to rank{left_out}"
    count, tasks = len(ranking.candidates), ", ".join(ranking.ids)
    return f"ranked on the same {ranking.samples} samples of {tasks}: {count} settings{left_out}"
