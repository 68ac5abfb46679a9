"""Reproduce the paper's table: our runs by its protocol and its scoring, beside the published scores."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from audiomarathon.benchmarks import get_task
from audiomarathon.benchmarks.audiomarathon.benchmark import AUDIOMARATHON
from audiomarathon.benchmarks.task import KNOWN_GAPS
from audiomarathon.engine.run import Result
from audiomarathon.errors import SettingsError
from audiomarathon.metrics.paired import DRAWS
from audiomarathon.metrics.statistics import Estimate, Resampler, interval_over, mean_of
from audiomarathon.models.registry import ModelSpec
from audiomarathon.results.scopes import OVERALL
from audiomarathon.runs.read import REPRODUCED, Run
from audiomarathon.settings import RunSettings
from audiomarathon.text import counted

PROTOCOLS = ("paper", "full")


def protocol_folder(results: Path, protocol: str) -> Path:
    """Return the folder for the runs of a protocol (`paper` or `full`), apart from runs on other samples."""
    return results / f"{REPRODUCED}{protocol}"


def protocol_settings(settings: RunSettings, protocol: str) -> RunSettings:
    """Return the settings, changed so that they select a protocol's samples.

    The protocol `paper` balances `had` with seed 42, and leaves out the happy clips of persons 2 and 10 in `vesus`.
    The protocol `full` uses all samples.

    Raises
    ------
    SettingsError
        When there is no such protocol, or a setting contradicts it.
    """
    if protocol not in PROTOCOLS:
        raise SettingsError(f"--protocol {protocol}: allowed: {', '.join(PROTOCOLS)}")
    if settings.method != "base" or settings.ratio:
        raise SettingsError(f"PRUNE_METHOD={settings.method}: reproduce runs only base, like the published runs")
    if protocol == "full":
        return dataclasses.replace(settings, balance=False, skip_persons=(), skip_emotion="")
    if settings.seed != 42:
        raise SettingsError(f"SEED={settings.seed}: the paper's protocol uses seed 42; --protocol full allows any seed")
    return dataclasses.replace(settings, balance=True, skip_persons=("2", "10"), skip_emotion="happy")


def caveats(
    results: Sequence[Result], failures: Mapping[str, str], settings: RunSettings, spec: ModelSpec
) -> list[str]:
    """Return one text line for each difference between our runs (`results`) and the published ones."""
    lines = [f"{key} was not run: {why}" for key, why in failures.items()]
    if settings.limit:
        lines.append(f"{counted(settings.limit, 'sample')} per task only; the published scores use all samples")
    if settings.model_path and published(spec.key):
        lines.append(f"the checkpoint is {settings.model_path}; the published scores use {spec.checkpoint}")
    for result in results:
        of, task = result.summary, get_task(result.summary["task"])
        whole = AUDIOMARATHON.facts[task.key].count
        have = of["data_samples"] + of["bad_rows"] + sum(of["left_out"].values())
        conditions = {
            f"not scored, failed or not run yet: {of['expected'] - of['n']}": of["expected"] > of["n"],
            f"bad rows left out: {of['bad_rows']}": of["bad_rows"],
            f"{KNOWN_GAPS} left out: {(gaps := of['left_out'].get(KNOWN_GAPS, 0))}, so n is {of['n']:,}": gaps,
            f"samples with truncated audio: {of['truncated']}": of["truncated"],
            f"the data has {counted(have, 'sample')}, the whole task {whole:,}": have != whole,
            f"the data is a control ({(of.get('control') or {}).get('kind')})": of.get("control"),
        }
        lines += [f"{task.key}: {line}" for line, holds in conditions.items() if holds]
    return lines


def reproduced(results: Sequence[Result], model: str, *, seed: int = 42) -> list[dict[str, Any]]:
    """Return rows that put our scores beside the published ones: one per task, one per group's mean, one for all tasks.

    A group's mean needs all tasks of the group; its interval resamples each task separately. The fields of a row, None
    if missing:

    * `samples`, `unparsed`: number of answered samples, and of unparsable replies, which the release did not score;
    * `mine`, `interval`: our score, computed as in the paper with macro-F1, and its 95 % interval over clusters;
    * `weighted`: F1 weighted by support, which some of the release's scripts use;
    * `published`, `difference`: the paper's score, and ours minus the paper's;
    * `agrees`: whether the paper's score lies within the interval.
    """
    paper = published(model)
    estimates: dict[str, Estimate] = {}
    rows: dict[str, dict[str, Any]] = {}
    for result in results:
        run = Run.read(result.folder)
        scorer, verdicts = get_task(run.key).scorer, list(run.verdicts.values())
        sums = scorer.published(verdicts)
        if sums is None:
            raise SettingsError(f"{run.key}: the paper has no such task")
        mine = weighted = None
        if verdicts:
            # A separate random stream per task: a mean draws its tasks independently.
            figures = Resampler([seed, *run.key.encode()], DRAWS).of_sums(sums)
            mine = estimates[run.key] = figures[sums.names[0]]
            weighted = figures.get("weighted_f1")
        rows[run.key] = row_of(
            run.key, len(verdicts), sum(map(scorer.unparsed, verdicts)), _known(mine), mine.interval if mine else None,
            _known(weighted), paper.get(run.key),
        )  # fmt: skip
    groups = AUDIOMARATHON.groups
    whole = {name: members for name, members in groups.items() if set(members) <= set(rows)}
    if len(whole) == len(groups):
        whole[OVERALL] = tuple(key for members in groups.values() for key in members)
    return [*rows.values(), *(_mean(name, members, rows, estimates) for name, members in whole.items())]


def row_of(
    scope: str, samples: int, unparsed: int, mine: float | None, interval: tuple[float, float] | None,
    weighted: float | None, published: float | None
) -> dict[str, Any]:  # fmt: skip
    """Make one row of :func:`reproduced` from its fields, and compute its `difference` and `agrees`."""
    row: dict[str, Any] = {"scope": scope, "samples": samples, "unparsed": unparsed, "mine": mine, "interval": interval}
    row |= {"weighted": weighted, "published": published}
    inside = None if interval is None or published is None else interval[0] <= published <= interval[1]
    return row | {"difference": None if mine is None or published is None else mine - published, "agrees": inside}


def published(model: str) -> Mapping[str, float]:
    """Return a model's published scores (0–1), as {task: score}; empty if the paper did not run the model."""
    return AUDIOMARATHON.published.get(AUDIOMARATHON.models.get(model, ""), {})


def _known(estimate: Estimate | None) -> float | None:
    """Return an estimate's value; None if it is missing or NaN."""
    return None if estimate is None or math.isnan(estimate.value) else estimate.value


def _mean(
    scope: str, keys: Sequence[str], rows: Mapping[str, Mapping[str, Any]], estimates: Mapping[str, Estimate]
) -> dict[str, Any]:
    each = [estimates[key] for key in keys if key in estimates]
    samples, unparsed = (sum(rows[key][name] for key in keys) for name in ("samples", "unparsed"))
    mine, theirs = (mean_of([rows[key][name] for key in keys]) for name in ("mine", "published"))
    interval = interval_over(each) if len(each) == len(keys) else None
    return row_of(scope, samples, unparsed, mine, interval, None, theirs)
