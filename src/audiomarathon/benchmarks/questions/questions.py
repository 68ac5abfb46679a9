"""Score closed questions whose options are not classes: accuracy, and the published rule of MMAU and MMAR.

MMAU (arXiv 2410.19168) and MMAR (arXiv 2505.13032) are scored by one rule on words, here `mmau-tokens`. This rule
counts a reply as wrong if its explanation uses a word of another option, or if it is a letter only.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, ClassVar

from audiomarathon.benchmarks.questions.choices import read_option
from audiomarathon.metrics.statistics import Sums
from audiomarathon.records import LETTERS, Figure, Record, Verdict
from audiomarathon.scoring.choice import Choice
from audiomarathon.scoring.scorer import means
from audiomarathon.text import counted

TOKENS = "mmau-tokens"
_WORD = re.compile(r"\b\w+\b")
_BLIND = ("guessing", "always_first", "always_last", "longest_option")


def right_by_words(reply: str, answer: str, options: Iterable[str]) -> bool:
    """Tell whether a reply is right by `mmau-tokens`, the published rule of MMAU and MMAR.

    The reply must contain every word of the answer, and no word of another option that is not in the answer too.
    """
    said, wanted = _words(reply), _words(answer)
    wrong = set().union(*(_words(option) - wanted for option in options))
    return bool(said) and wanted <= said and not said & wrong


class Questions(Choice):
    """Scores closed questions by accuracy, and compares it with rules that ignore the audio.

    One such rule is to choose always the first option. A verdict has the fields of :class:`Choice`; replies are read by
    MMAU-Pro's rules. `as_published` tells whether the reply is right by the rule `mmau-tokens`
    (:func:`right_by_words`); it is None if the record's reference names no published rule. Options with the same text
    count as one option, with the same label in `labels`.
    """

    key = "questions"
    figure = Figure("accuracy", "accuracy")
    modules: ClassVar[tuple[str, ...]] = (*Choice.modules, "audiomarathon.benchmarks.questions.choices")

    def judge(self, record: Record) -> dict[str, Any]:
        """Return the verdict's fields: `parsed` (letter of the chosen option), `rule`, `correct`, `strict`,
        `as_published`.

        `rule` is the rule that found the option; `strict` tells whether the reply is right, and only a letter or text.
        `as_published` tells whether the reply is right by the rule of the benchmark's authors; None without such a
        rule.
        """
        reference = record.reference
        letter, rule = _read(record.text, reference["options"])
        correct = letter is not None and _label(reference, letter) == _label(reference, reference["answer"])
        answer = reference["options"][LETTERS.index(reference["answer"])]
        by_words = reference.get("published") == TOKENS
        published = right_by_words(record.raw, answer, reference["options"]) if by_words else None
        strict = correct and rule == "verbatim"
        return {"parsed": letter, "rule": rule, "correct": correct, "strict": strict, "as_published": published}

    def sound(self, verdict: Verdict) -> bool:
        """Tell whether a stored verdict is valid.

        `parsed` must be an option's letter or None; `correct` and `strict` booleans; `as_published` a boolean or None.
        """
        return super().sound(verdict) and verdict.values.get("as_published", "") in (None, True, False)

    def sums(self, verdicts: Sequence[Verdict]) -> Sums:
        """Return accuracies, and scores of rules that ignore the audio, as sums over samples (:class:`Sums`).

        The accuracies are `accuracy`, `strict_accuracy` and `as_published`. The rules are `guessing`, `always_first`,
        `always_last` and `longest_option`.
        """
        columns: dict[str, list[float | None]] = {
            "accuracy": [verdict.values["correct"] for verdict in verdicts],
            "strict_accuracy": [verdict.values["strict"] for verdict in verdicts],
            "as_published": [verdict.values["as_published"] for verdict in verdicts],
            "guessing": [_share(verdict, range(len(verdict.record.reference["options"]))) for verdict in verdicts],
            "always_first": [_share(verdict, [0]) for verdict in verdicts],
            "always_last": [_share(verdict, [-1]) for verdict in verdicts],
            "longest_option": [_share(verdict, _longest(verdict)) for verdict in verdicts],
        }
        return means(columns, verdicts, shares=True)

    def published(self, verdicts: Sequence[Verdict]) -> Sums:
        """Return the accuracy by the rule of the benchmark's authors, as sums over samples (:class:`Sums`).

        Its value is None if they published no rule.
        """
        return means({"as_published": [verdict.values["as_published"] for verdict in verdicts]}, verdicts)

    def summary(self, verdicts: Sequence[Verdict]) -> dict[str, Any]:
        """Return {"rules": {name of a rule: number of replies whose option this rule found}}."""
        return {"rules": dict(sorted(Counter(verdict.values["rule"] for verdict in verdicts).items()))}

    def frames(self, verdicts: Mapping[str, Sequence[Verdict]]) -> Mapping[str, Any]:  # noqa: ARG002
        """Return no tables. :class:`Choice` has a table of recall per class, but these options are not classes."""
        return {}

    def chance(self, verdicts: Sequence[Verdict]) -> float:
        """Return the expected accuracy of a random choice among the options."""
        return fmean(_share(verdict, range(len(verdict.record.reference["options"]))) for verdict in verdicts)

    def notes(self, verdicts: Sequence[Verdict]) -> list[str]:
        """Return notes for readers of the scores, one line each.

        The notes state the scores of rules that ignore the audio. If the authors published a rule, the notes also state
        the score by that rule, and how many right replies it counts as wrong because they are a letter only.
        """
        figures = self.sums(verdicts).figures
        blind = ", ".join(f"{name.replace('_', ' ')} {figures[name]:.3f}" for name in _BLIND)
        notes = [f"scores of rules that ignore the audio: {blind}"]
        if (published := figures["as_published"]) is not None:
            bare = sum(
                verdict.values["correct"] and len(verdict.record.text.strip(" ().")) == 1 for verdict in verdicts
            )
            letters = f"; that rule counts {counted(bare, 'right letter')} without a word as wrong" if bare else ""
            notes.append(f"as published ({TOKENS}) {published:.3f}{letters}")
        return notes


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.lower()))


def _read(reply: str, options: Sequence[str]) -> tuple[str | None, str]:
    """Return the letter of the option that a reply chooses (or None), and the name of the rule that found it.

    If two options share a text, the text may mean either, but a letter means its own option. Options that look like
    letters (musical notes) are distinguished by the whole reply.
    """
    letters, said = LETTERS[: len(options)], reply.strip()
    for letter, text in zip(letters, options, strict=True):
        if said in (f"{letter}. {text}", f"({letter}) {text}") or (said == text and said not in letters):
            return letter, "verbatim"
    first = [text if text not in options[:place] else "" for place, text in enumerate(options)]
    last = [text if text not in options[place + 1 :] else "" for place, text in enumerate(options)]
    read = read_option(reply, first)
    return read if read[0] or first == last else read_option(reply, last)


def _label(reference: Mapping[str, Any], letter: str) -> str:
    return str(reference["labels"][LETTERS.index(letter)])


def _share(verdict: Verdict, places: Sequence[int]) -> float:
    """Return the share of right options among one question's options at the given positions (0 is the first).

    An option with the text of the right one is right too.
    """
    reference = verdict.record.reference
    right = _label(reference, reference["answer"])
    return fmean(reference["labels"][place] == right for place in places)


def _longest(verdict: Verdict) -> list[int]:
    sizes = [len(option) for option in verdict.record.reference["options"]]
    return [place for place, size in enumerate(sizes) if size == max(sizes)]
