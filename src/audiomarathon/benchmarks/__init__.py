"""Benchmarks and their tasks: a task has samples, prompts, and a scorer of the replies."""

from audiomarathon.benchmarks.locate import task_folder
from audiomarathon.benchmarks.registry import all_tasks, get_task
from audiomarathon.benchmarks.selection import select, selected
from audiomarathon.benchmarks.task import BadRow, Filters, Loaded, Sample, Task

__all__ = [
    "BadRow",
    "Filters",
    "Loaded",
    "Sample",
    "Task",
    "all_tasks",
    "get_task",
    "select",
    "selected",
    "task_folder",
]
