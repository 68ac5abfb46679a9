"""The `audiomarathon` command. Heavy imports are inside the commands, so that `--help` answers at once."""

from __future__ import annotations

import contextlib
import functools
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec

import typer

from audiomarathon.cli_certify import certify
from audiomarathon.cli_compare import compare
from audiomarathon.cli_data import data_app
from audiomarathon.cli_demo import demo
from audiomarathon.cli_doctor import doctor
from audiomarathon.cli_explain import explain
from audiomarathon.cli_plot import plot
from audiomarathon.cli_report import report
from audiomarathon.cli_reproduce import reproduce
from audiomarathon.cli_status import status
from audiomarathon.cli_sweep import sweep
from audiomarathon.errors import AudioMarathonError
from audiomarathon.terminal import plain

if TYPE_CHECKING:
    from audiomarathon.evaluation.executor import Ray

P = ParamSpec("P")

app = typer.Typer(
    help="How well audio LLMs understand long audio, and what dropping audio tokens or KV cache costs and buys.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
models_app = typer.Typer(help="Fetch checkpoints.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(models_app, name="models")


def say(line: str) -> None:
    """Print a line for the user, beside the results (stderr); that a terminal or a log is gone ends no run."""
    with contextlib.suppress(OSError):
        print(plain(line), file=sys.stderr, flush=True)  # noqa: T201


def reporting_errors(command: Callable[P, int | None]) -> Callable[P, None]:
    """Turn a user's errors into one line and an exit code: 2, or 130 for Ctrl-C; a run with errors left gives 1."""

    # A paragraph under a backspace stays as it is written; click fills the others.
    command.__doc__ = re.sub(r"(?m)^( *)(?=Examples?:)", "\\1\b\n\\1", command.__doc__ or "")

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        warnings.showwarning = _show_warning
        try:
            code = command(*args, **kwargs) or 0
        except AudioMarathonError as error:
            say(f"error: {error}")
            code = error.exit_code
        except KeyboardInterrupt:
            say("\ninterrupted: every finished sample is on record; run the same command again to go on from there")
            code = 130
        if code:
            sys.exit(code)

    return wrapped


def _show_warning(message: Warning | str, category: type[Warning], *_where: object, **_more: object) -> None:
    if issubclass(category, UserWarning):
        say(f"warning: {message}")


def _show_version(wanted: bool) -> None:
    if wanted:
        from audiomarathon import __version__

        typer.echo(f"audiomarathon {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def _env(name: str, text: str) -> str:
    return f"{text} [env: {name}]"


@app.command(name="run")
@reporting_errors
def run_command(
    tasks: Annotated[list[str], typer.Argument(help="Tasks, or 'all' (audiomarathon list tasks).")],
    model: Annotated[str, typer.Option(help="Model (audiomarathon list models).")] = "embedded",
    executor: Annotated[str, typer.Option(help="local, or ray: several GPUs or machines (docs/scaling.md).")] = "local",
    address: Annotated[str | None, typer.Option(help="ray: a cluster to join; without, one is started here.")] = None,
    workers: Annotated[int | None, typer.Option(help="ray: how many; default one a GPU, or a machine.")] = None,
    gpus_per_worker: Annotated[float | None, typer.Option(help="ray: of each; default 1 where there are GPUs.")] = None,
    method: Annotated[str | None, typer.Option(help=_env("PRUNE_METHOD", "Method; default base."))] = None,
    ratio: Annotated[str | None, typer.Option(help=_env("PRUNE_RATIO", "Fraction of audio tokens removed."))] = None,
    layer: Annotated[str | None, typer.Option(help=_env("PRUNE_LAYER_IDX", "Layer K to drop at; default 2."))] = None,
    scope: Annotated[str | None, typer.Option(help=_env("PRUNE_SCOPE", "audio, or all for presses."))] = None,
    limit: Annotated[str | None, typer.Option(help=_env("SAMPLE_LIMIT", "Samples a task; 0 = all."))] = None,
    results: Annotated[str | None, typer.Option(help=_env("RESULTS_DIR", "Where results go."))] = None,
    model_path: Annotated[str | None, typer.Option(help=_env("MODEL_PATH", "Hub id or folder."))] = None,
    data: Annotated[str | None, typer.Option(help=_env("AUDIOMARATHON_DATA", "Root of the tasks' data."))] = None,
    device: Annotated[str | None, typer.Option(help=_env("DEVICE", "auto, cpu, cuda or cuda:N."))] = None,
    device_map: Annotated[str | None, typer.Option(help=_env("DEVICE_MAP", "Spread over GPUs: auto, …"))] = None,
    dtype: Annotated[str | None, typer.Option(help=_env("DTYPE", "auto, float32, float16, bfloat16."))] = None,
    attn_implementation: Annotated[
        str | None, typer.Option(help=_env("ATTN_IMPLEMENTATION", "sdpa, eager, flash_attention_2."))
    ] = None,
    timing: Annotated[
        bool | None, typer.Option("--timing/--no-timing", help=_env("TIMING", "Time samples one by one, or batch."))
    ] = None,
    batch_size: Annotated[str | None, typer.Option(help=_env("BATCH_SIZE", "With --no-timing."))] = None,
    max_new_tokens: Annotated[str | None, typer.Option(help=_env("MAX_NEW_TOKENS", "0 = the task's."))] = None,
    decode_tokens: Annotated[str | None, typer.Option(help=_env("DECODE_TOKENS", "Forced decode run."))] = None,
    seed: Annotated[str | None, typer.Option(help=_env("SEED", "Default 42."))] = None,
    skip_persons: Annotated[str | None, typer.Option(help=_env("SKIP_PERSONS", "vesus: leave out."))] = None,
    skip_emotion: Annotated[str | None, typer.Option(help=_env("SKIP_EMOTION", "vesus: of those persons."))] = None,
    balance: Annotated[bool | None, typer.Option(help=_env("BALANCE", "had: as many real as fake."))] = None,
    allow_bad_rows: Annotated[bool | None, typer.Option(help=_env("ALLOW_BAD_ROWS", "Leave bad rows out."))] = None,
) -> int:
    """Evaluate a model on one or more tasks under one setting.

    Example: audiomarathon run tau gtzan --model qwen2.5-omni --method frame --ratio 0.5 --limit 100

    A flag wins over its env var, which wins over the default. An interrupted run goes on where it stopped.
    """
    flags = {name: value for name, value in locals().items() if name not in ("tasks", "model")}
    from audiomarathon.evaluation.executor import read_executor

    where = {name: flags.pop(name) for name in ("executor", "address", "workers", "gpus_per_worker")}
    return _run(tasks, model, read_executor(**where), **flags)


def _run(tasks: list[str], model: str, ray: Ray | None = None, **flags: Any) -> int:
    from audiomarathon.settings import RunSettings

    settings = RunSettings.read(**flags)
    from audiomarathon.evaluation.run import run
    from audiomarathon.tasks import all_tasks

    names: list[Any] = list(all_tasks()) if tasks == ["all"] else list(tasks)
    results = list(run(names, model, settings, ray=ray, say=say))
    return show(results)


def show(results: list[Any], title: str = "", *, folders: bool = True) -> int:
    """Print results and, unless told otherwise, their folders; return the exit code: 1 when samples failed."""
    from audiomarathon.evaluation.records import what_failed
    from audiomarathon.report.table import LEAST, results_table
    from audiomarathon.terminal import console, fitted

    out = console()
    out.print(fitted(results_table(results, title), out.width, LEAST))
    for result in results if folders else ():
        say(f"{result.summary['task']}: records in {result.folder}")
    incomplete = [result for result in results if not result.summary["complete"]]
    for result in incomplete:
        errors = result.summary["errors"]
        missing = result.summary["expected"] - result.summary["n"] - errors
        what = [what_failed(result.folder, errors)] * bool(errors) + [f"{missing} not done yet"] * bool(missing)
        say(f"error: {result.folder}: {', '.join(what)}; run the same command again to go on")
    return 1 if incomplete else 0


@app.command()
@reporting_errors
def score(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold some.")],
) -> int:
    """Judge stored replies again, without a model, and rewrite the verdicts and summary.json.

    Example: audiomarathon score results/tau
    """
    from audiomarathon.errors import RecordError
    from audiomarathon.evaluation.run import score as score_run

    folders = sorted({found.parent for run in runs for found in run.rglob("run.json")})
    if not folders:
        raise RecordError(f"{', '.join(map(str, runs))}: no run there (no run.json in or under it)")
    return show([score_run(folder) for folder in folders])


@app.command(name="list")
@reporting_errors
def list_command(
    what: Annotated[str, typer.Argument(help="tasks, models, methods or all.")] = "all",
) -> None:
    """Show the tasks, models and methods there are, third parties' included."""
    from audiomarathon.errors import SettingsError
    from audiomarathon.report.listing import LEAST, LISTINGS
    from audiomarathon.terminal import console, fitted

    if what != "all" and what not in LISTINGS:
        raise SettingsError(f"unknown list {what!r}; allowed: all, {', '.join(LISTINGS)}")
    out = console()
    for name, listing in LISTINGS.items():
        if what in ("all", name):
            out.print(fitted(listing(), out.width, LEAST))


@models_app.command()
@reporting_errors
def download(
    model: Annotated[str, typer.Argument(help="A model's name (audiomarathon list models) or a hub id.")],
) -> None:
    """Fetch a checkpoint into the hub's cache; goes on where an earlier download stopped."""
    from audiomarathon.models.checkpoint import find_checkpoint
    from audiomarathon.models.registry import get_local_model

    source = model if "/" in model else get_local_model(model).checkpoint
    checkpoint = find_checkpoint(source)
    say(f"{checkpoint.name} is in {checkpoint.path}")


app.add_typer(data_app(reporting_errors), name="data")
app.command()(reporting_errors(demo))
app.command()(reporting_errors(certify))
app.command()(reporting_errors(doctor))
app.command()(reporting_errors(explain))
app.command()(reporting_errors(plot))
app.command()(reporting_errors(compare))
app.command()(reporting_errors(reproduce))
app.command()(reporting_errors(report))
app.command()(reporting_errors(status))
app.command()(reporting_errors(sweep))


def main() -> None:
    """Entry point of the `audiomarathon` command."""
    app()


@reporting_errors
def run_task(task: str, *, model: str) -> int:
    """Run one task on one model, as the scripts in the model folders do: settings come from env vars.

    Parameters
    ----------
    task, model
        Names (`audiomarathon list`).
    """
    if len(sys.argv) > 1:
        return _script_help(task, model)
    return _run([task], model)


def _script_help(task: str, model: str) -> int:
    from audiomarathon.settings import env_names

    say(f"Evaluates {model} on {task}. This script takes no arguments; set env vars before it:\n")
    for name, allowed in env_names().items():
        say(f"  {name:20} {allowed}")
    script = Path(sys.argv[0]).name
    say(f"\nExample: PRUNE_METHOD=frame PRUNE_RATIO=0.5 SAMPLE_LIMIT=100 RESULTS_DIR=out python {script}")
    return 0 if sys.argv[1] in ("-h", "--help") else 2


if __name__ == "__main__":
    main()
