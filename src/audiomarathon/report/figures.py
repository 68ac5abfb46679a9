"""Making pictures with matplotlib, and putting them on disk whole or not at all."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from audiomarathon.errors import SettingsError
from audiomarathon.files import write_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(**options: Any) -> Figure:
    """Return an empty figure, made with matplotlib's own options.

    Raises
    ------
    SettingsError
        Without matplotlib (the extra `report`).
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise SettingsError("pictures need matplotlib: pip install 'audiomarathon[report]'") from None
    return Figure(**options)


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a figure in the format of its file's suffix, its folder made where it is missing, and return the path.

    Raises
    ------
    RecordError
        When it cannot be written; what was there before stays.
    """
    from matplotlib import rc_context
    from matplotlib.text import Text

    drawn = io.BytesIO()
    for text in figure.findobj(Text):
        text.set_parse_math(False)  # a name with a $ in it is no formula
    # Type 42: outlines that can be searched and edited; publishers refuse Type 3.
    with rc_context({"pdf.fonttype": 42, "text.parse_math": False}):
        figure.savefig(drawn, format=path.suffix.lstrip(".") or "png")
    write_bytes(path, drawn.getvalue())
    return path
