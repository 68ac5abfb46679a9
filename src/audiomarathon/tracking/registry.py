"""Turn the names that the user gives to `--track` into trackers."""

from __future__ import annotations

from collections.abc import Sequence

from audiomarathon.plugins import look_up, plugins
from audiomarathon.tracking.mlflow import MLflow
from audiomarathon.tracking.tracker import Tracker

GROUP = "audiomarathon.trackers"  # entry point group


def open_trackers(given: str) -> Sequence[Tracker]:
    """Return the trackers named in `given` (the value of `--track`, joined by commas), ready to use.

    Raises
    ------
    SettingsError
        A name is unknown, or a tracker cannot be reached.
    """
    names = [name for name in given.split(",") if name.strip()]
    if not names:
        return []
    own = MLflow()
    every = [own, *plugins(GROUP, Tracker, [own])]  # type: ignore[type-abstract]
    found = dict.fromkeys(look_up(name, every, kind="tracker") for name in names)
    if own in found:
        own.connect()
    return list(found)
