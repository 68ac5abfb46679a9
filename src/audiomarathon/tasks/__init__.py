"""The benchmark's tasks: where samples come from, what the model is asked, how a reply is judged."""

from audiomarathon.tasks.finding import task_folder
from audiomarathon.tasks.registry import GROUPS, all_tasks, get_task
from audiomarathon.tasks.selection import select
from audiomarathon.tasks.task import BadRow, Filters, Loaded, Sample, Task

__all__ = [
    "GROUPS",
    "BadRow",
    "Filters",
    "Loaded",
    "Sample",
    "Task",
    "all_tasks",
    "get_task",
    "select",
    "task_folder",
]
