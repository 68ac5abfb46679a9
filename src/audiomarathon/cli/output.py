"""What every command says, and its exit code; the tables themselves are made in report/."""

from __future__ import annotations

import contextlib
import functools
import re
import sys
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec

from audiomarathon.errors import AudioMarathonError
from audiomarathon.terminal import standard_streams
from audiomarathon.text import counted, plain

P = ParamSpec("P")


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
        warnings.showwarning = _showing_warnings()
        with standard_streams():
            try:
                try:
                    code = command(*args, **kwargs) or 0
                finally:
                    sys.stdout.flush()
            except AudioMarathonError as error:
                if str(error):
                    say(f"error: {error}")
                code = error.exit_code
            except KeyboardInterrupt:
                say("\ninterrupted: what is finished is kept; run the same command again to go on from there")
                code = 130
        if code:
            sys.exit(code)

    return wrapped


def _showing_warnings() -> Callable[..., None]:
    """Return what shows a command's warnings, each once; Python forgets what it showed when a library sets filters."""
    shown = set[str]()

    def show(message: Warning | str, category: type[Warning], *_where: object, **_more: object) -> None:
        if issubclass(category, UserWarning) and str(message) not in shown:
            shown.add(str(message))
            say(f"warning: {message}")

    return show


def show(results: list[Any], title: str = "", *, folders: bool = True) -> int:
    """Print results and, unless told otherwise, their folders; return the exit code: 1 when samples failed."""
    from audiomarathon.report import render, tables
    from audiomarathon.runs.folder import what_failed
    from audiomarathon.terminal import showing_records

    with showing_records():
        render.show(tables.results(results, title))
    for result in results if folders else ():
        say(f"{result.summary['task']}: records in {result.folder}")
    incomplete = [result for result in results if not result.summary["complete"]]
    for result in incomplete:
        errors = result.summary["errors"]
        missing = result.summary["expected"] - result.summary["n"] - errors
        what = [what_failed(result.folder, errors)] * bool(errors) + [f"{missing} not done yet"] * bool(missing)
        say(f"error: {result.folder}: {', '.join(what)}; run the same command again to go on")
    unseen = [result for result in results if result.without_attention]
    for result in unseen:
        number = counted(result.without_attention, "sample")
        say(f"error: {result.folder}: attention of {number} is missing; run the same command again to go on")
    return 1 if incomplete or unseen else 0
