"""Write tables: a frame of rows becomes text on a terminal, Markdown, CSV, LaTeX or HTML.

A frame (a pandas table) holds unrounded numbers. Further columns change how a column such as `score` is shown:

* `score_low`, `score_high`: its 95 % interval, shown as `0.812 [0.750, 0.874]`;
* `score_said`: a remark in parentheses after it;
* `score_mark`: `best`, `better`, `worse`, `good`, `bad` or `busy`, shown by weight or colour;
* `score_why`: the cell's tooltip on the page.

`_tokens` and `_kv_length_a_layer` are display columns, not in CSV. :data:`KINDS` defines how each column is written;
other columns are text, or numbers with three digits.
"""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from audiomarathon.text import plain, spreadsheet

if TYPE_CHECKING:
    import pandas as pd
    from jinja2 import Environment
    from rich.table import Table as RichTable

    from audiomarathon.metrics.statistics import Estimate

NONE = "–"
_BESIDE = ("_low", "_high", "_said", "_mark", "_why")
_STYLES = {"best": "bold", "better": "green", "worse": "red", "good": "green", "bad": "bold red", "busy": "cyan"}
_STYLES |= {"warn": "yellow", "dim": "dim"}
_LOOKS = "<style>td.better {color: #00704A} td.worse {color: #B00020}</style>"
_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
}


def with_interval(name: str, value: Any, interval: Sequence[float] | None = None) -> dict[str, Any]:
    """Return a value and its interval as cells of a table: {NAME: value, NAME_low: low end, NAME_high: high end}.

    Cells are None if unknown or NaN.
    """
    if value is None or math.isnan(value):
        value, interval = None, None
    low, high = interval or (None, None)
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def estimated(name: str, estimate: Estimate | None) -> dict[str, Any]:
    """Return {NAME: value, NAME_low: low end, NAME_high: high end} of an estimate; all None if the estimate is None."""
    return with_interval(name, estimate.value, estimate.interval) if estimate else with_interval(name, None)


@dataclass(frozen=True)
class Kind:
    """How to write the numbers in a column of a table.

    Attributes
    ----------
    heading
        Heading of the column; by default its name.
    form
        A format specification such as `.3f`, or a function that turns a number into text.
    scale
        Factor by which numbers are multiplied first, such as 1000 to show seconds as milliseconds.
    left
        Whether the column is text, aligned left.
    ends
        Format of the interval's ends; "" uses `form`.
    """

    heading: str = ""
    form: str | Callable[[Any], str] = ""
    scale: float = 1
    left: bool = False
    ends: str = ""

    def text(self, value: Any) -> str:
        """Return a value as text; a dash if it is missing. A value that is text stays so, whatever the format."""
        if isinstance(value, bool):
            return "yes" if value else "no"
        if _missing(value):
            return NONE
        if not isinstance(value, numbers.Real):
            return plain(str(value))
        scaled = value * self.scale
        if callable(self.form):
            return self.form(scaled)
        mean_of_counts = self.form.endswith("d") and not isinstance(value, numbers.Integral)
        return format(scaled, _SCORE if mean_of_counts else self.form)


def _missing(value: object) -> bool:
    """Tell whether a cell is empty: None, NaN, or what pandas puts in place of a missing value."""
    nan = isinstance(value, numbers.Real) and math.isnan(value)
    return value is None or nan or type(value).__name__ in ("NaTType", "NAType")


def _milliseconds(heading: str) -> Kind:
    return Kind(heading, ".0f", 1e3)


def _p_text(p: float) -> str:
    return f"{p:.3f}" if p >= 0.001 else "<0.001"


