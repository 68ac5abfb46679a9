"""Compare methods on the samples that base answers right with the audio and wrong without it.

A method is rated by the share of these samples that it still answers right. Samples that are answered right without the
audio (on silence or noise) say nothing about a method, nor do samples that base answers wrong. The other samples
separate *methods from each other* better. They say nothing about the loss against base: base is right on all of these
samples because they were selected so, and any setting scores below it, even if it differs only by chance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from audiomarathon.errors import SettingsError
from audiomarathon.metrics.statistics import Resampler, Sums
from audiomarathon.results.compare import Compared
from audiomarathon.results.pairs import Pairs
from audiomarathon.results.systems import System
from audiomarathon.scoring.scorer import means

CONTROLS = ("silence", "noise")  # controls by preference: the first that was run is used


@dataclass(frozen=True)
class KeptRow:
    """The share of the selected samples of a task that a setting answers right, with its interval over clusters."""

    task: str
    side: str
    samples: int
    clusters: int
    share: float
    interval: tuple[float, float] | None


@dataclass(frozen=True)
class Kept:
    """The share of the selected samples that each setting answers right.

    Attributes
    ----------
    reference
        Name of the setting that had to answer the samples right.
    control
        Name of the run on silence or noise that had to answer them wrong.
    notes
        Lines of text for the reader.
    """

    reference: str
    control: str
    rows: Sequence[KeptRow]
    notes: Sequence[str]


def kept_of(systems: Sequence[System], compared: Compared) -> Kept:
    """Select the samples that the reference answers right with audio and wrong without; return each setting's share.

    A setting's share is the part of these samples that it answers right. Tasks whose replies can be partly right are
    left out.

    Raises
    ------
    SettingsError
        There is no run of the reference's setting on silence or noise, or no sample is left.
    """
    control, silent = _control(systems, compared)
    rows = [
        row
        for side, tasks in compared.shared.items()
        if side not in compared.controls
        for task, pairs in tasks.items()
        if task in silent and (row := _row(task, side, pairs, silent[task], compared.seed))
    ]
    if not rows:
        raise SettingsError(
            f"--kept: no sample is answered right by {compared.reference} and wrong by {control}; "
            "allowed: tasks whose replies are right or wrong, run under both"
        )
    note = (
        f"compare these shares between methods only: they say nothing about a loss against {compared.reference}, which "
        "is right on all of these samples because they were chosen so"
    )
    return Kept(compared.reference, control, sorted(rows, key=lambda row: row.task), [note])


def _control(systems: Sequence[System], compared: Compared) -> tuple[str, Mapping[str, Pairs]]:
    """Return (name, pairs) of the control run: the reference's setting (mostly base) on silence or noise.

    The pairs are its samples paired with the reference's, as {task: pairs}.
    """
    kinds = {f"{compared.reference} [{kind}": kind for kind in CONTROLS}
    names = [name for begin in kinds for name in compared.controls if name.startswith(begin)]
    if not names:
        raise SettingsError(
            f"--kept needs a run of {compared.reference} on silence or noise here (audiomarathon data controls); "
            f"found {len(systems)} settings without one"
        )
    return names[0], compared.shared.get(names[0], {})


def _row(task: str, side: str, pairs: Pairs, silent: Pairs, seed: int) -> KeptRow | None:
    right, heard_nothing = pairs.task.scorer.right, {verdict.record.id: verdict for _, verdict in silent.pairs}
    chosen = [
        verdict
        for base, verdict in pairs.pairs
        if right(base) and verdict.record.id in heard_nothing and right(heard_nothing[verdict.record.id]) is False
    ]
    if not chosen:
        return None
    sums: Sums = means({"kept": [float(bool(right(verdict))) for verdict in chosen]}, chosen, shares=True)
    share = Resampler(seed).of_sums(sums)["kept"]
    return KeptRow(task, side, len(chosen), share.clusters, share.value, share.interval)
