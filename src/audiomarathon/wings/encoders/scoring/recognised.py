"""Score the transcripts that a probe predicts: word errors after Whisper's normaliser, or after lower-casing only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from audiomarathon.records import Record, Verdict
from audiomarathon.scoring.scorer import clusters_of
from audiomarathon.scoring.transcript import Transcript
from audiomarathon.wings.encoders.scoring.probe import release_notes

if TYPE_CHECKING:
    from audiomarathon.metrics.statistics import Sums


class Recognised(Transcript):
    """Score a probe's transcripts by 1 − WER (word error rate) over all clips, at least 0.

    For X-ARES' own probe, `published` counts word errors as X-ARES does: after lower-casing only.
    """

    key = "words"

    def judge(self, record: Record) -> dict[str, Any]:
        """Return the counts of a transcript's errors, as a dict.

        Keys: those of any transcription task (such as word errors after Whisper's normaliser), `released` (word errors
        after lower-casing only) and `letters` ([letter errors, letters of the true transcript]).
        """
        from audiomarathon.metrics.wer import letter_errors, transcript_errors

        answer = str(record.reference["answer"])
        released, letters = transcript_errors(answer, record.text, str.lower), letter_errors(answer, record.text)
        return {**super().judge(record), "released": asdict(released), "letters": list(letters)}

    def summary(self, verdicts: Sequence[Verdict]) -> dict[str, Any]:
        """Return the details of any transcription task (counts and rates of word errors), and `cer`, as a dict.

        `cer` is the letter error rate: it distinguishes weak probes, which get some letters right but no whole word.
        """
        errors, letters = (sum(verdict.values["letters"][place] for verdict in verdicts) for place in (0, 1))
        return {**super().summary(verdicts), "cer": errors / letters if letters else None}

    def published(self, verdicts: Sequence[Verdict]) -> Sums | None:
        """Return the score of X-ARES' own probe, with word errors after lower-casing only; None for other probes."""
        from audiomarathon.metrics.wer import corpus_sums

        if not release_notes(verdicts):
            return None
        return corpus_sums([verdict.values["released"] for verdict in verdicts], clusters_of(verdicts))

    def notes(self, verdicts: Sequence[Verdict]) -> list[str]:
        """Return [a note to compare scores with published tables only] if X-ARES' own probe made them; else []."""
        return release_notes(verdicts)
