"""Choose model and data if the user names none: the embedded toy model on the mini benchmark, never on real data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from audiomarathon.benchmarks import Task, get_task
from audiomarathon.benchmarks.locate import how_to_get, path_variable
from audiomarathon.embedded.world import TASKS
from audiomarathon.errors import MissingDataError, SettingsError
from audiomarathon.files import named_folder
from audiomarathon.models.registry import EMBEDDED, get_model
from audiomarathon.settings import RunSettings, cache_folder

#: Name by which the user asks for the mini benchmark as data, unless there is a folder of that name.
MINI = "mini"


def data_root(named: str) -> Path | None:
    """Return the data root that the user names; None if `named` is "".

    `mini` means the mini benchmark, which is written on first use.

    Raises
    ------
    AudioMarathonError
        The folder's name is impossible, or the mini benchmark cannot be written.
    """
    if not named:
        return None
    folder = named_folder(named)
    if named != MINI or folder.is_dir():
        return folder
    from audiomarathon.embedded.mini_benchmark import mini_benchmark
    from audiomarathon.files import writing

    with writing(cache_folder()):
        return mini_benchmark()


def embedded_instead(model: str, settings: RunSettings, say: Callable[[str], None]) -> tuple[str, RunSettings]:
    """Return (model's name, settings); if `MODEL_PATH` is `embedded`, the toy model takes the named model's place.

    For other values of `MODEL_PATH`, both are returned unchanged. So users can try every model's scripts and commands
    without a download. A model that can only transcribe, and a model behind an endpoint, is never replaced. `say` gets
    a message about the replacement.
    """
    spec = get_model(model)
    if settings.model_path != EMBEDDED or spec.remote:
        return model, settings
    if spec.key != EMBEDDED:
        if spec.load_family().transcribes_only:
            return model, settings
        say(f"MODEL_PATH={EMBEDDED}: the {EMBEDDED} toy model runs instead of {spec.key}; its scores say nothing")
    return EMBEDDED, replace(settings, model_path="")


def toy_or_real(
    model: str | None, tasks: Sequence[str | Task], settings: RunSettings, say: Callable[[str], None]
) -> tuple[str, RunSettings]:
    """Return (model to run, settings with the data to run it on), with defaults where the user names none.

    The default model is the embedded one, on the mini benchmark only: scores of a toy on real data would mislead.

    Raises
    ------
    SettingsError
        The user names real data but no model.
    """
    chosen = [task if isinstance(task, Task) else get_task(task) for task in tasks]
    data_paths = dict(settings.data_paths)
    named = [path_variable(task) for task in chosen if data_paths.get(path_variable(task))]
    real = [place for place in (settings.data, *named) if place not in ("", MINI)]
    if settings.data and settings.data != MINI and not (folder := named_folder(settings.data)).is_dir():
        raise MissingDataError(f"the data root {folder.absolute()} is not a folder. {how_to_get(chosen[0])}")
    if model is None and not settings.model_path and real:
        raise SettingsError(
            f"no model is named for the data in {', '.join(real)}: name one with --model (audiomarathon list models); "
            f"--model {EMBEDDED} is a toy that knows synthetic audio only"
        )
    model, settings = embedded_instead(model or EMBEDDED, settings, say)
    toy = get_model(model).checkpoint == EMBEDDED and not settings.model_path
    # If the mini benchmark lacks a task, a later check reports that no data root is set.
    if (
        toy
        and not settings.data
        and set() < {task.key for task in chosen if path_variable(task) not in named} <= {*TASKS}
    ):
        say(
            f"no data root is set: the {EMBEDDED} model runs on the mini benchmark (--data {MINI}), synthetic audio "
            "that is made on first use; for the real tasks: audiomarathon data download vesus"
        )
        settings = replace(settings, data=MINI)
    return model, settings
