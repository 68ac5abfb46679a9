"""Progress of a run: answered and failed samples, and the score so far with its interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from audiomarathon.records import Record, Verdict
from audiomarathon.scoring.scorer import Scorer, figures_of
from audiomarathon.text import score_text


@dataclass(frozen=True)
class Progress:
    """Progress of one setting of one task.

    Attributes
    ----------
    answered, errors, expected
        Number of samples with a reply, of failed samples, and of all samples.
    unparsed, cut
        Number of replies that could not be parsed, and of replies cut by the token limit.
    score, interval
        Headline score of the samples answered so far, with its 95 % interval, as in `summary.json`; None if unknown.
    """

    expected: int
    answered: int = 0
    errors: int = 0
    unparsed: int = 0
    cut: int = 0
    score: float | None = None
    interval: tuple[float, float] | None = None

    @property
    def complete(self) -> bool:
        """Whether every sample is answered."""
        return self.answered == self.expected and not self.errors

    def score_text(self) -> str:
        """Return the score as text, such as `0.833 [0.500, 1.000]`."""
        return score_text(self.score, self.interval)


def progress_of(
    scorer: Scorer | None,
    records: Sequence[Record],
    verdicts: Mapping[str, Verdict],
    expected: int,
    *,
    seed: int,
    summary: Mapping[str, Any] | None = None,
) -> Progress:
    """Return a setting's progress.

    Parameters
    ----------
    scorer
        None if the task is not installed; then there is no score.
    summary
        The run's summary, if it covers these records: its figures are used.
    """
    answered = [record for record in records if record.answered]
    cut = sum(record.finish == "length" for record in answered)
    counts = expected, len(answered), len(records) - len(answered)
    if summary is None:
        try:
            scored = [verdicts[one.id] for one in answered if one.id in verdicts]
            summary = figures_of(scorer, scored, seed=seed) if scorer else {}
        except Exception:  # a third-party scorer may raise anything; showing progress must never end a run
            summary = {}
    interval = (summary.get("intervals") or {}).get("score")
    low_high = (interval[0], interval[1]) if interval else None
    return Progress(*counts, summary.get("unparsed", 0), cut, summary.get("score"), low_high)
