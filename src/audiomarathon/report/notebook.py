"""Load runs, compare them and write pages from Python. Tables are pandas frames that Jupyter shows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from audiomarathon.engine.run import Result
from audiomarathon.errors import SettingsError
from audiomarathon.files import write_text
from audiomarathon.report import paper, tables
from audiomarathon.report.charts import Chart
from audiomarathon.report.comparison_text import notes
from audiomarathon.report.curves import panels_of
from audiomarathon.report.page import PageOptions, page
from audiomarathon.report.page_data import PageData
from audiomarathon.report.pictures import of_panel
from audiomarathon.report.render import Table, figures, html_with_notes, in_text
from audiomarathon.results.compare import compare_with
from audiomarathon.results.systems import missing_controls, read_systems
from audiomarathon.runs.read import Run


class Shown(pd.DataFrame):
    """A pandas frame that Jupyter and `print` show like a command's table; pandas operations return plain frames.

    Attributes
    ----------
    table
        The table to show. If the frame was changed, pandas shows the frame instead.
    """

    _metadata: ClassVar[list[str]] = ["table"]  # attributes that are not columns
    table: Table

    @classmethod
    def of(cls, table: Table) -> Shown:
        """Make a frame from a table: unrounded values, under the names of the table's columns."""
        shown = cls(figures(table))
        shown.table = table
        return shown

    @property
    def _constructor(self) -> type[pd.DataFrame]:
        return pd.DataFrame

    @property
    def _unchanged(self) -> bool:
        return hasattr(self, "table") and self.equals(figures(self.table))

    def __repr__(self) -> str:
        """Return the text that a terminal shows: the table, or the frame if it was changed."""
        return in_text(self.table) if self._unchanged else super().__repr__()

    def _repr_html_(self) -> str:
        return html_with_notes(self.table) if self._unchanged else str(super()._repr_html_())  # type: ignore[misc]


@dataclass(frozen=True, repr=False)
class Runs:
    """Runs read from their folders; Jupyter and `print` show one line per run.

    Attributes
    ----------
    data
        The runs, grouped by checkpoint and setting as in `audiomarathon report`.
    """

    data: PageData

    @cached_property
    def summaries(self) -> Shown:
        """One row per run, ordered by task; shape (runs, columns).

        Columns `checkpoint`, `setting`, `task`, `method`, `ratio` (the share of the audio that it removes); `n` samples
        answered of `expected`; `score` with the ends of its 95 % interval (`score_low`, `score_high`). Medians over
        samples in seconds (`encoder_s`, `llm_prefill_s`, `decode_s`, …); means of `audio_tokens`, `kept_audio_tokens`
        and `kv_bytes`; the maximum of `peak_memory_bytes`; NaN where not measured. An unfinished run has no score and
        no times; its `error` is "not finished".
        """
        pairs = [(setting, run) for setting in self.data.settings for run in setting.system.runs.values()]
        order = list(dict.fromkeys(run.key for _, run in pairs))
        pairs.sort(key=lambda pair: order.index(pair[1].key))
        rows = []
        for setting, run in pairs:
            row: dict[str, Any] = {"checkpoint": run.checkpoint, "setting": setting.name, "task": run.key}
            row |= {"method": setting.method, "ratio": setting.ratio, "n": len(run.records), "expected": run.expected}
            result_fields = {"error": "not finished"} if run.summary is None else tables.result_row(_result(run))
            named = {"checkpoint", "setting", "task"}  # set above, with the names of the page
            rows.append(
                row
                | {name: result_fields[name] for name in result_fields if name not in named}
                | {"folder": str(run.folder)}
            )
        table = tables.results([_result(run) for _, run in pairs if run.summary is not None])
        shown = replace(table, data=Table.of(rows).data, shown=[*table.shown, "error"])
        return Shown.of(shown.without_empty("score"))

    @cached_property
    def records(self) -> pd.DataFrame:
        """One row per sample of each run, including failed samples; shape (samples, columns).

        The columns of :data:`~audiomarathon.report.paper.RECORD_COLUMNS` are always there, first and in this order,
        with fixed types; docs/exchange.md has their units. After them come the sample's groups, the other fields of
        its verdict, and seconds of stages that only some runs have. Missing values are NaN or NA.
        """
        return paper.typed(figures(paper.records(self.data)), paper.RECORD_COLUMNS)

    @property
    def charts(self) -> dict[str, Chart]:
        """The pictures of the command `plot`, as {task or `mean`: picture}.

        A picture shows score, LLM prefill and KV cache against the ratio. With a single task, `mean` is the task's
        picture.

        Raises
        ------
        SettingsError
            vl-convert (the extra `report`) is missing.
        """
        drawn = {panel.name: of_panel(panel) for panel in panels_of(self.data.runs)}
        charts = {name: chart for name, chart in drawn.items() if chart is not None}
        return charts | ({"mean": next(iter(charts.values()))} if len(charts) == 1 else {})

    def __repr__(self) -> str:
        """Return the summaries as a terminal shows them."""
        return repr(self.summaries)

    def _repr_html_(self) -> str:
        return self.summaries._repr_html_()


