"""Score replies to questions with lettered options: accuracy, and macro-F1 over the classes of the options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from audiomarathon.records import LETTERS, Figure, Record, Verdict
from audiomarathon.scoring.choice_reading import read_reply
from audiomarathon.scoring.scorer import Scorer, clusters_of

if TYPE_CHECKING:
    import pandas as pd

    from audiomarathon.metrics.statistics import Sums

#: The modules that find the chosen option in a reply.
READING = tuple(f"audiomarathon.scoring.{name}" for name in ("choice_reading", "mentions", "visible"))
_MOST_CLASSES = 20  # limit of rows of the table of recalls


class Choice(Scorer):
    """Scores replies to questions with lettered options.

    A verdict has `parsed` (the chosen letter, or None), `rule` (the rule that found it), `correct` and `strict`.
    `strict` is true only if the reply is exactly the right letter or the complete right option. A record's reference
    holds `answer` (a letter), `options` and `labels` (the class that each option stands for).
    """

    key = "choice"
    figure = Figure("macro_f1", "macro-F1")
    needs = ("answer", "options", "labels")
    modules = (*READING, "audiomarathon.metrics.classification")

    def judge(self, record: Record) -> dict[str, Any]:
        """Return the verdict's fields: `parsed` (letter of the chosen option, or None), `rule`, `correct`, `strict`.

        The docstring of the class explains these fields.
        """
        read = read_reply(record.text, record.reference["options"])
        correct = read.letter == record.reference["answer"]
        return {"parsed": read.letter, "rule": read.rule, "correct": correct, "strict": correct and read.strict}

    def sound(self, verdict: Verdict) -> bool:
        """Tell whether a stored verdict is valid: its letter is an option's or None, and its flags are booleans."""
        letters = (None, *LETTERS[: len(verdict.record.reference["options"])])
        flags = [verdict.values.get(name) for name in ("correct", "strict")]
        return verdict.values.get("parsed", "") in letters and all(isinstance(flag, bool) for flag in flags)

    def sums(self, verdicts: Sequence[Verdict]) -> Sums:
        """Return accuracy, strict accuracy (only exact replies are right) and macro-F1, as sums over samples.

        Sums can be resampled.
        """
        from audiomarathon.metrics.classification import choice_sums

        strict = [bool(verdict.values["strict"]) for verdict in verdicts]
        return choice_sums(*_classes(verdicts), strict, clusters_of(verdicts))

    def summary(self, verdicts: Sequence[Verdict]) -> dict[str, Any]:
        """Return {"per_class": {class: metrics}, "as_published": metrics by the code that the authors released}."""
        from audiomarathon.metrics.classification import choice_details

        return choice_details(*_classes(verdicts))

    def published(self, verdicts: Sequence[Verdict]) -> Sums:
        """Return macro-F1 and weighted F1 as the benchmark's released code computes them, as sums over samples.

        That code drops replies that could not be parsed.
        """
        from audiomarathon.metrics.classification import published_choice_sums

        return published_choice_sums(*_classes(verdicts), clusters_of(verdicts))

    def right(self, verdict: Verdict) -> bool:
        """Tell whether the reply chose the right option."""
        return bool(verdict.values["correct"])

    def own_score(self, verdict: Verdict) -> float:
        """Return 1 for a right reply, 0 for a wrong one."""
        return float(verdict.values["correct"])

    def unparsed(self, verdict: Verdict) -> bool:
        """Tell whether the reply chose no option."""
        return verdict.values["parsed"] is None

    def shown(self, verdict: Verdict) -> str:
        """Return whether the reply is right, and the option that it chose, as text such as `right: B. Jazz`."""
        letter = verdict.values["parsed"]
        if letter is None:
            return "unparsed"
        said = "right" if verdict.values["correct"] else "wrong"
        return f"{said}: {letter}. {verdict.record.reference['options'][LETTERS.index(letter)]}"

    def notes(self, verdicts: Sequence[Verdict]) -> list[str]:
        """Return a note if all right answers belong to one class."""
        classes = sorted(set(_classes(verdicts)[0]))
        if len(classes) != 1:
            return []
        return [f"all right answers belong to one class ({classes[0]}), so macro-F1 is the F1 of that class"]

    def frames(self, verdicts: Mapping[str, Sequence[Verdict]]) -> Mapping[str, pd.DataFrame]:
        """Return {"Recall per class": table}, with a row per setting and a column per class; {} for one class, or more
        than 20.
        """
        import pandas as pd

        truths = {name: _classes(group)[0] for name, group in verdicts.items()}
        classes = sorted({truth for labels in truths.values() for truth in labels})
        if not 1 < len(classes) <= _MOST_CLASSES:
            return {}
        rows = []
        for name, verdicts_of in verdicts.items():
            row: dict[str, Any] = {"setting": name}
            for label in classes:
                rights = [
                    self.right(verdict)
                    for verdict, truth in zip(verdicts_of, truths[name], strict=True)
                    if truth == label
                ]
                row |= {label: sum(rights) / len(rights) if rights else None, f"{label}_said": f"n {len(rights)}"}
            rows.append(row)
        return {"Recall per class": pd.DataFrame(rows, dtype=object)}

    def chance(self, verdicts: Sequence[Verdict]) -> float:
        """Return the expected accuracy of a random choice among the options."""
        return sum(1 / len(verdict.record.reference["options"]) for verdict in verdicts) / len(verdicts)


def _classes(verdicts: Sequence[Verdict]) -> tuple[list[str], list[str | None]]:
    """Return (class of the right option, class of the chosen option), two lists over samples; None where no option was
    chosen.
    """
    truth: list[str] = []
    chosen: list[str | None] = []
    for verdict in verdicts:
        labels, letter = verdict.record.reference["labels"], verdict.values["parsed"]
        truth.append(labels[LETTERS.index(verdict.record.reference["answer"])])
        chosen.append(labels[LETTERS.index(letter)] if letter else None)
    return truth, chosen
