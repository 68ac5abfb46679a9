"""What goes to a terminal: tables that fit its width, and text that others wrote, for control characters are obeyed."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Column, Table

_WIDE = 200  # of tables in a pipe or a file
_TEXT = 22  # of text that wraps

# C0 but for tab and line feed, DEL, C1, and what turns the direction of text around (Unicode TR 36, section 2.10).
_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


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


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: `1 sample`, `1,145 samples`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


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
