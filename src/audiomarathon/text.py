"""Text for people: counts, suggestions for misspelt names, and foreign text made safe for terminal or spreadsheet."""

from __future__ import annotations

import datetime
import difflib
import functools
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

_F = TypeVar("_F", bound=Callable[..., Any])

# Control characters (C0 except tab and line feed, DEL, C1), characters that change the direction of text (Unicode TR
# 36, section 2.10), and halves of surrogate pairs, which cannot be encoded.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

JOINER = "\u2060"  # a zero-width character that no chat template uses in a control token

Say = Callable[[str], None]
"""Function that shows one line to the user."""


def plain(text: str) -> str:
    r"""Replace control characters by visible escapes such as `\x1b`, so that printed text cannot steer the terminal."""
    return _CONTROL.sub(
        lambda match: f"\\x{ord(match[0]):02x}" if ord(match[0]) < 256 else f"\\u{ord(match[0]):04x}", text
    )


# Signs that people and models write for an apostrophe: quotation marks, accents that stand alone, primes, and letters
# and marks of other scripts that look like it; and characters that show nothing although Unicode counts them as marks
# or letters: variation selectors and fillers.
_MARKS = str.maketrans(
    dict.fromkeys(
        "\u2018\u2019\u201b\u2032\u2035\u02b9\u02bb\u02bc\u02bd\u02be\u02bf\u02c8\u02ca\u02cb\u00b4\u0060\u055a\u05f3"
        "\u07f4\u07f5\u0374\u0384\u1fbd\u1fbf\u1fef\u1ffd\u1ffe\u275b\u275c\ua78b\ua78c\uff07\uff40\x91\x92",
        "'",
    )
    | dict.fromkeys("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u3164\uffa0", "")
    | dict.fromkeys(map(chr, (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))), "")
)


def same_marks(text: str) -> str:
    """Write every kind of apostrophe as `'`, and remove invisible characters.

    Invisible are control characters, fillers, variation selectors, and Unicode's format characters: soft hyphens,
    zero-width spaces and joiners, marks of direction, byte order marks.
    """
    text = text.translate(_MARKS)
    if text.isprintable():  # no such character
        return text
    return "".join(char for char in text if char.isspace() or unicodedata.category(char) not in ("Cf", "Cc"))


def remembered(longest: int) -> Callable[[_F], _F]:
    """Make a decorator that caches the results of a function whose argument is a text.

    The cache keeps the results for 8,192 texts of up to `longest` characters, so that all settings of a task share
    them. For longer texts it keeps only the last four results, since thousands would fill the memory.
    """

    def decorated(function: _F) -> _F:
        many, few = functools.lru_cache(1 << 13)(function), functools.lru_cache(4)(function)

        @functools.wraps(function)
        def called(text: str, *more: Any) -> Any:
            return (many if len(text) <= longest else few)(text, *more)

        return cast(_F, called)

    return decorated


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun: `1 sample`, `1,145 samples`."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def score_text(score: float | None, interval: Sequence[float] | None) -> str:
    """Return a score with its interval as text, such as `0.833 [0.500, 1.000]`; `[–]` stands for a missing interval."""
    if score is None:
        return "–"
    return f"{score:.3f} " + ("[–]" if interval is None else f"[{interval[0]:.3f}, {interval[1]:.3f}]")


def flags_of(summary: Mapping[str, Any]) -> list[str]:
    """Return a list of short texts about problems of a run, such as `2 errors`, `3 unparsed`, `1 cut`, `busy machine`.

    A cut reply reached the token limit.

    Parameters
    ----------
    summary
        Content of the run's `summary.json`. For an endpoint, it also counts replies that are `empty`, `refused` or
        `filtered` (by the server), or in which the API key was masked.
    """
    flags = [counted(errors, "error")] if (errors := summary.get("errors")) else []
    named = {"unscored": "unscored", "unparsed": "unparsed", "cut_by_token_limit": "cut", "truncated": "truncated"}
    named |= {"empty": "empty", "refused": "refused", "filtered": "filtered", "key_masked": "with the key masked"}
    flags += [f"{summary[name]:,} {word}" for name, word in named.items() if summary.get(name)]
    return flags + ["busy machine"] * bool(summary.get("busy"))


def spreadsheet(value: object) -> object:
    """Make the value of a CSV cell safe for spreadsheets, which would execute text that starts like a formula.

    An apostrophe is put in front of such text. Control characters are replaced by escapes.
    """
    if not isinstance(value, str):
        return value
    text = plain(value)
    return f"'{text}" if text.lstrip().startswith(("=", "+", "-", "@")) or text[:1] == "\t" else text


def did_you_mean(name: str, allowed: Iterable[str]) -> str:
    """Return " (did you mean 'x'?)" if `name` is similar to an allowed name, else ""."""
    lowered = {candidate.lower(): candidate for candidate in allowed}
    close = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.65)
    return f" (did you mean {lowered[close[0]]!r}?)" if close else ""


def nearly(name: str, known: Sequence[str]) -> list[str]:
    """Return the known names that differ from `name` by one typo, or continue it (`TAU_DATA_PATH` for `TAU_DATA`)."""
    close = difflib.get_close_matches(name, known, n=len(known), cutoff=1 - 1.01 / max(6, len(name)))
    return [*close, *(known_name for known_name in known if "_" in name and known_name.startswith(f"{name}_"))]


def utc_name() -> str:
    """Return the current time in UTC as a name for a file or folder, such as 20260131_235959."""
    return f"{datetime.datetime.now(datetime.UTC):%Y%m%d_%H%M%S}"
