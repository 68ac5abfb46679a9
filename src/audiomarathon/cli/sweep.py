"""`audiomarathon sweep`: many methods at many ratios on many tasks, each compared with base."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from audiomarathon.cli.command import with_executor, with_settings
from audiomarathon.cli.config import with_config
from audiomarathon.cli.options import (
    Fresh,
    Margin,
    ModelOrNone,
    PlanRuns,
    Tasks,
    Track,
    complete_methods,
    listed,
    margins_of,
    option,
    tasks_named,
)
from audiomarathon.cli.output import say
from audiomarathon.cli.run import renewed
from audiomarathon.engine.ray_options import Ray
from audiomarathon.errors import SettingsError
from audiomarathon.models.registry import get_local_model
from audiomarathon.settings import RunSettings
from audiomarathon.terminal import console, showing_records
from audiomarathon.tracking.registry import open_trackers

if TYPE_CHECKING:
    from audiomarathon.engine.sweep import Swept

#: Default method of a sweep.
DEFAULT_METHOD = "dart"


@with_config
@with_executor
@with_settings(but=("method", "ratio"))
def sweep(
    settings: RunSettings,
    tasks: Tasks,
    model: ModelOrNone = None,
    methods: Annotated[
        str,
        option(
            "Methods (audiomarathon list methods), FILE.py:CLASS, or 'all', joined by commas [env: PRUNE_METHOD].",
            "--methods",
            "--method",
            envvar="PRUNE_METHOD",
            show_envvar=False,
            complete=complete_methods,
        ),
    ] = DEFAULT_METHOD,
    ratios: Annotated[
        str | None,
        option(
            "Fractions removed: first:last:step, a list 0.1,0.5, or a number; 0 = base (default: 0.1:0.9:0.1; with "
            "--schedule its last).",
            "--ratios",
            "--ratio",
        ),
    ] = None,
    base: Annotated[bool, option("Also run base, to compare with.", "--base/--no-base")] = True,
    plan: PlanRuns = False,
    tflops: Annotated[
        float | None, option("With --plan: TFLOP/s to assume if no run has been timed yet; default: measured here.")
    ] = None,
    margin: Margin = None,
    stop_when_decided: Annotated[
        bool, option("Stop each setting when its margin is decided (docs/lossless.md).", "--stop-when-decided")
    ] = False,
    logs: Annotated[bool, option("Write a log per task into RESULTS/logs.", "--logs")] = False,
    track: Track = "",
    fresh: Fresh = False,
    ray: Ray | None = None,
) -> int:
    """Evaluate a model on tasks with every method at every ratio, each measured beside base.

    Example: audiomarathon sweep tau gtzan --model qwen2.5-omni --methods random,fast_v,dart --ratios 0.1:0.9:0.1

    Each sample's audio is decoded and encoded once for all settings. A task that fails does not stop the others.
    RESULTS/summary.txt, .csv and .json hold scores, times, and measured and ideal speed-ups. The same command resumes
    an interrupted sweep. Give joined methods their ratios: --methods fast_v:0.5+snapkv:0.3
    """
    margins = margins_of(margin)
    if bool(margins) != (stop_when_decided or (plan and bool(margins))):
        raise SettingsError("--margin and --stop-when-decided go together; allowed: both, or --margin with --plan")
    if fresh:
        from audiomarathon.engine.sweep import grid, parse_ratios

        names = listed(methods.strip() or DEFAULT_METHOD)
        swept = grid(names, parse_ratios(ratios, settings.schedule), base=base, **settings.places)
        settings = renewed(tasks, model, settings, swept)
    return run_sweep(
        tasks, model, settings, methods, ratios, base=base, plan=plan, tflops=tflops, logs=logs, ray=ray, track=track,
        margins=margins,
    )  # fmt: skip


def run_sweep(
    tasks: list[str], model: str | None, settings: RunSettings, methods: str, ratios: str | None, *, base: bool,
    plan: bool, logs: bool, ray: Ray | None, tflops: float | None = None, track: str = "",
    margins: Mapping[str, float] | None = None,
) -> int:  # fmt: skip
    """Run a sweep, then print and write its summary; return 1 if a task or a sample failed, else 0.

    Parameters
    ----------
    methods
        Names of methods, joined by commas.
    ratios
        Such as `0.1:0.9:0.1` or `0.1,0.5`; for None see :func:`audiomarathon.engine.sweep.parse_ratios`.
    ray
        Ray workers that share the samples; None runs in this process.
    track
        Names of trackers, joined by commas.
    margins
        {task key: largest loss of score against base}; the key "" is for all other tasks. A setting stops when it is
        decided whether it loses more.
    """
    from audiomarathon.embedded.without_data import toy_or_real
    from audiomarathon.engine.sweep import grid, parse_ratios
    from audiomarathon.engine.sweep import sweep as sweep_tasks

    chosen = tasks_named(tasks)
    model, settings = toy_or_real(model, chosen, settings, say)
    spec = get_local_model(model)
    names = listed(methods.strip() or DEFAULT_METHOD)
    settings_to_run = grid(names, parse_ratios(ratios, settings.schedule), base=base, **settings.places)
    if os.environ.get("PRUNE_RATIO"):
        say("warning: sweep ignores PRUNE_RATIO; use --ratios")
    if plan:
        from audiomarathon.engine.sweep_plan import plan_sweep

        lines, complete = plan_sweep(chosen, spec, settings, settings_to_run, tflops=tflops, margins=margins, say=say)
        for line in lines:
            typer.echo(line)
        return 0 if complete else 1
    from audiomarathon.report.sweep_report import print_outcome, write_outcome
    from audiomarathon.results.sweep_summary import read_outcome

    trackers = open_trackers(track)
    outcome = read_outcome(settings.results, seed=settings.seed, tasks=[task.key for task in chosen])

    def write(swept: Swept) -> None:
        outcome.add(swept)
        write_outcome(outcome, settings.results, spec.key)

    folder = settings.results / "logs" if logs else None
    swept = sweep_tasks(
        chosen, spec.key, settings, settings_to_run, ray=ray, say=say, logs=folder, finished=write, trackers=trackers,
        margins=margins,
    )  # fmt: skip
    if not (swept.results or outcome.swept.failures):  # no task could start; its error is already printed
        return 1
    outcome.catch_up(settings.results, swept)
    write_outcome(outcome, settings.results, spec.key)
    with showing_records():
        print_outcome(outcome, console())
    say(f"summary: {', '.join(str(settings.results / f'summary.{kind}') for kind in ('txt', 'csv', 'json'))}")
    if outcome.groups:
        place = shlex.quote(str(settings.results))
        say(f"next: audiomarathon compare {place}; or an HTML page: audiomarathon report {place}")
    return 0 if swept.complete else 1
