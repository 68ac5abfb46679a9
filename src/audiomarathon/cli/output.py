"""Print lines, results and errors of every command, and set its exit code. The tables are made in `report/`."""

from __future__ import annotations

import contextlib
import functools
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from audiomarathon.engine.ray_options import Ray
from audiomarathon.errors import AudioMarathonError, BusyMachineWarning, told
from audiomarathon.terminal import progress_of, showing_records, standard_streams
from audiomarathon.text import counted, plain

_OURS = (__name__.partition(".")[0], "typer", "argparse")  # modules that end a command after their own message
P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")


def say(line: str) -> None:
    """Print a line on stderr. If that fails (closed terminal, full disk), continue, so that a run does not end."""
    with contextlib.suppress(OSError):
        print(plain(line), file=sys.stderr, flush=True)  # noqa: T201


def one_by_one(
    items: Sequence[T],
    work: Callable[[T], R],
    label: str = "error",
    ray: Ray | None = None,
    ends: tuple[type[AudioMarathonError], ...] = (),
    of: int = 0,
    **shape: bool,
) -> list[R]:
    """Call `work` on each item, and return the results in the order of the items, without failed ones.

    If an item fails, print `label` and the error, and continue. Raise the error if its class is in `ends`, or if it is
    the only item (`of` is the total, if `items` are a part of more). With `ray`, call `work` in Ray's workers; `shape`
    has arguments of :func:`ray_map`.
    """
    done: dict[int, R] = {}
    for number, outcome in _outcomes(items, work, ray, shape):
        if not isinstance(outcome, AudioMarathonError):
            done[number] = outcome
        elif (of or len(items)) == 1 or isinstance(outcome, ends):
            raise outcome
        else:
            say(f"{label}: {outcome}")
    return [done[number] for number in sorted(done)]


def _outcomes(
    items: Sequence[T], work: Callable[[T], R], ray: Ray | None, shape: Mapping[str, bool]
) -> Iterator[tuple[int, R | AudioMarathonError]]:
    if ray is not None:
        from audiomarathon.engine.ray_map import ray_map

        with progress_of(len(items), "Ray", "run") as step:
            for outcome in ray_map(work, items, ray, say, **shape):
                step(1)
                yield outcome
        return
    for number, item in enumerate(items):
        try:
            yield number, work(item)
        except AudioMarathonError as error:
            yield number, error


def reporting_errors(command: Callable[P, int | None]) -> Callable[P, None]:
    """Wrap a command so that it prints expected errors as one line, and sets the exit code.

    The exit code is the error's (mostly 2), 130 for Ctrl-C, else the command's return value.
    """

    # Click keeps line breaks only in paragraphs that begin with \b.
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
                say("\ninterrupted: finished samples are kept; run the same command again to continue")
                code = 130
            except SystemExit as error:
                if not (place := _outside(error)):  # an inner command, a signal, or typer's completion
                    raise
                say(f"error: {place}: {told(error)} ended the command")
                code = 2
        if code:
            sys.exit(code)

    return wrapped


def _outside(error: BaseException) -> str:
    """Return the file and line that raised an error; "" if they belong to this package, typer or argparse."""
    place = error.__traceback__
    while place and place.tb_next:
        place = place.tb_next
    if place is None or place.tb_frame.f_globals.get("__name__", "").partition(".")[0] in _OURS:
        return ""
    return f"{place.tb_frame.f_code.co_filename}, line {place.tb_lineno}"


def _showing_warnings() -> Callable[..., None]:
    """Return a `warnings.showwarning` that prints each warning once, even if a library resets the filters."""
    shown = set[object]()

    def show(message: Warning | str, category: type[Warning], *_where: object, **_more: object) -> None:
        told = category if issubclass(category, BusyMachineWarning) else str(message)
        if issubclass(category, UserWarning) and told not in shown:
            shown.add(told)
            say(f"warning: {message}")

    return show


def show_scored(folders: Sequence[Path], ray: Ray | None = None) -> int:
    """Score the stored replies of run folders, and print the results; return the exit code.

    The code is 2 if a run failed, else that of :func:`show`.
    """
    from audiomarathon.engine.run import score

    results = one_by_one(folders, score, ray=ray, per_core=True)
    code = show(results, again="repeat the command that began the run") if results else 2
    return code if len(results) == len(folders) else 2


def show(
    results: list[Any], title: str = "", *, folders: bool = True, again: str = "run the same command again"
) -> int:
    """Print the results of runs and, unless `folders` is False, their folders; return 1 if anything is missing, else 0.

    These count as missing: failed samples, samples not run yet, and samples whose attention was not captured. `again`
    tells the user how to get them.
    """
    from audiomarathon.report import render, tables
    from audiomarathon.runs.folder import what_failed

    with showing_records():
        render.show(tables.results(results, title))
    for result in results if folders else ():
        say(f"{result.summary['task']}: records in {result.folder}")
    incomplete = [result for result in results if not result.summary["complete"]]
    for result in incomplete:
        errors = result.summary["errors"]
        missing = result.summary["expected"] - result.summary["n"] - errors
        reasons = [what_failed(result.folder, errors)] * bool(errors) + [f"{missing} not run yet"] * bool(missing)
        once = "once the cause is fixed" if errors else "to continue"
        say(f"error: {result.folder}: {', '.join(reasons)}; {again} {once}")
    unseen = [result for result in results if result.without_attention]
    for result in unseen:
        number = counted(result.without_attention, "sample")
        say(f"error: {result.folder}: the attention of {number} is missing; {again} to continue")
    return 1 if incomplete or unseen else 0
