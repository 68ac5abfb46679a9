"""Score exact answers: a number, a range of numbers or a letter; or a list of words with their times (BLAB)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from audiomarathon.benchmarks.rows import words_of
from audiomarathon.files import json_object
from audiomarathon.metrics.statistics import Floats, Sums, ratio
from audiomarathon.records import LETTERS, Figure, Record, Verdict
from audiomarathon.scoring.choice import READING
from audiomarathon.scoring.choice_reading import read_reply
from audiomarathon.scoring.scorer import Scorer, clusters_of, means
from audiomarathon.scoring.visible import visible

TOLERANCE_S = 0.2  # between the ends of two spans that are the same, as in BLAB's own script
_UNIT = r"(?:s|secs?|seconds?|mins?|minutes?|h|hours?)"
#: Hours, minutes and seconds; or a complete number: 12.5s is 12.5, 1e-05 is one number, but 12.5.3 and 4th hold none.
_NUMBER = re.compile(
    r"(?<![\w.:])(?:(\d+):)?(\d+):(\d\d(?:\.\d+)?)(?![\w:])"
    rf"|(?<![\w.])(?<!\d:)[-−]?(?:\d+(?:\.\d+)?|\.\d+)(?:e[+-]?\d+)?(?={_UNIT}?(?![\w:]|\.\d))"
)
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_OBJECT = re.compile(r"\{[^{}]*\}")


class Exact(Scorer):
    """Scores answers by equality. A second score, `near`, also accepts numbers within the task's tolerance.

    A record's reference has `answer`, the JSON of a number, of [lowest, highest] or of an option's letter, and `within`
    if there is a tolerance. A reply's first number counts, and 2:05 is 125, except for an answer that is a letter.
    """

    key = "exact"
    figure = Figure("accuracy", "accuracy")
    needs = ("answer",)
    modules: ClassVar[tuple[str, ...]] = READING

    def judge(self, record: Record) -> dict[str, Any]:
        """Return the verdict's values: `parsed`, `correct` and `near`.

        `parsed` is the number or letter in the reply; None if there is none. `near` tells whether it is right up to the
        task's tolerance; it is None for a letter, and if there is no tolerance.
        """
        answer, within = json.loads(record.reference["answer"]), record.reference.get("within")
        if isinstance(answer, str):
            letter = read_reply(record.text, [""] * len(LETTERS)).letter
            return {"parsed": letter, "correct": letter == answer, "near": None}
        low, high = answer if isinstance(answer, list) else (answer, answer)
        said = number_in(visible(record.text))
        near = None if within is None else said is not None and low - within <= said <= high + within
        return {"parsed": said, "correct": said is not None and low <= said <= high, "near": near}

    def sums(self, verdicts: Sequence[Verdict]) -> Sums:
        """Return `accuracy` and `near` as sums over samples (:class:`Sums`), which can be resampled.

        They are the shares of replies that are right, and that are right up to the task's tolerance.
        """
        names = {"accuracy": "correct", "near": "near"}
        return means(
            {name: [verdict.values[of] for verdict in verdicts] for name, of in names.items()}, verdicts, shares=True
        )

    def right(self, verdict: Verdict) -> bool:
        """Tell whether the reply's number or letter equals the answer, or lies in the answer's range."""
        return bool(verdict.values["correct"])

    def own_score(self, verdict: Verdict) -> float:
        """Return 1 if the answer is right, else 0."""
        return float(verdict.values["correct"])

    def unparsed(self, verdict: Verdict) -> bool:
        """Tell whether the reply holds no number or letter."""
        return verdict.values["parsed"] is None


class Spans(Scorer):
    """Scores lists of spans {"word", "start", "end"}: F1 over all spans of all samples, with precision and recall.

    Two spans match if their words are equal (in any case, without punctuation), and their starts and ends differ by at
    most 0.2 s. A record's answer is the JSON of such a list; the field with the text may have another name than `word`.
    """

    key = "spans"
    figure = Figure("f1", "F1 of spans")
    needs = ("answer",)
    modules: ClassVar[tuple[str, ...]] = READING

    def judge(self, record: Record) -> dict[str, Any]:
        """Return the numbers of spans `said` in the reply, `there` in the answer, and `found` in both."""
        said, left = spans_in(visible(record.text)), spans_in(record.reference["answer"])
        hits, there = 0, len(left)
        for word, *ends in said:
            same = (span for span in left if span[0] == word and all(
                abs(a - b) <= TOLERANCE_S + 1e-9 for a, b in zip(span[1:], ends, strict=True)))  # fmt: skip
            if hit := next(same, None):
                left.remove(hit)
                hits += 1
        return {"found": hits, "said": len(said), "there": there}

    def sums(self, verdicts: Sequence[Verdict]) -> Sums:
        """Return `f1`, `precision` and `recall` of all samples' spans together, as sums over samples."""
        rows = [[float(verdict.values[name]) for name in ("found", "said", "there")] for verdict in verdicts]
        return Sums(("f1", "precision", "recall"), np.array(rows), _f1, clusters_of(verdicts))

    def own_score(self, verdict: Verdict) -> float:
        """Return the F1 of this sample's spans."""
        hits, said, there = (verdict.values[name] for name in ("found", "said", "there"))
        return 2 * hits / (said + there) if said + there else 1.0

    def unparsed(self, verdict: Verdict) -> bool:
        """Tell whether the reply holds no readable span."""
        return not verdict.values["said"]


def _f1(sums: Floats) -> Floats:
    hits, said, there = sums.T
    return np.stack([ratio(2 * hits, said + there), ratio(hits, said), ratio(hits, there)], axis=1)


def number_in(text: str) -> float | None:
    """Return the first number in a text, with 1:02:03 and 2:05 as seconds; None if there is none, or it is infinite."""
    if not (match := _NUMBER.search(_THOUSANDS.sub("", text))):
        return None
    hours, minutes, seconds = match.groups()
    number = match[0].replace("−", "-")
    value = float(number) if seconds is None else float(hours or 0) * 3600 + float(minutes) * 60 + float(seconds)
    return value if math.isfinite(value) else None


def spans_in(text: str) -> list[tuple[str, float, float]]:
    """Return (words, start, end) of each JSON object in a text that has words and two times; skip other objects."""
    spans = []
    for text_object in _OBJECT.findall(text):
        fields = json_object(text_object.encode()) or {}
        start, end = (number_in(str(fields.get(name))) for name in ("start", "end"))
        said = next(
            (value for name, value in fields.items() if isinstance(value, str) and name not in ("start", "end")), ""
        )
        if start is not None and end is not None and said:
            spans.append((" ".join(words_of(said)), start, end))
    return spans
