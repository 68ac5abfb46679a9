"""A judge's certificate: how many anchors (artificial replies whose right judgement is known) it judged correctly."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_WEAK, _UNKNOWN = "weak, since it misreads known answers", "not certified: it has judged no anchors"
#: Beginnings of the marks for judges whose scores should not be trusted alone.
MARKS = (_WEAK, _UNKNOWN)
WEAK = 0.8  # tables mark a judge that reads a smaller share of any kind of anchor correctly


@dataclass(frozen=True)
class Certificate:
    """One judge's results on anchors, the artificial replies that test it.

    Attributes
    ----------
    kinds
        Counts as {kind of anchor: (number that the judge judged correctly, number that it was asked about)}.
    """

    kinds: Mapping[str, tuple[int, int]]

    @property
    def weak(self) -> list[str]:
        """Kinds of anchors (artificial test replies) of which the judge got a smaller share right than `WEAK`."""
        return [kind for kind, (right, n) in self.kinds.items() if right < WEAK * n]

    @property
    def mark(self) -> str:
        """The warning that tables show next to a judge that is weak or saw no anchor; "" for any other judge."""
        if not self.kinds:
            return _UNKNOWN
        shown = (f"{kind} {self.kinds[kind][0]} of {self.kinds[kind][1]}" for kind in self.weak)
        return f"{_WEAK} ({', '.join(shown)} right)" if self.weak else ""

    def to_json(self) -> dict[str, Any]:
        """Return {"anchors": {kind: {"right", "n", "interval"}}, "weak": kinds}; intervals are Wilson's, 95 %."""
        rows = {
            kind: {"right": right, "n": n, "interval": list(wilson(right, n))}
            for kind, (right, n) in self.kinds.items()
        }
        return {"anchors": rows, "weak": self.weak}


def certificate_of(rows: Iterable[Sequence[Any]]) -> Certificate:
    """Make a judge's certificate from rows of (kind of anchor, whether the judge read the anchor correctly)."""
    right, count = Counter[str](), Counter[str]()
    for kind, good in rows:
        right[kind] += bool(good)
        count[kind] += 1
    return Certificate({kind: (right[kind], n) for kind, n in sorted(count.items())})


def wilson(right: int, n: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval (low, high) of a share, if `right` of `n` trials were right.

    E. Wilson, J. Am. Stat. Assoc. 22, 1927.
    """
    z, share = 1.959963984540054, right / n
    reach = z * math.sqrt(share * (1 - share) / n + (z / n / 2) ** 2)
    low, high = ((share + z * z / n / 2 + side) / (1 + z * z / n) for side in (-reach, reach))
    return max(0.0, low), min(1.0, high)
