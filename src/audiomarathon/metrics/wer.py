"""Word error rate under Whisper's English normaliser, with counts of each kind of error.

The normaliser (A. Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision", appendix C) makes
"He's one hundred!" and "he is 100" the same; jiwer aligns and counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jiwer
import numpy as np
from whisper_normalizer.english import EnglishTextNormalizer

from audiomarathon.metrics.statistics import Floats, Sums, ratio

Counts = Mapping[str, Any]
_COUNTS = ("errors", "words", "substitutions", "deletions", "insertions")

LOOP_LONGEST_PHRASE = 20
LOOP_REPEATS = 4
LOOP_WORDS = 8

WHOLE_CHARACTERS = 20_000  # four minutes of speech are under 5,000
PIECE_CHARACTERS = 2_000


@dataclass(frozen=True)
class TranscriptErrors:
    """The errors of one transcript, in words after normalisation.

    Attributes
    ----------
    errors
        `substitutions + deletions + insertions` of the shortest edit from reference to hypothesis.
    words
        Number of words of the reference; 0 if normalisation leaves none (only fillers and bracketed noise).
    insertion_loop
        Whether the hypothesis repeats itself as a stuck decoder does: a phrase of at most 20 words occurs at least four
        times in a row. At least 8 words must be repeats, and more than in any such loop of the reference.
    """

    errors: int
    words: int
    substitutions: int
    deletions: int
    insertions: int
    insertion_loop: bool


def transcript_errors(reference: str, hypothesis: str, read: Callable[[str], str] | None = None) -> TranscriptErrors:
    """Normalise both texts, align them and count errors; `read` replaces the normaliser.

    With an empty reference, every word of the hypothesis is an insertion; see `empty_references` in
    :func:`transcript_details`.
    """
    expected, given = map(str.split, map(read or normalise, (reference, hypothesis)))
    aligned = jiwer.process_words(" ".join(expected), " ".join(given))
    edits = int(aligned.substitutions), int(aligned.deletions), int(aligned.insertions)
    loop = _longest_loop(given)
    return TranscriptErrors(sum(edits), len(expected), *edits, loop >= LOOP_WORDS and loop > _longest_loop(expected))


def letter_errors(reference: str, hypothesis: str) -> tuple[int, int]:
    """Compare two texts in lower case; return the number of wrong letters, and the reference's number of letters.

    Whisper's normaliser is not used: it writes numbers as digits, so one wrong letter would change a whole word.
    """
    expected, given = reference.lower(), hypothesis.lower()
    if not (expected and given):
        return len(expected or given), len(expected)
    aligned = jiwer.process_characters(expected, given)
    return int(aligned.substitutions + aligned.deletions + aligned.insertions), len(expected)


def normalise(text: str) -> str:
    """Apply Whisper's English normaliser.

    Its patterns take quadratic time on runs of spaces or open brackets, and it fails on numbers of thousands of digits.
    So collapse white space first, which does not change the result. Normalise a text of over 20,000 characters, or one
    that fails, in pieces of at most 2,000, cut between words if possible. Only such a cut can split a spelt-out number
    or a bracket. The longest reply then takes seconds, not hours.
    """
    text = " ".join(text.split())
    normaliser = _normaliser()
    if len(text) <= WHOLE_CHARACTERS:
        try:
            return str(normaliser(text)).strip()
        except (AssertionError, ValueError):  # int() refuses more than 4,300 digits
            pass
    return " ".join(" ".join(str(normaliser(piece)) for piece in _pieces(text)).split())


def transcript_details(errors: Sequence[Counts]) -> dict[str, Any]:
    """Return the details of a transcription run's summary.

    Returns
    -------
    dict
        `words`: number of words of all references. `substitutions`, `deletions`, `insertions`: number per reference
        word, or None without words. `insertion_loops`: number of samples with a loop. `empty_references`: number of
        samples without a reference word. Their insertions count in `wer`; in `mean_wer` such a sample counts as 0, or
        as 1 with any insertion. `mean_of_samples`: `mean_wer`, and `score`, which is 1 − `mean_wer`; None without
        words.
    """
    counts = _counts(errors)
    words = int(counts[:, 1].sum())
    rates = (counts[:, 2:].sum(axis=0) / words).tolist() if words else [None] * 3
    mean = transcript_sums(errors, ()).figures["mean_wer"] if words else None
    return {
        "words": words,
        **dict(zip(_COUNTS[2:], rates, strict=True)),
        "insertion_loops": sum(int(sample["insertion_loop"]) for sample in errors),
        "empty_references": int((counts[:, 1] == 0).sum()),
        "mean_of_samples": None if mean is None else {"mean_wer": mean, "score": 1 - mean},
    }


def transcript_sums(errors: Sequence[Counts], clusters: Sequence[str] = ()) -> Sums:
    """Return `wer` over all words, `mean_wer` over samples, and `score` (1 − `wer`, at least 0) as sums over samples.

    Without reference words, no figure has a value.

    Parameters
    ----------
    errors
        The fields of :class:`TranscriptErrors` of each sample.
    clusters
        Cluster of each sample; intervals resample whole clusters.
    """
    counts = _counts(errors)
    words = counts[:, 1]
    rates = np.divide(counts[:, 0], words, out=np.minimum(counts[:, 0], 1.0), where=words > 0)
    columns = np.column_stack([counts, rates, np.ones(len(counts))])
    ends = {"wer": (0.0,), "mean_wer": (0.0,), "score": (0.0, 1.0)}  # an error rate has no upper limit
    return Sums(("wer", "mean_wer", "score"), columns, _rates, tuple(clusters), ends)


def mean_of_samples_sums(errors: Sequence[Counts], clusters: Sequence[str] = ()) -> Sums:
    """Return the score by the benchmark's released code, 1 − mean of the samples' WERs, as sums over samples."""
    sums = transcript_sums(errors, clusters)
    return Sums(
        ("score",), sums.columns, lambda totals: 1 - sums.statistic(totals)[:, 1:2], sums.clusters, {"score": (1.0,)}
    )


def corpus_sums(errors: Sequence[Counts], clusters: Sequence[str] = ()) -> Sums:
    """Return only the figure `score` (1 − WER over all words, at least 0), as sums over samples."""
    sums = transcript_sums(errors, clusters)
    return Sums(("score",), sums.columns, lambda totals: sums.statistic(totals)[:, 2:], sums.clusters, sums.ends)


def _counts(errors: Sequence[Counts]) -> Floats:
    return np.array([[int(sample[name]) for name in _COUNTS] for sample in errors], np.float64).reshape(-1, 5)


def _rates(sums: Floats) -> Floats:
    worded = sums[:, 1] > 0
    wer = ratio(sums[:, 0], sums[:, 1])
    mean = np.where(worded, sums[:, 5] / sums[:, 6], np.nan)
    return np.stack([wer, mean, np.maximum(0, 1 - wer)], axis=1)


@cache
def _normaliser() -> EnglishTextNormalizer:
    return EnglishTextNormalizer()


def _pieces(text: str) -> Iterator[str]:
    piece = ""
    for long_word in text.split(" "):
        for start in range(0, len(long_word), PIECE_CHARACTERS):
            word = long_word[start : start + PIECE_CHARACTERS]
            if len(piece) + 1 + len(word) > PIECE_CHARACTERS:
                yield piece
                piece = word
            else:
                piece = f"{piece} {word}"
    yield piece


def _longest_loop(words: Sequence[str]) -> int:
    """Return the number of repeated words in the longest loop (see `insertion_loop`); 0 without a loop."""
    numbers: dict[str, int] = {}
    codes = np.array([numbers.setdefault(word, len(numbers)) for word in words], dtype=np.int64)
    longest = 0
    for phrase in range(1, min(LOOP_LONGEST_PHRASE, len(codes) // LOOP_REPEATS) + 1):
        differs = np.flatnonzero(codes[phrase:] != codes[:-phrase])
        run = int(np.diff(differs, prepend=-1, append=len(codes) - phrase).max()) - 1
        if run >= phrase * (LOOP_REPEATS - 1):
            longest = max(longest, run)
    return longest