_SCORE, _DIFFERENCE, _TIMES, _P = ".3f", "+.3f", ".2f", _p_text
KINDS: Mapping[str, Kind] = {
    "task": Kind(left=True),
    "setting": Kind(left=True),
    "n": Kind("n", "d"),
    "score": Kind("score [95 % interval]", _SCORE),
    "score_difference": Kind("score − base [95 %]", _DIFFERENCE),
    "accuracy": Kind("", _SCORE),
    "cost": Kind("", ".4g"),
    # Times are kept in seconds.
    "encoder_s": _milliseconds("encoder ms"),
    "llm_prefill_s": _milliseconds("LLM prefill ms"),
    "prefill_s": _milliseconds("first token ms"),
    "decode_s": _milliseconds("decode ms"),
    "first_token_latency_s": _milliseconds("first token ms"),
    "total_latency_s": _milliseconds("whole reply ms"),
    "scoring_s": Kind("choosing ms", ".2f", 1e3),
    "_tokens": Kind("audio tokens"),
    "kept_ratio": Kind("kept", ".3f"),
    "_kv_length_a_layer": Kind("KV length a layer"),
    "kv_bytes": Kind("KV MB", ".2f", 1e-6),
    "peak_memory_bytes": Kind("peak GPU GB", ".2f", 1e-9),
    "llm_prefill_speedup": Kind("LLM prefill ×", _TIMES),
    "first_token_speedup": Kind("first token ×", _TIMES),
    "decode_per_token_speedup": Kind("decode ×", _TIMES),
    "throughput_speedup": Kind("samples a second ×", _TIMES),
    # Comparisons.
    "difference": Kind("difference [95 %]", _DIFFERENCE),
    "p": Kind("p", _P),
    "p_holm": Kind("p (Holm)", _P),
    "mcnemar_p": Kind("p (McNemar)", _P),
    "margin_verdict": Kind("at the margin", left=True),
    "smallest_margin": Kind("smallest margin", _SCORE),
}


@dataclass(frozen=True)
class Table:
    """Rows or a pandas frame, and how to show them. A list of rows is shown without importing pandas.

    Attributes
    ----------
    data
        The data, unrounded; the docstring of this module says how columns refine others.
    shown
        Columns to show, in order; by default all. CSV has all columns.
    title
        Title above the table.
    group, headed
        Column that groups the rows: a rule is drawn where its value changes. With `headed`, its value stands above each
        group instead of in each row.
    least
        Columns that a narrow terminal may hide, the least important first.
    notes
        Lines below the table.
    kinds
        How to write each column, as {column: kind}; overrides :data:`KINDS`.
    foreign
        Whether column names come from data (classes, groups), so that :data:`KINDS` does not apply to them.
    folded
        Whether the page shows the table folded, because each row is about a single sample.
    """

    data: pd.DataFrame | Sequence[Mapping[str, Any]]
    shown: Sequence[str] = ()
    title: str = ""
    group: str = ""
    headed: bool = False
    least: Sequence[str] = ()
    notes: Sequence[str] = ()
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    foreign: bool = False
    folded: bool = False

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]], shown: Sequence[str] = (), **more: Any) -> Table:
        """Make a table from rows ({column: value}); a value that a row lacks becomes None."""
        names = dict.fromkeys(name for row in rows for name in row)
        each = [{name: row.get(name) for name in names} for row in rows]
        return cls(
            [{name: None if _missing(cell) else cell for name, cell in row.items()} for row in each], shown, **more
        )

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The data as a pandas frame, in which None stands for a missing value.

        Rows give columns of dtype object, so that a column with missing values keeps its integers.
        """
        import pandas as pd

        if isinstance(self.data, pd.DataFrame):
            return self.data
        frame = pd.DataFrame(self.data, dtype=object)
        return frame.where(frame.notna(), None)

    @cached_property
    def rows(self) -> Sequence[Mapping[Any, Any]]:
        """The data as rows, each a mapping from column to value."""
        return self.data if isinstance(self.data, list) else self.frame.to_dict("records")

    @property
    def columns(self) -> list[str]:
        """Names of the columns to show: those of `shown` that exist.

        If `shown` is empty, these are all columns except those that refine another, such as `score_low` beside `score`.
        """
        there = [*self.rows[0]] if self.rows else list(self.frame.columns)
        beside = {f"{name}{suffix}" for name in there for suffix in _BESIDE}
        return [name for name in self.shown or [name for name in there if name not in beside] if name in there]

    def kind(self, name: str) -> Kind:
        """Return how a column is written: its kind in `kinds` or :data:`KINDS`, else one that fits its values."""
        if name in self.kinds:
            return self.kinds[name]
        if name in KINDS and not self.foreign:
            return KINDS[name]
        text, scores = (any(isinstance(row[name], kind) for row in self.rows) for kind in (str, float))
        return Kind(str(name) if self.foreign else "", _SCORE if scores and not text else "", left=text)

    def heading(self, name: str) -> str:
        """Return the heading that is shown above a column: the one of its :meth:`kind`, else its name with spaces."""
        return self.kind(name).heading or str(name).replace("_", " ")

    def without_empty(self, *keep: str) -> Table:
        """Return a copy of the table without columns that are empty in every row; the columns in `keep` stay."""
        empty = {name for name in self.columns if name not in keep and all(_missing(row[name]) for row in self.rows)}
        return self if not empty else replace(self, shown=[name for name in self.columns if name not in empty])


@dataclass(frozen=True)
class Cell:
    """One cell of a table, as texts.

    Attributes
    ----------
    figure
        The value, such as a score, as text.
    beside
        The value's interval and remark, to show after it; "" without any.
    mark
        How to highlight the cell, such as `best`; "" for not at all.
    why
        Tooltip on the page.
    """

    figure: str
    beside: str = ""
    mark: str = ""
    why: str = ""

    @property
    def text(self) -> str:
        """The text that the cell shows: the value, its interval and its remark."""
        return self.figure + self.beside


def cells(table: Table) -> list[list[Cell]]:
    """Return the texts of the table as a list of rows, each with a :class:`Cell` for every column to show."""
    kinds = {name: table.kind(name) for name in table.columns}
    return [[_cell(row, name, kind) for name, kind in kinds.items()] for row in table.rows]


def _cell(row: Mapping[Any, Any], name: str, kind: Kind) -> Cell:
    figure, beside = kind.text(row[name]), ""
    if f"{name}_low" in row and f"{name}_high" in row and figure != NONE and not isinstance(row[name], str):
        low, high = (row[f"{name}{end}"] for end in ("_low", "_high"))
        ends = replace(kind, form=kind.ends or kind.form)
        beside = f" [{NONE}]" if _missing(low) else f" [{ends.text(low)}, {ends.text(high)}]"
    remarks = (row.get(f"{name}{suffix}") for suffix in ("_said", "_mark", "_why"))
    said, mark, why = (remark if isinstance(remark, str) else "" for remark in remarks)
    return Cell(figure, beside + (f" ({plain(said)})" if said else ""), mark, why)


def rich_table(table: Table) -> RichTable:
    """Make a table of the library rich, for a terminal. Texts in the table are never read as rich's markup."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = [name for name in table.columns if not (table.headed and name == table.group)]
    title = Text(plain(table.title)) if table.title else None
    drawn = RichTable(title=title, box=box.SIMPLE_HEAD, title_justify="left", caption_justify="left")
    for name in shown:
        drawn.add_column(table.heading(name), justify="left" if table.kind(name).left else "right")
    rows = cells(replace(table, shown=shown))
    groups = [row[table.group] for row in table.rows] if table.group else [None] * len(rows)
    for place, (row, group) in enumerate(zip(rows, groups, strict=True)):
        if table.headed and (place == 0 or groups[place - 1] != group):
            drawn.add_row(Text(plain(str(group)), "bold"))
        last = place + 1 < len(rows) and groups[place + 1] != group
        drawn.add_row(*(Text(cell.text, _STYLES.get(cell.mark, "")) for cell in row), end_section=last)
    drawn.caption = Text(plain("\n".join(table.notes))) if table.notes else None
    return drawn


