"""What goes to a terminal: tables that fit its width, and text that others wrote, for control characters are obeyed."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Column, Table

LINE_EVERY_S = 30.0
_WIDE = 200  # of tables in a pipe or a file
_TEXT = 22  # of text that wraps

# C0 but for tab and line feed, DEL, C1, and what turns the direction of text around (Unicode TR 36, section 2.10);
# halves of surrogate pairs, which no encoding takes.
_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def spreadsheet(value: object) -> object:
    """Return a cell that a spreadsheet shows and does not work out, in one row of CSV, and that a terminal may be sent.

    A text that begins like a formula gets an apostrophe before it; control characters are written out.
    """
    if not isinstance(value, str):
        return value
    text = plain(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t")) else text


def plain(text: str) -> str:
    r"""Return a text whose control characters are written out (`\x1b`), so that it cannot colour, move or overwrite."""
    return _OBEYED.sub(
        lambda found: f"\\x{ord(found[0]):02x}" if ord(found[0]) < 256 else f"\\u{ord(found[0]):04x}", text
    )


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun: `1 sample`, `1,145 samples`."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


@contextmanager
def progress_of(total: int, what: str, unit: str, *, shown: bool | None = None) -> Iterator[Callable[[int], object]]:
    """Show how far some work is, on stderr: a bar on a terminal, elsewhere a line now and then.

    Parameters
    ----------
    unit
        What is counted; `B` for bytes.
    shown
        False shows nothing.

    Yields
    ------
    Callable
        Takes how many more are done.
    """
    if shown is False:
        yield lambda _more: None
        return
    if sys.stderr.isatty():
        from tqdm import tqdm

        with tqdm(total=total, desc=what, unit=unit, unit_scale=unit == "B") as bar:
            yield bar.update
        return
    done, last = 0, time.monotonic()

    def update(more: int) -> None:
        nonlocal done, last
        done += more
        if (now := time.monotonic()) - last >= LINE_EVERY_S:
            last = now
            counts = (
                f"{done / 1e9:.2f} of {total / 1e9:.2f} GB" if unit == "B" else f"{done:,} of {counted(total, unit)}"
            )
            with suppress(OSError):  # that a log is gone ends no work
                print(f"{what}: {counts} ({done / max(1, total):.0%})", file=sys.stderr, flush=True)  # noqa: T201

    yield update


def console() -> Console:
    """Return where tables go: as wide as the terminal; in a pipe or a file as `COLUMNS` says, or else 200."""
    from rich.console import Console

    known = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal()
    return Console(width=None if known else _WIDE, highlight=False)


def fitted(table: Table, width: int, least: Sequence[str] = ()) -> Table:
    """Make a table fit a width: text wraps at spaces, then columns go, then figures wrap; the last resort is to cut.

    Parameters
    ----------
    least
        Headings of the columns that may go, the least important first; the caption names those that did.
    """
    gone = []
    for heading, figures, text in [*((one, True, _TEXT) for one in (*least, "")), ("", True, 0), ("", False, 0)]:
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
        told = f"left out for want of width: {', '.join(gone)}"
        table.caption = f"{table.caption}\n{told}" if table.caption else told
        table.caption_justify = "left"
    return table


def _span(column: Column, line: int) -> tuple[int, int]:
    """Return the widths between which a column reads well: from its longest word, or lines of so many characters."""
    from rich.console import Console
    from rich.measure import measure_renderables

    roomy = Console(width=10_000)
    head = measure_renderables(roomy, roomy.options, [column.header])
    cells = measure_renderables(roomy, roomy.options, [*column.cells])
    return max(head.minimum, cells.minimum, min(cells.maximum, line)), max(head.maximum, cells.maximum)
