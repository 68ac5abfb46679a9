"""Show runs in MLflow.

Each run becomes an MLflow run with curves over samples. In a sweep, each method also becomes an MLflow run, with curves
over the ratio; joined methods are left out, since they have no single ratio. MLflow's own env vars set the server
(`MLFLOW_TRACKING_URI`) and the experiment's name (`MLFLOW_EXPERIMENT_NAME`, by default audiomarathon).
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from audiomarathon.compression.method import Base
from audiomarathon.errors import SettingsError, told
from audiomarathon.tracking.tracker import Point, TrackedRun, Tracker

_TAG = "audiomarathon.run"
_VALUE = 500  # longest parameter in characters that every version of MLflow accepts
_BATCH = 1000  # most metrics that the server accepts in one request
_COUNTS = ("n", "errors", "unparsed", "peak_memory_bytes", "kv_bytes")


class MLflow(Tracker):
    """The tracker that writes runs to an MLflow server, or to a database (`sqlite:///mlflow.db`)."""

    key = "mlflow"

    def connect(self) -> None:
        """Find MLflow's experiment for the runs, or create it.

        Raises
        ------
        SettingsError
            MLflow is not installed, or its server does not answer.
        """
        # A missing server must not slow the run: by default, MLflow retries for minutes.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # stdout is for tables
        try:
            from mlflow import MlflowClient, get_tracking_uri
            from mlflow.exceptions import MlflowException
        except ImportError:
            raise SettingsError("--track mlflow needs MLflow: pip install 'audiomarathon[mlflow]'") from None
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "audiomarathon"
        try:
            self._client = MlflowClient()
            experiment = self._client.get_experiment_by_name(name)
            self._experiment = experiment.experiment_id if experiment else self._client.create_experiment(name)
        except (MlflowException, OSError) as error:
            place = get_tracking_uri()
            folder = "allowed: a server, sqlite:///mlflow.db, or with MLFLOW_ALLOW_FILE_STORE=true a folder"
            reason = folder if "://" not in place or place.startswith("file:") else told(error)
            raise SettingsError(f"--track mlflow: cannot use {place}; {reason}") from None
        self._runs: dict[str, str] = {}
        self._known: dict[str, int] = {}
        self._bases: dict[tuple[str, str], Mapping[str, float]] = {}

    def started(self, run: TrackedRun) -> None:
        """Open the MLflow run for a run's folder and identity, or create it; log the identity as parameters."""
        place = str(run.folder.resolve())
        id_ = self._runs[place] = self._open(f"{place} {sorted(run.identity.items())}", f"{run.task} {run.label}")
        history = self._client.get_metric_history(id_, "answered")
        self._known[place] = max((metric.step for metric in history), default=0)
        facts = {"task": run.task, "model": run.checkpoint, "setting": run.label, **run.identity}
        self._client.log_batch(id_, params=self._params(facts))

    def scored(self, run: TrackedRun, points: Sequence[Point]) -> None:
        """Add points to the curves of a run in MLflow; leave out those that were sent before."""
        place = str(run.folder.resolve())
        fresh = [point for point in points if point.samples > self._known[place]]
        self._log(self._runs[place], {point.samples: {"answered": point.samples, **point.figures} for point in fresh})
        self._known[place] = max([self._known[place], *(point.samples for point in fresh)])

    def finished(self, run: TrackedRun, summary: Mapping[str, Any] | None) -> None:
        """Add the scores, times and files of a finished run to its MLflow run, and close the MLflow run.

        Without a summary (None), only mark it as killed. In a sweep, also add a point to the method's curves over the
        ratio.
        """
        id_ = self._runs[str(run.folder.resolve())]
        if summary is None:
            self._client.set_terminated(id_, "KILLED")
            return
        figures = _figures(summary)
        self._log(id_, {int(summary["n"]): {f"final/{name}": value for name, value in figures.items()}})
        for name in ("summary.json", "run.json"):
            self._client.log_artifact(id_, str(run.folder / name))
        self._client.set_terminated(id_, "FINISHED" if summary["complete"] else "FAILED")
        if run.swept:
            self._by_ratio(run, figures)

    def _by_ratio(self, run: TrackedRun, figures: Mapping[str, float]) -> None:
        """Add a setting's `figures`, {metric: value}, to its method's curves over the ratio in percent; base, if it
        ran, is the point at 0.
        """
        beside = (run.task, str(run.folder.parent.resolve()))
        if run.method == Base.key:
            self._bases[beside] = figures
        if not run.ratio:  # base, or a joined method, which has no ratio of its own
            return
        title = f"{run.task} {run.checkpoint} {run.method} by ratio"
        tag = f"{beside[1]} {run.method} by ratio"
        is_new = tag not in self._runs
        id_ = self._runs[tag] = self._runs.get(tag) or self._open(tag, title)
        base = {0: self._bases[beside]} if is_new and beside in self._bases else {}
        self._log(id_, {**base, round(100 * run.ratio): figures})
        self._client.log_batch(
            id_, params=self._params({"task": run.task, "model": run.checkpoint, "method": run.method})
        )
        self._client.set_terminated(id_)

    def _open(self, tag: str, name: str) -> str:
        """Return the id of the MLflow run with this tag; create the run if it is missing."""
        hashed = hashlib.sha256(tag.encode()).hexdigest()[:16]
        runs = self._client.search_runs([self._experiment], f"tags.`{_TAG}` = '{hashed}'", max_results=1)
        if not runs:
            return str(self._client.create_run(self._experiment, tags={_TAG: hashed}, run_name=name).info.run_id)
        self._client.update_run(runs[0].info.run_id, "RUNNING")
        return str(runs[0].info.run_id)

    def _params(self, facts: Mapping[str, Any]) -> list[Any]:
        from mlflow.entities import Param

        return [Param(name, str(value)[:_VALUE]) for name, value in facts.items()]

    def _log(self, id_: str, steps: Mapping[int, Mapping[str, float]]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, step) for step, figures in steps.items() for name, value in figures.items()]
        for start in range(0, len(metrics), _BATCH):
            self._client.log_batch(id_, metrics=metrics[start : start + _BATCH])


def _figures(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers in a summary as {metric name: value}: score, interval, counts, median of each time."""
    low, high = (summary.get("intervals") or {}).get("score") or (None, None)
    times = {f"{name}.p50": timing["p50"] for name, timing in summary["timing"].items() if isinstance(timing, dict)}
    counts = {name: summary.get(name) for name in _COUNTS}
    told_of = {"score": summary["score"], "score.low": low, "score.high": high, **counts, **times}
    return {name: float(value) for name, value in told_of.items() if value is not None}
