"""Over which tasks means are taken: those of each group of a benchmark, and all of a benchmark's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from audiomarathon.benchmarks.registry import OTHER, benchmark_of, group_of, groups_of, on_one_scale

OVERALL = "overall"
COMMON = "in common"  # the tasks that every system has a score of, where they are not all


def scopes_of(tasks: Iterable[str]) -> dict[str, list[str]]:
    """Return by name the tasks of each mean: of several tasks of a group, and of several of a benchmark.

    Means stay within a benchmark, and are of scores on one scale. Where tasks of several benchmarks are there, a mean
    bears the benchmark's name too. A group that holds all of the tasks has no mean of its own.
    """
    keys = list(dict.fromkeys(tasks))
    benchmarks: dict[str, list[str]] = {}
    for key in keys:
        benchmarks.setdefault(benchmark_of(key), []).append(key)
    scopes: dict[str, list[str]] = {}
    benchmarks.pop(OTHER, None)  # single tasks of third parties have nothing to do with each other
    several = len(benchmarks) > 1
    for name, members in benchmarks.items():
        of = f"{name} " if several else ""
        groups: dict[str, list[str]] = {group: [] for group in groups_of(name)}
        for key in members:
            groups.setdefault(group_of(key), []).append(key)
        groups = {group: own for group, own in groups.items() if own}
        if len(groups) > 1:
            scopes |= {f"{of}{group}": own for group, own in groups.items() if group and len(own) > 1}
        if len(members) > 1 and on_one_scale(members):
            scopes[f"{of}{OVERALL}"] = members
    return scopes


def kind_of(scope: str, tasks: Sequence[str]) -> str:
    """Return whether a row is of a task, of a group or of a benchmark: p values are adjusted within a kind."""
    if len(tasks) == 1:
        return "task"
    return scope if scope == COMMON else OVERALL if scope.endswith(OVERALL) else "group"
