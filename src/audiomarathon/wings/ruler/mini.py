"""The mini benchmark's ruler: clips of 15 and 30 s, since real rulers have minutes."""

from __future__ import annotations

from pathlib import Path

from audiomarathon.wings.ruler.build import Ruler
from audiomarathon.wings.ruler.build import write as write_ruler
from audiomarathon.wings.ruler.grid import BELL, Grid
from audiomarathon.wings.ruler.sounds import synthetic_backgrounds, synthetic_bell, synthetic_words

_GRID = Grid(minutes=(0.25, 0.5), places=(0, 0.5, 1), needles=(2,), snr=(20,), items=4)


def write(root: Path) -> None:
    """Write `ruler/` into a data root."""
    voice = {**synthetic_words(), BELL: synthetic_bell()}
    write_ruler(Ruler.of(_GRID, voice, synthetic_backgrounds(4, _GRID.seed)), root)
