"""Write the material for a paper: vector figures with their data as CSV, tables, and all records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd

from audiomarathon.files import file_name, write_text
from audiomarathon.records import Record
from audiomarathon.report import charts
from audiomarathon.report.comparison_text import at_margins
from audiomarathon.report.curves import Panel, panels_of
from audiomarathon.report.page_data import PageData, scores_table
from audiomarathon.report.pictures import of_panel
from audiomarathon.report.render import Table, csv, estimated, latex, markdown
from audiomarathon.report.tables import comparison
from audiomarathon.runs.read import Run
from audiomarathon.wing import asked

_PANEL = (165, 120)  # width and height of a chart in points: four charts with labels are as wide as a two-column page
_FLAT = ("reply", "finish", "error", "clip_seconds", "truncated")
_STAGES = ("load", "preprocess", "encoder", "llm_prefill", "prefill", "decode")
_COUNTS = ("prompt_tokens", "audio_tokens", "kept_audio_tokens", "kv_bytes", "new_tokens", "peak_memory_bytes")

#: The columns that the frame of all records always has, in this order, with their types (see :func:`typed`).
RECORD_COLUMNS: Mapping[str, str] = (
    dict.fromkeys(("checkpoint", "setting", "task", "id", "cluster", "answer", "reply", "finish", "error"), "text")
    | {"own_score": "float64", "clip_seconds": "float64", "truncated": "boolean"}
    | dict.fromkeys((*_COUNTS, *(f"{stage}_s" for stage in _STAGES)), "float64")
)


def write_paper(data: PageData, folder: Path) -> list[Path]:
    """Write figures, tables and records for a paper to a folder; return the files' paths.

    The files are a PDF and a CSV per task and for the mean, `scores.md`, `scores.tex`, tables of further benchmarks,
    and `records.csv`. If margins (allowed losses of score) are set, also `margins-1.md` and `.tex`, with a number for
    each base.

    Raises
    ------
    RecordError
        When no run is finished, or a file cannot be written.
    SettingsError
        vl-convert (the extra `report`) is missing.
    """
    written = []
    for panel in panels_of([run for system in data.systems for run in system.runs.values()]):
        name = file_name(panel.name)
        if (chart := of_panel(panel, _PANEL)) is not None:
            written.append(charts.save(chart, folder / f"{name}.pdf"))
        written.append(_write(folder / f"{name}.csv", csv(panel_table(panel))))
    scores = replace(scores_table(data), notes=_footnotes(data))
    written.append(_write(folder / "scores.md", markdown(scores)))
    written.append(_write(folder / "scores.tex", latex(scores)))
    for number, compared in enumerate(data.beside_base[2].values() if data.margins else (), 1):
        decided = comparison(compared, notes=at_margins(compared.rows))
        written.append(_write(folder / f"margins-{number}.md", markdown(decided)))
        written.append(_write(folder / f"margins-{number}.tex", latex(decided)))
    for key, wing_tables in asked(lambda wing: (wing.key, wing.tables(data.runs))):
        written += [
            _write(folder / f"{key}-{number}.md", markdown(table)) for number, table in enumerate(wing_tables, 1)
        ]
    return [*written, _write(folder / "records.csv", csv(records(data)))]


def _write(path: Path, text: str) -> Path:
    write_text(path, text)
    return path


def panel_table(panel: Panel) -> Table:
    """Return the values that a picture shows as a table, one row per setting.

    The picture shows one checkpoint, on a task or on the mean over tasks.
    """
    rows = []
    for setting in panel.settings:
        row: dict[str, Any] = {
            "setting": setting.label,
            "method": setting.method,
            "line": setting.line,
            "ratio": setting.ratio,
        }
        row |= {"ideal_speed_up": setting.ideal, "across_sessions": bool(setting.pairs and setting.pairs.across)}
        for name, figure in setting.figures.items():
            row |= estimated(name, figure)
        rows.append(row)
    return Table.of(rows)


def _footnotes(data: PageData) -> list[str]:
    """Return the notes on scores and replies; each text begins with the settings and tasks that it is about."""
    footnotes: dict[str, list[str]] = {}
    for (scope, place), row in data.figures.items():
        if scope in data.tasks:
            for line in [*row["notes"], *([row["n_said"]] if row["n_said"] else [])]:
                footnotes.setdefault(line, []).append(f"{data.settings[place].name} in {scope}")
    return [f"{'; '.join(places)}: {line}" for line, places in footnotes.items()]


def records(data: PageData) -> Table:
    """Return a flat table with one row per record of every run, including the records of failed samples."""
    return Table.of(
        [
            _flat(run, record, {"checkpoint": setting.system.checkpoint, "setting": setting.name, "task": task})
            for setting in data.settings
            for task, run in setting.system.runs.items()
            for record in (*run.records.values(), *run.failed.values())
        ]
    )


def typed(frame: pd.DataFrame, columns: Mapping[str, str] = MappingProxyType({})) -> pd.DataFrame:
    """Return a frame whose columns hold one type each, so that it can be stored as parquet.

    Parameters
    ----------
    columns
        Columns that come first, present or not, with their types: `text`, `float64` or `boolean`. Each other column
        keeps its type; a column of several types becomes text.
    """
    frame = frame.reindex(columns=list(dict.fromkeys((*columns, *frame.columns))))
    text = pd.Series(["a"]).dtype  # object before pandas 3, then str
    for name in frame.columns:
        kind = columns.get(name) or pd.api.types.infer_dtype(frame[name], skipna=True)
        if kind in ("text", "string") or kind.startswith("mixed"):
            frame[name] = frame[name].astype(object).map(str, na_action="ignore").astype(text)
        elif kind in ("float64", "boolean"):
            frame[name] = frame[name].astype(kind)  # type: ignore[call-overload]  # one of the two
    return frame


def _flat(run: Run, record: Record, named: Mapping[str, Any]) -> dict[str, Any]:
    """Return one row of the table of records, as {column: value}: a sample's record, verdict and times in seconds.

    If one of the sample's groups (such as its category) has the name of a field, the row keeps the field only.
    """
    flat = {**named, "id": record.id, "cluster": record.cluster, "answer": record.reference.get("answer")}
    flat |= {field: getattr(record, field) for field in (*_FLAT, *_COUNTS)}
    more = {**(record.groups or {}), **_verdict(run, record.id)}
    seconds = {f"{stage}_s": seconds for stage, seconds in (record.time or {}).items()}
    return flat | {name: value for name, value in more.items() if name not in flat} | seconds


def _verdict(run: Run, id_: str) -> dict[str, Any]:
    """Return `own_score` and the values of a sample's verdict, without lists and objects, as {column: value}."""
    verdict = run.verdicts.get(id_) if run.task else None
    if run.task is None or verdict is None:
        return {}
    flat = {name: value for name, value in verdict.values.items() if not isinstance(value, (dict, list))}
    return {"own_score": run.task.scorer.own_score(verdict), **flat}
