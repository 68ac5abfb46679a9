"""A ruler (words and bells planted into audio) for trials: clips of 15 and 30 s; real rulers have minutes."""

from __future__ import annotations

from pathlib import Path

from audiomarathon.wings.ruler import build, sounds
from audiomarathon.wings.ruler.grid import Grid

_GRID = Grid(minutes=(0.25, 0.5), places=(0, 0.5, 1), needles=(2,), snr=(20,), items=4)


def write(root: Path) -> None:
    """Write the mini benchmark's ruler, short clips with planted words and bells, into `ruler/` of a data root."""
    build.write(build.Ruler(_GRID, sounds.voice(), sounds.synthetic_backgrounds(4, _GRID.seed)), root)
