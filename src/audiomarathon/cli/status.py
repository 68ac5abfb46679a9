"""`audiomarathon status`: show the progress of runs that another shell started."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from audiomarathon.cli.options import argument, option
from audiomarathon.errors import SettingsError
from audiomarathon.settings import RunSettings
from audiomarathon.terminal import console
from audiomarathon.text import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import RenderableType

    from audiomarathon.results.status import RunStatus


def status(
    runs: Annotated[
        list[Path] | None,
        argument("Run folders, or folders that contain run folders (default: RESULTS_DIR, else results)."),
    ] = None,
    watch: Annotated[bool, option("Refresh until all runs have stopped.", "--watch")] = False,
    every: Annotated[float, option("With --watch: seconds between refreshes, at least 0.1.")] = 5.0,
    as_json: Annotated[bool, option("Print JSON, one line per refresh.", "--json")] = False,
) -> int:
    """Show the progress of runs: finished samples, scores so far, speed, expected end, and which runs are active.

    Example: audiomarathon status results --watch

    A running score is the score of the samples answered so far. The command only reads; it does not disturb a run. A
    sweep's tasks appear once they have started. Name the folder of `reproduce` to see its runs.
    Exit code: 0 if all runs are complete, 1 if not, 2 if there are none.
    """
    from audiomarathon.results.status import read_status

    if not every >= 0.1:
        raise SettingsError(f"--every={every:g}: not allowed; allowed: seconds from 0.1")
    paths, show = runs or [RunSettings.read().results], _print_json if as_json else _print
    if not watch:
        show(statuses := read_status(paths))
    elif as_json or not sys.stdout.isatty():
        statuses = _watch(paths, every, show)
    else:
        from rich.console import Console
        from rich.live import Live

        with Live(console=Console(), auto_refresh=False) as live:
            statuses = _watch(paths, every, lambda runs: live.update(_rendered(runs, live.console.width), refresh=True))
    return 0 if all(run.complete for run in statuses) else 1


def _watch(paths: Sequence[Path], every: float, show: Callable[[Sequence[RunStatus]], None]) -> list[RunStatus]:
    """Show the status of runs again and again, until no process is active in two looks in a row; return the last
    status.

    One look is not enough, since a sweep pauses between tasks.
    """
    from audiomarathon.results.status import read_status

    idle = 0
    while True:
        show(statuses := read_status(paths))
        idle = 0 if any(run.alive for run in statuses) else idle + 1
        if idle > 1:
            return statuses
        time.sleep(every)


def _print_json(statuses: Sequence[RunStatus]) -> None:
    typer.echo(json.dumps([run.as_json() for run in statuses]))


def _print(statuses: Sequence[RunStatus]) -> None:
    out = console()
    out.print(_rendered(statuses, out.width))


def _rendered(statuses: Sequence[RunStatus], width: int) -> RenderableType:
    """Return the text to print: for each checkpoint, a table of all runs and a table of the active runs.

    Runs that cannot be read, and those without records yet, get a line each below the tables.
    """
    import datetime

    from rich.console import Group
    from rich.text import Text

    from audiomarathon.report import tables
    from audiomarathon.report.render import for_width

    now = datetime.datetime.now().astimezone()
    readable = [run for run in statuses if run.task and run.problem is None]
    shown = []
    for checkpoint in sorted({run.checkpoint for run in readable}):
        runs = [run for run in readable if run.checkpoint == checkpoint]
        shown.append(for_width(tables.status(runs), width))
        if any(run.alive for run in runs):
            shown.append(for_width(tables.running(runs, now), width))
    lines = [f"unreadable: {run.problem}" for run in statuses if run.problem is not None]
    lines += [f"{run.folder}: starting; it has no records yet" for run in statuses if run.state == "starting"]
    return Group(*shown, *(Text(plain(line)) for line in lines))
