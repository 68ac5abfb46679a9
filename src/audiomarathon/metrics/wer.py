"""Word error rate, or character error rate, with counts of each kind of error. The library jiwer aligns and counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jiwer
import numpy as np

from audiomarathon.metrics.normalise import normalise
from audiomarathon.metrics.statistics import Floats, Sums, ratio

Counts = Mapping[str, Any]
_COUNTS = ("errors", "words", "substitutions", "deletions", "insertions")

LOOP_LONGEST_PHRASE = 20
LOOP_REPEATS = 4
LOOP_WORDS = 8


@dataclass(frozen=True)
class TranscriptErrors:
    """The errors of one transcript, counted in words after normalisation, or in characters for some languages.

    Attributes
    ----------
    errors
        `substitutions + deletions + insertions` of the shortest edit from reference to hypothesis.
    words
        Number of words (or characters) of the reference; 0 if normalisation leaves none (only fillers and bracketed
        noise).
    insertion_loop
        Whether the hypothesis repeats itself as a stuck decoder does: a phrase of at most 20 words (or characters)
        occurs at least four times in a row. At least 8 of them must be repeats, and more than in any such loop of the
        reference.
    """

    errors: int
    words: int
    substitutions: int
    deletions: int
    insertions: int
    insertion_loop: bool


def transcript_errors(reference: str, hypothesis: str, read: Callable[[str], str] | None = None) -> TranscriptErrors:
    """Return the numbers of errors of a transcript (`hypothesis`), after normalising and aligning both texts.

    With an empty reference, every word of the hypothesis is an insertion; see `empty_references` in
    :func:`transcript_details`.

    Parameters
    ----------
    read
        Function that returns a text's normalised words, separated by spaces: :func:`normalise` (the default),
        :func:`released`, or a partial :func:`units_of` of another language.
    """
    expected, given = map(str.split, map(read or normalise, (reference, hypothesis)))
    aligned = jiwer.process_words(" ".join(expected), " ".join(given))
    edits = int(aligned.substitutions), int(aligned.deletions), int(aligned.insertions)
    loop = _longest_loop(given)
    return TranscriptErrors(sum(edits), len(expected), *edits, loop >= LOOP_WORDS and loop > _longest_loop(expected))


def letter_errors(reference: str, hypothesis: str) -> tuple[int, int]:
    """Compare two texts in lower case; return (number of wrong letters, number of letters of the reference).

    Whisper's normaliser is not used: it writes numbers as digits, so one wrong letter would change a whole word.
    """
    expected, given = reference.lower(), hypothesis.lower()
    if not (expected and given):
        return len(expected or given), len(expected)
    aligned = jiwer.process_characters(expected, given)
    return int(aligned.substitutions + aligned.deletions + aligned.insertions), len(expected)


def transcript_details(errors: Sequence[Counts], unit: str = "words") -> dict[str, Any]:
    """Return the details of a transcription run for its summary.

    Returns
    -------
    dict
        `words` (or another `unit`): number of words of all references. `substitutions`, `deletions`, `insertions`:
        number per reference word, or None without words. `insertion_loops`: number of samples with a loop.
        `empty_references`: number of samples without a reference word. Their insertions count in `wer`; in `mean_wer`
        such a sample counts as 0, or as 1 with any insertion.
    """
    counts = _counts(errors)
    words = int(counts[:, 1].sum())
    rates = (counts[:, 2:].sum(axis=0) / words).tolist() if words else [None] * 3
    return {
        unit: words,
        **dict(zip(_COUNTS[2:], rates, strict=True)),
        "insertion_loops": sum(int(sample["insertion_loop"]) for sample in errors),
        "empty_references": int((counts[:, 1] == 0).sum()),
    }


def transcript_sums(errors: Sequence[Counts], clusters: Sequence[str] = (), rate: str = "wer") -> Sums:
    """Return `wer` over all words, `mean_wer` over samples, and `score` (1 − `wer`, at least 0) as sums over samples.

    Without reference words, no figure has a value.

    Parameters
    ----------
    errors
        The fields of :class:`TranscriptErrors` of each sample.
    clusters
        Name of each sample's cluster; intervals resample whole clusters.
    rate
        The error rate's name: `wer` or `cer`.
    """
    counts = _counts(errors)
    words = counts[:, 1]
    rates = np.divide(counts[:, 0], words, out=np.minimum(counts[:, 0], 1.0), where=words > 0)
    columns = np.column_stack([counts, rates, np.ones(len(counts))])
    mean = f"mean_{rate}"
    ends = {rate: (0.0,), mean: (0.0,), "score": (0.0, 1.0)}  # an error rate has no upper limit
    rate_names = {rate: rate, mean: mean, "score": rate}
    return Sums((rate, mean, "score"), columns, _rates, tuple(clusters), ends, rates=rate_names)


def mean_of_samples_sums(errors: Sequence[Counts], clusters: Sequence[str] = (), rate: str = "wer") -> Sums:
    """Return `score` as AudioMarathon's released code computes it, and the mean error rate, as sums over samples.

    The score is 1 − the mean of the samples' error rates. Both can be resampled.
    """
    sums, mean = transcript_sums(errors, clusters, rate), f"mean_{rate}"

    def figures(totals: Floats) -> Floats:
        means = sums.statistic(totals)[:, 1:2]
        return np.concatenate([1 - means, means], axis=1)

    ends, rate_names = {"score": (1.0,), mean: (0.0,)}, {"score": mean, mean: mean}
    return Sums(("score", mean), sums.columns, figures, sums.clusters, ends, rates=rate_names)


def corpus_sums(errors: Sequence[Counts], clusters: Sequence[str] = ()) -> Sums:
    """Return `score` (1 − WER over all words, at least 0) and `wer`, as sums over samples, which can be resampled."""
    sums = transcript_sums(errors, clusters)
    ends = {name: sums.ends[name] for name in ("score", "wer")}
    rate_names = {"score": "wer", "wer": "wer"}
    return Sums(
        ("score", "wer"),
        sums.columns,
        lambda all_: sums.statistic(all_)[:, [2, 0]],
        sums.clusters,
        ends,
        rates=rate_names,
    )


def _counts(errors: Sequence[Counts]) -> Floats:
    return np.array([[int(sample[name]) for name in _COUNTS] for sample in errors], np.float64).reshape(-1, 5)


def _rates(sums: Floats) -> Floats:
    worded = sums[:, 1] > 0
    wer = ratio(sums[:, 0], sums[:, 1])
    mean = np.where(worded, sums[:, 5] / sums[:, 6], np.nan)
    return np.stack([wer, mean, np.maximum(0, 1 - wer)], axis=1)


def _longest_loop(words: Sequence[str]) -> int:
    """Return the number of repeated words in the longest loop (a phrase repeated in a row); 0 if there is no loop."""
    numbers: dict[str, int] = {}
    codes = np.array([numbers.setdefault(word, len(numbers)) for word in words], dtype=np.int64)
    longest = 0
    for phrase in range(1, min(LOOP_LONGEST_PHRASE, len(codes) // LOOP_REPEATS) + 1):
        differs = np.flatnonzero(codes[phrase:] != codes[:-phrase])
        run = int(np.diff(differs, prepend=-1, append=len(codes) - phrase).max()) - 1
        if run >= phrase * (LOOP_REPEATS - 1):
            longest = max(longest, run)
    return longest
