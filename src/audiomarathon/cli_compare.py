"""`audiomarathon compare`: settings or models against each other, on the samples that all of them answered."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from audiomarathon.errors import SettingsError

if TYPE_CHECKING:
    from audiomarathon.evaluation.compare import Comparison


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold some (a sweep's results).")],
    against: Annotated[
        str | None, typer.Option(help="The setting that all others are compared with; default base, else the first.")
    ] = None,
    at_latency: Annotated[
        float | None,
        typer.Option(help="Name the best score within this share of the reference's time to first token (0.5)."),
    ] = None,
    at_score: Annotated[
        float | None, typer.Option(help="Name the fastest setting with this share of the reference's score (0.95).")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Also write the rows: .json, .csv or .md.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the intervals and tests.")] = 42,
) -> None:
    """Compare settings, or models, on the samples that both sides answered.

    Examples:
    audiomarathon compare results                                  # every setting against base
    audiomarathon compare results --at-latency 0.5 --at-score 0.95
    audiomarathon compare results/tau/M/base-0 results/tau/M/dart-0.5-layer2

    Differences are paired: the interval is a bootstrap over clusters (speakers, passages, locations), p a sign-flip
    permutation test over clusters, Holm's p corrects for the number of rows of the same kind (tasks, groups, overall).
    Speed-ups are medians of reference ÷ setting. The control `random` stands beside every pruner, or "not run".
    """
    from rich.console import Console
    from rich.measure import Measurement

    from audiomarathon.evaluation.compare import compare as compare_sides
    from audiomarathon.evaluation.sides import find_reference, missing_controls, read_sides
    from audiomarathon.report.comparison_table import comparison_table

    for name, share in (("--at-latency", at_latency), ("--at-score", at_score)):
        if share is not None and share <= 0:
            raise SettingsError(f"{name} {share}: allowed is a share above 0, such as 0.5")
    if output is not None and output.suffix not in (".json", ".csv", ".md"):
        raise SettingsError(f"-o {output}: allowed are names that end in .json, .csv or .md")
    sides = read_sides(runs)
    reference = find_reference(sides, against)
    if len(sides) == 1:
        raise SettingsError(f"only {reference.method} is there: a comparison wants two settings or more")
    rows, missing = compare_sides(sides, reference, seed=seed), missing_controls(sides)
    title = f"against {reference.name(with_checkpoint=len({side.checkpoint for side in sides}) > 1)}"
    # A cut table is worse than one that wraps: a narrow terminal, or a pipe, gets all of it.
    table = comparison_table(rows, title, missing)
    roomy = Console(width=1_000)
    console = Console(width=max(Console().width, Measurement.get(roomy, roomy.options, table).maximum))
    console.print(table)
    for line in _notes(rows, missing):
        console.print(line, highlight=False, soft_wrap=True)
    for question, share, given in (("latency", at_latency, "time to first token"), ("score", at_score, "score")):
        if share is not None:
            console.print(_answer(rows, question, share, given, reference.method), highlight=False, soft_wrap=True)
    if output is not None:
        _write(output, rows, missing)


def _notes(rows: list[Comparison], missing: list[str]) -> list[str]:
    notes = []
    if missing:
        methods = ",".join(sorted({label.split("-")[1] for label in missing}))
        notes.append(
            "A method has to beat random at the same ratio, which was not run: "
            f"audiomarathon sweep … --methods random --ratios {methods}"
        )
    if any(speed is None for row in rows for speed in row.speed_ups.values()):
        notes.append("– among speed-ups: untimed runs, or runs of another device, whose times cannot be compared")
    return notes


def _answer(rows: list[Comparison], question: str, share: float, given: str, reference: str) -> str:
    from audiomarathon.evaluation.compare import best_at, widest

    best = best_at(widest(rows), **{question: share})
    asked = f"{'within' if question == 'latency' else 'with at least'} {share:g} of {reference}'s {given}"
    if best is None:
        return f"{asked}: no setting"
    speed = best.speed_ups["first_token"]
    assert speed is not None, "only timed rows are chosen"
    return (
        f"{asked}: {best.side} (score {best.score:.3f}, {best.verdict.difference:+.3f}; "
        f"first token {speed['measured']:.2f}× as fast; {best.scope})"
    )


def _write(path: Path, rows: list[Comparison], missing: list[str]) -> None:
    import json

    import pandas as pd

    from audiomarathon.evaluation.files import write_text
    from audiomarathon.report.comparison_table import as_flat, as_json, markdown

    if path.suffix == ".json":
        text = json.dumps({"rows": as_json(rows), "controls_not_run": missing}, indent=2, allow_nan=False) + "\n"
    elif path.suffix == ".md":
        text = markdown(rows, missing)
    else:
        text = pd.DataFrame(as_flat(rows)).to_csv(index=False)
    write_text(path, text)
