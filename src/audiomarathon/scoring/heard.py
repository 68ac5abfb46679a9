"""Score transcripts that have no reference, by the share of clips in which the recogniser found words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from audiomarathon.records import Figure, Record, Verdict
from audiomarathon.scoring.scorer import Scorer, means

if TYPE_CHECKING:
    from audiomarathon.metrics.statistics import Sums


class Heard(Scorer):
    """Scores a transcript by the number of recognised words; the headline score is the share of clips with at least
    one.

    The score says nothing about errors: a model that invents words has words for every clip.
    """

    key = "heard"
    figure = Figure("heard", "clips with words")

    def judge(self, record: Record) -> dict[str, Any]:
        """Return the verdict {"words": number of words in the reply, each with a letter or digit}."""
        return {"words": len(words_of(record.text))}

    def sums(self, verdicts: Sequence[Verdict]) -> Sums:
        """Return the share of clips whose transcript has words, as sums over clips that can be resampled."""
        return means({self.figure.name: [self.own_score(verdict) for verdict in verdicts]}, verdicts, shares=True)

    def summary(self, verdicts: Sequence[Verdict]) -> dict[str, Any]:
        """Return {"words_a_minute": number of recognised words ÷ minutes of audio}, over all clips together."""
        minutes = sum(verdict.record.clip_seconds for verdict in verdicts) / 60
        return {"words_a_minute": sum(verdict.values["words"] for verdict in verdicts) / minutes if minutes else None}

    def own_score(self, verdict: Verdict) -> float:
        """Return 1 if the model recognised a word in the clip, else 0."""
        return float(verdict.values["words"] > 0)

    def sound(self, verdict: Verdict) -> bool:
        """Tell whether a stored verdict is valid: it holds a count of recognised words, 0 or more."""
        return isinstance(words := verdict.values.get("words"), int) and words >= 0


def words_of(transcript: str) -> list[str]:
    """Return a transcript's words: the parts between spaces that have a letter or a digit, so neither "♪" nor "..."."""
    return [part for part in transcript.split() if any(map(str.isalnum, part))]
