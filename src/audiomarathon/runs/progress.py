"""How a run stands while it is still going: what is done, what failed, and the score so far with its interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from audiomarathon.records import Record, Verdict
from audiomarathon.scoring.scorer import Scorer, figures_of
from audiomarathon.text import score_text


@dataclass(frozen=True)
class Progress:
    """Where one setting of one task stands.

    Attributes
    ----------
    answered, errors, expected
        Samples with a reply, samples on record as failed, and samples in all.
    unparsed, cut
        Of the answered, replies that could not be read, and those that the token limit cut.
    score, interval
        The headline score of the samples answered so far, with its 95 % interval, as `summary.json` would say them;
        None where there is none.
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
    """Return where a setting stands.

    Parameters
    ----------
    scorer
        None where the task is not installed: there is no score then.
    summary
        The run's, where it is that of these records: its figures are taken.
    """
    answered = [record for record in records if record.answered]
    cut = sum(record.finish == "length" for record in answered)
    counts = expected, len(answered), len(records) - len(answered)
    if summary is None:
        try:
            scored = [verdicts[one.id] for one in answered if one.id in verdicts]
            summary = figures_of(scorer, scored, seed=seed) if scorer else {}
        except Exception:  # a third party's scorer may raise anything, and to look at a run must never end it
            summary = {}
    interval = (summary.get("intervals") or {}).get("score")
    low_high = (interval[0], interval[1]) if interval else None
    return Progress(*counts, summary.get("unparsed", 0), cut, summary.get("score"), low_high)
