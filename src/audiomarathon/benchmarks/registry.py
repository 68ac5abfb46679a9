"""Find benchmarks and tasks: the built-in ones, those of installed plug-ins, and those in a user's files."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Iterable, Sequence
from functools import cache

from audiomarathon.benchmarks import declared
from audiomarathon.benchmarks.audiomarathon.benchmark import AUDIOMARATHON
from audiomarathon.benchmarks.benchmark import Benchmark, TaskFacts
from audiomarathon.benchmarks.task import Task
from audiomarathon.benchmarks.transcripts import PREFIX, Transcripts
from audiomarathon.errors import SettingsError, warn
from audiomarathon.files import named_folder
from audiomarathon.object_reference import FILE, is_reference, object_at, raising
from audiomarathon.plugins import flaw, guard, look_up, plugins
from audiomarathon.records import Figure
from audiomarathon.scoring.scorer import Scorer
from audiomarathon.wing import asked
from audiomarathon.wing import built_in as built_in_wings

TASKS = "audiomarathon.tasks"  # entry point groups
BENCHMARKS = "audiomarathon.benchmarks"

#: Benchmark of a task that belongs to none.
OTHER = "other"


@cache
def built_in() -> tuple[Benchmark, ...]:
    """Return the benchmarks of this package: AudioMarathon's own, then those of its wings (further benchmarks)."""
    return (AUDIOMARATHON, *(each for wing in built_in_wings() for each in wing.benchmarks()))


def all_benchmarks() -> tuple[Benchmark, ...]:
    """Return the built-in benchmarks, then those of plug-ins.

    The keys of a plug-in's tasks must begin with the key of its benchmark.
    """
    benchmarks = list(built_in())
    others = asked(lambda wing: () if wing in built_in_wings() else wing.benchmarks())
    of_wings = [each for wing_benchmarks in others for each in wing_benchmarks]
    for benchmark in of_wings:
        if wrong := _flaw_of_benchmark(benchmark):
            warn(f"the benchmark {benchmark.key} {wrong}")
    of_wings = [candidate for candidate in of_wings if not _flaw_of_benchmark(candidate)]
    for benchmark in (*plugins(BENCHMARKS, Benchmark, benchmarks, _flaw_of_benchmark), *of_wings):
        for task in benchmark.tasks:
            name = f"benchmark {benchmark.key} ({task.key})"
            guard(task, Task, name)
            guard(task.scorer, Scorer, name)
        benchmarks.append(benchmark)
    return tuple(benchmarks)


def all_tasks() -> tuple[Task, ...]:
    """Return the tasks that the command `audiomarathon run` can run.

    First come the tasks of all benchmarks, in the papers' order; then tasks of plug-ins without a benchmark, by name.
    """
    known = tuple(task for benchmark in all_benchmarks() for task in benchmark.tasks if not task.own_command)
    others = plugins(TASKS, Task, known, _flaw_of)  # type: ignore[type-abstract]
    for task in others:
        guard(task.scorer, Scorer, f"{TASKS} plug-in {task.key!r}: its scorer {task.scorer.key!r}")
    return (*known, *others)


def _flaw_of(task: Task) -> str:
    """Return what is wrong with the scorer of a user's or plug-in's task, as text; "" if nothing is."""
    scorer = task.scorer
    if not isinstance(scorer, Scorer) or not re.fullmatch(r"[\w-]+", getattr(scorer, "key", "")):
        return "has no usable 'scorer'; it must be a Scorer whose key consists of letters, digits, - and _"
    usable = isinstance(getattr(scorer, "figure", None), Figure)
    return "" if usable else "has a scorer with no usable 'figure'; it must be a Figure"


def _flaw_of_benchmark(benchmark: Benchmark) -> str:
    for task in benchmark.tasks:
        if not isinstance(task, Task) or not task.key.startswith(f"{benchmark.key}/"):
            odd = getattr(task, "key", task)
            return f"is left out: the names of its tasks must begin with {benchmark.key}/, but {odd!r} does not"
        if flaw := _flaw_of(task):
            return f"is left out: its task {task.key!r} {flaw}"
    return ""


