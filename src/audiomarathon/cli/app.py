"""The `audiomarathon` command, with all its subcommands.

Heavy imports are inside the commands, so that `--help` answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from audiomarathon.cli.cascade import cascade, transcribe
from audiomarathon.cli.certify import certify
from audiomarathon.cli.command import Command, Grouped, group, run_app, with_executor
from audiomarathon.cli.compare import compare
from audiomarathon.cli.data import data_app
from audiomarathon.cli.demo import demo
from audiomarathon.cli.doctor import doctor
from audiomarathon.cli.explain import explain
from audiomarathon.cli.judge import judge
from audiomarathon.cli.new import new
from audiomarathon.cli.options import Runs, argument, complete_models, option
from audiomarathon.cli.output import reporting_errors, say, show_scored
from audiomarathon.cli.plot import plot
from audiomarathon.cli.report import report
from audiomarathon.cli.reproduce import reproduce
from audiomarathon.cli.run import evaluate, run
from audiomarathon.cli.status import status
from audiomarathon.cli.sweep import sweep
from audiomarathon.engine.ray_options import Ray
from audiomarathon.errors import AudioMarathonError, SettingsError
from audiomarathon.models.registry import get_local_model
from audiomarathon.settings import RunSettings, described, settings_fields
from audiomarathon.version import __version__
from audiomarathon.wing import Wing, joined


class CommandGroups(TyperGroup):
    """Lists the commands in the help under headings, such as "Measure a model"."""

    def format_commands(self, _ctx: Any, formatter: Any) -> None:
        """Write the list of commands in the help, heading by heading."""
        width = formatter.width - 6 - max(map(len, self.commands))
        for heading, names in COMMANDS.items():
            with formatter.section(heading):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(width)) for name in names])


app = typer.Typer(
    cls=CommandGroups,
    help="Measure how well audio LLMs understand long audio, and what dropping tokens or KV cache costs and buys.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # panels cost 0.1 s a call, and drop `[default: …; env: …]` as markup
)


def _show_version(given: bool) -> None:
    if given:
        typer.echo(f"audiomarathon {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, option("Show the version.", "--version", is_eager=True, callback=_show_version)] = False,
) -> None:
    pass


@with_executor
def score(runs: Runs, ray: Ray | None) -> int:
    """Score stored replies again, without a model, and rewrite the verdicts and summary.json.

    Examples:
    audiomarathon score results/tau
    audiomarathon score results --executor ray

    With --executor ray, each worker takes a run folder at a time, and --workers is by default one per core.
    """
    from audiomarathon.runs.read import run_folders

    return show_scored(run_folders(runs), ray)


def list_command(
    what: Annotated[str, argument("What to list: tasks, models, methods, judges or all.")] = "all",
) -> None:
    """List tasks, models, methods and judges, including those of plug-ins."""
    from audiomarathon.report.listings import LISTINGS
    from audiomarathon.report.render import show as show_tables

    if what != "all" and what not in LISTINGS:
        raise SettingsError(f"unknown list {what!r}; allowed: all, {', '.join(LISTINGS)}")
    show_tables(*(listing() for name, listing in LISTINGS.items() if what in ("all", name)))


def download(
    model: Annotated[str, argument("Model (audiomarathon list models), hub id, or fense.", complete_models)],
) -> None:
    """Download a checkpoint into the hub's cache; the same command resumes an interrupted download.

    fense downloads the two small models (about 700 MB) that the caption metric FENSE needs.
    """
    from audiomarathon.models.checkpoint import find_checkpoint

    if model == "fense":
        _download_fense()
        return
    source = model if "/" in model else get_local_model(model).checkpoint
    checkpoint = find_checkpoint(source)
    say(f"{checkpoint.name} is in {checkpoint.path}")


def _download_fense() -> None:
    """Download FENSE's sentence encoder, its fluency checker and BERT; run each once, to check the files."""
    from audiomarathon.data.archive import from_web
    from audiomarathon.scoring.caption_models import CHECKER_URL, Echecker, SentenceEncoder, checker_file

    encoder = SentenceEncoder()
    encoder.encode(["rain falls"])
    file = from_web(CHECKER_URL, checker_file(), say)
    try:
        Echecker(file).error(["rain falls"])
    except AudioMarathonError:
        file.unlink()  # the file is damaged; the next call downloads it again
        raise
    say(f"{encoder.name} is in the hub's cache, the fluency checker in {file}")


