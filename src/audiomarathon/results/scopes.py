"""Choose the tasks that each mean is over: those of a group, and all of a benchmark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from audiomarathon.benchmarks.registry import OTHER, benchmark_of, group_of, groups_of, on_one_scale

OVERALL = "overall"
COMMON = "in common"  # name of the mean over tasks for which every system has scores, if these are not all tasks


def scopes_of(tasks: Iterable[str]) -> dict[str, list[str]]:
    """Return the means to compute, as {name: its tasks}: one per group of tasks and one per benchmark.

    A mean needs several tasks. A benchmark gets a mean only if all its tasks score on one scale. If tasks come from
    several benchmarks, each name starts with the benchmark. A group that contains all of a benchmark's tasks gets no
    separate mean.
    """
    keys = list(dict.fromkeys(tasks))
    benchmarks: dict[str, list[str]] = {}
    for key in keys:
        benchmarks.setdefault(benchmark_of(key), []).append(key)
    scopes: dict[str, list[str]] = {}
    benchmarks.pop(OTHER, None)  # tasks of plug-ins are unrelated
    several = len(benchmarks) > 1
    for name, members in benchmarks.items():
        of = f"{name} " if several else ""
        groups: dict[str, list[str]] = {group: [] for group in groups_of(name)}
        for key in members:
            groups.setdefault(group_of(key), []).append(key)
        groups = {group: members for group, members in groups.items() if members}
        if len(groups) > 1:
            scopes |= {f"{of}{group}": members for group, members in groups.items() if group and len(members) > 1}
        if len(members) > 1 and on_one_scale(members):
            scopes[f"{of}{OVERALL}"] = members
    return scopes


def kind_of(scope: str, tasks: Sequence[str]) -> str:
    """Return the kind of a row in a comparison: "task", "group", "overall" or "in common".

    p values are corrected within a kind. "in common" is the mean over the tasks on which every system has a score.
    """
    if len(tasks) == 1:
        return "task"
    return scope if scope == COMMON else OVERALL if scope.endswith(OVERALL) else "group"
