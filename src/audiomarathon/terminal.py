"""Print to a terminal: fit tables to its width, show progress, and handle closed or full output streams."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from audiomarathon.errors import OutputError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Column, Table

from audiomarathon.text import counted

LINE_EVERY_S = 30.0
_WIDE = 200  # columns of tables in a pipe or a file
_TEXT = 22  # a column of text is not wrapped narrower than this while columns can still be dropped


class _Stream:
    """A standard stream that passes its first write error to the function `failed`, and then discards all output."""

    def __init__(self, stream: TextIO, failed: Callable[[OSError], object]) -> None:
        self._stream, self._failed = stream, failed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write text to the stream; after a failure, discard it."""
        if text != "":  # click tests a stream by an empty write, and would hide its failure
            self._guard(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Flush the stream; after a failure, do nothing."""
        self._guard(self._stream.flush)

    def _guard(self, work: Callable[[], object]) -> None:
        try:
            work()
        except OSError as error:
            with suppress(OSError), open(os.devnull, "w") as nowhere:  # noqa: PTH123
                os.dup2(nowhere.fileno(), self._stream.fileno())
            self._failed(error)


@contextmanager
def standard_streams() -> Iterator[None]:
    """Inside the block, handle a closed or full terminal, log or pipe without a traceback.

    Raises
    ------
    OutputError
        When writing to standard output fails. Failures of standard error are ignored.
    """

    def refuse(error: OSError) -> None:
        if isinstance(error, BrokenPipeError):
            gone = OutputError()
            gone.exit_code = 128 + 13  # the code of a command ended by SIGPIPE
            raise gone from None
        raise OutputError(f"standard output cannot be written: {error.strerror or error}") from None

    before = sys.stdout, sys.stderr
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123
        sys.stdout = _Stream(before[0] or nowhere, refuse)
        sys.stderr = _Stream(before[1] or nowhere, lambda _error: None)
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before


@contextmanager
def showing_records() -> Iterator[None]:
    """Inside a block that prints results, turn an error of printing into a warning, so that the command continues."""
    try:
        yield
        sys.stdout.flush()
    except OutputError as error:
        if str(error):
            print(f"warning: {error}; the records are saved", file=sys.stderr)  # noqa: T201


class Step(Protocol):
    """A function that moves a progress bar on."""

    def __call__(self, done: int, /, more: int = 0) -> object:
        """Add `done` to the number of finished units, and `more` to the number of all units."""


@contextmanager
def progress_of(total: int, what: str, unit: str, *, shown: bool | None = None) -> Iterator[Step]:
    """Show the progress of a block on stderr: as a bar on a terminal, elsewhere as a line every 30 s.

    Parameters
    ----------
    total
        Number of units to do.
    what
        Text in front of the bar or the line.
    unit
        Name of a unit, such as `sample`; `B` for bytes.
    shown
        False shows nothing.

    Yields
    ------
    Step
        Function to call with the number of units done since the last call.
    """
    if shown is False:
        yield lambda _done, more=0: more
        return
    if sys.stderr.isatty():
        from tqdm import tqdm

        with tqdm(total=total, desc=what, unit=unit, unit_scale=unit == "B") as bar:

            def advance(done: int, /, more: int = 0) -> None:
                bar.total = (bar.total or 0) + more
                bar.update(done)

            yield advance
        return
    done, last = 0, time.monotonic()

    def update(just_done: int, /, more: int = 0) -> None:
        nonlocal done, last, total
        done, total = done + just_done, total + more
        if (now := time.monotonic()) - last >= LINE_EVERY_S:
            last = now
            counts = (
                f"{done / 1e9:.2f} of {total / 1e9:.2f} GB" if unit == "B" else f"{done:,} of {counted(total, unit)}"
            )
            with suppress(OSError):  # a closed stderr must not end the work
                print(f"{what}: {counts} ({done / max(1, total):.0%})", file=sys.stderr, flush=True)  # noqa: T201

    yield update


def console() -> Console:
    """Return a console of the library rich that prints tables.

    The console is as wide as the terminal. In a pipe or file, its width is the env var `COLUMNS`, or 200 characters.
    """
    from rich.console import Console

    known = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal()
    return Console(width=None if known else _WIDE, highlight=False)


def fitted(table: Table, width: int, least: Sequence[str] = ()) -> Table:
    """Change a table so that it fits a width.

    First wrap text at spaces, then drop columns, then wrap numbers, then cut words.

    Parameters
    ----------
    width
        Width in characters.
    least
        Headings of columns that may be dropped, the least important first; the caption names the dropped columns.
    """
    gone = []
    for heading, figures, text in [
        *((dropped, True, _TEXT) for dropped in (*least, "")),
        ("", True, 0),
        ("", False, 0),
    ]:
        spans = [_span(column, text if column.justify == "left" else _WIDE * figures) for column in table.columns]
        room = width - 3 * len(spans) - 1 - sum(low for low, _high in spans)  # padding, and a box's edges
        if room >= 0:
            break
        if heading and any(column.header == heading for column in table.columns):
            gone.append(heading)
            table.columns[:] = [column for column in table.columns if column.header != heading]
    wanted = sum(high - low for low, high in spans)
    for column, (low, high) in zip(table.columns, spans, strict=True):
        column.overflow, column.no_wrap, column.min_width = "fold", False, None
        if 0 <= room < wanted:
            column.width = low + (high - low) * room // wanted
    if gone:
        told = f"not shown, terminal too narrow: {', '.join(gone)}"
        table.caption = f"{table.caption}\n{told}" if table.caption else told
        table.caption_justify = "left"
    return table


def _span(column: Column, line: int) -> tuple[int, int]:
    """Return (smallest, largest) useful width of a table column, in characters.

    At the smallest width, no word is cut, and a line of a longer text holds at least `line` characters. At the largest,
    no text is wrapped.
    """
    from rich.console import Console
    from rich.measure import measure_renderables

    roomy = Console(width=10_000)
    head = measure_renderables(roomy, roomy.options, [column.header])
    cells = measure_renderables(roomy, roomy.options, [*column.cells])
    return max(head.minimum, cells.minimum, min(cells.maximum, line)), max(head.maximum, cells.maximum)
