"""`audiomarathon sweep`: many methods at many ratios on many tasks, and what each saves against base."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from pathlib import Path

    from audiomarathon.benchmarks import Task
    from audiomarathon.compression.method import Method
    from audiomarathon.engine.executor import Ray
    from audiomarathon.engine.sweep import Swept
    from audiomarathon.models.registry import ModelSpec
    from audiomarathon.settings import RunSettings

#: What a sweep prunes with when nothing says.
DEFAULT_METHOD = "dart"
DEFAULT_RATIOS = "0.1:0.9:0.1"


def sweep(
    tasks: Annotated[list[str], typer.Argument(help="Tasks, or 'all' (audiomarathon list tasks).")],
    model: Annotated[str | None, typer.Option(help="Model (audiomarathon list models).")] = None,
    methods: Annotated[
        str | None, typer.Option(help="Methods, joined by commas, or 'all' [env: PRUNE_METHOD]; default dart.")
    ] = None,
    ratios: Annotated[
        str, typer.Option(help="Fractions removed: first:last:step, a list 0.1,0.5, or one; 0 = base.")
    ] = DEFAULT_RATIOS,
    base: Annotated[bool, typer.Option("--base/--no-base", help="Run base too, once: the comparison.")] = True,
    plan: Annotated[
        bool, typer.Option("--plan", help="Print runs, samples, estimated hours and memory, and stop.")
    ] = False,
    tflops: Annotated[
        float | None, typer.Option(help="With --plan: TFLOP/s to reckon with where nothing was measured yet.")
    ] = None,
    logs: Annotated[bool, typer.Option("--logs", help="Write a log per task into RESULTS/logs.")] = False,
    executor: Annotated[str, typer.Option(help="local, or ray: several GPUs or machines (docs/scaling.md).")] = "local",
    address: Annotated[str | None, typer.Option(help="ray: a cluster to join; without, one is started here.")] = None,
    workers: Annotated[int | None, typer.Option(help="ray: how many; default one a GPU, or a machine.")] = None,
    gpus_per_worker: Annotated[float | None, typer.Option(help="ray: of each; default 1 where there are GPUs.")] = None,
    layer: Annotated[str | None, typer.Option(help="Layer K to drop at; default 2 [env: PRUNE_LAYER_IDX]")] = None,
    scope: Annotated[str | None, typer.Option(help="audio, or all for presses [env: PRUNE_SCOPE]")] = None,
    limit: Annotated[str | None, typer.Option(help="Samples a task; 0 = all [env: SAMPLE_LIMIT]")] = None,
    results: Annotated[str | None, typer.Option(help="Where results go [env: RESULTS_DIR]")] = None,
    model_path: Annotated[str | None, typer.Option(help="Hub id or folder [env: MODEL_PATH]")] = None,
    data: Annotated[str | None, typer.Option(help="Root of the tasks' data [env: AUDIOMARATHON_DATA]")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N [env: DEVICE]")] = None,
    device_map: Annotated[str | None, typer.Option(help="Spread over GPUs: auto, … [env: DEVICE_MAP]")] = None,
    dtype: Annotated[str | None, typer.Option(help="auto, float32, float16, bfloat16 [env: DTYPE]")] = None,
    attn_implementation: Annotated[
        str | None, typer.Option(help="sdpa, eager, flash_attention_2 [env: ATTN_IMPLEMENTATION]")
    ] = None,
    timing: Annotated[
        bool | None, typer.Option("--timing/--no-timing", help="Time samples one by one, or batch [env: TIMING]")
    ] = None,
    batch_size: Annotated[str | None, typer.Option(help="With --no-timing [env: BATCH_SIZE]")] = None,
    max_new_tokens: Annotated[str | None, typer.Option(help="0 = the task's [env: MAX_NEW_TOKENS]")] = None,
    decode_tokens: Annotated[str | None, typer.Option(help="Forced decode run [env: DECODE_TOKENS]")] = None,
    seed: Annotated[str | None, typer.Option(help="Default 42 [env: SEED]")] = None,
    skip_persons: Annotated[str | None, typer.Option(help="vesus: leave out [env: SKIP_PERSONS]")] = None,
    skip_emotion: Annotated[str | None, typer.Option(help="vesus: of those persons [env: SKIP_EMOTION]")] = None,
    balance: Annotated[bool | None, typer.Option(help="had: as many real as fake [env: BALANCE]")] = None,
    allow_bad_rows: Annotated[bool | None, typer.Option(help="Leave bad rows out [env: ALLOW_BAD_ROWS]")] = None,
) -> int:
    """Evaluate a model on tasks under every method at every ratio, each measured next to base.

    Example: audiomarathon sweep tau gtzan --model qwen2.5-omni --methods random,fast_v,dart --ratios 0.1:0.9:0.1

    Audio is decoded, and the audio tower run, once a sample for all settings. A task that fails does not stop the
    rest. RESULTS/summary.txt, .csv and .json hold scores, times, and speed-ups measured and ideal. An interrupted
    sweep goes on where it stopped. Joined methods have their own ratios: --methods fast_v:0.5+snapkv:0.3
    """
    flags = dict(locals())
    where = {name: flags.pop(name) for name in ("address", "workers", "gpus_per_worker")}
    for own in ("tasks", "model", "methods", "ratios", "base", "plan", "tflops", "logs", "executor"):
        flags.pop(own)
    from audiomarathon.engine.executor import read_executor
    from audiomarathon.settings import RunSettings

    settings = RunSettings.read(**flags)
    ray = read_executor(executor, **where)
    return run_sweep(tasks, model, settings, methods, ratios, base=base, plan=plan, tflops=tflops, logs=logs, ray=ray)


def run_sweep(
    tasks: list[str],
    model: str | None,
    settings: RunSettings,
    methods: str | None,
    ratios: str,
    *,
    base: bool = True,
    plan: bool = False,
    tflops: float | None = None,
    logs: bool = False,
    ray: Ray | None = None,
) -> int:
    """Sweep, print and write the summary; return the exit code: 1 when a task or a sample failed.

    Parameters
    ----------
    methods
        Names joined by commas; None takes `PRUNE_METHOD`, or else `dart`.
    ratios
        See :func:`audiomarathon.engine.sweep.parse_ratios`.
    ray
        Workers to share the samples out to; None runs in this process.
    """
    from audiomarathon.benchmarks import all_tasks, get_task
    from audiomarathon.cli.output import say
    from audiomarathon.embedded.without_data import toy_or_real
    from audiomarathon.engine.sweep import grid, parse_ratios
    from audiomarathon.models.registry import get_local_model

    chosen = list(all_tasks()) if tasks == ["all"] else [get_task(name) for name in tasks]
    model, settings = toy_or_real(model, chosen, settings, say)
    spec = get_local_model(model)
    chosen = list({task.key: task for task in chosen}.values())
    names = [name.strip() for name in (methods or _method_from(settings)).split(",") if name.strip()]
    settings_to_run = grid(names, parse_ratios(ratios), layer=settings.layer, scope=settings.scope, base=base)
    if os.environ.get("PRUNE_RATIO"):
        say("warning: PRUNE_RATIO is not read by a sweep, --ratios says which")
    if plan:
        return _plan(chosen, spec, settings, settings_to_run, tflops)
    return _sweep(chosen, spec, settings, settings_to_run, settings.results / "logs" if logs else None, ray)


def _plan(
    tasks: list[Task],
    spec: ModelSpec,
    settings: RunSettings,
    methods: list[Method],
    tflops: float | None,
) -> int:
    from audiomarathon.cli.output import say
    from audiomarathon.engine.plan import plan_sweep

    planned = plan_sweep(tasks, spec, settings, methods, tflops=tflops, say=say)
    for line in planned.lines:
        typer.echo(line)
    return 0 if planned.complete else 1


def _sweep(
    tasks: list[Task],
    spec: ModelSpec,
    settings: RunSettings,
    methods: list[Method],
    logs: Path | None,
    ray: Ray | None,
) -> int:
    from audiomarathon.cli.output import say
    from audiomarathon.engine.sweep import sweep as sweep_tasks
    from audiomarathon.report.sweep_report import print_outcome, write_outcome
    from audiomarathon.results.sweep_summary import read_outcome
    from audiomarathon.terminal import console, showing_records

    outcome = read_outcome(settings.results, seed=settings.seed)

    def write(swept: Swept) -> None:
        outcome.add(swept)
        write_outcome(outcome, settings.results, spec.key)

    swept = sweep_tasks(tasks, spec.key, settings, methods, ray=ray, say=say, logs=logs, finished=write)
    outcome.catch_up(settings.results, swept)
    write_outcome(outcome, settings.results, spec.key)
    with showing_records():
        print_outcome(outcome, console())
    say(f"summary: {', '.join(str(settings.results / f'summary.{kind}') for kind in ('txt', 'csv', 'json'))}")
    return 0 if swept.complete else 1


def _method_from(settings: Any) -> str:
    named: str = settings.method
    return named if os.environ.get("PRUNE_METHOD") else DEFAULT_METHOD
