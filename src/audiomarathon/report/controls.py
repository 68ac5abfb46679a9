"""Show how scores of control runs depend on the clips' duration.

A control run hears shortened, silent or replaced audio.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from audiomarathon.errors import RecordError
from audiomarathon.report import charts
from audiomarathon.report.charts import Line
from audiomarathon.report.render import Kind, Table, with_interval
from audiomarathon.runs.read import Run, read_runs

_COLOURS = {"audio": "#0072B2", "silence": "#222222", "noise": "#D55E00", "mismatched": "#009E73"}
_ENDS = {"x": "seconds", "y": "score", "low": "score_low", "high": "score_high"}


def control_runs(folders: Sequence[Path]) -> Table:
    """Return a table of the finished runs in or under folders, one row per run, sorted by task, kind of audio and
    duration.

    The column `task` also names model and setting. `heard` is `audio` for real audio of any duration, else the kind of
    control. `seconds` is the length to which clips were cut or extended, else their median length. `chance` is the
    share of right replies of random guesses; None if unknown.

    Raises
    ------
    RecordError
        No run is finished.
    """
    rows = [_row(run, run.summary) for run in read_runs(folders) if run.summary and run.records]
    rows = [row for row in rows if row["score"] is not None]
    if not rows:
        raise RecordError(
            f"{', '.join(map(str, folders))}: no finished run found (a folder with run.json and summary.json)"
        )
    rows.sort(key=lambda row: (row["task"], row["heard"], row["seconds"]))
    return Table.of(rows, kinds={"seconds": Kind(form=".1f"), "chance": Kind(form=".2f")})


def _row(run: Run, summary: Mapping[str, Any]) -> dict[str, Any]:
    control = run.facts.get("control") or {}
    median = float(np.median([record.clip_seconds for record in run.records.values()]))
    score: Any = summary.get("score")
    ends = (summary.get("intervals") or {}).get("score") or (score, score)
    return {
        "task": f"{run.key} · {run.facts.get('model', '')} · {run.method}",
        "heard": str(control.get("kind", "audio")),
        "seconds": float(control.get("seconds") or median),
        "n": summary["n"],
        **with_interval("score", score, ends),
        "chance": summary.get("chance"),
    }


def plot(runs: Table, path: Path) -> Path:
    """Draw score against duration with 95 % intervals: a panel per task, model and setting, a line per kind of control.

    `runs` is the table from :func:`control_runs`.

    Raises
    ------
    SettingsError
        vl-convert (the extra `report`) is missing, or the format is unknown.
    RecordError
        The picture cannot be written.
    """
    drawn = []
    for panel, group in runs.frame.groupby("task", sort=False):
        lines = [
            Line(str(kind), str(kind), [{to: row[of] for to, of in _ENDS.items()} for row in rows.to_dict("records")],
                 colour=_COLOURS.get(str(kind), ""))
            for kind, rows in group.groupby("heard", sort=False)
        ]  # fmt: skip
        guessed = group["chance"].iloc[0]
        chance = [] if guessed is None else [("chance (accuracy)", guessed, "#999999")]
        chart = charts.line_chart(
            lines, "clip duration, s", "score", rules=chance, range_=(0.0, 1.05), bands=False, size=(300, 200)
        )
        drawn.append(chart.with_title(f"{panel} · n = {group['n'].max()}"))
    return charts.save(charts.side_by_side(drawn), path)
