"""CIDEr-D of captions.

R. Vedantam et al., "CIDEr: Consensus-based Image Description Evaluation", CVPR 2015, as computed by COCO's code.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from audiomarathon.errors import DataError
from audiomarathon.metrics.captions.ptb import SHORT, tokens
from audiomarathon.metrics.statistics import Floats
from audiomarathon.text import remembered

ORDERS = 4
SIGMA = 6.0

Ngram = tuple[str, ...]
Vector = tuple[dict[Ngram, float], float]  # weights of the n-grams of one order, and the norm of these weights


@dataclass(frozen=True)
class Frequencies:
    """Document frequencies: for each n-gram, the number of clips whose reference captions contain it.

    Callers count the references of the whole split, even if only some of its clips are scored: in a count over few
    clips, common words look rare, and every score rises. The figure `cider_d` uses frequencies in the split,
    `cider_d_as_published` frequencies in the scored clips.

    Attributes
    ----------
    items
        Number of clips (items) that contain each n-gram, n = 1…4.
    total
        Number of clips of the corpus.
    hash
        SHA-256 of `items` and `total`, in hex.
    """

    items: Mapping[Ngram, int]
    total: int
    hash: str

    @classmethod
    def of(cls, references: Sequence[Sequence[str]]) -> Frequencies:
        """Count, for each n-gram, the clips whose reference captions contain it; `references` has each clip's captions.

        Raises
        ------
        DataError
            With fewer than two clips: every n-gram would have weight 0.
        """
        if len(references) < 2:
            raise DataError(f"CIDEr-D needs the references of at least 2 items to weigh words, got {len(references)}")
        items: Counter[Ngram] = Counter()
        for texts in references:
            items.update({ngram for text in texts for order in _ngrams(text) for ngram in order})
        lines = sorted(f"{' '.join(ngram)}\t{count}\n" for ngram, count in items.items())
        digest = hashlib.sha256("".join([f"{len(references)}\n", *lines]).encode(errors="backslashreplace"))
        return cls(items, len(references), digest.hexdigest())

    def vectors(self, text: str) -> list[Vector]:
        """Return a text's tf-idf vectors for n-grams with n from 1 to 4, as four pairs ({n-gram: weight}, norm).

        The weight of an n-gram is its count in the text times ln(total / clips that contain it).
        """
        return _kept(self, text) if len(text) <= SHORT else _vectors(self, text)

    def __hash__(self) -> int:
        """Return the hash of the frequencies, which is computed only once."""
        return hash(self.hash)


def _vectors(frequencies: Frequencies, text: str) -> list[Vector]:
    rarest, items = math.log(frequencies.total), frequencies.items
    vectors = []
    for order in _ngrams(text):
        weights = {ngram: n * (rarest - math.log(max(1, items.get(ngram, 0)))) for ngram, n in order.items()}
        vectors.append((weights, math.sqrt(sum(weight * weight for weight in weights.values()))))
    return vectors


_kept = lru_cache(maxsize=1 << 10)(_vectors)


def cider_d(candidates: Sequence[str], references: Sequence[Sequence[str]], frequencies: Frequencies) -> Floats:
    """Return each clip's CIDEr-D score, between 0 and 10; the corpus score is the mean of these scores.

    Parameters
    ----------
    candidates
        One caption per clip, to score; an empty caption scores 0.
    references
        The reference captions of each clip, at least one.
    """
    scores = []
    for candidate, texts in zip(candidates, references, strict=True):
        vectors, length = frequencies.vectors(candidate), _length(candidate)
        total = 0.0
        for text in texts:
            penalty = math.exp(-((length - _length(text)) ** 2) / (2 * SIGMA**2))
            total += penalty * sum(map(_similarity, vectors, frequencies.vectors(text)))
        scores.append(10 * total / ORDERS / len(texts))
    return np.array(scores)


def _similarity(candidate: Vector, reference: Vector) -> float:
    (left, left_norm), (right, right_norm) = candidate, reference
    if not left_norm or not right_norm:
        return 0.0
    shared = (min(weight, right[ngram]) * right[ngram] for ngram, weight in left.items() if ngram in right)
    return sum(shared) / (left_norm * right_norm)


def _length(text: str) -> int:
    """Return a caption's length as COCO's code measures it: the number of bigrams."""
    return sum(_ngrams(text)[1].values())


@remembered(SHORT)
def _ngrams(text: str) -> list[Counter[Ngram]]:
    words = " ".join(tokens(text)).split()  # COCO's code splits a telephone number at its no-break spaces
    return [Counter(zip(*(words[start:] for start in range(order)), strict=False)) for order in range(1, ORDERS + 1)]
