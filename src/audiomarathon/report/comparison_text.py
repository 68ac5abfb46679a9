"""What is to be said of a comparison beside its table: what it lacks and why, and what to choose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from audiomarathon.metrics.paired import PairedResult
from audiomarathon.results.best import Candidate, Field
from audiomarathon.results.compare import Compared, Comparison, LeftOut, is_clear, told
from audiomarathon.results.pairs import ACROSS, AS_BASE, Pairs
from audiomarathon.text import counted

FEW_CLUSTERS = 10  # below it accuracy's interval held 91 to 94 % in simulation (docs/report.md)
MOST_NAMED = 12  # differences, in one line


def notes(compared: Compared, missing: Mapping[str, str]) -> list[str]:
    """Return a line for each thing that the table lacks.

    Parameters
    ----------
    missing
        Controls that were not run, with their ratios.
    """
    lines = []
    if missing:
        ratios = ",".join(sorted(set(missing.values())))
        lines.append(
            "a method has to beat random at the same ratio, which was not run: "
            f"audiomarathon sweep … --methods random --ratios {ratios}"
        )
    of_tasks = [row for row in compared.rows if len(row.tasks) == 1]
    for timed, what in ((False, "no speed-ups"), (True, "no decode speed-up")):
        without = [row for row in of_tasks if row.untimed and bool(row.speed_ups["first_token"]) == timed]
        lines += [f"{what} of {line}" for line in told(LeftOut(row.side, row.scope, row.untimed) for row in without)]
    partly = [row for row in of_tasks if 0 < row.timed < row.samples]
    lines += [f"{row.side} in {row.scope}: speed-ups are of {row.timed} of the {row.samples} samples" for row in partly]
    lines += told(
        LeftOut(side, task, remark)
        for side, tasks in compared.shared.items()
        for task, pairs in tasks.items()
        for remark in _remarks(pairs)
    )
    lines += [f"{row.side} in {row.scope}: {lack}" for row in compared.rows if (lack := _lack(row.verdict))]
    lines += [f"left out: {line}" for line in told(compared.left_out)]
    few = dict.fromkeys(row.scope for row in of_tasks if row.clusters < FEW_CLUSTERS and row.verdict.interval)
    lines += [f"{', '.join(few)}: fewer than ten clusters, so intervals are somewhat too narrow"] * bool(few)
    return lines + _conclusion(compared.rows)


def _conclusion(rows: Sequence[Comparison]) -> list[str]:
    """Say which differences are clear; where none is, how small a difference could have been seen."""
    tested = [row for row in rows if row.p_adjusted is not None and row.alike != AS_BASE]
    clear = [f"{row.side} in {row.scope} ({row.verdict.difference or 0:+.3f})" for row in tested if is_clear(row)]
    if clear:
        more = f" and {len(clear) - MOST_NAMED:,} more" if len(clear) > MOST_NAMED else ""
        return [f"clear after Holm: {', '.join(clear[:MOST_NAMED])}{more}"]
    if not tested:
        return []
    counts = sorted({row.samples for row in tested if len(row.tasks) == 1})
    least = f"{counts[0]:,}–" if len(counts) > 1 else ""
    samples = f"{least}{counted(counts[-1], 'sample')} a task" if counts else ""
    widest = max(tested, key=lambda row: len(row.tasks))
    ends = [row.verdict.interval for row in tested if row.tasks == widest.tasks and row.verdict.interval]
    reach = f"{widest.scope} ±{max(high - low for low, high in ends) / 2:.2f}" if ends else ""
    told_of = ", ".join(filter(None, [samples, reach]))
    return ["no clear difference: none has p (Holm) under 0.05" + (f"; {told_of}" if told_of else "")]


def _remarks(pairs: Pairs) -> list[str]:
    """Return what is to be known of a setting's figures on a task."""
    versions = pairs.other_versions
    said = {
        ACROSS: pairs.across,
        "the machine was busy while times were taken": bool(pairs.timed) and pairs.busy,
        f"other library versions than the reference's: {versions}": bool(versions),
    }
    return [line for line, holds in said.items() if holds] + pairs.notes


def _lack(verdict: PairedResult) -> str:
    if verdict.difference is None:
        return "the score has no value on these samples"
    draws = {"resamples": verdict.undefined_resamples, "swaps": verdict.undefined_swaps}
    lost = " and ".join(f"{count:,} {what}" for what, count in draws.items() if count)
    return f"{lost} were left out, in which the score has no value" if lost else ""


def answer(field: Field, *, latency: float | None = None, score: float | None = None) -> dict[str, Any]:
    """Return what to choose within a share of the reference's latency, or of its score: figures, and a line, `text`."""
    share = f"within {latency:g} of" if latency is not None else f"with at least {score:g} of"
    asked = f"{share} {field.reference}'s {'time to first token' if latency is not None else 'score'}"
    best = field.best(latency=latency, score=score)
    method = field.best(latency=latency, score=score, random=False)
    row = field.row(best) if best else None
    if best is None:
        text = "no setting" if field.candidates else f"no setting's times can be set beside {field.reference}'s"
    else:
        text = _shown(best, row)
    if best is not None and best.is_random:
        text += f"; that is the control, the best of the others is {method.name if method else 'none'}"
    return {
        "latency": latency,
        "score": score,
        "text": f"{asked}: {text}",
        "best": asdict(best) if best else None,
        "best_but_random": asdict(method) if method else None,
        "row": asdict(row) if row else None,
        "tasks": list(field.ids),
        "samples": field.samples,
        "left_out": [asdict(one) for one in field.left_out],
    }


def _shown(best: Candidate, row: Comparison | None) -> str:
    if row is None or row.verdict.difference is None:
        return f"{best.name} itself (score {best.score:.3f})"
    interval = row.verdict.interval
    between = f" [{interval[0]:+.3f}, {interval[1]:+.3f}]" if interval else ""
    difference = f"{row.verdict.difference:+.3f}{between}"
    return f"{best.name} (score {best.score:.3f}, {difference}; first token {best.speed:.2f}× as fast)"


def ranked(field: Field) -> str:
    """Say on what the answers rest, and what was left out."""
    left_out = "".join(f"; left out {line}" for line in told(field.left_out))
    if not field.ids:
        return f"nothing to rank{left_out}"
    count, tasks = len(field.candidates), ", ".join(field.ids)
    return f"ranked on the same {field.samples} samples of {tasks}: {count} settings{left_out}"
