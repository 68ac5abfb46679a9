"""One self-contained HTML page of any number of runs: figures, pictures, and a browser of samples.

Everything a model or a data set said is carried as JSON with `<` escaped, and set as text by the page's script: nothing
of it is ever read as markup.
"""

from __future__ import annotations

import base64
import datetime
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from audiomarathon.audio import decode as audio
from audiomarathon.errors import AudioMarathonError, SettingsError
from audiomarathon.report.page_data import cells_of, compared_of, means_of, scopes_of, settings_of, unfinished_of
from audiomarathon.report.page_samples import BANDS, STRIP, Shown, choose, samples_of
from audiomarathon.results.systems import System
from audiomarathon.text import plain
from audiomarathon.version import __version__

PLAYERS = ("link", "embed", "none")
_TEMPLATES = Path(__file__).parent / "page_template"
_EMBEDDED_RATE = 16_000


@dataclass(frozen=True)
class PageOptions:
    """What goes into a page.

    Attributes
    ----------
    samples
        At most so many samples in the browser; those on which settings disagree come first.
    players
        `link` plays clips from where they lie, `embed` carries them inside the page, `none` has no players.
    spectrograms
        Whether to draw the clips, which decodes them.
    data
        Root of the tasks' data; None looks where the runs found theirs.
    """

    title: str = "AudioMarathon report"
    samples: int = 500
    players: str = "link"
    spectrograms: bool = True
    data: Path | None = None

    def __post_init__(self) -> None:
        """Refuse what is not allowed."""
        if self.players not in PLAYERS:
            raise SettingsError(f"--audio {self.players}: allowed: {', '.join(PLAYERS)}")
        if self.samples < 0:
            raise SettingsError(f"--samples {self.samples}: allowed is a number from 0")


def page(systems: Sequence[System], options: PageOptions, *, step: Callable[[], object] = lambda: None) -> str:
    """Return the page's HTML.

    Parameters
    ----------
    step
        Called after each sample of the browser.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    shown = choose(systems, options.samples)
    content = page_content(systems, shown, options, step)
    # The template's own parts are trusted; what is not comes in through `title` (escaped here) and `data` (JSON).
    environment = Environment(loader=FileSystemLoader(_TEMPLATES), undefined=StrictUndefined, autoescape=True)

    def trusted(name: str) -> Markup:
        return Markup((_TEMPLATES / name).read_text(encoding="utf-8"))

    return environment.get_template("report.html.j2").render(
        title=options.title,
        css=trusted("report.css"),
        charts_js=trusted("charts.js"),
        browser_js=trusted("browser.js"),
        js=trusted("report.js"),
        data=Markup(as_script(content)),
        version=__version__,
        made=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )


def page_content(
    systems: Sequence[System], shown: Shown, options: PageOptions, step: Callable[[], object] = lambda: None
) -> dict[str, Any]:
    """Return what the page's script reads."""
    cells = cells_of(systems)
    return {
        "settings": settings_of(systems),
        "cells": [{name: value for name, value in cell.items() if name != "mean_of"} for cell in cells],
        "unfinished": unfinished_of(systems, cells),
        "means": means_of(cells, len(systems)),
        "scopes": scopes_of(cells),
        "beside_base": compared_of(systems, cells),
        "samples": samples_of(
            systems,
            shown,
            data=options.data,
            heard=_address(options.players),
            spectrograms=options.spectrograms,
            step=step,
        ),
        "total": shown.total,
        "columns": STRIP,
        "bands": BANDS,
    }


def as_script(content: Any) -> str:
    """Return JSON that is safe in a script element, whatever its strings hold, with control characters written out."""
    text = json.dumps(_plain(content), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _plain(content: Any) -> Any:
    if isinstance(content, str):
        return plain(content)
    if isinstance(content, Mapping):
        return {name: _plain(value) for name, value in content.items()}
    return [_plain(value) for value in content] if isinstance(content, (list, tuple)) else content


def _address(players: str) -> Callable[[Path], str | None]:
    return {"link": lambda clip: clip.absolute().as_uri(), "embed": _embedded, "none": lambda _clip: None}[players]


def _embedded(clip: Path) -> str | None:
    """Return a clip as mono Ogg Vorbis inside an address; None if it cannot be read."""
    import soundfile

    try:
        wave = audio.decode(clip, _EMBEDDED_RATE)
    except AudioMarathonError:
        return None
    stream = io.BytesIO()
    soundfile.write(stream, wave, _EMBEDDED_RATE, format="OGG", subtype="VORBIS")
    return f"data:audio/ogg;base64,{base64.b64encode(stream.getvalue()).decode()}"
