"""Assign settings to lines of pictures, and give each method its colour, dashes and mark."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import cycle, islice
from typing import Any

Identity = Mapping[str, Any]

# Okabe and Ito's palette (2008), which readers with any kind of colour blindness can tell apart; without its yellow,
# which is too pale for lines, and its black, which is base's.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#7A5195")
# For more methods, with dashed lines: Paul Tol's "muted" (2021) and colours of ColorBrewer. Nobody can tell
# twenty-six hues apart, so each line also has a label at its end, a line style and a marker.
_MORE_COLOURS = (
    *("#117733", "#882255", "#661100", "#332288", "#44AA99", "#999933", "#AA4499"),
    *("#A6761D", "#66A61E", "#E7298A", "#6A3D9A"),
    *("#1B9E77", "#B15928", "#E31A1C", "#1F78B4", "#33A02C", "#FF7F00", "#525252", "#8C510A"),
)
_MARKS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right")
_DASHES: tuple[list[int], ...] = ([], [6, 3], [2, 3], [12, 4])
BASE = "#222222"

PAIRED = (
    "A setting's prefill time is base's median divided by the setting's speed-up (the median over samples of "
    "base ÷ setting)."
)
"""Note on how times are drawn. Medians taken at different moments would differ with the machine's load."""
HOLLOW, PALE = "Hollow points: times of a busy machine.", "Pale bars: times of a busy machine."


def palette(count: int) -> list[str]:
    """Return `count` colours. After the last colour of the palette, they repeat."""
    return list(islice(cycle(_COLOURS + _MORE_COLOURS), count))


def method_and_ratio(identity: Identity) -> tuple[str, float]:
    """Return (method, ratio) of a setting, given the identity of its run.

    The ratio is the fraction of audio tokens removed; for joined methods, the fraction that both remove together.
    """
    parts = _parts(identity)
    if parts == [identity]:
        return str(identity.get("method", "?")), float(identity.get("ratio") or 0.0)
    kept = math.prod(1 - float(part.get("ratio") or 0.0) for part in parts)
    return "+".join(str(part.get("method")) for part in parts), round(1 - kept, 6)


def lines_of(identities: Sequence[Identity]) -> list[str]:
    """Return the name of each setting's line in a picture: the method, and the parameters that tell its lines apart.

    The parameters are layer, where tokens are dropped (`at`), the tower's layer, scope and schedule, each only if
    settings of the same method differ in it.
    """
    methods = [method_and_ratio(identity)[0] for identity in identities]
    names = ("layer", "at", "tower_layer", "scope", "schedule")
    known = [{name: _parameter(identity, name) for name in names} for identity in identities]
    seen: dict[tuple[str, str], set[str]] = {}
    for method, parameters in zip(methods, known, strict=True):
        for name, value in parameters.items():
            seen.setdefault((method, name), set()).add(value)
    return [
        " ".join(
            [method, *(f"{name} {value}" for name, value in facts.items() if value and len(seen[method, name]) > 1)]
        )
        for method, facts in zip(methods, known, strict=True)
    ]


def _parts(identity: Identity) -> list[Identity]:
    return [identity[part] for part in ("first", "second") if isinstance(identity.get(part), Mapping)] or [identity]


def _parameter(identity: Identity, name: str) -> str:
    return ", ".join(str(part[name]) for part in _parts(identity) if name in part)


@cache
def _built_in() -> tuple[str, ...]:
    from audiomarathon.compression.registry import all_methods

    return tuple(method.key for method in all_methods() if method.key != "base")


def colour(method: str) -> str:
    """Return the colour of a method, given its key. Joined methods (`fast_v+snapkv`) get the second method's colour."""
    colours = _COLOURS + _MORE_COLOURS
    return BASE if method == "base" else colours[_place(method) % len(colours)]


def mark(method: str) -> str:
    """Return the shape of a method's points, by Vega's name for it, such as `square`."""
    return _MARKS[_place(method) % len(_MARKS)]


def dash(method: str) -> list[int]:
    """Return the dashes of a method's line, as lengths of dashes and gaps; [] for a solid line.

    The first methods are solid, later ones dashed, dotted, then long-dashed; joined methods have dashes and dots.
    """
    return [8, 3, 2, 3] if "+" in method else _DASHES[min(_place(method) // len(_COLOURS), len(_DASHES) - 1)]


def _place(method: str) -> int:
    """Return the number that decides a method's colour, dashes and mark: its index among the built-in methods.

    For any other method, the number is made from the letters of its name.
    """
    names, last_part = _built_in(), method.rsplit("+", 1)[-1]
    return names.index(last_part) if last_part in names else len(names) + sum(last_part.encode())
