"""Plan a ruler: what each clip says, what is asked about it, and the cells of length, place, needles and loudness."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from audiomarathon.benchmarks.rows import shown
from audiomarathon.errors import SettingsError
from audiomarathon.records import LETTERS
from audiomarathon.settings import SEED
from audiomarathon.text import did_you_mean

#: The question of each task; a task's key is `ruler/` and the name.
QUESTIONS: Mapping[str, str] = {
    "word": "Which of these words is said in the recording?",
    "count": "How many times does the bell ring in the recording?",
    "order": "Which of these words is said first in the recording?",
    "after": "Which word is said right after the bell in the recording?",
}
OPTIONS = 4
BELL = "bell"
RATE = 16_000  # of clips, in Hz
MOST_MINUTES = 60.0
LOUDEST_DB = 40.0
_UNSAID = OPTIONS - 1  # options of `word` that are not said


@dataclass(frozen=True)
class Asked:
    """One question about a clip.

    Attributes
    ----------
    question
        A key of :data:`QUESTIONS`.
    letter
        Letter of the right option.
    deciding
        Indices of the sounds that decide the answer, in :attr:`Item.sounds`.
    """

    question: str
    options: tuple[str, ...]
    letter: str
    deciding: tuple[int, ...]


@dataclass(frozen=True)
class Item:
    """What a clip says, at whatever length, place and loudness.

    Attributes
    ----------
    needles
        The number of words; of bells, the lowest number that the options offer.
    number
        Number of the item among those with as many needles, from 0; its background is this number, modulo their count.
    sounds
        Words, and `bell`, in the order in which they are heard.
    """

    needles: int
    number: int
    sounds: tuple[str, ...]
    asked: tuple[Asked, ...]


@dataclass(frozen=True)
class Grid:
    """The cells of a ruler, and the number of items in each.

    Attributes
    ----------
    minutes
        Lengths of the clips, above 0 and up to 60.
    places
        Where the needles begin, 0 (the clip begins with them) to 1 (it ends with them).
    needles
        Numbers of needles: words that are said; the bell rings that often, or up to three times more.
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
        """Check every value.

        Raises
        ------
        SettingsError
            A value is not allowed; the message names its flag.
        """
        if odd := [one for one in self.questions if one not in QUESTIONS]:
            hint = did_you_mean(odd[0], QUESTIONS)
            raise SettingsError(f"--questions {shown(odd[0])}: unknown{hint}; allowed: {', '.join(QUESTIONS)}")
        _check("--minutes", self.minutes, lambda one: 0 < one <= MOST_MINUTES, "above 0 and up to 60")
        _check("--places", self.places, lambda one: 0 <= one <= 1, "0 (start of the clip) to 1 (end)")
        _check("--needles", self.needles, lambda one: isinstance(one, int) and one > 0, "whole numbers from 1")
        _check("--snr", self.snr, lambda one: abs(one) <= LOUDEST_DB, f"-{LOUDEST_DB:g} to {LOUDEST_DB:g} dB")
        _check("--gap", [self.gap], lambda one: 0 <= one < math.inf, "0 or more seconds")
        _check("--seed", [self.seed], lambda one: one >= 0, "whole numbers from 0")
        _check("--items", [self.items], lambda one: one > 0 and one % OPTIONS == 0, "multiples of 4, so that each "
               "letter is right equally often")  # fmt: skip
        if self.questions == ("order",) and max(self.needles) < 2:
            raise SettingsError("--questions order: needs --needles 2 or more, since one word has no order")


def _check(flag: str, values: Sequence[float], fine: Callable[[float], bool], allowed: str) -> None:
    if not values:
        raise SettingsError(f"{flag} is empty; allowed: {allowed}")
    if odd := [one for one in values if not (math.isfinite(one) and fine(one))]:
        raise SettingsError(f"{flag} {odd[0]:g}: not allowed; allowed: {allowed}")
    if len({*values}) < len(values):
        raise SettingsError(f"{flag} names {next(one for one in values if list(values).count(one) > 1):g} twice")


