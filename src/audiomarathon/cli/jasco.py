"""`audiomarathon jasco …`: replies from elsewhere, the original's evaluation call, and its tables."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from audiomarathon.cli.output import say, show
from audiomarathon.errors import DataError, SettingsError

if TYPE_CHECKING:
    from rich.table import Table

    from audiomarathon.records import Record, Verdict
    from audiomarathon.runs.read import Run

Parser = Literal["original", "strict"]
Prompt = Literal["v2", "v1"]
_ADDED = ("rating", "orientation", "gated", "rule", "judge", "judge_prompt")
_LEANINGS = ("audio", "both", "speech", "neither")


def example(
    output: Annotated[Path, typer.Option("--output", "-o", help="The file.")] = Path("jasco.csv"),
    data: Annotated[Path | None, typer.Option("--data", help="Root of the data [env: AUDIOMARATHON_DATA].")] = None,
) -> None:
    """Write the 640 rows to fill in: a row a clip and instruction, `allm_output` empty."""
    from audiomarathon.benchmarks import get_task, task_folder
    from audiomarathon.benchmarks.jasco.exchange import REPLY
    from audiomarathon.benchmarks.jasco.exchange import example as rows
    from audiomarathon.files import write_text

    task = get_task("jasco")
    loaded = task.load(task_folder(task, data, {} if data else dict(os.environ)))
    write_text(output, rows(loaded.samples))
    say(f"wrote {output}: {len(loaded.samples)} rows; fill in {REPLY}, then: audiomarathon jasco import {output}")


def import_(
    file: Annotated[Path, typer.Argument(help="CSV with the columns of the original's example.csv.")],
    model_name: Annotated[str, typer.Option("--model-name", help="What the model is called in tables.")],
    results: Annotated[Path, typer.Option(help="Where results go [env: RESULTS_DIR].", envvar="RESULTS_DIR")] = Path(
        "results"
    ),
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Leave out clips that lack a reply; they are not counted as 0.")
    ] = False,
) -> int:
    """Make a run of replies that were generated elsewhere; it is judged, scored and compared like any other.

    Example: audiomarathon jasco import my.csv --model-name SALMONN-7B
    """
    from audiomarathon.benchmarks.jasco.exchange import read_whole
    from audiomarathon.files import file_name

    records = read_whole(file, allow_missing=allow_missing)
    folder = results / "jasco" / file_name(model_name) / "imported"
    return show([_as_run(folder, file, model_name, records)])


def evaluate(
    judge: Annotated[str, typer.Argument(help="A folder or hub id, openai:MODEL, or replay:FILE.")],
    input_file: Annotated[Path, typer.Argument(help="CSV with replies (allm_output), or with judgements as well.")],
    output_file: Annotated[Path, typer.Argument(help="The same rows with judgements, CSV.")],
    parser: Annotated[
        Parser, typer.Option(help="Whose reading the added columns hold: the original's, or the strict one.")
    ] = "original",
    judge_prompt: Annotated[Prompt, typer.Option(help="v2: three judges; v1: the older single judge.")] = "v2",
    batch_size: Annotated[int, typer.Option(min=1, help="Requests in a batch, or in flight.")] = 8,
) -> int:
    """Judge replies in a CSV file and print the benchmark's figures, as the original's evaluation/eval.py does.

    Example: python eval.py meta-llama/Llama-3.1-70B-Instruct example.csv llama.csv

    A file that holds judgements (`llama3_extract`) is read again without a judge. A command that was stopped goes on
    where it was: judgements are kept in <output>.run.
    """
    from audiomarathon.benchmarks import get_task
    from audiomarathon.benchmarks.jasco.exchange import JUDGEMENT, as_csv, judged_columns, read_replies
    from audiomarathon.benchmarks.jasco.figures import CoReasoning
    from audiomarathon.benchmarks.jasco.rubric import AsPublished, Strict
    from audiomarathon.files import write_text
    from audiomarathon.judges.judgements import request_of, second_of
    from audiomarathon.records import Verdict

    rows = read_replies(input_file)
    scorer, protocols = get_task("jasco").scorer, (Strict(judge_prompt, anchored=False), AsPublished(judge_prompt))
    assert isinstance(scorer, CoReasoning)
    if rows and JUDGEMENT in rows[0][0][1]:
        records = []
        for (_line, row), record in rows:
            told: dict[str, str | None] = {}
            if request := request_of(protocols[0], record):
                told[request.hash] = row[JUDGEMENT]
                if again := second_of(protocols[0], row[JUDGEMENT], record):
                    told[again.hash] = ""  # what one answer leaves unread stays so
            records.append(replace(record, judgements={judge: told}))
        failed = 0
    else:
        folder = output_file.with_name(f"{output_file.name}.run")
        judge, records, failed = _judged(folder, input_file, judge, [one for _, one in rows], protocols, batch_size)
    verdicts = [Verdict(record, scorer.judge(record)) for record in records]
    written = []
    for ((_line, row), record), verdict in zip(rows, verdicts, strict=True):
        request = request_of(protocols[0], record)
        raw = (verdict.record.judgements.get(judge) or {}).get(request.hash) if request else ""
        own = judged_columns(verdict, judge, parser) | {"judge": judge, "judge_prompt": judge_prompt}
        written.append({**row, JUDGEMENT: raw or "", **own})
    names = dict.fromkeys([*(rows[0][0][1] if rows else ()), JUDGEMENT, *_ADDED])
    write_text(output_file, as_csv(written, names))
    _print_figures(scorer, verdicts)
    return 1 if failed else 0


def table(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold some.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Also write exact values, CSV.")] = None,
) -> None:
    """Print best-means by judge, and what replies depend on, a row a model and setting."""
    from audiomarathon.benchmarks.jasco.exchange import as_csv
    from audiomarathon.files import write_text
    from audiomarathon.terminal import console

    rows = [_figures_of(run) for run in _runs(runs)]
    judges = sorted({f"best_mean: {judge}" for row in rows for judge in _judges(row)})
    best = _table("best-mean (0–2)", [*(name.partition(": ")[2] for name in judges), "mean [95 %]", "mean of 8", "n"])
    leans = _table("what replies depend on, % of replies", [*_LEANINGS, "α orientation"])
    for row in rows:
        name, each = (row["model"], row["setting"]), [_shown(row.get(one)) for one in judges]
        best.add_row(*name, *each, _with_interval(row), _shown(row["mean"]), str(row["n"]))
        leans.add_row(*name, *(_percent(row[one]) for one in _LEANINGS), _shown(row["alpha_orientation"]))
    console().print(best, leans)
    if output:
        names = dict.fromkeys(name for row in rows for name in row)
        write_text(output, as_csv(rows, names))


def survival(
    runs: Annotated[list[Path], typer.Argument(help="A sweep's results.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Also write exact values, CSV.")] = None,
) -> None:
    """Say what pruning takes first, the sound of a clip or its speech. No judge is needed.

    Example: audiomarathon sweep jasco --model qwen2-audio --methods random,fast_v --ratios 0.5,0.7
    """
    from audiomarathon.benchmarks.jasco.exchange import as_csv
    from audiomarathon.benchmarks.jasco.survival import sentence
    from audiomarathon.benchmarks.jasco.survival import survival as survival_of
    from audiomarathon.files import write_text
    from audiomarathon.results.systems import base_of, systems_of
    from audiomarathon.terminal import console

    systems, rows = systems_of(_runs(runs)), []
    shown = _table("kept of what the unpruned model reports", ["audio tokens", "speech", "sound", "difference [95 %]"])
    for system in systems:
        base = base_of(system, systems)
        if system.is_base or base is None:
            continue
        own, others = system.runs["jasco"].records, base.runs["jasco"].records
        both = [(own[id_], others[id_]) for id_ in own if id_ in others and own[id_].clips == others[id_].clips]
        found = survival_of(both)
        row: dict[str, Any] = {"model": system.checkpoint, "setting": system.name(with_checkpoint=False)}
        for name, one in found.items():
            low, high = one.interval or (None, None)
            row |= {name: None if one.value != one.value else one.value, f"{name}_low": low, f"{name}_high": high}
        rows.append(row)
        tokens = (system.runs["jasco"].summary or {}).get("kept_audio_tokens")
        kept = _shown(row["speech_kept"]), _shown(row["sound_kept"]), _with_interval(row, "difference")
        shown.add_row(row["model"], row["setting"], "–" if tokens is None else f"{tokens:.0f}", *kept)
        say(sentence(row["setting"], found))
    if not rows:
        raise DataError(f"{', '.join(map(str, runs))}: no setting beside base there; run a sweep")
    console().print(shown)
    say("speech stands late in most clips: a method that keeps late tokens looks as if it kept speech")
    if output:
        write_text(output, as_csv(rows, rows[0]))


def beside_published(runs: Sequence[Path], model: str) -> None:
    """Print a model's figures beside the published ones, and say whose judges they are of."""
    from audiomarathon.benchmarks.jasco.benchmark import DEPENDENCE, JASCO
    from audiomarathon.judges.registry import KNOWN
    from audiomarathon.terminal import console

    theirs = JASCO.models.get(model, "")
    panel, llama = DEPENDENCE.get(theirs, ((None,) * 4, (None,) * 4))
    for run in _runs(runs):
        row = _figures_of(run)
        judges = _judges(row)
        whose = "the paper's judges" if judges == sorted(KNOWN) else f"other judges ({', '.join(judges) or 'none yet'})"
        title = f"{row['model']}, {row['setting']}: {whose}, beside {theirs or 'no published row'}"
        shown = _table(title, ["ours [95 %]", "ours, read as published", "three judges", "Llama alone, prompt v1"], 1)
        for name, three, one in zip(("best_mean", *_LEANINGS), (*panel, None), (*llama, None), strict=True):
            own, published = _with_interval(row, name), row[f"{name} as published"]
            shown.add_row(name, *(own, *map(_shown, (published, three, one))))
        console().print(shown)
        if not judges:
            say(f"next: audiomarathon judge {run.folder} --with {','.join(KNOWN)}; then this command again")
        for note in (run.summary or {}).get("notes", ()):
            say(note)


