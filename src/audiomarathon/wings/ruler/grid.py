"""Plan a ruler: the sounds of each clip, the questions about it, and the lengths, places and loudnesses to combine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from audiomarathon.benchmarks.rows import shown
from audiomarathon.errors import SettingsError
from audiomarathon.records import LETTERS
from audiomarathon.settings import SEED
from audiomarathon.text import counted

#: The question of each task, as {name: question}; the task's key is `ruler/NAME`.
QUESTIONS: Mapping[str, str] = {
    "word": "Which of these words is said in the recording?",
    "count": "How many times does the bell ring in the recording?",
    "order": "Which of these words is said first in the recording?",
    "after": "Which word is said right after the bell in the recording?",
}
OPTIONS = 4
BELL = "bell"
RATE = 16_000  # sampling rate of clips, in Hz
MOST_MINUTES, MOST = 60.0, 1_000  # limits: length in minutes, number of needles, number of items
LOUDEST_DB = 40.0
_UNSAID = OPTIONS - 1  # number of wrong options of the question `word`: words that are not said in the clip


@dataclass(frozen=True)
class Asked:
    """One multiple-choice question about a clip.

    Attributes
    ----------
    question
        A key of :data:`QUESTIONS`.
    letter
        Letter of the right option.
    deciding
        Indices in :attr:`Item.sounds` of the sounds that decide the answer.
    """

    question: str
    options: tuple[str, ...]
    letter: str
    deciding: tuple[int, ...]


@dataclass(frozen=True)
class Item:
    """The words and bells of a clip and the questions about them, the same at every length, place and loudness.

    Attributes
    ----------
    needles
        The number of words; for a clip with bells only, the lowest number among the options.
    number
        Index of the item among those with the same number of needles, from 0; modulo the number of backgrounds, it
        gives the item's background.
    sounds
        Words, and `bell`, in the order in which they are heard.
    """

    needles: int
    number: int
    sounds: tuple[str, ...]
    asked: tuple[Asked, ...]


@dataclass(frozen=True)
class Grid:
    """The plan of a ruler: lengths, places, loudnesses and numbers of needles to combine, and the items of each cell.

    A cell is one combination. Needles are the words and bells planted into the background.

    Attributes
    ----------
    minutes
        Lengths of the clips, above 0 and up to 60.
    places
        Positions of the needles, from 0 (the clip begins with them) to 1 (it ends with them).
    needles
        Numbers of needles: the number of words that are said; the bell rings this often, or up to three times more.
    snr
        Loudness of each needle against its background, in dB: 20 · log10 of the ratio of their root mean squares.
    questions
        Keys of :data:`QUESTIONS`.
    items
        Items of each cell and question, a multiple of 4: each letter is right equally often.
    gap
        Seconds between two needles.
    """

    minutes: tuple[float, ...] = (1, 5, 15)
    places: tuple[float, ...] = (0, 0.25, 0.5, 0.75, 1)
    needles: tuple[int, ...] = (1, 3)
    snr: tuple[float, ...] = (10,)
    questions: tuple[str, ...] = tuple(QUESTIONS)
    items: int = 8
    gap: float = 1.0
    seed: int = SEED

    def __post_init__(self) -> None:
        """Check that every value is allowed.

        Raises
        ------
        SettingsError
            A value is not allowed; the message names its flag.
        """
        _check("--questions", self.questions, lambda choice: choice in QUESTIONS, ", ".join(QUESTIONS))
        _check("--minutes", self.minutes, lambda choice: 0 < choice <= MOST_MINUTES, "above 0 and up to 60")
        _check("--places", self.places, lambda choice: 0 <= choice <= 1, "0 (start of the clip) to 1 (end)")
        _check(
            "--needles", self.needles, lambda choice: isinstance(choice, int) and 0 < choice <= MOST, f"1, 2, … {MOST}"
        )
        _check("--snr", self.snr, lambda choice: abs(choice) <= LOUDEST_DB, f"-{LOUDEST_DB:g} to {LOUDEST_DB:g} dB")
        _check("--gap", [self.gap], lambda choice: 0 <= choice <= 60 * MOST_MINUTES, "0 to 3600 seconds")
        _check("--seed", [self.seed], lambda choice: choice >= 0, "whole numbers from 0")
        items = f"multiples of 4 up to {MOST}, so that each letter is right equally often"
        _check("--items", [self.items], lambda choice: 0 < choice <= MOST and choice % OPTIONS == 0, items)
        if self.questions == ("order",) and max(self.needles) < 2:
            raise SettingsError("--questions order: needs --needles 2 or more, since one word has no order")


def _check(flag: str, values: Sequence[Any], fine: Callable[[Any], bool], allowed: str) -> None:
    odd = [str(choice) for choice in values if not fine(choice)] or [""] * (not values)
    odd += [f"{choice}, named twice" for choice in values if values.count(choice) > 1]
    if odd:
        raise SettingsError(f"{flag} {shown(odd[0])}: not allowed; allowed: {allowed}")


def items(grid: Grid, vocabulary: Sequence[str]) -> list[Item]:
    """Return all items of a plan (sounds and questions of clips), with words from `vocabulary`.

    An item's sounds, question and options are the same at every length, place and loudness, so cells are compared on
    equal items. Items with words get the questions `word`, `order` (if there are two words or more) and `after`; items
    with bells get `count`.

    Raises
    ------
    SettingsError
        The vocabulary has too few words.
    """
    most, rows = len(vocabulary) - _UNSAID, list[Item]()
    if most < 1:
        few = f"{counted(len(vocabulary), 'word')} to say, which is too few"
        raise SettingsError(f"{few}; needed: {OPTIONS} or more, {_UNSAID} of them unsaid")
    if max(grid.needles) > most and grid.questions != ("count",):
        raise SettingsError(
            f"--needles {max(grid.needles)}: too many for {len(vocabulary)} words, since {_UNSAID} must stay unsaid; "
            f"allowed: up to {most}"
        )
    for needles in grid.needles:
        rng = np.random.default_rng([grid.seed, needles])
        *letters, more = (_balanced(rng, grid.items) for _ in range(len(QUESTIONS) + 1))
        answers = _answers(rng, vocabulary, grid.items, needles) if needles <= most else {}
        for number in range(grid.items):
            letter = dict(zip(QUESTIONS, (int(numbers[number]) for numbers in letters), strict=True))
            rings = needles + int(more[number])
            counts = [f"{rings}", *(f"{count}" for count in range(needles, needles + OPTIONS) if count != rings)]
            asked = [Asked("count", *_placed(rng, counts, letter["count"]), tuple(range(rings)))]
            made = [Item(needles, number, (BELL,) * rings, tuple(asked))]
            if right := {question: words[number] for question, words in answers.items()}:
                said = _words(rng, right, vocabulary, needles)
                about = [question for question in right if needles > 1 or question != "order"]
                asked = [
                    _about_words(rng, question, said, right[question], vocabulary, letter[question])
                    for question in about
                ]
                made.append(Item(needles, number, said, tuple(asked)))
            for item in made:
                kept = tuple(question for question in item.asked if question.question in grid.questions)
                rows += [replace(item, asked=kept)] if kept else []
    return rows


def _balanced(rng: np.random.Generator, count: int) -> np.ndarray:
    """Return `count` numbers from 0 to 3 in random order; each block of four holds every number once."""
    return np.concatenate([rng.permutation(OPTIONS) for _ in range(count // OPTIONS)])


def _answers(rng: np.random.Generator, vocabulary: Sequence[str], count: int, needles: int) -> dict[str, list[str]]:
    """Return the right words of `count` items as {question: words}, for the questions `order`, `after` and `word`.

    Each word of the vocabulary is right equally often (±1). In one item out of `needles`, the word said first is also
    the right answer to `after` and `word`.
    """
    first = [
        vocabulary[index] for _ in range(-(-count // len(vocabulary))) for index in rng.permutation(len(vocabulary))
    ]

    def moved() -> list[str]:
        rest = sorted(rng.permutation(count)[-(-count // needles) :])
        source = dict(zip(rest, rest[1:] + rest[:1], strict=True))
        return [first[source.get(number, number)] for number in range(count)]

    after = moved()
    return {"order": first[:count], "after": after, "word": moved() if needles > 2 else after}


def _words(
    rng: np.random.Generator, answers: Mapping[str, str], vocabulary: Sequence[str], needles: int
) -> tuple[str, ...]:
    """Return the sounds of an item: the word said first, other words in random order, and a bell before one of them.

    `answers` holds the item's right word of each question; the bell comes before the right answer to `after`.
    """
    first, *others = dict.fromkeys(answers.values())
    unsaid = [word for word in vocabulary if word not in (first, *others)]
    others += [unsaid[index] for index in rng.permutation(len(unsaid))[: needles - 1 - len(others)]]
    said = [first, *(others[index] for index in rng.permutation(len(others)))]
    said.insert(said.index(answers["after"]), BELL)
    return tuple(said)


def _about_words(
    rng: np.random.Generator, question: str, sounds: Sequence[str], right: str, vocabulary: Sequence[str], letter: int
) -> Asked:
    """Return a multiple-choice question about an item's words. `right` is its answer, `letter` the answer's index.

    The wrong options of `word` are words that are not said in the clip. The wrong options of other questions are words
    said in the clip, as far as the clip has enough.
    """
    at = sounds.index(right)
    said = [index for index, sound in enumerate(sounds) if sound not in (BELL, right) and question != "word"]
    wrong = [int(index) for index in rng.permutation(said)][:_UNSAID]
    unsaid = [word for word in vocabulary if word not in sounds]
    filling = [unsaid[index] for index in rng.permutation(len(unsaid))[: _UNSAID - len(wrong)]]
    deciding = {"word": [at], "order": sorted([at, *wrong]), "after": [at - 1, at]}[question]
    return Asked(
        question, *_placed(rng, [right, *(sounds[index] for index in wrong), *filling], letter), tuple(deciding)
    )


def _placed(rng: np.random.Generator, options: Sequence[str], letter: int) -> tuple[tuple[str, ...], str]:
    """Shuffle `options`, whose first is right, and put the right option at index `letter` (0 for A).

    Return (options in their new order, letter of the right option).
    """
    others = [options[1 + index] for index in rng.permutation(len(options) - 1)]
    return (*others[:letter], options[0], *others[letter:]), LETTERS[letter]
