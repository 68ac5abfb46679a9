"""Measure the lengths of captions, cut captions to one sentence, and score people's captions."""

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
    """Cut a text after its first sentence or line. The period of "e.g." or "Dr." ends no sentence."""
    text = text.strip()
    for match in _STOP.finditer(text):
        if not match[1]:
            return text[: match.start()].rstrip()
        if "\n" in match[2]:
            return text[: match.end(1)]
        if match[1].lower() not in tokens(match[1] + match[2]):
            return text[: match.end(1)]
    return text


def lengths(captions: Sequence[str], count_pieces: Callable[[list[str]], Sequence[int]] | None) -> dict[str, Any]:
    """Return statistics of captions' lengths, and the share of captions too long for FENSE's models.

    Parameters
    ----------
    count_pieces
        Function that counts the word pieces of each text, uncut and with special tokens; None if FENSE's encoder is
        missing.

    Returns
    -------
    dict
        `words`: `mean`, `p5` and `p95` of the number of tokens (:func:`tokens`). `beyond_64` and `beyond_128`: share of
        captions with more word pieces than 64 or 128; None without `count_pieces`. Without captions, all values are
        None.
    """
    words = [len(tokens(caption)) for caption in captions]
    figures = [np.mean(words), *np.percentile(words, [5, 95])] if words else [None] * 3
    pieces = np.asarray(count_pieces(list(captions))) if count_pieces and words else None
    windows = {f"beyond_{size}": size for size in (CHECKER_WINDOW, ENCODER_WINDOW)}
    return {
        "words": {
            name: None if figure is None else float(figure)
            for name, figure in zip(("mean", "p5", "p95"), figures, strict=True)
        },
        **{name: None if pieces is None else float(np.mean(pieces > size)) for name, size in windows.items()},
    }


def human_ceiling(references: Sequence[Sequence[str]], metric: Metric) -> Floats:
    """Return how people's captions of each clip score: the mean score of each against the clip's other captions.

    Parameters
    ----------
    references
        People's captions of each clip.
    metric
        Function that maps captions and their references to scores. It is called with the first caption of every clip,
        then with the second, and so on.

    Returns
    -------
    array
        Shape (clips,); NaN for a clip with a single caption.
    """
    sums, counts = np.zeros(len(references)), np.array([len(texts) for texts in references], np.float64)
    for left in range(int(counts.max(initial=0))):
        items = [item for item, texts in enumerate(references) if len(texts) > max(1, left)]
        if items:
            others = [[*references[item][:left], *references[item][left + 1 :]] for item in items]
            sums[items] += metric([references[item][left] for item in items], others)
    return np.where(counts > 1, sums / np.maximum(counts, 1), np.nan)