def show(*tables: Table) -> None:
    """Print tables to the terminal, as wide as the terminal is."""
    from audiomarathon.terminal import console

    out = console()
    for table in tables:
        out.print(for_width(table, out.width))


def in_text(table: Table) -> str:
    """Return the table as plain text, as wide as the terminal."""
    from rich.console import Console

    from audiomarathon.terminal import console

    out = Console(width=console().width, highlight=False, color_system=None, force_jupyter=False)
    with out.capture() as captured:
        out.print(for_width(table, out.width))
    return "\n".join(line.rstrip() for line in captured.get().strip("\n").splitlines())


def fits(table: Table, width: int) -> bool:
    """Tell whether the table fits a terminal of this width (in characters) without wrapped cells."""
    return _room(_widths(rich_table(table))) <= width


def for_width(table: Table, width: int) -> RichTable:
    """Make the table for a terminal of this width.

    If it is too wide, first wrap texts at spaces; then hide the columns in `table.least`, one after another from the
    first (the least important), until the table fits. At last wrap numbers, then cut words.
    """
    from audiomarathon.terminal import fitted

    drawn = rich_table(table)
    widths = _widths(drawn)
    if _room(widths) > width:
        return fitted(drawn, width, [table.heading(name) for name in table.least if name in table.columns])
    for column, column_width in zip(drawn.columns, widths, strict=True):
        column.width = column_width  # otherwise rich measures every cell three times
    return drawn