def get_task(name: str) -> Task:
    """Return the task that a name selects.

    A name is a key or an alias (in upper or lower case), a TOML file that describes a task, or a Python class, named by
    its file or module: `FILE.py:CLASS`, `PACKAGE.MODULE:CLASS`. The prefix `transcripts/` before any of these selects
    the task to transcribe its clips, unless such a file exists in a folder `transcripts`.

    Raises
    ------
    SettingsError
        The task does not exist (the message lists the tasks and the nearest name), or the file is wrong.
    """
    if name.lower().startswith(PREFIX) and not _is_task_file(name):
        return Transcripts(get_task(name[len(PREFIX) :]))
    if name.lower().endswith(".toml"):
        return declared.read_task(named_folder(name))
    if is_reference(name) and is_reference(name, {task.key.lower() for task in all_tasks()}):
        return _task_at(name)
    if name.startswith((".", "/", "~")):
        raise SettingsError(f"{name}: a task file must end in .toml, or .py as FILE.py:CLASS")
    if "," in name:
        raise SettingsError(
            f"unknown task {name[:60]!r}; separate tasks by spaces: audiomarathon run {name[:60].replace(',', ' ')}"
        )
    if unlisted := next(filter(None, asked(lambda wing: wing.task(name))), None) or declared.on_record(name):
        return unlisted
    others = [task for benchmark in all_benchmarks() for task in benchmark.tasks if task.own_command]
    return look_up(name, (*all_tasks(), *others), kind="task")


def _is_task_file(name: str) -> bool:
    """Tell whether a name is an existing file that describes a task: TOML, or Python with or without a class."""
    python = FILE.fullmatch(name)
    return bool(python or name.lower().endswith(".toml")) and named_folder(python[1] if python else name).is_file()


def _task_at(reference: str) -> Task:
    """Return the task that `FILE.py:CLASS` or `PACKAGE.MODULE:CLASS` names.

    If its scorer is one that TOML tasks use, the task's key gets the same prefix as theirs, such as `own-choice/`. Then
    reports can read its runs without the Python file.
    """
    where, allowed = f"task {reference}", "a subclass of Task, such as MultipleChoice"
    name, value = object_at(
        reference, "task", lambda candidate: isinstance(candidate, type) and issubclass(candidate, Task), allowed
    )
    with raising(where):
        task = value() if isinstance(value, type) else value
    if not isinstance(task, Task):
        raise SettingsError(f"{where}: {name} is not a task; allowed: {allowed}")
    about = (inspect.cleandoc(type(task).__doc__ or "").splitlines() or [name])[0]
    for fact, usual in {"key": name, "title": about}.items():
        if not hasattr(task, fact):
            object.__setattr__(task, fact, usual)
    if wrong := flaw(task, Task) or _flaw_of(task):
        raise SettingsError(f"{where}: {wrong}")
    guard(task, Task, where)
    guard(task.scorer, Scorer, f"{where}: its scorer")
    scorer = task.scorer
    kinds = (
        kind
        for kind, (kind_scorer, *_) in declared.KINDS.items()
        if type(kind_scorer) is type(scorer) and vars(kind_scorer) == vars(scorer)
    )
    if kind := next(kinds, ""):
        object.__setattr__(task, "key", f"{kind}/{task.key.replace('/', '-')}")
    elif any(task.key.lower() == known_task.key.lower() for known_task in all_tasks()):
        raise SettingsError(f"{where}: another task has its key {task.key!r}; give it another key")
    else:
        warnings.warn(
            f"{where}: reports and comparisons find its scorer {type(scorer).__name__} only in an installed package; "
            "to make one: audiomarathon new task",
            stacklevel=2,
        )
    return task


def benchmark_of(key: str) -> str:
    """Return the key of the benchmark that has the task with this key; :data:`OTHER` if none has."""
    keys = (benchmark.key for benchmark in all_benchmarks() if any(task.key == key for task in benchmark.tasks))
    return next(keys, OTHER)


def facts_of(key: str) -> TaskFacts | None:
    """Return the facts that a benchmark's paper states about the task with this key; None if it states none."""
    return next((benchmark.facts[key] for benchmark in all_benchmarks() if key in benchmark.facts), None)


def groups_of(benchmark: str) -> tuple[str, ...]:
    """Return the names of a benchmark's groups of tasks, in the order of its tasks."""
    return next((tuple(candidate.groups) for candidate in all_benchmarks() if candidate.key == benchmark), ())


def on_one_scale(keys: Iterable[str]) -> bool:
    """Tell whether the tasks' headline figures have the same range and direction, so that their mean makes sense."""
    figures = [
        task.scorer.figure for benchmark in all_benchmarks() for task in benchmark.tasks if task.key in set(keys)
    ]
    return len({(figure.low, figure.high, figure.better) for figure in figures}) < 2


def weights_of(keys: Sequence[str]) -> list[float]:
    """Return each task's weight in a mean over these tasks, scaled so that the weights have mean 1."""
    task_weights = (
        next(
            (benchmark.weights for benchmark in all_benchmarks() if benchmark.weights and keys[0] in benchmark.weights),
            None,
        )
        or {}
    )
    weights = [task_weights.get(key, 1.0) for key in keys]
    return [weight * len(keys) / sum(weights) for weight in weights]


def group_of(key: str) -> str:
    """Return the name of the group that a task belongs to, given the task's key; "" if it has no group."""
    facts = facts_of(key)
    return facts.group if facts else ""
