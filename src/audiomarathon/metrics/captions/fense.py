"""FENSE (Fluency ENhanced Sentence-bert Evaluation): similarity in meaning, with a penalty for broken English.

Z. Zhou et al., "Can Audio Captions Be Evaluated with Image Caption Metrics?", ICASSP 2022. This file has the formula
and the interfaces of the two models; the models are in `audiomarathon/scoring/caption_models.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from audiomarathon.metrics.statistics import Floats, ratio

ERROR = 0.9  # probability of an error above which a caption gets the penalty
PENALTY = 0.9


class TextEncoder(Protocol):
    """Turns texts into vectors; a smaller angle means a closer meaning."""

    def encode(self, texts: list[str]) -> npt.NDArray[np.float32]:
        """Return one vector per text, shape (texts, dimensions)."""
        ...


class FluencyChecker(Protocol):
    """Detects broken English."""

    def error(self, texts: list[str]) -> Floats:
        """Return the probability that each text has an error, between 0 and 1."""
        ...


@dataclass(frozen=True)
class Fense:
    """FENSE and its two parts, one value per caption, shape (captions,).

    The corpus figures are the means over captions.

    Attributes
    ----------
    sbert_sim
        Mean cosine between the caption and its references, −1…1.
    fer
        1 if the fluency checker is over 90 % sure of an error in the caption, else 0.
    fense
        `sbert_sim * (1 - 0.9 * fer)`.
    """

    sbert_sim: Floats
    fer: Floats
    fense: Floats


def fense(
    candidates: Sequence[str], references: Sequence[Sequence[str]], encoder: TextEncoder, checker: FluencyChecker
) -> Fense:
    """Return FENSE and its two parts for each candidate caption. Encoder and checker process equal texts only once."""
    similarity = sbert_sim(candidates, references, encoder)
    places = {text: place for place, text in enumerate(dict.fromkeys(candidates))}
    probability = np.asarray(checker.error(list(places)), np.float64)
    fer = (probability[np.array([places[text] for text in candidates], int)] > ERROR).astype(np.float64)
    return Fense(similarity, fer, similarity * (1 - PENALTY * fer))


def sbert_sim(candidates: Sequence[str], references: Sequence[Sequence[str]], encoder: TextEncoder) -> Floats:
    """Return the mean cosine between the vectors of each candidate and its references, shape (candidates,)."""
    every = [*candidates, *(text for texts in references for text in texts)]
    if not every:
        return np.zeros(0)
    places = {text: place for place, text in enumerate(dict.fromkeys(every))}
    vectors = unit_vectors(list(places), encoder)
    pairs = zip(candidates, references, strict=True)
    return np.array(
        [np.mean(vectors[[places[text] for text in texts]] @ vectors[places[candidate]]) for candidate, texts in pairs]
    )


def unit_vectors(texts: list[str], encoder: TextEncoder) -> Floats:
    """Encode texts as vectors, and divide each by its length; shape (texts, dimensions). A zero vector stays zero."""
    vectors = np.asarray(encoder.encode(texts), np.float64)
    return ratio(vectors, np.linalg.norm(vectors, axis=1, keepdims=True), 0.0)