def _named(wing: Wing) -> Mapping[str, tuple[str, Any]]:
    """Return the commands of a wing (a benchmark in a folder of its own), as {name: (heading, command)}."""
    return {
        name: (heading, command) for heading, commands in wing.commands().items() for name, command in commands.items()
    }


models_app = group("Download checkpoints.", {"download": download})
import_app = group(
    "Turn replies of other programs into runs.",
    joined("the importer", {}, lambda wing: wing.importers()),
)
export_app = group(
    "Write runs as result files of other programs.",
    joined("the exporter", {}, lambda wing: wing.exporters()),
)
OTHERS = "Other benchmarks, and their files"
#: Every command by name, under its heading in the help.
COMMANDS: dict[str, dict[str, Command | typer.Typer]] = {
    "First": {"demo": demo, "doctor": doctor, "list": list_command, "models": models_app, "data": data_app},
    "Measure a model": {
        "run": run, "sweep": sweep, "transcribe": transcribe, "cascade": cascade, "judge": judge, "score": score,
        "certify": certify,
    },
    "Look at results": {
        "status": status, "compare": compare, "report": report, "plot": plot, "explain": explain,
        "reproduce": reproduce,
    },
    OTHERS: {},
    "Build on it": {"new": new},
}  # fmt: skip
_ours = {"import", "export", *(name for commands in COMMANDS.values() for name in commands)}
_headings = joined("the command", dict.fromkeys(_ours), _named)
for _name, (_heading, _command) in _headings.items():
    COMMANDS.setdefault(_heading, {})[_name] = _command
COMMANDS[OTHERS] |= {"import": import_app, "export": export_app}
for _commands in COMMANDS.values():
    for _name, _command in _commands.items():
        if isinstance(_command, typer.Typer):
            app.add_typer(_command, name=_name)
        else:
            app.command(_name, cls=Grouped)(reporting_errors(_command))


def main() -> None:
    """Run the `audiomarathon` command (its entry point)."""

    def command() -> int:  # also for typer's output, such as help and version
        return run_app(app, sys.argv[1:], "audiomarathon")

    reporting_errors(command)()
    sys.exit(0)


def durations_script(*tasks: str) -> None:
    """Measure how long clips are; the scripts in `analyse_audio_duration/` call this with their task.

    The default output folder is `durations/`. In the repository that holds the scripts, write nothing unless `-o` names
    a folder.
    """
    script, given = Path(sys.argv[0]), sys.argv[1:]
    told = any(word.startswith(("-o", "--output")) or word in ("-h", "--help") for word in given)
    inside = Path.cwd().resolve().is_relative_to(script.resolve().parent.parent)
    if inside and not told:
        say("nothing is written into the repository; -o FOLDER also writes JSON, CSV and pictures")
    app(["data", "durations", *tasks, *([] if inside or told else ["-o", "durations"]), *given], prog_name=script.name)


@reporting_errors
def run_task(task: str, *, model: str) -> int:
    """Run one task on one model, and return the exit code; the scripts in the model folders call this.

    Settings come from env vars.

    Parameters
    ----------
    task, model
        Names of the task and the model; `audiomarathon list` shows them.
    """
    if len(sys.argv) > 1:
        return _script_help(task, model)
    return evaluate([task], model, RunSettings.read())


def _script_help(task: str, model: str) -> int:
    say(f"Evaluates {model} on {task}. This script takes no arguments; set env vars instead:\n")
    for setting in settings_fields():
        say(f"  {setting.metadata['env']:20} {described(setting)}")
    script = Path(sys.argv[0]).name
    say(f"\nExample: PRUNE_METHOD=frame PRUNE_RATIO=0.5 SAMPLE_LIMIT=100 RESULTS_DIR=out python {script}")
    return 0 if sys.argv[1] in ("-h", "--help") else 2


if __name__ == "__main__":
    main()
