"""`audiomarathon status`: show the progress of runs, from another shell."""

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
    paths = runs or [RunSettings.read().results]
    found = read_status(paths)
    if not watch:
        _print(found, as_json=as_json)
    elif as_json or not sys.stdout.isatty():
        found = _watch(paths, every, lambda shown: _print(shown, as_json=as_json))
    else:
        from rich.console import Console
        from rich.live import Live

        with Live(console=Console(), auto_refresh=False) as live:
            found = _watch(paths, every, lambda shown: live.update(_rendered(shown, live.console.width), refresh=True))
    return 0 if all(one.complete for one in found) else 1


def _watch(paths: Sequence[Path], every: float, show: Callable[[Sequence[RunStatus]], None]) -> list[RunStatus]:
    """Refresh until no process was active twice in a row: a sweep pauses between its tasks."""
    from audiomarathon.results.status import read_status

    idle = 0
    while True:
        show(found := read_status(paths))
        idle = 0 if any(one.alive for one in found) else idle + 1
        if idle > 1:
            return found
        time.sleep(every)


def _print(found: Sequence[RunStatus], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps([one.as_json() for one in found]))
        return

    out = console()
    out.print(_rendered(found, out.width))


def _rendered(found: Sequence[RunStatus], width: int) -> RenderableType:
    """Return two tables per checkpoint, of its runs and of its running tasks, then a line per unreadable run."""
    import datetime

    from rich.console import Group
    from rich.text import Text

    from audiomarathon.report import tables
    from audiomarathon.report.render import for_width

    now = datetime.datetime.now().astimezone()
    readable = [one for one in found if one.task and one.problem is None]
    shown = []
    for checkpoint in sorted({one.checkpoint for one in readable}):
        runs = [one for one in readable if one.checkpoint == checkpoint]
        both = [tables.status(runs), *([tables.running(runs, now)] if any(one.alive for one in runs) else [])]
        shown += [for_width(table, width) for table in both]
    lines = (Text(plain(f"unreadable: {one.problem}")) for one in found if one.problem is not None)
    begun = (Text(plain(f"{one.folder}: starting, no run yet")) for one in found if one.state == "starting")
    return Group(*shown, *lines, *begun)
