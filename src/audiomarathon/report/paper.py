"""What a paper needs of a set of runs: vector figures with the CSV behind each, tables, and all records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from audiomarathon.files import file_name, write_text
from audiomarathon.report.comparison_table import markdown_row
from audiomarathon.report.curves import Panel, panels_of
from audiomarathon.report.page_data import cells_of, means_of, settings_of
from audiomarathon.report.plot_ratios import PAPER, plot_panel
from audiomarathon.results.scopes import OVERALL
from audiomarathon.results.systems import System
from audiomarathon.runs.read import Run
from audiomarathon.text import flags_of, plain, spreadsheet

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}
_FLAT = ("reply", "finish", "error", "clip_seconds", "truncated")
_ENDS = ("", "_low", "_high")
_COUNTS = ("prompt_tokens", "audio_tokens", "kept_audio_tokens", "kv_bytes", "new_tokens", "peak_memory_bytes")


def write_paper(systems: Sequence[System], folder: Path) -> list[Path]:
    """Write a PDF and a CSV a task (and of their mean), `scores.md`, `scores.tex` and `records.csv`.

    Raises
    ------
    RecordError
        When nothing finished, or a file cannot be written.
    """
    panels = panels_of([run for system in systems for run in system.runs.values()])
    written = []
    for panel in panels:
        name = file_name(panel.name)
        written.append(plot_panel(panel, folder / f"{name}.pdf", PAPER))
        written.append(_write(folder / f"{name}.csv", pd.DataFrame(_rows(panel)).to_csv(index=False)))
    table = scores(systems)
    written.append(_write(folder / "scores.md", markdown(table) + _footnotes(systems)))
    written.append(_write(folder / "scores.tex", latex(table)))
    written.append(_write(folder / "records.csv", records(systems).to_csv(index=False)))
    return written


def _write(path: Path, text: str) -> Path:
    write_text(path, text)
    return path


def _rows(panel: Panel) -> list[dict[str, Any]]:
    return [
        {
            "setting": spreadsheet(one.label),
            "method": spreadsheet(one.method),
            "line": spreadsheet(one.line),
            "ratio": one.ratio,
            "ideal_speed_up": one.ideal,
            "across_sessions": one.across,
            **{
                f"{name}{end}": value
                for name, figure in one.figures.items()
                for end, value in zip(_ENDS, (figure.value, *(figure.interval or (None, None))), strict=True)
            },
        }
        for one in panel.settings
    ]


Scores = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""By setting's name and task (or group, or "overall"): a cell with `score`, `low`, `high` and `control`."""


def scores(systems: Sequence[System]) -> Scores:
    """Return each setting's score by task, then by group, then over all."""
    names = [setting["name"] for setting in settings_of(systems)]
    cells = cells_of(systems)
    means = sorted(means_of(cells, len(systems)), key=lambda mean: mean["scope"].endswith(OVERALL))
    found: dict[str, dict[str, Mapping[str, Any]]] = {name: {} for name in names}
    for cell in cells:
        if cell["score"] is not None:
            found[names[cell["setting"]]][cell["task"]] = cell
    for mean in means:
        found[names[mean["setting"]]][mean["scope"]] = mean
    return found


def _footnotes(systems: Sequence[System]) -> str:
    """Return a line a setting and task for what is to be known of the replies behind a score, and of the score."""
    found: dict[str, list[str]] = {}
    for setting, cell in ((settings_of(systems)[cell["setting"]]["name"], cell) for cell in cells_of(systems)):
        flags = flags_of(cell | {"cut_by_token_limit": cell["cut"]})
        for line in [*cell["notes"], *([", ".join(flags)] if flags else [])]:
            found.setdefault(line, []).append(f"{setting} in {cell['task']}")
    return "".join(f"\n- {plain('; '.join(places))}: {plain(line)}\n" for line, places in found.items())


def columns_of(table: Scores) -> list[str]:
    """Return the tasks, groups and "overall" that any setting has, in order."""
    names = list(dict.fromkeys(name for row in table.values() for name in row))
    return sorted(names, key=lambda name: name.endswith(OVERALL))


def best_of(table: Scores, column: str) -> float | None:
    """Return the best score of a column as it is printed; a control run is none to be best."""
    cells = [row[column] for row in table.values() if column in row]
    return max((round(cell["score"], 3) for cell in cells if not cell["control"]), default=None)


def markdown(table: Scores) -> str:
    """Return scores with their intervals as Markdown, the best of each column in bold."""
    columns = columns_of(table)
    lines = [["setting", *columns], ["---"] * (len(columns) + 1)]
    for name, row in table.items():
        lines.append([name, *(_cell(row.get(c), best_of(table, c), "**{}**", "–") for c in columns)])
    return "".join(f"{markdown_row(cells)}\n" for cells in lines)


def latex(table: Scores) -> str:
    """Return the same as a LaTeX tabular (with booktabs)."""
    columns = columns_of(table)
    body = [
        " & ".join([escaped(name), *(_cell(row.get(c), best_of(table, c), r"\textbf{{{}}}", "--") for c in columns)])
        for name, row in table.items()
    ]
    head = " & ".join(["setting", *map(escaped, columns)])
    rows = " \\\\\n".join(body)
    align = "l" + "r" * len(columns)
    parts = [f"\\begin{{tabular}}{{{align}}}", r"\toprule", rf"{head} \\", r"\midrule", rf"{rows} \\", r"\bottomrule"]
    return "\n".join([*parts, r"\end{tabular}", ""])


def escaped(text: str) -> str:
    """Return a text with LaTeX's special characters escaped."""
    return "".join(_SPECIAL.get(letter, letter) for letter in plain(text))


def _cell(cell: Mapping[str, Any] | None, best: float | None, bold: str, missing: str) -> str:
    if cell is None:
        return missing
    text = f"{cell['score']:.3f}"
    text = bold.format(text) if round(cell["score"], 3) == best and not cell["control"] else text
    return text if cell["low"] is None else f"{text} [{cell['low']:.3f}, {cell['high']:.3f}]"


def records(systems: Sequence[System]) -> pd.DataFrame:
    """Return every record of every run as one flat table, those of failed samples too."""
    names = [setting["name"] for setting in settings_of(systems)]
    rows = [
        {
            "checkpoint": system.checkpoint,
            "setting": name,
            "task": task,
            "id": record.id,
            "cluster": record.cluster,
            "answer": record.reference.get("answer"),
            **{field: getattr(record, field) for field in (*_FLAT, *_COUNTS)},
            **(record.groups or {}),
            **_verdict(run, record.id),
            **{f"{stage}_s": seconds for stage, seconds in (record.time or {}).items()},
        }
        for system, name in zip(systems, names, strict=True)
        for task, run in system.runs.items()
        for record in (*run.records.values(), *run.failed.values())
    ]
    # As objects: whole numbers stay whole beside what is missing.
    return pd.DataFrame([{name: spreadsheet(value) for name, value in row.items()} for row in rows], dtype=object)


def _verdict(run: Run, id_: str) -> dict[str, Any]:
    """Return a sample's own score, and the plain values of its verdict."""
    verdict = run.verdicts.get(id_) if run.task else None
    if run.task is None or verdict is None:
        return {}
    flat = {name: value for name, value in verdict.values.items() if not isinstance(value, (dict, list))}
    return {"own_score": run.task.scorer.own_score(verdict), **flat}
