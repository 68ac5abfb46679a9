"""Score transcripts by word error rate (WER), or character error rate (CER)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from audiomarathon.records import Figure, Record, Verdict
from audiomarathon.scoring.scorer import Scorer, clusters_of

if TYPE_CHECKING:
    import pandas as pd

    from audiomarathon.metrics.statistics import Sums


class Transcript(Scorer):
    """Scores transcripts by 1 − word error rate (WER), at least 0.

    A verdict has the fields of :class:`~audiomarathon.metrics.wer.TranscriptErrors`. For English it also has
    `as_published`: the counts by the rule of AudioMarathon's released code, which takes the raw reply and Whisper's
    normaliser unchanged. A record's reference has `answer`, and may have `language` (default `en`), which decides the
    normaliser.
    """

    key = "transcript"
    figure = Figure("score", "1 − WER")
    needs = ("answer",)
    modules = ("audiomarathon.metrics.wer", "audiomarathon.metrics.normalise", "audiomarathon.text")
    packages = ("jiwer", "whisper-normalizer")
    rate: ClassVar[str] = "wer"
    unit: ClassVar[str] = "words"

    def judge(self, record: Record) -> dict[str, Any]:
        """Return the verdict of one transcript, as {name: count}: its words, and its errors of each kind.

        For English, `as_published` has the counts by the rule of AudioMarathon's released code.
        """
        from audiomarathon.metrics.normalise import released, units_of
        from audiomarathon.metrics.wer import transcript_errors

        answer, language = str(record.reference["answer"]), str(record.reference.get("language", "en"))
        counts = asdict(transcript_errors(answer, record.text, partial(units_of, language=language)))
        if language != "en":
            return counts
        return {**counts, "as_published": asdict(transcript_errors(answer, record.raw, released))}

    def sound(self, verdict: Verdict) -> bool:
        """Tell whether a stored verdict is valid: all its counts are whole numbers, 0 or more."""
        names = ("errors", "words", "substitutions", "deletions", "insertions", "insertion_loop")
        blocks = (verdict.values, _as_published(verdict))
        return all(isinstance(count := block.get(name), int) and count >= 0 for block in blocks for name in names)

    def sums(self, verdicts: Sequence[Verdict]) -> Sums:
        """Return three metrics as sums over samples, which can be resampled.

        The metrics are the error rate over all words, the mean of the samples' rates, and 1 − error rate (at least 0).
        """
        from audiomarathon.metrics.wer import transcript_sums

        return transcript_sums([verdict.values for verdict in verdicts], clusters_of(verdicts), self.rate)

    def summary(self, verdicts: Sequence[Verdict]) -> dict[str, Any]:
        """Return fields for `summary.json`: `words`, errors of each kind per reference word, and `mean_of_samples`.

        Further fields count samples whose reply repeats itself (`insertion_loops`) and samples without a reference word
        (`empty_references`). `mean_of_samples` is {"score", "mean_wer"} as :meth:`published` computes them.
        """
        from audiomarathon.metrics.wer import transcript_details

        figures = self._means(verdicts).figures
        details = transcript_details([verdict.values for verdict in verdicts], self.unit)
        return {**details, "mean_of_samples": figures if figures["score"] is not None else None}

    def published(self, verdicts: Sequence[Verdict]) -> Sums | None:
        """Return two metrics as sums over samples: `score` by the code that the authors released, and `mean_wer`.

        `mean_wer` is the mean of the samples' error rates (`mean_cer` for characters), and `score` is 1 − this mean.
        """
        return self._means(verdicts)

    def _means(self, verdicts: Sequence[Verdict]) -> Sums:
        from audiomarathon.metrics.wer import mean_of_samples_sums

        return mean_of_samples_sums([_as_published(verdict) for verdict in verdicts], clusters_of(verdicts), self.rate)

    def frames(self, verdicts: Mapping[str, Sequence[Verdict]]) -> Mapping[str, pd.DataFrame]:
        """Return {title: table} with one table: a row per setting, a column for each kind of error.

        Errors are substitutions, deletions and insertions per hundred reference words. A last column counts the replies
        that repeat themselves.
        """
        import pandas as pd

        kinds, rows = ("substitutions", "deletions", "insertions"), []
        for name, group in verdicts.items():
            words = sum(verdict.values["words"] for verdict in group)
            counts = {kind: sum(verdict.values[kind] for verdict in group) for kind in kinds}
            rates = {kind: 100 * count / words if words else None for kind, count in counts.items()}
            loops = sum(verdict.values["insertion_loop"] > 0 for verdict in group)
            rows.append({"setting": name, **rates, "replies that repeat themselves": loops})
        return {f"Errors in a hundred {self.unit}": pd.DataFrame(rows, dtype=object)}

    def own_score(self, verdict: Verdict) -> float:
        """Return 1 − WER of the sample, at least 0."""
        words, errors = verdict.values["words"], verdict.values["errors"]
        return max(0.0, 1 - errors / words) if words else float(errors == 0)

    @property
    def own_title(self) -> str:
        """Name of the mean of :meth:`own_score`; it is not 1 − WER, since each sample's errors are capped at 100 %."""
        return f"1 − errors per {self.unit[:-1]}, capped at 1 a sample"

    def uncapped(self, verdicts: Sequence[Verdict]) -> dict[str, float]:
        """Return {"insertions per word": value}, over all reference words (or characters); {} if there are none.

        A sample's score is at least 0, so it hides further insertions of a reply that repeats itself.
        """
        words = sum(verdict.values["words"] for verdict in verdicts)
        inserted = sum(verdict.values["insertions"] for verdict in verdicts)
        return {f"insertions per {self.unit[:-1]}": inserted / words} if words else {}

    def shown(self, verdict: Verdict) -> str:
        """Return the sample's error rate as text, for the report."""
        return f"{self.rate.upper()} {verdict.values['errors'] / max(1, verdict.values['words']):.2f}"


class Characters(Transcript):
    """Scores transcripts in a language written without spaces by 1 − character error rate (CER), at least 0.

    In verdicts, `words` is the number of characters of the reference.
    """

    key = "characters"
    figure = Figure("score", "1 − CER")
    rate, unit = "cer", "characters"


def _as_published(verdict: Verdict) -> Mapping[str, Any]:
    """Return a verdict's error counts by the authors' released code; the usual counts if that code has no rule for the
    language.
    """
    published = verdict.values.get("as_published", verdict.values)
    return published if isinstance(published, Mapping) else {}
