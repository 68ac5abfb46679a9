"""Turn the names that the user gives to `--track` into trackers."""

from __future__ import annotations

from collections.abc import Sequence

from audiomarathon.plugins import look_up, plugins
from audiomarathon.tracking.mlflow import MLflow
from audiomarathon.tracking.tracker import Tracker

GROUP = "audiomarathon.trackers"  # entry point group


def open_trackers(given: str) -> Sequence[Tracker]:
    """Return the trackers that `given` names (the value of `--track`, joined by commas), ready to use.

    Raises
    ------
    SettingsError
        A name is unknown, or a tracker cannot be reached.
    """
    names = [name for name in given.split(",") if name.strip()]
    if not names:
        return []
    builtin = MLflow()
    every = [builtin, *plugins(GROUP, Tracker, [builtin])]  # type: ignore[type-abstract]
    chosen = dict.fromkeys(look_up(name, every, kind="tracker") for name in names)
    if builtin in chosen:
        builtin.connect()
    return list(chosen)
