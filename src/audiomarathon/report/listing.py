"""What there is to choose from, as tables: tasks, models, methods."""

from __future__ import annotations

from collections.abc import Callable

from rich import box
from rich.table import Table
from rich.text import Text

from audiomarathon.benchmarks import all_tasks
from audiomarathon.benchmarks.registry import facts_of
from audiomarathon.compression.registry import all_methods
from audiomarathon.models.registry import all_models
from audiomarathon.text import plain


def tasks_table() -> Table:
    """Return the tasks, in the paper's order."""
    table = _table("Tasks", "key", "paper", "what", "group", "samples", "minutes", "score")
    for task in all_tasks():
        facts, figure = facts_of(task.key), task.scorer.figure
        told = ["–"] * 4
        if facts:
            low, high = facts.seconds
            told = [facts.acronym, facts.group, str(facts.count), f"{low / 60:.3g}–{high / 60:.3g}"]
        acronym, group, count, minutes = told
        _add(table, task.key, acronym, task.title, group, count, minutes, figure.title)
    return table


def models_table() -> Table:
    """Return the models, with what their checkpoints weigh."""
    table = _table("Models", "key", "also", "checkpoint", "download", "audio tokens / s", "what")
    for model in all_models():
        size = f"{model.download_gb:g} GB" if model.download_gb else "none"
        row = (
            model.key,
            ", ".join(model.aliases),
            model.checkpoint,
            size,
            f"{model.tokens_per_second:g}" if model.tokens_per_second else "–",
            model.title,
        )
        _add(table, *row)
    return table


def methods_table() -> Table:
    """Return the methods, with their papers and what they save."""
    table = _table("Methods", "key", "paper", "saves", "needs", "what")
    for method in all_methods():
        paper = f"arXiv {method.paper}" if method.paper else "–"
        _add(table, method.key, paper, method.saves, method.needs or "–", method.title)
    return table


def _add(table: Table, *cells: str) -> None:
    """Add a row of texts, some of them third parties': neither markup nor control characters are obeyed."""
    table.add_row(*(Text(plain(" ".join(cell.split()))) for cell in cells))


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for column in columns:
        table.add_column(column)
    return table


#: Columns that a narrow terminal can do without, the least important first.
LEAST = ("group", "also", "saves", "download", "paper", "audio tokens / s", "checkpoint", "minutes")
LISTINGS: dict[str, Callable[[], Table]] = {"tasks": tasks_table, "models": models_table, "methods": methods_table}
