"""Lengths of captions, cut-offs of FENSE's models, and human scores."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from audiomarathon.metrics.captions.ptb import tokens
from audiomarathon.metrics.statistics import Floats

CHECKER_WINDOW = 64  # word pieces
ENCODER_WINDOW = 128

Metric = Callable[[Sequence[str], Sequence[Sequence[str]]], Floats]
_STOP = re.compile(r"""(?<!\S)(\S*[.!?]["'\u2019\u201d)\]]*)(?=(\s+\S+))|\n""")


def first_sentence(text: str) -> str:
    """Return a text up to the end of its first sentence or line. The period of "e.g." or "Dr." ends no sentence."""
    text = text.strip()
    for found in _STOP.finditer(text):
        if not found[1]:
            return text[: found.start()].rstrip()
        if "\n" in found[2]:
            return text[: found.end(1)]
        if found[1].lower() not in tokens(found[1] + found[2]):
            return text[: found.end(1)]
    return text


def lengths(captions: Sequence[str], count_pieces: Callable[[list[str]], Sequence[int]] | None) -> dict[str, Any]:
    """Return the lengths of captions, and the share of captions longer than FENSE's models read.

    Parameters
    ----------
    count_pieces
        Counts the word pieces of texts, special tokens included, without cutting; None without such a model.

    Returns
    -------
    dict
        `words` (`mean`, `p5`, `p95`, of the tokens of :func:`tokens`), `beyond_64`, `beyond_128` (shares, or None).
        All values are None without captions.
    """
    words = [len(tokens(caption)) for caption in captions]
    figures = [np.mean(words), *np.percentile(words, [5, 95])] if words else [None] * 3
    pieces = np.asarray(count_pieces(list(captions))) if count_pieces and words else None
    windows = {f"beyond_{size}": size for size in (CHECKER_WINDOW, ENCODER_WINDOW)}
    return {
        "words": {
            name: None if one is None else float(one) for name, one in zip(("mean", "p5", "p95"), figures, strict=True)
        },
        **{name: None if pieces is None else float(np.mean(pieces > size)) for name, size in windows.items()},
    }


def human_ceiling(references: Sequence[Sequence[str]], metric: Metric) -> Floats:
    """Return human scores: score each reference against the other references of its item, and average.

    Parameters
    ----------
    references
        At least two captions per item.
    metric
        Maps captions and their references to scores. Called for the first reference of every item, then for the second,
        and so on.

    Returns
    -------
    array
        Shape (items,); NaN for an item with a single reference.
    """
    sums, counts = np.zeros(len(references)), np.array([len(texts) for texts in references], np.float64)
    for left in range(int(counts.max(initial=0))):
        items = [item for item, texts in enumerate(references) if len(texts) > max(1, left)]
        if items:
            others = [[*references[item][:left], *references[item][left + 1 :]] for item in items]
            sums[items] += metric([references[item][left] for item in items], others)
    return np.where(counts > 1, sums / np.maximum(counts, 1), np.nan)
