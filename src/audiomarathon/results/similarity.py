"""Measure how similar two runs' replies to the same samples are, such as a model's with audio and with noise.

LALM Bench (github.com/jemin7709/audio-llm-benchmark) prints only the cosine of the replies' embeddings. A high cosine
may only mean that replies are about the same question, so we add a floor: the cosine of replies to different questions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from audiomarathon.errors import DataError
from audiomarathon.judges.agreement import agreement
from audiomarathon.metrics.captions.fense import TextEncoder, unit_vectors
from audiomarathon.metrics.statistics import Floats, Resampler
from audiomarathon.runs.read import Run

if TYPE_CHECKING:
    import pandas as pd

OVERALL = "overall"
_SEED = 42  # seed of the intervals
_DIGITS = 4  # as in the published files


def similarity(first: Run, second: Run, encoder: TextEncoder) -> tuple[pd.DataFrame, list[dict[str, Any]]]:
    """Return how similar two runs' replies are: the cosine of their embeddings for each sample, and means over samples.

    Returns
    -------
    frame
        `id`, `category` ("all" for samples without a category) and `similarity` (to four digits) of each sample, in the
        first run's order. A failed sample counts as the text "", as in LALM Bench.
    rows
        One for each category, then one overall: `category`, `n`, `similarity` (the mean) with its interval over
        clusters, `std` (over samples), `floor`, `same` (share of equal replies), `n_chosen` (number of closed questions
        for which both replies name an option), `agree` (share of these with the same option) and `kappa` (Cohen's).
        `floor` is the mean cosine over all pairs of replies to two different samples of a category; None for a category
        with one sample. The overall `floor` is the mean over the samples of categories with two or more samples, while
        the overall `similarity` includes every sample.

    Raises
    ------
    DataError
        The runs are of different tasks, or have no sample in common.
    """
    import pandas as pd

    left, right = ({**run.records, **run.failed} for run in (first, second))
    ids = [id_ for id_ in left if id_ in right]
    if first.key != second.key or not ids:
        why = f"are of {first.key} and {second.key}" if ids else "share no sample"
        raise DataError(f"only runs on the same samples can be compared; these runs {why}")
    texts = [[records[id_].text if records[id_].answered else "" for id_ in ids] for records in (left, right)]
    vectors, chosen = [unit_vectors(replies, encoder) for replies in texts], [_chosen(run) for run in (first, second)]
    alike = [left[id_].reference.get("options") == right[id_].reference.get("options") for id_ in ids]
    frame = pd.DataFrame({
        "id": ids,
        "category": [(left[id_].groups or {}).get("category", "all") for id_ in ids],
        "similarity": (vectors[0] * vectors[1]).sum(axis=1).round(_DIGITS),
    })  # fmt: skip
    more = frame.assign(cluster=[left[id_].cluster for id_ in ids], floor=None)
    more["same"] = [text == other for text, other in zip(*texts, strict=True)]
    for name, known in zip("ab", chosen, strict=True):
        letters = [known.get(id_) if same else None for id_, same in zip(ids, alike, strict=True)]
        more[name] = pd.Series(letters, dtype=object)  # as a text column, None would become NaN
    for places in more.groupby("category").indices.values():
        more.loc[places, "floor"] = _floor(*(units[places] for units in vectors))
    rows = []
    for name, group in [*more.groupby("category", sort=False), (OVERALL, more)]:
        mean = Resampler(_SEED).mean(list(group["similarity"]), list(group["cluster"]))
        choices = agreement({side: list(group[side]) for side in "ab"}, "nominal")["pairs"]["a / b"]
        floors, (low, high) = group["floor"].dropna(), mean.interval or (None, None)
        row = {"category": name, "n": len(group), "similarity": mean.value, "similarity_low": low}
        row |= {"similarity_high": high, "std": float(group["similarity"].std()) if len(group) > 1 else None}
        row |= {"floor": float(floors.mean()) if len(floors) else None, "same": float(group["same"].mean())}
        rows.append(row | {"n_chosen": choices["n"], "agree": choices["agree"], "kappa": choices["kappa"]})
    return frame, rows


def as_published(frame: pd.DataFrame, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the results of :func:`similarity` in the format of LALM Bench's `similarity_results.json`."""
    names = {"mean": "similarity", "std": "std"}
    figures = [
        {key: row[name] and round(row[name], _DIGITS) for key, name in names.items()} | {"count": row["n"]}
        for row in rows
    ]
    by_category = {row["category"]: figure for row, figure in zip(rows[:-1], figures, strict=False)}
    return {OVERALL: figures[-1], "by_category": by_category, "detailed": frame.to_dict("records")}


def _floor(first: Floats, second: Floats) -> float | None:
    """Return the mean cosine between a reply of the first run and a reply of the second run to a different sample.

    The arguments are the replies' embeddings, one row per sample. None if there is only one sample.
    """
    count = len(first)
    paired_sum = (first * second).sum()
    return float((first.sum(axis=0) @ second.sum(axis=0) - paired_sum) / (count * (count - 1))) if count > 1 else None


def _chosen(run: Run) -> dict[str, Any]:
    """Return the option that each reply of a run chose, as {sample's id: option}; {} if no question has options."""
    if not any(record.reference.get("options") for record in run.records.values()):
        return {}
    return {id_: verdict.values.get("parsed") for id_, verdict in run.verdicts.items()}
