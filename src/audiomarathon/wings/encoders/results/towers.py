"""Compare a probe of an audio tower (the encoder of an audio LLM) with the model's replies to the same clips.

The comparison shows which labels pruning removes (a probe can no longer predict them), and which labels a probe can
predict but the model's replies do not use.

A probe's run and a model's run are compared if both have the same checkpoint fingerprint and the same method label.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from audiomarathon.settings import SEED
from audiomarathon.wings.encoders.home_tasks import LongTask
from audiomarathon.wings.encoders.xares.task import EncoderTask
from audiomarathon.compression.method import Base
from audiomarathon.fingerprint import same
from audiomarathon.metrics.statistics import Estimate, Resampler, mean_over, means_of_items
from audiomarathon.runs.read import Run

CELLS = ("both", "unused", "reply_only", "neither")
"""Cells of a 2 × 2 table of clips: probe and reply are right; only the probe is; only the reply is; neither is."""
_PREFERRED = ("tower", "best")  # points that represent a tower; the first that was probed is used


@dataclass(frozen=True)
class Fourfold:
    """How often a probe's prediction and a model's reply are right under one setting, on the clips that both have.

    Attributes
    ----------
    probe, reply
        The probe's run and the model's run.
    n
        Number of clips that both have.
    shares
        {name: share of these clips}: `both` right; only the probe right (`unused`); only the reply right
        (`reply_only`); `neither` right; the probe right, whatever the reply (`probe`); the reply right (`reply`); and
        `lost`: the probe right without compression (base) and wrong with this setting.
    """

    probe: Run
    reply: Run
    n: int
    shares: Mapping[str, Estimate]


def point_of(run: Run) -> str:
    """Return the point of a tower or LLM whose output a run's probe read, such as `tower`; "" for other runs."""
    return str(run.facts.get("point", "")) if isinstance(run.task, EncoderTask) else ""


def fourfolds(runs: Sequence[Run]) -> list[Fourfold]:
    """Compare runs of probes of audio towers with runs of the same models; return one :class:`Fourfold` per pair.

    Both runs of a pair have the same task and method, and at least one clip in common.
    """
    comparisons = []
    replies = [run for run in runs if not isinstance(run.task, EncoderTask) and not run.control]
    probes = [run for run in runs if isinstance(run.task, LongTask) and point_of(run)]
    base = Base().label
    before = {(run.key, run.checkpoint): _right(run) for run in probes if run.method == base}
    for probe in probes:
        assert isinstance(probe.task, LongTask)
        for reply in replies:
            if (reply.key, reply.method) != (probe.task.home.key, probe.method) or not of_one_model(probe, reply):
                continue
            if probe.method != base and reply.identity.get("seed", SEED) != SEED:
                continue  # with another seed, a method may keep other tokens than those that the probe read
            of_base, of_probe, of_reply = before.get((probe.key, probe.checkpoint), {}), _right(probe), _right(reply)
            ids = sorted(of_probe.keys() & of_reply.keys())
            if not ids:
                continue
            pairs = [(of_probe[id_], of_reply[id_]) for id_ in ids]
            cells = zip(CELLS, product((True, False), repeat=2), strict=True)
            columns = {name: [float(pair == cell) for pair in pairs] for name, cell in cells}
            columns |= {"probe": [float(right) for right, _ in pairs], "reply": [float(right) for _, right in pairs]}
            if of_base.keys() >= {*ids}:
                columns["lost"] = [float(of_base[id_] and not of_probe[id_]) for id_ in ids]
            sums = means_of_items(columns, [probe.records[id_].cluster for id_ in ids])
            sums = replace(sums, ends=dict.fromkeys(columns, (0.0, 1.0)))
            comparisons.append(Fourfold(probe, reply, len(ids), Resampler(SEED).of_sums(sums)))
    return comparisons


def _right(run: Run) -> dict[str, bool]:
    """Return {sample's id: whether its reply is right}; leave out replies that are neither right nor wrong."""
    scorer = run.task.scorer if run.task else None
    judged = {id_: scorer.right(verdict) for id_, verdict in run.verdicts.items()} if scorer else {}
    return {id_: right for id_, right in judged.items() if right is not None}


def of_one_model(probe: Run, reply: Run) -> bool:
    """Tell whether a probe's run and a model's run used the same model weights in the same precision."""
    tower = probe.facts.get("encoder") or {}
    precision = reply.identity.get("dtype")
    return tower.get("dtype", precision) == precision and same(
        tower.get("checkpoint"), reply.identity.get("checkpoint")
    )


@dataclass(frozen=True)
class Standing:
    """A model's mean scores without pruning: of a probe of its audio tower, and of its replies.

    `encoder` is the mean score of the probe over `tasks`, `model` the mean score of the replies over `model_tasks`.
    """

    checkpoint: str
    point: str
    encoder: Estimate
    model: Estimate
    tasks: tuple[str, ...]
    model_tasks: tuple[str, ...]


def standings(runs: Sequence[Run]) -> list[Standing]:
    """Return the :class:`Standing` of each model that has runs of its replies, and runs of a probe of its audio tower.

    Probes' scores are averaged over the tasks that every tower has run, replies over the tasks that every model has
    run.
    """
    base = Base().label
    models: dict[str, dict[str, Run]] = {}
    for run in runs:
        replies = run.task and run.task.owner is run.task and not isinstance(run.task, EncoderTask)
        if replies and run.method == base and not run.control and run.verdicts:
            models.setdefault(run.checkpoint, {})[run.key] = run
    tower_runs: dict[str, tuple[str, dict[str, Run]]] = {}
    for name, model_runs in models.items():
        by_point: dict[str, dict[str, Run]] = {}
        for run in runs:
            known = run.method in ("linear", base) and of_one_model(run, next(iter(model_runs.values())))
            if known and (point := point_of(run)):
                by_point.setdefault(point, {}).setdefault(run.key, run)
        if by_point:
            point = next((name for name in _PREFERRED if name in by_point), next(iter(by_point)))
            tower_runs[name] = point, by_point[point]
    shared = set.intersection(*({*of_tower} for _, of_tower in tower_runs.values())) if tower_runs else set()
    asked = set.intersection(*({*models[name]} for name in tower_runs)) if tower_runs else set()
    if not shared or not asked:
        return []
    return [
        Standing(
            name, point,
            mean_over([of_tower[key].headline for key in sorted(shared)]),
            mean_over([models[name][key].headline for key in sorted(asked)]),
            tuple(sorted(shared)), tuple(sorted(asked)),
        )
        for name, (point, of_tower) in tower_runs.items()
    ]  # fmt: skip
