"""Make the table for every view of results; `render` writes it to a terminal, Markdown, CSV, LaTeX or the page."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

from audiomarathon.benchmarks import Task
from audiomarathon.compression.method import Base
from audiomarathon.metrics.betting import NO_WORSE, OPEN, WORSE
from audiomarathon.report.render import NONE, Kind, Table, with_interval
from audiomarathon.results.beside import ACROSS
from audiomarathon.results.compare import LeftOut, is_clear, lines_by_reason
from audiomarathon.results.pairs import AS_BASE
from audiomarathon.text import counted, flags_of

if TYPE_CHECKING:
    from audiomarathon.data.durations import Durations
    from audiomarathon.data.verify import TaskReport
    from audiomarathon.engine.run import Result
    from audiomarathon.metrics.betting import Decision
    from audiomarathon.records import Verdict
    from audiomarathon.results.compare import Compared, Comparison
    from audiomarathon.results.kept import Kept
    from audiomarathon.results.status import RunStatus
    from audiomarathon.results.sweep_summary import Finished, Outcome

_LATENCIES = ("first_token_latency", "total_latency")  # measured for endpoints only
_STAGES = ("load", "preprocess", "encoder", "llm_prefill", "prefill", "decode", "decode_per_token")
_MORE_STAGES = ("forced_decode_per_token", "scoring", "total")
_SPEED_UPS = ("llm_prefill", "first_token", "decode_per_token")
_MARGIN = ("margin_verdict", "smallest_margin")
_NOT_RUN = "controls that were not run"
_COUNTS = ("n", "errors", "unparsed", "cut_by_token_limit", "truncated")


def of_task(task: Task, verdicts: Mapping[str, Sequence[Verdict]]) -> list[Table]:
    """Return the tables that a task and its scorer add to the report. Columns named `… %` show whole percent.

    Parameters
    ----------
    verdicts
        The verdicts (scored replies) of each setting, as {setting's name: verdicts}.
    """
    frames = task.frames(verdicts)
    task_tables = []
    for title, frame in frames.items():
        percent = {name: Kind(name, _whole) for name in map(str, frame) if name.endswith(" %")}
        counts = {str(note) for name in frame if str(name).endswith("_said") for note in frame[name].dropna()}
        single = "n 1" in counts and counts <= {"n 0", "n 1"}
        table = Table(frame, title=f"{task.key}: {title}", foreign=True, kinds=percent, folded=single)
        task_tables += [table] if len(frame) else []
    return task_tables


def _whole(share: float) -> str:
    """Return a share in percent as text, rounded to a whole number; halves are rounded up."""
    return str(math.floor(share + 0.5))


def result_row(
    result: Result, saved: Mapping[str, Any] | None = None, beside: Finished | None = None
) -> dict[str, Any]:
    """Return a finished run's score, times, sizes and savings as a row, {column: value}.

    Times are medians in seconds, sizes in bytes, speed-ups base ÷ setting, differences setting − base.

    Parameters
    ----------
    saved
        The setting's savings, from :func:`audiomarathon.results.savings.savings`.
    beside
        The setting's comparison with base, for the summary of a sweep.
    """
    summary, timing = result.summary, result.summary["timing"]
    row: dict[str, Any] = {
        "task": summary["task"],
        "checkpoint": result.folder.parent.name,
        "setting": result.method,
        **{name: summary.get(name) for name in (*_COUNTS, "headline", "score")},
        "n_said": ", ".join(flags_of(summary)),
        **with_interval("score", summary.get("score"), (summary.get("intervals") or {}).get("score")),
        **{name: summary.get(name) for name in ("accuracy", "strict_accuracy", "macro_f1", "wer", "mean_wer", "cer")},
    }
    if beside is not None:
        row |= _difference(beside)
    for stage in (*_STAGES, *_MORE_STAGES, *_LATENCIES):
        row[f"{stage}_s"] = (timing.get(f"{stage}_s") or {}).get("p50")
    audio, kept = summary["audio_tokens"], summary["kept_audio_tokens"]
    row |= {"audio_tokens": audio, "kept_audio_tokens": kept}
    row["_tokens"] = f"{NONE if kept is None else f'{kept:.0f}'} of {audio:.0f}" if audio else None
    if audio and (mean := summary.get("kept_over_layers")) is not None:
        row |= {"kept_over_layers": mean, "_tokens": f"{row['_tokens']}, {mean:.0f} on average over layers"}
    row |= {name: summary.get(name) for name in ("kv_bytes", "peak_memory_bytes", "cost")}
    if saved is not None:
        row |= _saved(saved, summary["n"])
    row["busy_machine"] = bool(summary.get("busy"))
    row["notes"] = "; ".join(summary.get("notes") or ()) or None
    row["error"] = None if summary["complete"] else f"{counted(summary['errors'], 'sample')} failed"
    return row


def _difference(beside: Finished) -> dict[str, Any]:
    against = beside.against_base or {}
    row: dict[str, Any] = {"against_base_samples": against.get("samples")}
    for name in ("score", "accuracy"):
        figure = against.get(name) or {}
        row |= with_interval(f"{name}_difference", figure.get("difference"), figure.get("interval"))
    if not against:
        row["score_difference"] = "no base"
        row["score_difference_why"] = beside.why
    elif beside.result.method == Base().label:
        row |= {name: None for name in row if "_difference" in name}
    elif against["samples"] != beside.result.summary["n"]:  # these are not over all answered samples
        row["score_difference_said"] = f"n {against['samples']}"
    return row


def _saved(saved: Mapping[str, Any], n: int) -> dict[str, Any]:
    lengths = saved.get("kv_lengths") or ()
    row: dict[str, Any] = {"kept_ratio": saved.get("kept_ratio")}
    row |= {"kv_lengths": " ".join(f"{length:g}" for length in lengths), "_kv_length_a_layer": lengths_text(lengths)}
    row["scoring_s"] = saved.get("scoring_s")
    for name in _SPEED_UPS:
        row |= _speed_up(name, saved.get(name) or {})
    row |= _throughput(saved.get("throughput"))
    row |= {"kv_bytes_ratio": saved.get("kv_bytes_ratio"), "compared_samples": saved.get("compared_samples")}
    row["across_sessions"] = saved.get("across_sessions")
    if row["llm_prefill_speedup"] is not None:
        some = f"n {row['compared_samples']}" if row["compared_samples"] != n else ""
        remarks = [row["llm_prefill_speedup_said"], some, "*" * bool(row["across_sessions"])]
        row["llm_prefill_speedup_said"] = ", ".join(filter(None, remarks))
    return row


def _speed_up(stage: str, gain: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a stage's speed-up, as {column: value}: its value, interval, ideal, and remarks.

    `gain` is the result of :func:`~audiomarathon.results.pairs.gains`, which explains its fields.
    """
    column = f"{stage}_speedup"
    row = with_interval(column, gain.get("measured"), gain.get("interval"))
    ideal, work = gain.get("ideal"), gain.get("work")
    said = [] if ideal is None else [f"ideal {ideal:.2f}"]
    said += [] if work is None else [f"{work:.2f} of GPU work"]
    said += ["launch-bound"] * bool(gain.get("launch_bound"))
    said += ["chooses longer than it saves"] * bool(gain.get("chooses_longer"))
    row |= {f"{column}_ideal": ideal, f"{column}_work": work, f"{column}_launch_bound": gain.get("launch_bound")}
    row[f"{column}_chooses_longer"] = gain.get("chooses_longer")
    return row | {f"{column}_said": ", ".join(said)}


def _throughput(gain: Mapping[str, float] | None) -> dict[str, Any]:
    """Return the columns that compare a setting's samples per second with base's, as {column: value}.

    Setting and base may have batches of different sizes. The speed-up is None if no batches can be compared.
    """
    if gain is None:
        return {"throughput_speedup": None}
    sides = ("", "base_")
    method_rate, base = (f"{gain[f'{side}samples_per_second']:.3g}" for side in sides)
    batch, of_base = (f"{gain[f'{side}batch']:.0f}" for side in sides)
    each = f"batches of {batch}" if batch == of_base else f"batches of {batch}, base's of {of_base}"
    said = f"{method_rate} a second against {base}, {each}"
    rates = {f"throughput_{name}": value for name, value in gain.items() if name != "measured"}
    return {"throughput_speedup": gain["measured"], "throughput_speedup_said": said, **rates}


def results(finished: Sequence[Result], title: str = "") -> Table:
    """Make the table of finished runs, a row per task and setting: score with interval, times, kept audio tokens, KV
    cache.

    Times are medians over samples in milliseconds; a dash means not measured. Endpoints have the latencies that the
    client measured, and costs if prices are known.
    """
    return _scores([result_row(result) for result in finished], finished, title)


def _scores(rows: Sequence[Mapping[str, Any]], finished: Sequence[Result], title: str, *more: str) -> Table:
    stages = ("encoder_s", "llm_prefill_s", "decode_s")
    latencies = tuple(f"{name}_s" for name in _LATENCIES)
    timed = [name for name in (*stages, *latencies) if any(row[name] is not None for row in rows)]
    cost = ("cost",) * any(row["cost"] is not None for row in rows)
    shown = ("task", "setting", "n", "score", *more, *(timed or stages), "_tokens", "kv_bytes", *cost)
    noted = [(result.method.partition("-")[0], result.summary) for result in finished]
    lines = lines_by_reason(
        dict.fromkeys(
            LeftOut(name, summary["task"], note) for name, summary in noted for note in summary.get("notes") or ()
        )
    )
    least = ("accuracy", "encoder_s", "decode_s", "total_latency_s", "llm_prefill_s")  # so savings are never hidden
    return Table.of(rows, shown, title=title, group="task", least=least, notes=lines)


def sweep_rows(outcome: Outcome) -> list[dict[str, Any]]:
    """Return the rows of `summary.csv`, each {column: value}: finished settings, then failed tasks."""
    rows = [
        result_row(finished.result, finished.savings, finished)
        for settings in outcome.groups.values()
        for finished in settings
    ]
    return rows + [{"task": task, "error": reason} for task, reason in outcome.swept.failures.items()]


def sweep(settings: Sequence[Finished], of: str = "") -> tuple[Table, Table]:
    """Return two tables of a sweep's settings: (scores and times, savings against base on the same samples).

    A speed-up is the median over samples of base ÷ setting, with its 95 % interval. `ideal` is computed from the FLOPs
    of prefill, or from the bytes that a decode step reads. Decode is measured only in runs with a forced number of
    tokens (`DECODE_TOKENS`).
    """
    rows = [result_row(finished.result, finished.savings, finished) for finished in settings]
    title = f"Scores and times (medians){of}"
    scores = _scores(rows, [finished.result for finished in settings], title, "score_difference", "accuracy")
    always = ("task", "setting", "kept_ratio", "_kv_length_a_layer", "kv_bytes", "scoring_s")
    notes = [f"* {ACROSS}"] if any(finished.savings.get("across_sessions") for finished in settings) else []
    kinds = {"untimed": "no speed-ups", "undecoded": "no decode speed-up", "unbatched": "no samples a second"}
    for name, what in kinds.items():
        whys = [
            (finished.result, finished.savings.get(name) or finished.why * (name == "untimed")) for finished in settings
        ]
        without = [LeftOut(result.method, result.summary["task"], why) for result, why in whys if why]
        every = {finished.result.method for finished in settings} - {Base().label}
        lines = lines_by_reason((left for left in without if left.side != Base().label), every)
        notes += [f"{what} for {line}" for line in lines]
    *speed_ups, decode = (f"{stage}_speedup" for stage in _SPEED_UPS)
    columns = (*always, *speed_ups, decode, "throughput_speedup")
    saved = Table.of(
        rows, columns, title=f"Savings against base of the same samples{of}", group="task",
        least=("scoring_s",), notes=notes,
    )  # fmt: skip
    return scores, saved.without_empty(*always, *speed_ups)


def lengths_text(lengths: Sequence[float] | None) -> str | None:
    """Write each layer's mean KV-cache length as text: `2×2600 26×1350` for two layers of 2600 and 26 of 1350 entries.

    More than four groups of equal layers are shown as a range, `900–2600`.
    """
    if not lengths:
        return None
    runs = [(len(list(layers)), length) for length, layers in groupby(lengths)]
    if len(runs) > 4:  # different budgets in many layers
        return f"{min(lengths):.0f}–{max(lengths):.0f}"
    return " ".join(f"{count}×{length:.0f}" for count, length in runs)


def comparison(compared: Compared, missing: Sequence[str] = (), notes: Sequence[str] = ()) -> Table:
    """Make the table of a comparison: a row per system (a method on a model) on each task, group and mean.

    Speed-ups are reference ÷ system: above 1 is faster.

    Parameters
    ----------
    missing
        Names of runs of the control `random` that are missing; each gets a row "not run".
    notes
        Lines below the table.
    """
    rows = [
        {"reference": compared.reference, "scope": heading, **comparison_row(row)}
        for heading, row in _in_sections(compared.rows)
    ]
    rows += [{"scope": _NOT_RUN, "setting": name, "difference": "not run"} for name in missing]
    shown = ("scope", "setting", "samples", "score", "difference", "p", "p_holm", "mcnemar_p", *_MARGIN)
    kinds = {"samples": Kind("n"), "scope": Kind("tasks", left=True), "score": Kind("score", ".3f")}
    kinds["setting"] = Kind("setting", left=True)
    columns = (*shown, *(f"{stage}_speedup" for stage in (*_SPEED_UPS, "throughput")))
    table = Table.of(
        rows, columns, title=f"against {compared.reference}",
        group="scope", headed=True, least=("mcnemar_p", "p", *_MARGIN[1:]), notes=notes, kinds=kinds,
    )  # fmt: skip
    return table.without_empty("scope", "setting", "samples", "score", "difference")


def in_halves(table: Table) -> list[Table]:
    """Split a comparison's table into [one of scores, one of speed-ups], to fit a narrow terminal.

    Without speed-ups, the list has only the first.
    """
    speed_ups = [name for name in table.columns if name.endswith("_speedup")]
    scores = replace(table, shown=[name for name in table.columns if name not in speed_ups])
    if not speed_ups:
        return [scores]
    kept = table.frame[table.frame["scope"] != _NOT_RUN]
    title = f"speed-ups {table.title}"
    return [scores, replace(table, data=kept, title=title, shown=["scope", "setting", *speed_ups], notes=())]


def comparison_row(row: Comparison) -> dict[str, Any]:
    """Return a comparison as one row of a table, {column: value}.

    Its difference is marked as better or worse only if it is significant after Holm's correction for many tests.
    """
    verdict, counts = row.verdict, ("truncated", "unparsed", "cut", "timed", "score", "reference_score")
    flags = {"unparsed": row.unparsed, "cut_by_token_limit": row.cut, "truncated": row.truncated, "busy": row.busy}
    significant = is_clear(row) and verdict.difference
    fixed = row.alike == AS_BASE  # a test is meaningless if replies cannot differ
    speeds: dict[str, Any] = {}
    for stage, speed in row.speed_ups.items():
        speeds |= _speed_up(stage, speed or {})
    return {
        "tasks": " ".join(row.tasks),
        "setting": row.side,
        "samples": row.samples,
        "samples_said": ", ".join(flags_of(flags)),
        **{name: getattr(row, name) for name in counts},
        **with_interval("difference", verdict.difference, verdict.interval),
        "difference_said": row.alike,
        "difference_mark": "" if not significant else "better" if significant > 0 else "worse",
        "p": None if fixed else verdict.p,
        "p_holm": None if fixed else row.p_adjusted,
        "mcnemar_p": None if fixed else row.mcnemar,
        **_decision(row.decision),
        **speeds,
        **_throughput(row.throughput),
        "untimed": row.untimed or None,
        "unbatched": row.unbatched or None,
        "across_sessions": row.across,
        "busy_machine": row.busy,
    }


def _decision(decision: Decision | None) -> dict[str, Any]:
    """Return the columns of a table on the test of a margin (an allowed loss of score), as {column: value}; {} without
    a test.
    """
    if decision is None:
        return {}
    said = AS_BASE if decision.by_construction else "; ".join(filter(None, [decision.missing, decision.beside]))
    return {
        "margin": decision.margin,
        "margin_figure": decision.figure,
        "margin_verdict": at_margin(decision),
        "margin_verdict_said": said,
        "margin_verdict_mark": {NO_WORSE: "good", WORSE: "bad"}.get(decision.verdict, ""),
        "smallest_margin": None if decision.by_construction else decision.smallest,
        "smallest_margin_said": "" if decision.tests < 2 else f"{decision.smallest_of_all:.3f} of {decision.tests}",
        "smallest_margin_of_all": decision.smallest_of_all,
        **dict(zip(("margin_difference_low", "margin_difference_high"), decision.bounds, strict=True)),
        "margin_difference": decision.difference,
        **{name: getattr(decision, name) for name in ("p_no_worse", "p_worse", "holm_no_worse", "holm_worse")},
        **{name: getattr(decision, name) for name in ("clusters", "discordant", "needed")},
        "looked_after_each_cluster": decision.each,
        "margin_beside": decision.beside or None,
    }


def kept(retained: Kept) -> Table:
    """Make a table of the share of samples that each setting still answers right, among samples that need the audio.

    A sample needs the audio if base answers it right and the control run (silence or noise) does not.
    """
    rows = [
        {"task": row.task, "setting": row.side, "n": row.samples, "clusters": row.clusters}
        | with_interval("kept", row.share, row.interval)
        for row in retained.rows
    ]
    kinds = {"kept": Kind("still right [95 %]", ".3f"), "clusters": Kind("clusters", "d")}
    title = f"of the samples that {retained.reference} answers right and {retained.control} does not"
    return Table.of(rows, title=title, group="task", kinds=kinds)


def at_margin(decision: Decision) -> str:
    """Return the verdict of the test of a margin as text, such as `no worse by more than 0.02`."""
    return decision.verdict if decision.verdict == OPEN else f"{decision.verdict} by more than {decision.margin:g}"


def _in_sections(rows: Sequence[Comparison]) -> list[tuple[str, Comparison]]:
    """Return (heading, comparison) pairs: the table shows each comparison under its heading, a task or a mean.

    Single tasks come first, then groups, and the overall mean last.
    """
    sections: dict[tuple[str, tuple[str, ...]], list[Comparison]] = {}
    for row in rows:
        sections.setdefault((row.scope, row.tasks), []).append(row)
    headed = []
    for scope, members in sorted(sections, key=lambda section: len(section[1]) if len(section[1]) > 1 else 0):
        alike = sum(scope == other for other, _ in sections)
        which = f"{len(members)} tasks" if alike == 1 else ", ".join(members)
        heading = scope if len(members) == 1 else f"{scope} ({which})"
        headed += [(heading, row) for row in sections[scope, members]]
    return headed


def reproduction(rows: Sequence[Mapping[str, Any]], title: str, notes: Sequence[str] = ()) -> Table:
    """Make the table of our scores beside the published ones, × 100: per task, per group and overall."""
    interval_rows = [{**row, **with_interval("mine", row["mine"], row["interval"])} for row in rows]
    shown = ("scope", "samples", "unparsed", "mine", "weighted", "published", "difference", "agrees")
    hundredths = {"mine": "mine × 100 [95 %]", "weighted": "weighted F1", "published": "published"}
    kinds = {name: Kind(heading, ".1f", 100) for name, heading in hundredths.items()}
    kinds |= {"scope": Kind("task", left=True), "samples": Kind("n", "d"), "agrees": Kind("published in interval")}
    kinds["difference"] = Kind("difference", "+.1f", 100)
    return Table.of(interval_rows, shown, title=title, least=("weighted", "agrees"), kinds=kinds, notes=notes)


def verification(reports: Sequence[TaskReport]) -> Table:
    """Make the table of the checks of tasks' data, a row per task: found and expected samples, and the number of
    problems.
    """
    rows = []
    for report in reports:
        expected = report.expected
        samples = f"{report.samples:,}" if report.folder else NONE
        span = f"{report.seconds[0]:.1f}–{report.seconds[1]:.1f}" if report.seconds else NONE
        rows.append(
            {
                "task": report.task,
                "state": report.state,
                "state_mark": {"ok": "good", "wrong": "bad"}.get(report.state, "warn"),
                "samples": samples + (f" of {expected.count:,}" if expected else ""),
                "clips": report.clips if report.folder else None,
                "hours": report.hours if report.folder else None,
                "seconds": span + (" ({:g}–{:g})".format(*expected.seconds) if expected else ""),
                "problems": len(report.problems) if report.state == "wrong" else "",
            }
        )
    kinds = {"state": Kind(left=True), "samples": Kind("samples"), "clips": Kind(form=","), "hours": Kind(form=".2f")}
    kinds |= {"seconds": Kind("seconds (expected)"), "problems": Kind("problems", "d")}
    return Table.of(rows, kinds=kinds, least=("hours", "clips"))


def durations(all_durations: Sequence[Durations]) -> Table:
    """Make the table of clip durations in seconds, and total hours, one row per task."""
    from audiomarathon.data.durations import PERCENTILES

    rows = [
        {"task": task_durations.task.key, **task_durations.statistics(), "broken": len(task_durations.broken) or ""}
        for task_durations in all_durations
    ]
    spread = ("mean", "std", "min", *(f"p{percent}" for percent in PERCENTILES), "max")
    kinds = {"clips": Kind(form=","), "total_hours": Kind("hours", ".2f"), "broken": Kind("broken", "d")}
    kinds |= {name: Kind(form=".1f") for name in spread}
    least = ("total_hours", "clips", *(f"p{percent}" for percent in PERCENTILES if percent != 50), "std")
    return Table.of(rows, ("task", "clips", "total_hours", *spread, "broken"), kinds=kinds, least=least)


def tokens(all_durations: Sequence[Durations]) -> Table:
    """Make the table of audio tokens that the median and the longest clip take, one row per task.

    The columns are the rates (tokens per second) of the models.
    """
    rows, notes = list[dict[str, Any]](), dict[str, None]()
    for task_durations in all_durations:
        row: dict[str, Any] = {"audio tokens": task_durations.task.key}
        for rate, figures in task_durations.tokens().items():
            row |= {f"{rate}/s {what}": figures[what] for what in ("median", "max")}
            notes[f"{rate}/s: {', '.join(cast('list[str]', figures['models']))}"] = None
        rows.append(row)
    return Table.of(rows, notes=list(notes), kinds={name: Kind(form=",") for row in rows for name in [*row][1:]})


def status(statuses: Sequence[RunStatus]) -> Table:
    """Make the table of one checkpoint's runs with their progress, one row per run."""
    from audiomarathon.engine.progress_view import answered_text

    rows = [
        {
            "task": run.task,
            "setting": run.setting,
            "answered": answered_text(run.progress),
            **with_interval("score", run.progress.score, run.progress.interval),
            "state": run.state,
            "state_mark": {"running": "busy", "complete": "good", "unreadable": "bad"}.get(run.state, "warn"),
        }
        for run in statuses
    ]
    kinds = {"answered": Kind("answered"), "score": Kind("score [95 %]", ".3f"), "state": Kind(left=True)}
    return Table.of(rows, title=statuses[0].checkpoint, kinds=kinds)


def running(statuses: Sequence[RunStatus], now: datetime.datetime) -> Table:
    """Make the table of the speed and expected end of one checkpoint's running tasks; `now` is the current time."""
    from audiomarathon.engine.progress_view import ending

    rows = []
    for task in dict.fromkeys(run.task for run in statuses if run.alive):
        runs = [run for run in statuses if run.alive and run.task == task]
        answered, expected = (sum(getattr(run.progress, name) for run in runs) for name in ("answered", "expected"))
        quiet = [run.quiet_s for run in runs if run.quiet_s is not None]
        left = [run.left_s for run in runs if run.left_s is not None]
        rows.append(
            {
                "task": task,
                "answered": f"{answered:,} of {expected:,}",
                # Settings take turns on each sample, so each has the rate of the whole task: do not add the rates.
                "samples/min": max(run.samples_per_minute or 0 for run in runs) or None,
                "audio s/s": max(run.audio_s_per_s or 0 for run in runs) or None,
                "last record": f"{min(quiet):.0f} s ago" if quiet else None,
                "end": ending(max(left), now) if left else None,
            }
        )
    kinds = {name: Kind(form=".4g") for name in ("samples/min", "audio s/s")}
    kinds |= {"task": Kind("running", left=True), "answered": Kind("answers"), "end": Kind("this task", left=True)}
    return Table.of(rows, kinds=kinds, least=("audio s/s",))
