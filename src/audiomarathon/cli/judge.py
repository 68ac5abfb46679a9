"""`audiomarathon judge`: let models (LLM judges) judge the stored replies of runs."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from audiomarathon.cli.command import with_executor, with_group
from audiomarathon.cli.options import MOST_CALLS, Runs, Yes, option
from audiomarathon.cli.output import one_by_one, say, show_scored
from audiomarathon.engine.ray_options import Ray
from audiomarathon.errors import ModelError, SettingsError
from audiomarathon.judges.judgements import judgements_file, lines_in
from audiomarathon.settings import cache_folder
from audiomarathon.terminal import progress_of
from audiomarathon.text import counted

if TYPE_CHECKING:
    from audiomarathon.judges.judge import Judge
    from audiomarathon.judges.judging import Bench, Case, Plan

_CHARACTERS_A_TOKEN = 4  # characters per token, an estimate for English prompts


@dataclass(frozen=True)
class _Part:
    """One run for one judge to judge, in one of two rounds.

    The first round sends the requests that no earlier run shares (`plan.unshared`). The second sends the shared ones,
    whose answers are in the cache by then.
    """

    judge: str
    case: Case
    plan: Plan
    first_round: bool = True

    def __str__(self) -> str:
        return f"{self.judge}: {self.case.folder}"


@dataclass(frozen=True)
class Asking:
    """Options that all commands for LLM judges share: which judges to ask, and how."""

    with_: Annotated[
        str,
        option(
            "Judges (audiomarathon list judges) joined by commas: a name, folder, hub id, endpoint:MODEL or "
            "replay:FILE; NAME=JUDGE sets its name in files.",
            "--with",
        ),
    ]
    plan: Annotated[bool, option("Print calls, tokens and price, and stop.", "--plan")] = False
    batch_size: Annotated[
        int,
        option(
            "Texts per batch, or requests sent at the same time; with --executor ray by each worker, so in all "
            "--workers times as many.",
            min=1,
        ),
    ] = 8
    cache: Annotated[bool, option("Reuse stored answers of this judge, and store new ones.")] = True
    yes: Yes = False

    @cached_property
    def judges(self) -> dict[str, Judge]:
        """The judges to ask, as {name: judge}; their models are not loaded yet."""
        from audiomarathon.judges.registry import open_judges

        return open_judges(self.with_, batch_size=self.batch_size, download=not self.plan)

    @cached_property
    def benches(self) -> list[Bench]:
        """The judges to ask, as a list of :class:`Bench`: each has the judge, its name and the cache of its answers."""
        from audiomarathon.judges.cache import Cache
        from audiomarathon.judges.judging import Bench

        benches = []
        for name, judge in self.judges.items():
            answers = None
            if self.cache and not judge.stored:
                with suppress(ModelError):  # the checkpoint is missing; --plan works without it
                    answers = Cache(cache_folder(), judge.identity())
            benches.append(Bench(name, judge, answers))
        return benches

    def ask(self, cases: Sequence[Case], ray: Ray | None = None) -> int | None:
        """Print the expected calls, tokens and price; then ask the judges for every answer that the run folders lack.

        Requests that runs share are sent for the first of these runs. When all runs have their own answers, the others
        take the shared ones from the cache.

        Parameters
        ----------
        ray
            Ray workers that take a run at a time; None asks in this process.

        Returns
        -------
        int or None
            Number of failed requests and runs; None if nothing was asked, because of --plan or because the user
            declined.
        """
        from audiomarathon.judges.judging import plan_of

        plans: list[dict[str, Plan]] = [{} for _case in cases]  # by the judge's name
        calls = 0
        for bench in self.benches:
            planned, prices = set[str](), bench.judge.prices()
            for case, plan in zip(cases, plans, strict=True):
                todo = plan[bench.name] = plan_of(case, bench, planned)
                sent = todo.characters // _CHARACTERS_A_TOKEN
                price = prices.cost(sent, 0, todo.most_tokens) if prices else None
                requests = f"{todo.on_file:,} on file, {todo.cached:,} cached, {todo.calls:,} calls"
                tokens = f"about {sent:,} tokens of prompts, at most {todo.most_tokens:,} of answers"
                most = "" if price is None else f", price at most about {price:,.2f}"
                say(f"{bench.name}: {case.folder}: {requests}: {tokens}{most}")
                calls += todo.calls
        if len(cases) * len(self.benches) > 1:
            shared = "; shared requests are sent once" if self.cache and len(cases) > 1 else ""
            say(f"in all {calls:,} calls{shared}")
        if self.plan or (calls > MOST_CALLS and not self.yes and not _confirmed(calls)):
            return None
        asking = self if ray is None else replace(self)  # a copy without opened judges, which each worker opens itself
        failed = 0
        for bench in self.benches:
            left = [_Part(bench.name, case, plan[bench.name]) for case, plan in zip(cases, plans, strict=True)]
            while left:
                outcomes = one_by_one(
                    left, asking.ask_about, ray=ray, ends=(ModelError,), of=len(cases), on_gpu=bench.judge.on_gpu
                )
                for _folder, n_failed, line in outcomes:
                    failed += n_failed
                    if line:
                        say(line)
                failed += len(left) - len(outcomes)
                judged = {folder for folder, *_more in outcomes}
                left = [part for part in left if part.first_round and part.plan.shared and part.case.folder in judged]
                left = [replace(part, first_round=False) for part in left]
        return failed

    def ask_about(self, part: _Part) -> tuple[Path, int, str]:
        """Ask a judge about a run; return (run folder, number of failed requests, a line for the user if any)."""
        from audiomarathon.judges.judging import judge_run

        bench, folder = next(bench for bench in self.benches if bench.name == part.judge), part.case.folder
        ask, leave = (
            (part.plan.unshared, part.plan.shared) if part.first_round else (part.plan.shared, part.plan.unshared)
        )
        with progress_of(len(ask), bench.name, "judgement") as step:
            n_failed = judge_run(part.case, bench, leave=leave, step=step)
        if not n_failed:
            return folder, 0, ""
        errors = [line.error for line in lines_in(judgements_file(folder, bench.name)) if line.error is not None]
        why = f"{n_failed} requests failed ({errors[-n_failed]})"  # shows the first error of this command
        return folder, n_failed, f"error: {bench.name}: {folder}: {why}; run the same command again"


with_asking = with_group("asking", Asking)


@with_executor
@with_asking
def judge(
    runs: Runs,
    asking: Asking,
    ray: Ray | None,
    protocol: Annotated[str, option("Protocol (set of questions to the judge; default: the task's first).")] = "",
    anchors_only: Annotated[
        bool, option("Judge only replies with a known verdict, to test the judge.", "--anchors-only")
    ] = False,
) -> int:
    """Let models judge stored replies, and rewrite the verdicts and summary.json.

    Examples:
    audiomarathon judge results/jasco --with llama-3.1-70b,qwen2.5-72b --plan
    OPENAI_BASE_URL=http://localhost:8000/v1 audiomarathon judge results/jasco --with endpoint:llama-3.1-70b
    audiomarathon judge results/jasco --with replay:other/judgements-llama-3.1-70b.jsonl

    Answers go to judgements-JUDGE.jsonl in each run's folder; the same command resumes. Each judge first gets replies
    with a known verdict (anchors), and is marked weak if it misjudges them. With --executor ray, each worker opens the
    judges, and takes a run folder at a time.
    """
    from audiomarathon.report import render

    cases, unread = _cases(runs, protocol, anchors_only=anchors_only)
    failed = asking.ask(cases, ray)
    if failed is None:
        return 0 if asking.plan else 2
    for title, rows in _certificates(cases, asking.judges).items():
        render.show(render.Table.of(rows, title=title))
    code = 0 if anchors_only else show_scored([case.folder for case in cases])
    return max(code, int(failed > 0), 2 * (unread > 0))


def _confirmed(calls: int) -> bool:
    if not sys.stdin.isatty():
        raise SettingsError(f"{calls:,} calls need your consent, but there is no terminal to ask on; add --yes")
    return typer.confirm(f"Make {calls:,} calls?", err=True)


def _cases(paths: Sequence[Path], protocol: str, *, anchors_only: bool) -> tuple[list[Case], int]:
    """Return (list of :class:`Case`, number of runs that cannot be read): a case is a run that LLM judges can judge.

    Print which runs are left out.
    """
    from audiomarathon.judges.judging import Case
    from audiomarathon.runs.read import Run, run_folders

    unjudged: list[str] = []  # task of each run

    def case_of(folder: Path) -> Case | None:
        run = Run.read(folder)
        if run.task is None or not run.task.scorer.protocols:
            unjudged.append(run.key)
            return None
        protocols = {protocol.name: protocol for protocol in run.task.scorer.protocols}
        if (name := protocol or next(iter(protocols))) not in protocols:
            raise SettingsError(f"{run.key}: unknown protocol {name!r}; allowed: {', '.join(protocols)}")
        return Case(folder, list(run.records.values()), protocols[name], anchors_only)

    folders = run_folders(paths)
    read = one_by_one(folders, case_of, "left out")
    cases = [case for case in read if case]
    if unjudged:
        tasks = ", ".join(sorted(set(unjudged)))
        say(f"left out: {counted(len(unjudged), 'run')} of {tasks}: models do not judge these replies")
    if not cases:
        raise SettingsError(f"{', '.join(map(str, paths))}: no run of a task that is judged by models, such as jasco")
    return cases, len(folders) - len(read)


def _certificates(cases: Sequence[Case], names: Collection[str]) -> dict[str, list[dict[str, Any]]]:
    """Return tables of how well each judge judged the anchors (replies with a known verdict), as {title: rows}.

    A row is one judge on one kind of anchor. Runs with equal results share a table.
    """
    from audiomarathon.report import render
    from audiomarathon.runs.read import Run

    tables: dict[str, list[dict[str, Any]]] = {}
    for case in cases:
        run = Run.read(case.folder)
        assert run.task
        rows = []
        certificates = run.task.scorer.certificates(list(run.verdicts.values()))
        for name in (name for name in names if name in certificates):  # in the order of --with
            for kind, row in certificates[name].to_json()["anchors"].items():
                share = render.with_interval("right", row["right"] / row["n"], row["interval"])
                weak = "weak" * (kind in certificates[name].weak)
                rows.append({"judge": name, "anchor": kind, "n": row["n"], **share, "": weak})
        if rows and rows not in tables.values():
            more = ", and of runs with equal results" if len(cases) > 1 else ""
            tables[f"Anchors: replies with a known verdict, of {case.folder}{more}"] = rows
    return tables
