"""`audiomarathon compare`: compare settings or models on the samples that both answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from audiomarathon.cli.options import Margin, Runs, Seed, margins_of, option, output_file
from audiomarathon.errors import SettingsError
from audiomarathon.files import write_json, write_text
from audiomarathon.terminal import console
from audiomarathon.text import counted, plain

if TYPE_CHECKING:
    from audiomarathon.results.compare import Compared, Comparison
    from audiomarathon.results.kept import Kept


def compare(
    runs: Runs,
    against: Annotated[
        str | None, option("Setting to compare with, or its method (default: base; without base, the first setting).")
    ] = None,
    at_latency: Annotated[
        float | None,
        option("Find the best score within this share of the reference's time to first token, such as 0.5."),
    ] = None,
    at_score: Annotated[
        float | None,
        option("Find the fastest setting with at least this share of the reference's score, such as 0.95."),
    ] = None,
    margin: Margin = None,
    power: Annotated[
        bool, option("With --margin: estimate how many samples like these decide in 80 % of cases, if nothing is lost.")
    ] = False,
    kept: Annotated[
        bool,
        option(
            "Of the samples that base gets right and the control wrong: show the share that each setting gets right."
        ),
    ] = False,
    output: Annotated[Path | None, output_file("Also write the rows to this .json, .csv, .md or .tex file.")] = None,
    seed: Seed = 42,
) -> None:
    """Compare settings, or models, on the samples that both answered.

    Examples:
    audiomarathon compare results                                  # every setting against base
    audiomarathon compare results --at-latency 0.5 --at-score 0.95
    audiomarathon compare results --margin 0.02                    # is the loss below 0.02?
    audiomarathon compare results/tau/M/base-0 results/tau/M/dart-0.5-layer2

    Differences are paired. Intervals come from a bootstrap over clusters (speakers, passages, locations), p from a
    sign-flip permutation test over clusters. Holm's p corrects for the number of rows of one kind (tasks, groups,
    overall). A speed-up is the median of reference ÷ setting over samples timed in one session. Times of different
    sessions are used only if machine, precision and number of workers per GPU or machine agree and no other process was
    busy; a note says so. A margin is tested by betting on whole clusters, which is valid for any number of clusters
    (docs/lossless.md). Every pruner is shown with the control `random` of the same ratio, or "not run".
    """
    from audiomarathon.report import render, tables
    from audiomarathon.report.comparison_text import answer, notes, power_lines, ranked
    from audiomarathon.results.best import ranking_of
    from audiomarathon.results.compare import compare_with
    from audiomarathon.results.kept import kept_of
    from audiomarathon.results.systems import missing_controls, read_systems

    margins = _checked(at_latency, at_score, output, margin, power=power)
    systems = read_systems(runs)
    # Replies of models and records of other kinds have no figures in common, so they cannot be compared.
    replying = [
        system for system in systems if not any(run.task and run.task.own_command for run in system.runs.values())
    ]
    others = (
        [run.task for system in systems if system not in replying for run in system.runs.values() if run.task]
        if replying
        else []
    )
    systems = replying or systems
    compared = compare_with(systems, against, seed=seed, margins=margins)
    missing = missing_controls(systems)
    lines = notes(compared, missing)
    if others:
        beside = " ".join(others[0].own_command.split()[:2])
        lines += [f"left out {counted(len(others), 'run')} of tasks with commands of their own; see {beside} --help"]
    lines += [line for row in compared.rows if power and row.decision for line in power_lines(compared, row)]
    more = kept_of(systems, compared) if kept else None
    if more is not None:
        lines += more.notes
    limits = [{name: share} for name, share in (("latency", at_latency), ("score", at_score)) if share is not None]
    answers: list[dict[str, Any]] = []
    if limits:
        ranking = ranking_of(compared)
        answers = [answer(ranking, **limit) for limit in limits]
        lines += [*(str(answer["text"]) for answer in answers), ranked(ranking)]
    out, table = console(), tables.comparison(compared, list(missing))
    render.show(*([table] if render.fits(table, out.width) else tables.in_halves(table)))
    if more is not None:
        render.show(tables.kept(more))
    for line in lines:
        out.print(plain(line), markup=False, highlight=False, soft_wrap=True)
    if output is not None:
        _write(output, compared, list(missing), lines, answers, more)


def _checked(
    at_latency: float | None, at_score: float | None, output: Path | None, margin: str | None, *, power: bool
) -> dict[str, float]:
    """Check the options of `compare` before anything is read; return {task key: largest allowed loss of score}."""
    for name, share in (("--at-latency", at_latency), ("--at-score", at_score)):
        if share is not None and not 0 < share < float("inf"):
            raise SettingsError(f"{name} {share}: not allowed; allowed: a share above 0, such as 0.5")
    if output is not None and output.suffix not in (".json", ".csv", ".md", ".tex"):
        raise SettingsError(f"-o {output}: not allowed; allowed: a name that ends in .json, .csv, .md or .tex")
    margins = margins_of(margin)
    if power and not margins:
        raise SettingsError("--power needs a margin; allowed: such as --margin 0.02 --power")
    return margins


def _write(
    output: Path,
    compared: Compared,
    missing: Sequence[str],
    lines: Sequence[str],
    answers: Sequence[Mapping[str, Any]],
    more: Kept | None,
) -> None:
    """Write a comparison to a file: as JSON, CSV, Markdown or LaTeX, according to the ending of its name."""
    from audiomarathon.report import render, tables

    if output.suffix == ".json":
        content = {
            "reference": compared.reference,
            "rows": [_as_json(row) for row in compared.rows],
            "left_out": [asdict(left) for left in compared.left_out],
            "controls_not_run": missing,
            "answers": answers,
            "notes": lines,
            **({} if more is None else {"kept": [asdict(row) for row in more.rows]}),
        }
        write_json(output, content)
    elif output.suffix == ".csv":
        write_text(output, render.csv(tables.comparison(compared)))
    else:
        write = render.markdown if output.suffix == ".md" else render.latex
        shown = [tables.comparison(compared, missing, lines), *([tables.kept(more)] if more else [])]
        write_text(output, "\n".join(map(write, shown)))


def _as_json(row: Comparison) -> dict[str, Any]:
    """Return a comparison as {name: value} for JSON: its fields, and the computed verdict of its test of a margin."""
    fields = asdict(row)
    decision = {} if row.decision is None else {"decision": {**fields["decision"], "verdict": row.decision.verdict}}
    return {name: value for name, value in fields.items() if name != "decision"} | decision