def _widths(drawn: RichTable) -> list[int]:
    """Return the width in characters of each column of a table: that of its longest line."""
    from rich.cells import cell_len

    texts = ([str(column.header), *map(str, column.cells)] for column in drawn.columns)
    return [max(cell_len(line) for text in column for line in text.split("\n")) for column in texts]


def _room(widths: Sequence[int]) -> int:
    """Return the width in characters of a table whose columns have these widths, with padding and edges."""
    return sum(widths) + 3 * len(widths) + 1


def markdown(table: Table) -> str:
    """Return the table as Markdown, with its title above and its notes below."""
    lines = [[table.heading(name) for name in table.columns], ["---"] * len(table.columns)]
    lines += [
        [f"**{cell.figure}**{cell.beside}" if cell.mark == "best" else cell.text for cell in row]
        for row in cells(table)
    ]
    body = "".join(f"| {' | '.join(map(_in_markdown, line))} |\n" for line in lines)
    title = f"{_in_markdown(table.title)}\n\n" if table.title else ""
    notes = "".join(f"\n- {_in_markdown(note)}" for note in table.notes) + "\n" * bool(table.notes)
    return title + body + notes


def _in_markdown(text: str) -> str:
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", plain(text)).replace("|", "\\|").replace("\n", " ")


def _of_figures(table: Table) -> pd.DataFrame:
    """Return the table's data as a frame, without columns that only change how a cell is shown, and display columns.

    Left out are remarks, marks, tooltips, and columns whose name begins with `_`.
    """
    remarks = {f"{name}{suffix}" for name in table.frame.columns for suffix in _BESIDE[2:]}
    shown_only = {name for name in KINDS if name.startswith("_")}
    return table.frame[[name for name in table.frame.columns if name not in remarks | shown_only]]


def figures(table: Table) -> pd.DataFrame:
    """Return a table's data as a pandas frame, unrounded, with NaN for missing values.

    The columns that only refine how a cell is shown (remark, mark, tooltip) are left out.
    """
    kept = _of_figures(table)
    return kept.where(kept.notna(), math.nan).infer_objects()


def csv(table: Table) -> str:
    """Return a table's data as CSV, with unrounded numbers; columns of remarks, marks and tooltips are left out."""
    kept = _of_figures(table)
    rows = [{name: spreadsheet(value) for name, value in row.items()} for row in kept.to_dict("records")]
    import pandas as pd

    return str(pd.DataFrame(rows, columns=kept.columns, dtype=object).to_csv(index=False, lineterminator="\n"))


def latex(table: Table) -> str:
    """Return the table as a LaTeX tabular (booktabs); notes become comments."""
    kinds = [table.kind(name) for name in table.columns]
    rows = [[escaped(table.heading(name)) for name in table.columns]]
    rows += [[_in_latex(cell) for cell in row] for row in cells(table)]
    head, *body = [f"{' & '.join(row)} \\\\" for row in rows]
    align = "".join("l" if kind.left else "r" for kind in kinds)
    parts = [f"\\begin{{tabular}}{{{align}}}", r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}"]
    return "\n".join([*parts, *(f"% {plain(note)}".replace("\n", " ") for note in table.notes), ""])


def _in_latex(cell: Cell) -> str:
    figure, beside = (escaped(part).replace(NONE, "--") for part in (cell.figure, cell.beside))
    return (rf"\textbf{{{figure}}}" if cell.mark == "best" else figure) + beside


def escaped(text: str) -> str:
    """Escape LaTeX's special characters in a text."""
    return "".join(_LATEX.get(letter, letter) for letter in plain(text))


@cache
def templates() -> Environment:
    """Return the Jinja environment with the templates of pages, which escape all values."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("audiomarathon.report", "template"), undefined=StrictUndefined, autoescape=True
    )


def html(table: Table) -> str:
    """Return the table as HTML; all content is escaped."""
    heads = [(table.heading(name), "text" if table.kind(name).left else "") for name in table.columns]
    return templates().get_template("table.html.j2").render(heads=heads, rows=cells(table))


def html_with_notes(table: Table) -> str:
    """Return the table as HTML for other pages, such as Jupyter's, with title, notes and colours."""
    from markupsafe import Markup

    title, notes = (Markup("<p>{}</p>").format(plain(text)) for text in (table.title, "\n".join(table.notes)))
    return f"{_LOOKS}{title * bool(table.title)}{html(table)}{notes * bool(table.notes)}"