def _result(run: Run) -> Result:
    return Result(run.folder or Path(), run.method, dict(run.summary or {}))


Source = str | Path | Result | Runs | Sequence[str | Path | Result]
"""Run folders, folders that contain them, results of `evaluate`, or loaded runs."""


def load_runs(runs: Source) -> Runs:
    """Read finished and unfinished runs into pandas frames.

    Parameters
    ----------
    runs
        A run folder, a folder of run folders, the result of `evaluate`, or a list of these. With a pruner's run, the
        run of the control `random` at the same ratio in the same folder is read too.

    Returns
    -------
    Runs
        `summaries` (one row per run) and `records` (one row per sample) are frames, `charts` are pictures by task.
        Jupyter and `print` show a table of scores and times.

    Raises
    ------
    RecordError
        When there is no run, or a named run is damaged.
    """
    if isinstance(runs, Runs):
        return runs
    given = [runs] if isinstance(runs, str | Path | Result) or not isinstance(runs, Iterable) else list(runs)
    if odd := next((source for source in given if not isinstance(source, str | Path | Result)), None):
        raise SettingsError(f"{odd!r} is not a run; allowed: folders, results of evaluate, or a list of these")
    return Runs(
        PageData(read_systems([source.folder if isinstance(source, Result) else Path(source) for source in given]))
    )


def compare_runs(runs: Source, against: str | None = None, *, seed: int = 42) -> Shown:
    """Compare settings or models on the samples that both answered, as `audiomarathon compare` does.

    Parameters
    ----------
    runs
        The argument or the result of :func:`load_runs`.
    against
        The setting to compare the others with (the reference), or its method if that has one setting (`random`). None
        selects base (no compression), else the first setting.
    seed
        Seed of the intervals and tests.

    Returns
    -------
    DataFrame, shape (settings x scopes, columns)
        One row per setting for each task, each group of tasks and all tasks: `score`, `reference_score`, their
        `difference` with its 95 % interval (`difference_low`, `difference_high`), `p` of the paired test, `p_holm`, and
        speed-ups as reference ÷ setting; above 1 is faster (`llm_prefill_speedup`, …).

    Raises
    ------
    AudioMarathonError
        When there is nothing to compare, or no such setting.
    """
    systems = load_runs(runs).data.systems
    compared, missing = compare_with(systems, against, seed=seed), missing_controls(systems)
    return Shown.of(tables.comparison(compared, list(missing), notes(compared, missing)))


def write_report(
    runs: Source,
    output: str | Path = "report.html",
    *,
    title: str = "AudioMarathon report",
    samples: int = 500,
    audio: str = "link",
    spectrograms: bool = True,
    data: str | Path | None = None,
) -> Path:
    """Write the page of the command `audiomarathon report`, one self-contained HTML file; return its path.

    Parameters
    ----------
    runs
        The argument or the result of :func:`load_runs`.
    title, samples, audio, spectrograms, data
        As the options of `audiomarathon report`.

    Raises
    ------
    AudioMarathonError
        When there is no run, the page cannot be written, or the extra `report` is not installed.
    """
    options = PageOptions(title, samples, audio, spectrograms, None if data is None else Path(data))
    write_text(Path(output), page(load_runs(runs).data, options))
    return Path(output)
