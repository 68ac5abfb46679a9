"""The `audiomarathon` command. Heavy imports are inside the commands, so that `--help` answers at once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from audiomarathon.cli.certify import certify
from audiomarathon.cli.compare import compare
from audiomarathon.cli.data import data_app
from audiomarathon.cli.demo import demo
from audiomarathon.cli.doctor import doctor
from audiomarathon.cli.explain import explain
from audiomarathon.cli.output import reporting_errors, say, show
from audiomarathon.cli.plot import plot
from audiomarathon.cli.report import report
from audiomarathon.cli.reproduce import reproduce
from audiomarathon.cli.status import status
from audiomarathon.cli.sweep import sweep
from audiomarathon.errors import AudioMarathonError

if TYPE_CHECKING:
    from audiomarathon.engine.executor import Ray


app = typer.Typer(
    help="How well audio LLMs understand long audio, and what dropping audio tokens or KV cache costs and buys.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
models_app = typer.Typer(help="Fetch checkpoints.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(models_app, name="models")


def _show_version(wanted: bool) -> None:
    if wanted:
        from audiomarathon.version import __version__

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
    model: Annotated[str | None, typer.Option(help="Model (audiomarathon list models).")] = None,
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

    A flag wins over its env var, which wins over the default. An interrupted run goes on where it stopped. Without data
    and without --model the embedded toy model runs on the mini benchmark (--data mini).
    """
    flags = {name: value for name, value in locals().items() if name not in ("tasks", "model")}
    from audiomarathon.engine.executor import read_executor

    where = {name: flags.pop(name) for name in ("executor", "address", "workers", "gpus_per_worker")}
    return _run(tasks, model, read_executor(**where), **flags)


def _run(tasks: list[str], model: str | None, ray: Ray | None = None, **flags: Any) -> int:
    from audiomarathon.settings import RunSettings

    settings = RunSettings.read(**flags)
    from audiomarathon.benchmarks import all_tasks
    from audiomarathon.embedded.without_data import toy_or_real
    from audiomarathon.engine.run import run

    names: list[Any] = list(all_tasks()) if tasks == ["all"] else list(tasks)
    model, settings = toy_or_real(model, names, settings, say)
    results = list(run(names, model, settings, ray=ray, say=say))
    return show(results)


@app.command()
@reporting_errors
def score(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold some.")],
) -> int:
    """Judge stored replies again, without a model, and write the verdicts and summary.json anew.

    Example: audiomarathon score results/tau
    """
    from audiomarathon.engine.run import score as score_run
    from audiomarathon.runs.read import run_folders

    results, folders = [], run_folders(runs)
    for folder in folders:
        try:
            results.append(score_run(folder))
        except AudioMarathonError as error:  # one bad folder is named, and hides no other
            if len(folders) == 1:
                raise
            say(f"error: {error}")
    code = show(results) if results else 2
    return code if len(results) == len(folders) else 2


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

    def command() -> None:  # its help and version are printed outside of any command of ours
        app()

    reporting_errors(command)()


def durations_script(*tasks: str) -> None:
    """Measure tasks as the scripts in `analyse_audio_duration/` do; `-o` is `durations/` by default."""
    app(["data", "durations", *tasks, "-o", "durations", *sys.argv[1:]], prog_name=Path(sys.argv[0]).name)


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
