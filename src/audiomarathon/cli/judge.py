"""`audiomarathon judge`: let models judge the stored replies of runs."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from audiomarathon.cli.options import MOST_CALLS, BatchSize, Cache, Plan, Runs, Yes, option
from audiomarathon.cli.output import one_by_one, say, show
from audiomarathon.errors import ModelError, SettingsError
from audiomarathon.judges.judgements import judgements_file, lines_in
from audiomarathon.settings import cache_folder
from audiomarathon.terminal import progress_of

if TYPE_CHECKING:
    from audiomarathon.judges.judge import Judge
    from audiomarathon.judges.room import Case

_CHARACTERS_A_TOKEN = 4  # of English prompts; an estimate


def judge(
    runs: Runs,
    with_: Annotated[
        str, option("Judges A,B,C: a folder or hub id, endpoint:MODEL, replay:FILE; or NAME=….", "--with")
    ],
    protocol: Annotated[str, option("Protocol of questions (default: the task's first).")] = "",
    plan: Plan = False,
    anchors_only: Annotated[
        bool, option("Judge only replies with a known verdict, to test the judge.", "--anchors-only")
    ] = False,
    batch_size: BatchSize = 8,
    cache: Cache = True,
    yes: Yes = False,
) -> int:
    """Let models judge stored replies, and rewrite the verdicts and summary.json.

    Examples:
    audiomarathon judge results/jasco --with llama-3.1-70b,qwen2.5-72b --plan
    OPENAI_BASE_URL=http://localhost:8000/v1 audiomarathon judge results/jasco --with endpoint:llama-3.1-70b
    audiomarathon judge results/jasco --with replay:other/judgements-llama-3.1-70b.jsonl

    Answers go to judgements-JUDGE.jsonl in each run's folder; the same command resumes. Each judge first gets replies
    with a known verdict (anchors), and is marked weak if it misjudges them.
    """
    from audiomarathon.engine.run import score as score_run
    from audiomarathon.judges.registry import open_judges
    from audiomarathon.report import render

    cases = _cases(runs, protocol, anchors_only=anchors_only)
    judges = open_judges(with_, batch_size=batch_size, download=not plan)
    failed = ask(cases, judges, plan=plan, cache=cache, yes=yes)
    if failed is None:
        return 0 if plan else 2
    for title, shown in _certificates(cases, list(judges)).items():
        render.show(render.Table.of(shown, title=title))
    code = 0 if anchors_only else show([score_run(case.folder) for case in cases])
    return 1 if failed else code


def ask(
    cases: Sequence[Case], judges: Mapping[str, Judge], *, plan: bool = False, cache: bool = True, yes: bool = False
) -> int | None:
    """Print the expected calls, tokens and price; then ask for every answer that is not on file.

    Returns
    -------
    int or None
        Number of failed requests; None if nothing was asked, because of --plan or because the user declined.
    """
    from audiomarathon.judges import cache as answer_cache
    from audiomarathon.judges.room import Bench, judge_run, plan_of

    tasks, calls, failed = [], 0, 0
    for name, one in judges.items():
        kept = None
        if cache and not one.stored:
            with suppress(ModelError):  # the checkpoint is missing; judging reports it, planning does not need it
                kept = answer_cache.Cache(cache_folder(), one.identity())
        bench, planned = Bench(name, one, kept), set[str]()
        for case in cases:
            todo, prices = plan_of(case, bench, planned), one.prices()
            sent = todo.characters // _CHARACTERS_A_TOKEN
            price = prices.cost(sent, 0, todo.most_tokens) if prices else None
            say(
                f"{name}: {case.folder}: {todo.on_file:,} on file, {todo.cached:,} cached, {todo.calls:,} calls: about "
                f"{sent:,} tokens of prompts, at most {todo.most_tokens:,} of answers"
                + ("" if price is None else f", price at most about {price:,.2f}")
            )
            tasks.append((bench, case, todo.calls + todo.cached))
            calls += 0 if one.stored else todo.calls
    if len(tasks) > 1:
        say(f"in all {calls:,} calls" + ("; shared requests are sent once" if cache and len(cases) > 1 else ""))
    if plan or (calls > MOST_CALLS and not yes and not _confirmed(calls)):
        return None
    for bench, case, requests in tasks:
        with progress_of(requests, bench.name, "judgement") as step:
            lost = judge_run(case, bench, step=step)
        if lost:
            lines = lines_in(judgements_file(case.folder, bench.name))
            why = [one.error for one in lines if one.error is not None][-lost]  # the first of this command's
            say(f"error: {bench.name}: {case.folder}: {lost} requests failed ({why}); run the same command again")
        failed += lost
    return failed


def _confirmed(calls: int) -> bool:
    if not sys.stdin.isatty():
        raise SettingsError(f"{calls:,} calls need your consent, and there is no terminal to ask on; add --yes")
    return typer.confirm(f"Make {calls:,} calls?", err=True)


def _cases(paths: Sequence[Path], protocol: str, *, anchors_only: bool) -> list[Case]:
    """Return the runs whose tasks are judged, with their protocols; print a line for each other run."""
    from audiomarathon.judges.room import Case
    from audiomarathon.runs.read import Run, run_folders
    from audiomarathon.scoring.judged import Judged

    def case_of(folder: Path) -> Case:
        run = Run.read(folder)
        if run.task is None or not isinstance(run.task.scorer, Judged):
            raise SettingsError(f"{folder}: the task {run.key!r} is not judged by models")
        asked = {one.name: one for one in run.task.scorer.protocols}
        if (name := protocol or next(iter(asked))) not in asked:
            raise SettingsError(f"{run.key}: unknown protocol {name!r}; allowed: {', '.join(asked)}")
        return Case(folder, list(run.records.values()), asked[name], anchors_only)

    found = one_by_one(run_folders(paths), case_of, "left out")
    if not found:
        raise SettingsError(f"{', '.join(map(str, paths))}: no run of a task that is judged by models")
    return found


def _certificates(cases: Sequence[Case], names: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Return how judges read the anchors, as tables by title; runs with equal tables share one."""
    from audiomarathon.report import render
    from audiomarathon.runs.read import Run
    from audiomarathon.scoring.judged import Judged

    found: dict[str, list[dict[str, Any]]] = {}
    for case in cases:
        run = Run.read(case.folder)
        assert run.task
        assert isinstance(run.task.scorer, Judged)
        rows = []
        certificates = run.task.scorer.certificates(list(run.verdicts.values()))
        for name in (name for name in names if name in certificates):
            for kind, row in certificates[name].to_json()["anchors"].items():
                share = render.with_interval("right", row["right"] / row["n"], row["interval"])
                weak = "weak" * (kind in certificates[name].weak)
                rows.append({"judge": name, "anchor": kind, "n": row["n"], **share, "": weak})
        if rows and rows not in found.values():
            more = ", and of runs with equal results" if len(cases) > 1 else ""
            found[f"Anchors: replies with a known verdict, of {case.folder}{more}"] = rows
    return found
