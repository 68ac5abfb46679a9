"""Write one self-contained HTML page about any number of runs: recommendations, tables, charts, sample browser.

Tables are written as HTML; charts are Vega-Lite specs, drawn by the page's copy of Vega. Texts of models and data sets
are escaped, or stored as JSON and inserted as text, so they are never read as markup or code.
"""

from __future__ import annotations

import base64
import datetime
import io
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from audiomarathon.audio import decode as audio
from audiomarathon.audio.member import Clip, Member
from audiomarathon.errors import AudioMarathonError, RecordError, SettingsError
from audiomarathon.report import sections as parts
from audiomarathon.report.charts import CONFIG, script
from audiomarathon.report.page_data import PageData
from audiomarathon.report.render import html, templates
from audiomarathon.report.samples import BANDS, STRIP, choose, samples_of
from audiomarathon.report.sections import Section
from audiomarathon.report.styles import colour
from audiomarathon.runs.read import named
from audiomarathon.text import plain
from audiomarathon.version import __version__

PLAYERS = ("link", "embed", "none")
_MOST_REPLIES = 100_000  # in the sample browser
_EMBEDDED_RATE = 16_000


@dataclass(frozen=True)
class PageOptions:
    """Options of the report page.

    Attributes
    ----------
    samples
        Largest number of samples in the sample browser; samples on which settings disagree come first. The
        browser holds at most 100,000 replies (samples × settings), so many settings reduce the number of samples.
    players
        `link` plays clips from their files, `embed` stores them in the page, `none` has no players.
    spectrograms
        Whether to draw spectrograms, which decodes the clips.
    data
        Folder with the tasks' data; None uses the runs' data folders.
    """

    title: str = "AudioMarathon report"
    samples: int = 500
    players: str = "link"
    spectrograms: bool = True
    data: Path | None = None

    def __post_init__(self) -> None:
        """Raise a :class:`SettingsError` for an option that is not allowed."""
        if self.players not in PLAYERS:
            raise SettingsError(f"--audio {self.players}: allowed: {', '.join(PLAYERS)}")
        if self.samples < 0:
            raise SettingsError(f"--samples {self.samples}: allowed: a number from 0")


def page(data: PageData, options: PageOptions, *, step: Callable[[], object] = lambda: None) -> str:
    """Return the HTML of the report page.

    Parameters
    ----------
    step
        Function that is called after each sample of the sample browser, to move a progress bar.

    Raises
    ------
    SettingsError
        vl-convert (the extra `report`) is missing.
    RecordError
        When the runs have no record of a sample.
    """
    from markupsafe import Markup

    if not any(run.records or run.failed for run in data.runs):
        raise RecordError(f"no sample was answered in {named(data.runs)}; run them again first")
    sections = parts.sections(data)
    chosen, total = choose(data.systems, min(options.samples, _MOST_REPLIES // len(data.systems)))
    held = _Held()
    samples = samples_of(
        data.systems,
        chosen,
        data=options.data,
        heard=_address(options.players),
        spectrograms=options.spectrograms,
        step=step,
    )
    carried = {
        "settings": [
            {"name": setting.name, "base": setting.base, "colour": colour(setting.method)} for setting in data.settings
        ],
        "samples": [{**sample, "replies": held.rows(map(_apart, sample["replies"]))} for sample in samples],
        "total": total,
        "columns": STRIP,
        "bands": BANDS,
        "config": CONFIG,
        **_charts(sections, held),
        "values": held.values,
    }

    # Only these parts are trusted; Jinja, `html` or JSON escapes the rest.
    return (
        templates()
        .get_template("report.html.j2")
        .render(
            title=plain(options.title),
            facts=[plain(line) for line in parts.facts(data, total)],
            advice=[plain(line) for line in parts.advice(data)],
            sections=sections,
            html=lambda table: Markup(html(table)),
            vega_js=Markup(script()),
            data=Markup(as_script(carried)),
            version=__version__,
            made=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        )
    )


class _Held:
    """Stores the values for the page's JSON, each distinct value once, since charts and replies repeat them.

    Attributes
    ----------
    values
        The distinct values. Floats have six significant digits.
    """

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._places: dict[str, int] = {}

    def rows(self, rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """Store the values of the given rows; return the rows encoded as indices of their cells in `values`.

        The result has the number of rows, `n`, and a list of indices per column. A column of equal cells has a single
        index. The index of a missing value is -1.
        """
        listed = list(rows)
        places = {
            name: [self._place(row[name]) if name in row else -1 for row in listed]
            for name in dict.fromkeys(name for row in listed for name in row)
        }
        once = {name: column if len({*column}) > 1 else column[0] for name, column in places.items()}
        return {"n": len(listed), "places": once}

    def _place(self, value: Any) -> int:
        value = float(f"{value:.6g}") if isinstance(value, float) else value
        key = json.dumps(value)
        if key not in self._places:
            self._places[key] = len(self.values)
            self.values.append(value)
        return self._places[key]


def _apart(reply: Mapping[str, Any]) -> dict[str, Any]:
    """Move a reply's fields except `setting` and `kept` into an inner dict `said`; return the new reply.

    `said` is often equal under several settings, so the page can store it once.
    """
    setting_fields = {name: value for name, value in reply.items() if name in ("setting", "kept")}
    return setting_fields | {"said": {name: value for name, value in reply.items() if name not in setting_fields}}


def _charts(sections: Iterable[Section], held: _Held) -> dict[str, Any]:
    """Return all charts for the page's JSON: `specs`, each distinct spec once, and `charts`, the data of every chart.

    `charts` is {section: {scope: charts}}; each chart has the index of its spec, its title, and its data sets as
    :meth:`_Held.rows` encodes them.
    """
    specs: list[Mapping[str, Any]] = []
    drawn: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for section in sections:
        for scope, charts in section.charts.items():
            scope_charts = drawn.setdefault(section.anchor, {}).setdefault(scope, [])
            for chart in charts:
                spec = {name: value for name, value in chart.spec.items() if name != "title"}
                if spec not in specs:
                    specs.append(spec)
                rows = {name: held.rows(rows) for name, rows in chart.data.items()}
                scope_charts.append({"spec": specs.index(spec), "title": chart.spec.get("title", ""), "data": rows})
    return {"specs": specs, "charts": drawn}


def as_script(content: Any) -> str:
    """Return a value as JSON that is safe inside an HTML script element; control characters in texts are escaped."""
    text = json.dumps(_plain(content), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _plain(content: Any) -> Any:
    if isinstance(content, str):
        return plain(content)
    if isinstance(content, Mapping):
        return {name: _plain(value) for name, value in content.items()}
    return [_plain(value) for value in content] if isinstance(content, (list, tuple)) else content


def _address(players: str) -> Callable[[Clip], str | None]:
    return {"link": _linked, "embed": _embedded, "none": lambda _clip: None}[players]


def _linked(clip: Clip) -> str | None:
    """Return the address from which the page plays a clip: its file, or for a clip inside a tar, the embedded audio."""
    return _embedded(clip) if isinstance(clip, Member) else clip.absolute().as_uri()


def _embedded(clip: Clip) -> str | None:
    """Return a clip's audio as a data URL (mono Ogg Vorbis), to embed it in the page; None if it cannot be read."""
    import soundfile

    try:
        wave = audio.decode(clip, _EMBEDDED_RATE)
    except AudioMarathonError:
        return None
    stream = io.BytesIO()
    soundfile.write(stream, wave, _EMBEDDED_RATE, format="OGG", subtype="VORBIS")
    return f"data:audio/ogg;base64,{base64.b64encode(stream.getvalue()).decode()}"