def _as_run(folder: Path, file: Path, name: str, records: Sequence[Record]) -> Any:
    """Write records as a run folder, or go on with one that holds some of them, and score it."""
    import hashlib

    from audiomarathon.engine.run import score
    from audiomarathon.runs.folder import RunFolder

    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    with RunFolder(folder, {"task": "jasco", "origin": "imported", "data": digest}) as run:
        facts = {"task": "jasco", "method": "imported", "model": name, "checkpoint": name, "checkpoint_name": name}
        origin = {"origin": "imported", "file": file.name, "settings": {"seed": 42}}
        run.write_run({**facts, **origin, "samples": [one.id for one in records]})
        for one in records:
            if one.id not in run.records:
                run.append(one)
    return score(folder)


def _judged(
    folder: Path, file: Path, judge: str, records: Sequence[Record], protocols: Sequence[Any], batch_size: int
) -> tuple[str, list[Record], int]:
    """Let a judge answer both readings' questions; return its name, the records with its answers, and what failed."""
    from audiomarathon.judges.cache import Cache
    from audiomarathon.judges.registry import open_judges
    from audiomarathon.judges.room import Bench, Case, judge_run
    from audiomarathon.runs.folder import read_records
    from audiomarathon.settings import cache_folder
    from audiomarathon.terminal import progress_of

    if "," in judge:
        raise SettingsError(f"{judge}: name one judge; several judge a run: audiomarathon judge RUN --with A,B,C")
    ((name, opened),) = open_judges(judge, batch_size=batch_size).items()
    bench = Bench(name, opened, None if opened.stored else Cache(cache_folder(), opened.identity()))
    _as_run(folder, file, file.stem, records)
    failed = 0
    for protocol in protocols:
        case = Case(folder, records, protocol)
        with progress_of(len(records), name, "judgement") as step:
            failed += judge_run(case, bench, step=step)
    if failed:
        say(f"error: {failed} requests failed, their rows are missing; run the same command again")
    known = read_records(folder)
    return name, [known[one.id] for one in records], failed


