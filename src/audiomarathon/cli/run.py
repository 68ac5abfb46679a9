"""`audiomarathon run`: evaluate a model on tasks under one setting."""

from __future__ import annotations

from collections.abc import Sequence

from audiomarathon.cli.command import with_executor, with_settings
from audiomarathon.cli.config import with_config
from audiomarathon.cli.options import Fresh, ModelOrNone, Tasks, Track, tasks_named
from audiomarathon.cli.output import say, show
from audiomarathon.compression.method import Method
from audiomarathon.compression.registry import get_method
from audiomarathon.engine.ray_options import Ray
from audiomarathon.models.registry import EMBEDDED, get_model
from audiomarathon.settings import RunSettings
from audiomarathon.tracking.registry import open_trackers


@with_config
@with_executor
@with_settings()
def run(
    settings: RunSettings,
    ray: Ray | None,
    tasks: Tasks,
    model: ModelOrNone = None,
    track: Track = "",
    fresh: Fresh = False,
) -> int:
    """Evaluate a model on one or more tasks under one setting.

    Example: audiomarathon run tau gtzan --model qwen2.5-omni --method frame --ratio 0.5 --limit 100

    A flag overrides its env var, an env var overrides the --config file, and the file overrides the default. The same
    command resumes an interrupted run. --method my_pruner.py:Novelty loads your own class from a file. Without data and
    --model, the embedded toy model runs on the mini benchmark (--data mini).
    """
    if fresh:
        settings = renewed(tasks, model, settings, [get_method(settings.method, settings.ratio, **settings.places)])
    return evaluate(tasks, model, settings, ray, track)


def renewed(tasks: list[str], model: str | None, settings: RunSettings, methods: Sequence[Method]) -> RunSettings:
    """Return the settings for --fresh: with a new results folder if a method's code was edited.

    In this case, also print a line.
    """
    from audiomarathon.engine.identity import fresh_results

    fresh = fresh_results(tasks_named(tasks), get_model(model or EMBEDDED), settings, methods)
    if fresh.results != settings.results:
        say(f"a method's code was edited since its last run: results go to {fresh.results}")
    return fresh


def evaluate(
    tasks: list[str], model: str | None, settings: RunSettings, ray: Ray | None = None, track: str = ""
) -> int:
    """Run tasks under one setting and print their results; return the exit code.

    Parameters
    ----------
    model
        Name of the model; None selects the embedded toy model, which runs only on the mini benchmark.
    ray
        Ray workers that share the samples; None runs in this process.
    track
        Names of trackers, such as mlflow, joined by commas.
    """
    from audiomarathon.embedded.without_data import toy_or_real
    from audiomarathon.engine.run import run as run_tasks

    chosen = tasks_named(tasks)
    model, settings = toy_or_real(model, chosen, settings, say)
    trackers = open_trackers(track)
    return show(list(run_tasks(chosen, model, settings, ray=ray, say=say, trackers=trackers)))
