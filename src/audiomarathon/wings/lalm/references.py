"""Compare the captions of a clip with each other, find outliers among them, and score replies without the outliers.

The comparison is an experiment of LALM Bench (github.com/jemin7709/audio-llm-benchmark). A `Clip` is a pair: the clip's
name, and its captions, numbered from 1; "" is a missing caption.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from audiomarathon.benchmarks.rows import read_csv, shown
from audiomarathon.benchmarks.task import name_id
from audiomarathon.errors import DataError
from audiomarathon.metrics.captions.cider_d import Frequencies, cider_d
from audiomarathon.metrics.captions.fense import TextEncoder, sbert_sim, unit_vectors
from audiomarathon.metrics.captions.lengths import Metric, human_ceiling
from audiomarathon.metrics.captions.ptb import tokens
from audiomarathon.metrics.statistics import Estimate, Floats, Resampler, means_of_items
from audiomarathon.settings import SEED

OUTLIER = 2.0  # |z| from which a caption is an outlier
NEAR = 0.95  # cosine from which two captions are near duplicates
REPLY = "caption_predicted"  # column of replies, as in aac-metrics' examples
_DIGITS = 4

Clip = tuple[str, Sequence[str]]
Rows = Sequence[Mapping[str, Any]]


def read_captions_table(file: Path) -> tuple[list[Clip], dict[str, str]]:
    """Read a CSV file of captions; return ((name, captions) of each clip, {name: reply}).

    Replies are read from the column `caption_predicted`, if there is one.

    The columns are `caption_1`, `caption_2`, … up to `caption_999` in any order, and `file_name`. Without `file_name`,
    a clip's name is the number of its row.

    Raises
    ------
    DataError
        The file cannot be read, lacks a column, names a clip twice, or has no rows.
    """
    rows = [row for _line, row in read_csv(file, ("caption_1", "caption_2"))]
    clips: dict[str, list[str]] = {}
    replies = {}
    for number, row in enumerate(rows, 1):
        name = name_id(row.get("file_name") or str(number))
        if name in clips:
            raise DataError(f"{file}: two rows of clip {shown(name)}; keep one")
        numbered = {int(key[8:]): text for key, text in row.items() if re.fullmatch(r"caption_[1-9]\d{0,2}", key)}
        clips[name] = [numbered.get(place, "").strip() and numbered[place] for place in range(1, max(numbered) + 1)]
        if REPLY in row:
            replies[name] = row[REPLY]
    if not clips:
        raise DataError(f"{file}: holds no rows")
    return list(clips.items()), replies


def compare_captions(clips: Sequence[Clip], encoder: TextEncoder) -> tuple[Rows, Rows]:
    """Return the similarity of each pair of captions of a clip, and how much each caption resembles the clip's others.

    Returns
    -------
    pairs
        `file_name`, `i`, `j`, `similarity` (cosine) and `same` (`duplicate`, `near_duplicate` or "") of each pair of
        captions of a clip. Duplicates differ only in case, or have the same tokens.
    captions
        `file_name`, `caption_index`, `caption`, `mean_similarity` (to the clip's other captions) and `z` (z-score of
        `mean_similarity` among all captions; 0 if all are equal), for clips with several captions. Captions are
        numbered from 1.

    Raises
    ------
    DataError
        No clip has two captions.
    """
    there = [(name, {i: text for i, text in enumerate(clip_captions, 1) if text}) for name, clip_captions in clips]
    if all(len(clip_texts) < 2 for _name, clip_texts in there):
        raise DataError("no clip has two captions to compare")
    texts = list(dict.fromkeys(text for _name, clip_texts in there for text in clip_texts.values()))
    places, vectors = {text: place for place, text in enumerate(texts)}, unit_vectors(texts, encoder)
    pairs, captions = list[dict[str, Any]](), list[dict[str, Any]]()
    for name, numbered in ((name, clip_texts) for name, clip_texts in there if len(clip_texts) > 1):
        rows = vectors[[places[text] for text in numbered.values()]]
        cosines = rows @ rows.T
        for (row, i), (column, j) in combinations(enumerate(numbered), 2):
            equal = numbered[i].casefold() == numbered[j].casefold() or tokens(numbered[i]) == tokens(numbered[j])
            same = "duplicate" if equal else "near_duplicate" if cosines[row, column] >= NEAR else ""
            similarity = round(float(cosines[row, column]), _DIGITS)
            pairs.append({"file_name": name, "i": i, "j": j, "similarity": similarity, "same": same})
        means = (cosines.sum(axis=1) - cosines.diagonal()) / (len(numbered) - 1)
        for (i, text), mean in zip(numbered.items(), means.tolist(), strict=True):
            captions.append({"file_name": name, "caption_index": i, "caption": text, "mean_similarity": mean})
    every = np.array([caption["mean_similarity"] for caption in captions])
    spread = every.std() if np.ptp(every) > 1e-9 else np.inf
    zs = ((every - every.mean()) / spread).tolist()
    return pairs, [{**caption, "z": z} for caption, z in zip(captions, zs, strict=True)]


def scores_without(
    outliers: Rows, clips: Sequence[Clip], replies: Mapping[str, str], encoder: TextEncoder, named: str
) -> dict[str, dict[str, Estimate]]:
    """Score human captions and replies against all captions, and against the captions that are not outliers.

    A human caption is scored against the clip's other captions. Word weights come from all captions in both cases, so
    that only the references differ.

    Parameters
    ----------
    outliers
        Rows with the `file_name` and `caption_index` of each outlier.
    replies
        The reply for each clip, as {clip's name: reply}.
    named
        Name of the figure "mean cosine similarity" in the result.

    Returns
    -------
    dict
        For each figure, such as `people: cider_d`, three means over clips: `all` (against all captions), `cleaned`
        (without outliers) and `difference` (over the clips that have both).
    """
    gone = {(outlier["file_name"], outlier["caption_index"]) for outlier in outliers}
    whole = [[text for text in texts if text] for _name, texts in clips]
    cleaned = [[text for i, text in enumerate(texts, 1) if text and (name, i) not in gone] for name, texts in clips]
    frequencies, names = Frequencies.of([texts for texts in whole if texts]), [name for name, _texts in clips]
    metrics: dict[str, Metric] = {
        "cider_d": lambda candidates, texts: cider_d(candidates, texts, frequencies),
        named: lambda candidates, texts: sbert_sim(candidates, texts, encoder),
    }

    def of_replies(references: Sequence[Sequence[str]], metric: Metric) -> Floats:
        there = [i for i, (name, texts) in enumerate(zip(names, references, strict=True)) if texts and name in replies]
        scores = np.full(len(names), np.nan)
        scores[there] = metric([replies[names[i]] for i in there], [references[i] for i in there])
        return scores

    scorers = {"people": human_ceiling, **({"replies": of_replies} if replies else {})}
    estimates = {}
    for who, scorer in scorers.items():
        for name, metric in metrics.items():
            every, rest = scorer(whole, metric), scorer(cleaned, metric)
            columns = {"all": every.tolist(), "cleaned": rest.tolist(), "difference": (rest - every).tolist()}
            estimates[f"{who}: {name}"] = Resampler(SEED).of_sums(means_of_items(columns, names))
    return estimates
