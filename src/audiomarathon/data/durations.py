"""Measure the durations of a task's clips, and the audio tokens that they take."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from audiomarathon.audio.decode import ClipInfo, decode, probe
from audiomarathon.benchmarks import Loaded, Task
from audiomarathon.errors import AudioError
from audiomarathon.files import write_text
from audiomarathon.models.registry import all_models
from audiomarathon.terminal import progress_of

PERCENTILES = (5, 25, 50, 75, 95)
HISTOGRAM_BINS = 20


def probe_clips(loaded: Loaded, what: str, *, deep: bool = False, jobs: int = 0) -> dict[Path, ClipInfo | str]:
    """Read the header of every clip of a task, in parallel; with `deep`, decode the whole clip.

    Parameters
    ----------
    what
        Name for the progress bar.
    jobs
        Number of threads; 0 starts one per core.

    Returns
    -------
    dict
        {clip: its length, sampling rate, … as :class:`ClipInfo`, or the reason why it cannot be read}. With `deep`, the
        length is that of the decoded audio. Clips of floating-point samples are always decoded, since only that shows
        whether they are scaled.
    """
    infos = {}
    clips = sorted({clip for sample in loaded.samples for clip in sample.clips})  # several questions may share a clip
    with (
        ThreadPoolExecutor(jobs or os.cpu_count() or 1) as pool,
        progress_of(len(clips), what, "clip") as count,
    ):
        for clip, info in zip(clips, pool.map(partial(_probed, deep=deep), clips), strict=True):
            infos[clip] = info
            count(1)
    return infos


def _probed(clip: Path, deep: bool) -> ClipInfo | str:
    try:
        info = probe(clip)
        deep = deep or info.floats
        frames = len(decode(clip, info.sampling_rate)) if deep else info.frames
    except AudioError as error:
        return error.reason
    return replace(info, frames=frames, seconds=frames / info.sampling_rate) if deep else info


@dataclass(frozen=True)
class Durations:
    """The durations of one task's clips.

    Attributes
    ----------
    seconds
        Durations of the readable clips, in the clips' order.
    broken
        (path, reason) of each unreadable clip.
    bad_rows
        Number of metadata rows without a sample (`audiomarathon data verify` lists them).
    """

    task: Task
    seconds: tuple[float, ...]
    samples: int
    broken: tuple[tuple[Path, str], ...] = ()
    bad_rows: int = 0

    def statistics(self) -> dict[str, float | int | None]:
        """Return {name: value}: numbers of `clips` and `samples`, `total_hours`, and statistics of the durations.

        The statistics are `mean`, `std`, `min`, percentiles such as `p50`, and `max`, in seconds; None without clips.
        """
        names = ["mean", "std", "min", *(f"p{percent}" for percent in PERCENTILES), "max"]
        figures: dict[str, float | int | None] = {"clips": len(self.seconds), "samples": self.samples}
        if not self.seconds:
            return figures | {"total_hours": 0.0, **dict.fromkeys(names)}
        array = np.array(self.seconds)
        values = [array.mean(), array.std(), array.min(), *np.percentile(array, PERCENTILES), array.max()]
        rounded = {name: round(float(value), 3) for name, value in zip(names, values, strict=True)}
        return figures | {"total_hours": round(float(array.sum()) / 3600, 4), **rounded}

    def histogram(self) -> dict[str, list[float] | list[int]]:
        """Return a histogram of the durations: lists `counts`, and bins' `edges` in seconds; empty without clips."""
        if not self.seconds:
            return {"counts": [], "edges": []}
        counts, edges = np.histogram(self.seconds, HISTOGRAM_BINS)
        return {"counts": counts.tolist(), "edges": [round(float(edge), 3) for edge in edges]}

    def tokens(self) -> dict[str, dict[str, float | int | list[str]]]:
        """Return how many audio tokens these clips take in each model, as {tokens per second, as text: statistics}.

        The statistics are the median, maximum and total over clips; "models" lists the models with this rate.
        """
        by_rate: dict[float, list[str]] = {}
        for model in filter(lambda model: model.tokens_per_second, all_models()):  # an endpoint's rate is unknown
            by_rate.setdefault(model.tokens_per_second, []).append(model.key)
        array = np.array(self.seconds or [0.0])
        spread = {"median": float(np.median(array)), "max": float(array.max()), "total": float(array.sum())}
        return {
            f"{rate:g}": {"models": models, **{name: round(value * rate) for name, value in spread.items()}}
            for rate, models in by_rate.items()
        }

    def as_json(self) -> dict[str, Any]:
        """Return {name: value} for JSON: statistics, histogram, counts of audio tokens, unreadable clips."""
        return {
            "task": self.task.key,
            **self.statistics(),
            "histogram": self.histogram(),
            "audio_tokens_by_tokens_per_second": self.tokens(),
            "broken": [{"clip": str(clip), "reason": reason} for clip, reason in self.broken],
            "bad_rows": self.bad_rows,
        }


def durations(task: Task, loaded: Loaded, *, jobs: int = 0) -> Durations:
    """Measure the durations of a task's clips; unreadable clips are listed in the result, not raised as errors."""
    probed = probe_clips(loaded, task.key, jobs=jobs)
    return Durations(
        task,
        tuple(info.seconds for info in probed.values() if isinstance(info, ClipInfo)),
        len(loaded.samples),
        tuple((clip, reason) for clip, reason in probed.items() if isinstance(reason, str)),
        len(loaded.bad_rows),
    )


def write_durations(all_durations: Sequence[Durations], folder: Path) -> list[Path]:
    """Write tasks' durations to a JSON and a CSV file, one entry or row per task; return the files' paths.

    The files are `durations.*`, or `<task>.*` (`lalm-clotho.csv`) for a single task.

    Raises
    ------
    RecordError
        When a file cannot be written; its old content stays.
    """
    name = all_durations[0].task.key.replace("/", "-") if len(all_durations) == 1 else "durations"
    as_json, as_csv = folder / f"{name}.json", folder / f"{name}.csv"
    write_text(as_json, json.dumps([task_durations.as_json() for task_durations in all_durations], indent=2) + "\n")
    rows: list[Mapping[str, Any]] = [
        {"task": task_durations.task.key, **task_durations.statistics(), "broken": len(task_durations.broken)}
        for task_durations in all_durations
    ]
    write_text(as_csv, pd.DataFrame(rows, dtype=object).to_csv(index=False, lineterminator="\n"))
    return [as_json, as_csv]
