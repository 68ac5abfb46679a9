"""`audiomarathon compare`: compare settings or models on the samples that both answered."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from audiomarathon.cli.options import Runs, Seed, option, output_file
from audiomarathon.errors import SettingsError
from audiomarathon.files import write_json, write_text
from audiomarathon.terminal import console
from audiomarathon.text import counted, plain


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
    output: Annotated[Path | None, output_file("Also write the rows to this .json, .csv or .md file.")] = None,
    seed: Seed = 42,
) -> None:
    """Compare settings, or models, on the samples that both answered.

    Examples:
    audiomarathon compare results                                  # every setting against base
    audiomarathon compare results --at-latency 0.5 --at-score 0.95
    audiomarathon compare results/tau/M/base-0 results/tau/M/dart-0.5-layer2

    Differences are paired. Intervals come from a bootstrap over clusters (speakers, passages, locations), p from a
    sign-flip permutation test over clusters. Holm's p corrects for the number of rows of one kind (tasks, groups,
    overall). A speed-up is the median of reference ÷ setting over samples timed in one session. Times of different
    sessions are used only if machine, precision and number of workers per GPU or machine agree and no other process was
    busy; a note says so. Every pruner is shown with the control `random` of the same ratio, or "not run".
    """
    from audiomarathon.report import render, tables
    from audiomarathon.report.comparison_text import answer, notes, ranked
    from audiomarathon.results.best import ranking_of
    from audiomarathon.results.compare import compare_with
    from audiomarathon.results.systems import missing_controls, read_systems

    for name, share in (("--at-latency", at_latency), ("--at-score", at_score)):
        if share is not None and not 0 < share < float("inf"):
            raise SettingsError(f"{name} {share}: not allowed; allowed: a share above 0, such as 0.5")
    if output is not None and output.suffix not in (".json", ".csv", ".md"):
        raise SettingsError(f"-o {output}: not allowed; allowed: a name that ends in .json, .csv or .md")
    systems = read_systems(runs)
    # Replies of models and records of other kinds have no figures in common, so they cannot be compared.
    replying = [one for one in systems if not any(run.task and run.task.own_command for run in one.runs.values())]
    others = (
        [run.task for one in systems if one not in replying for run in one.runs.values() if run.task]
        if replying
        else []
    )
    compared = compare_with(systems := replying or systems, against, seed=seed)
    missing = missing_controls(systems)
    lines = notes(compared, missing)
    if others:
        beside = " ".join(others[0].own_command.split()[:2])
        lines += [f"left out {counted(len(others), 'run')} of tasks with commands of their own; see {beside} --help"]
    limits = [{name: share} for name, share in (("latency", at_latency), ("score", at_score)) if share is not None]
    answers: list[dict[str, Any]] = []
    if limits:
        ranking = ranking_of(compared)
        answers = [answer(ranking, **limit) for limit in limits]
        lines += [*(str(one["text"]) for one in answers), ranked(ranking)]
    out, table = console(), tables.comparison(compared, list(missing))
    render.show(*([table] if render.fits(table, out.width) else tables.in_halves(table)))
    for line in lines:
        out.print(plain(line), markup=False, highlight=False, soft_wrap=True)
    if output is None:
        return
    if output.suffix == ".json":
        content = {
            "reference": compared.reference,
            "rows": [asdict(row) for row in compared.rows],
            "left_out": [asdict(one) for one in compared.left_out],
            "controls_not_run": list(missing),
            "answers": answers,
            "notes": lines,
        }
        write_json(output, content)
    elif output.suffix == ".md":
        write_text(output, render.markdown(tables.comparison(compared, list(missing), lines)))
    else:
        write_text(output, render.csv(tables.comparison(compared)))
