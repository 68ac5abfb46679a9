"""One colour, line style and marker a method, the same in every picture."""

from __future__ import annotations

from functools import cache

# Okabe and Ito's palette (2008), told apart by readers with any kind of colour blindness; its yellow is too pale for
# lines and its black is base's. Then, with dashed lines, Paul Tol's "muted" (2021). Fourteen hues are too many for any
# eye: every line is also labelled at its end, and has a style and a marker of its own.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#7A5195")
_MORE_COLOURS = ("#117733", "#882255", "#661100", "#332288", "#44AA99", "#999933", "#AA4499")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
BASE = "#222222"


@cache
def _built_in() -> tuple[str, ...]:
    from audiomarathon.compression.registry import all_methods

    return tuple(method.key for method in all_methods() if method.key != "base")


def colour(method: str) -> str:
    """Return the colour of a method, named by its key; joined methods (`fast_v+snapkv`) have their second part's."""
    colours = _COLOURS + _MORE_COLOURS
    return BASE if method == "base" else colours[_place(method) % len(colours)]


def marker(method: str) -> str:
    """Return the marker of a method."""
    return _MARKERS[_place(method) % len(_MARKERS)]


def line_style(method: str) -> str:
    """Return the style of a method's line: solid for the first colours, dashed for the others, then dotted."""
    return "-." if "+" in method else ("-", "--", ":")[min(_place(method) // len(_COLOURS), 2)]


def _place(method: str) -> int:
    names, own = _built_in(), method.rsplit("+", 1)[-1]
    return names.index(own) if own in names else len(names) + sum(own.encode())