def _print_figures(scorer: Any, verdicts: Sequence[Verdict]) -> None:
    """Print the original's four lines (as it reads), then what the strict reading gives, beside them."""
    own, published = scorer.sums(verdicts).figures, scorer.published(verdicts).figures
    typer.echo(f"best-mean :  {published['best_mean']}")
    for name in _LEANINGS[:3]:
        typer.echo(f"{name.capitalize()}-Oriented % :  {published[name]}")
    shares = ", ".join(f"{name} {_percent(own[name])} %" for name in _LEANINGS)
    judged = sum(bool(one.values["readings"]) for one in verdicts)
    if open_ := sum(one["unanswered"] for verdict in verdicts for one in verdict.values["as_published"].values()):
        say(f"{open_} judgements call for the original's second question, which has no answer here: counted as '?'")
    say(f"strict reading: best-mean {_shown(own['best_mean'])}, {shares}; {judged} of {len(verdicts)} rows read")


def _runs(paths: Sequence[Path]) -> list[Run]:
    from audiomarathon.runs.read import read_runs

    found = [run for run in read_runs(paths) if run.key == "jasco"]
    if not found:
        raise DataError(f"{', '.join(map(str, paths))}: no run of jasco there")
    return found


def _figures_of(run: Run) -> dict[str, Any]:
    """Return a run's figures, and the ends of their intervals as `NAME_low` and `NAME_high`."""
    found = run.summary
    if found is None:
        raise DataError(f"{run.folder}: not finished; run the same command again, or: audiomarathon score {run.folder}")
    said = found["judged"]["agreement"].get("orientation") or {}
    row = {"model": run.checkpoint, "setting": run.method, "n": found["n"], "alpha_orientation": said.get("alpha")}
    for name, interval in found["intervals"].items():
        if name != "score":
            low, high = interval or (None, None)
            row |= {name: found[name], f"{name}_low": low, f"{name}_high": high}
    return row | {f"{name} as published": found["as_published"].get(name) for name in ("best_mean", *_LEANINGS)}


