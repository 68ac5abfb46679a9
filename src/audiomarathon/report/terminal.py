"""Text that others wrote, made safe to print: a terminal obeys control characters."""

from __future__ import annotations

import re

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