def items(grid: Grid, vocabulary: Sequence[str]) -> list[Item]:
    """Return all items of a grid; the words of `vocabulary` are said.

    An item's sounds, question and options are the same at every length, place and loudness, so cells are compared on
    equal items. Items of words are asked `word`, `order` (from two words on) and `after`; items of bells `count`.

    Raises
    ------
    SettingsError
        The vocabulary has too few words.
    """
    most, rows = len(vocabulary) - _UNSAID, list[Item]()
    if most < 1:
        raise SettingsError(f"{len(vocabulary)} words are too few; needed: {OPTIONS} or more, {_UNSAID} of them unsaid")
    if max(grid.needles) > most and grid.questions != ("count",):
        raise SettingsError(
            f"--needles {max(grid.needles)}: too many for {len(vocabulary)} words, since {_UNSAID} must stay unsaid; "
            f"allowed: up to {most}"
        )
    for needles in grid.needles:
        rng = np.random.default_rng([grid.seed, needles])
        *letters, more = (_balanced(rng, grid.items) for _ in range(len(QUESTIONS) + 1))
        used = {one: dict.fromkeys(vocabulary, 0) for one in QUESTIONS}
        for number in range(grid.items):
            letter = dict(zip(QUESTIONS, (int(own[number]) for own in letters), strict=True))
            rings = needles + int(more[number])
            counts = [f"{rings}", *(f"{one}" for one in range(needles, needles + OPTIONS) if one != rings)]
            asked = [Asked("count", *_placed(rng, counts, letter["count"]), tuple(range(rings)))]
            made = [Item(needles, number, (BELL,) * rings, tuple(asked))]
            if needles <= most:
                sounds, at = _words(rng, used, vocabulary, needles, number)
                asked = [_about_words(rng, one, sounds, at[one], vocabulary, letter[one]) for one in at]
                made.append(Item(needles, number, sounds, tuple(asked)))
            for item in made:
                own = tuple(one for one in item.asked if one.question in grid.questions)
                rows += [replace(item, asked=own)] if own else []
    return rows


def _balanced(rng: np.random.Generator, count: int) -> np.ndarray:
    """Return numbers 0 to 3 in random order; of each four in a row, each number once."""
    return np.concatenate([rng.permutation(OPTIONS) for _ in range(count // OPTIONS)])


def _words(
    rng: np.random.Generator, used: Mapping[str, dict[str, int]], vocabulary: Sequence[str], needles: int, number: int
) -> tuple[tuple[str, ...], Mapping[str, int]]:
    """Choose the words of an item, and a bell before one of them.

    Each word that decides an answer is one that has decided the fewest so far.

    Returns
    -------
    tuple of str
        The sounds in order.
    dict
        Index among the sounds of the word that is the right answer, by question.
    """
    at = {"order": 0, "after": number % needles, "word": (number + number // needles) % needles}
    at = at if needles > 1 else {"after": 0, "word": 0}
    said: list[str] = []
    for place in range(needles):
        own = [one for one, index in at.items() if index == place]
        free = [vocabulary[index] for index in rng.permutation(len(vocabulary)) if vocabulary[index] not in said]
        said.append(min(free, key=lambda word: sorted((used[one][word] for one in own), reverse=True)))
        for one in own:
            used[one][said[-1]] += 1
    bell = at["after"]
    sounds = (*said[:bell], BELL, *said[bell:])
    return sounds, {one: index + (index >= bell) for one, index in at.items()}


def _about_words(
    rng: np.random.Generator, question: str, sounds: Sequence[str], at: int, vocabulary: Sequence[str], letter: int
) -> Asked:
    """Return a question about the words of an item; `at` is the index of the right one.

    The wrong options of `word` are not said; those of the others are said, as far as there are enough.
    """
    said = [index for index, one in enumerate(sounds) if one != BELL and index != at]
    unsaid = [word for word in vocabulary if word not in sounds]
    wrong = [] if question == "word" else [int(one) for one in rng.permutation(said)][:_UNSAID]
    options = [sounds[at], *(sounds[one] for one in wrong)]
    options += [unsaid[int(one)] for one in rng.permutation(len(unsaid))[: OPTIONS - len(options)]]
    deciding = {"word": [at], "order": sorted([at, *wrong]), "after": [at - 1, at]}[question]
    return Asked(question, *_placed(rng, options, letter), tuple(deciding))


def _placed(rng: np.random.Generator, options: Sequence[str], letter: int) -> tuple[tuple[str, ...], str]:
    """Return the options in random order, but the first, which is right, at a given letter's place; and that letter."""
    others = [options[1 + one] for one in rng.permutation(len(options) - 1)]
    return (*others[:letter], options[0], *others[letter:]), LETTERS[letter]