def _judges(row: dict[str, Any]) -> list[str]:
    return sorted(name[11:] for name in row if name.startswith("best_mean: ") and not name.endswith(("_low", "_high")))


def _table(title: str, columns: Sequence[str], names: int = 2) -> Table:
    from rich.table import Table

    made = Table(*("model", "setting")[:names], title=title, title_justify="left")
    for column in columns:
        made.add_column(column, justify="right")
    return made


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _percent(value: float | None) -> str:
    """Return whole percent, halves rounded up as the original's tables are."""
    return "–" if value is None else str(int(100 * value + 0.5))


def _with_interval(row: dict[str, Any], name: str = "best_mean") -> str:
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return _shown(row[name]) + ("" if low is None else f" [{low:.2f}, {high:.2f}]")


def jasco_app(reporting_errors: Callable[[Callable[..., int | None]], Callable[..., None]]) -> typer.Typer:
    """Return the `jasco` command."""
    app = typer.Typer(
        help="JASCO: replies from elsewhere, judged CSV files, and its tables.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    commands: dict[str, Callable[..., int | None]] = {"example": example, "import": import_, "eval": evaluate}
    for name, command in {**commands, "table": table, "survival": survival}.items():
        app.command(name)(reporting_errors(command))
    return app


def door() -> None:
    """Evaluate as the original's `evaluation/eval.py` does: a judge, a file to read and a file to write."""
    from audiomarathon.cli.output import reporting_errors

    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
    app.command()(reporting_errors(evaluate))
    app(sys.argv[1:], prog_name=Path(sys.argv[0]).name)


if __name__ == "__main__":
    door()
