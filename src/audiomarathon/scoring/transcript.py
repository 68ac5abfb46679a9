"""Score transcripts by word error rate (WER)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from audiomarathon.records import Figure, Record, Verdict
from audiomarathon.scoring.scorer import Scorer, clusters_of

if TYPE_CHECKING:
    import pandas as pd

    from audiomarathon.metrics.statistics import Sums


class Transcript(Scorer):
    """Scores transcripts by 1 − word error rate (WER), at least 0.

    A verdict has the fields of :class:`~audiomarathon.metrics.wer.TranscriptErrors`.
    """

    key = "transcript"
    figure = Figure("score", "1 − WER")
    needs = ("answer",)
    modules = ("audiomarathon.metrics.wer",)
    packages = ("jiwer", "whisper-normalizer")

    def judge(self, record: Record) -> dict[str, Any]:
        """Count the word errors of one reply."""
        from audiomarathon.metrics.wer import transcript_errors

        return asdict(transcript_errors(str(record.reference["answer"]), record.text))

    def sound(self, verdict: Verdict) -> bool:
        """Tell whether all counts of a stored verdict are whole numbers, 0 or more."""
        names = ("errors", "words", "substitutions", "deletions", "insertions", "insertion_loop")
        return all(isinstance(count := verdict.values.get(name), int) and count >= 0 for name in names)

    def sums(self, verdicts: Sequence[Verdict]) -> Sums:
        """Return the word error rate over all words, the mean of the samples' rates, and 1 − WER (at least 0)."""
        from audiomarathon.metrics.wer import transcript_sums

        return transcript_sums([one.values for one in verdicts], clusters_of(verdicts))

    def summary(self, verdicts: Sequence[Verdict]) -> dict[str, Any]:
        """Return the rates of each kind of error, and counts of unusual samples; see `transcript_details`."""
        from audiomarathon.metrics.wer import transcript_details

        return transcript_details([one.values for one in verdicts])

    def published(self, verdicts: Sequence[Verdict]) -> Sums:
        """Return the score by the benchmark's released code: 1 − the mean of the samples' word error rates."""
        from audiomarathon.metrics.wer import mean_of_samples_sums

        return mean_of_samples_sums([one.values for one in verdicts], clusters_of(verdicts))

    def frames(self, verdicts: Mapping[str, Sequence[Verdict]]) -> Mapping[str, pd.DataFrame]:
        """Return a table with one row per setting: substitutions, deletions and insertions per hundred reference words.

        It also has the number of replies that repeat themselves.
        """
        import pandas as pd

        kinds, rows = ("substitutions", "deletions", "insertions"), []
        for name, own in verdicts.items():
            words = sum(one.values["words"] for one in own)
            counts = {kind: sum(one.values[kind] for one in own) for kind in kinds}
            rates = {kind: 100 * count / words if words else None for kind, count in counts.items()}
            loops = sum(one.values["insertion_loop"] > 0 for one in own)
            rows.append({"setting": name, **rates, "replies that repeat themselves": loops})
        return {"Errors in a hundred words": pd.DataFrame(rows, dtype=object)}

    def own_score(self, verdict: Verdict) -> float:
        """Return 1 − WER of the sample, at least 0."""
        words, errors = verdict.values["words"], verdict.values["errors"]
        return max(0.0, 1 - errors / words) if words else float(errors == 0)

    def shown(self, verdict: Verdict) -> str:
        """Return the sample's WER as text."""
        return f"WER {verdict.values['errors'] / max(1, verdict.values['words']):.2f}"
