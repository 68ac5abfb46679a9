"""Reading replies: the table of replies in `data/replies.jsonl`, and properties that hold for any text."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audiomarathon.scoring.choice_reading import read_reply
from audiomarathon.scoring.visible import visible

GENRES = ["Blues", "Jazz", "Rock", "Hip-hop"]
PLACES = ["Metro", "Metro station", "Park", "Street, traffic"]
TRUTH = ["Real", "Fake"]

# The first line has sets of options. Each later line is a kind of reply with the letter that it chooses, or null.
BLIND = Path(__file__).parent / "data" / "blind_replies.jsonl"
SETS, *KINDS = map(json.loads, (Path(__file__).parent / "data" / "replies.jsonl").read_text("utf-8").splitlines())


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind['why']}-{kind['options']}-{kind['letter']}")
def test_replies_in_the_stored_table_of_cases_are_read_as_the_expected_letters(kind: dict[str, Any]) -> None:
    options, letter = SETS["options"][kind["options"]], kind["letter"]
    read = {reply: read_reply(reply, options).letter for reply in kind["replies"]}
    assert {reply: letter_read for reply, letter_read in read.items() if letter_read != letter} == {}


def test_under_1_percent_of_independently_labelled_replies_get_a_wrong_letter() -> None:
    """Most of the 1,320 replies are tricky. Wrong letters must be rare, missed letters may be more common."""
    (sets, *rows) = map(json.loads, BLIND.read_text("utf-8").splitlines())
    clear = [(read_reply(reply, sets["options"][of]).letter, letter) for of, reply, letter, sure in rows if sure]
    wrong = sum(read not in (None, letter) for read, letter in clear)
    missed = sum(read is None and letter is not None for read, letter in clear)
    assert len(clear) > 1200
    assert wrong / len(clear) < 0.01
    assert missed / sum(letter is not None for _, letter in clear) < 0.13


def test_the_rule_field_of_a_verdict_names_the_pattern_by_which_the_letter_was_found() -> None:
    rules = {
        "(B)": "letter", "B) Jazz": "leading letter", "The answer is B": "named letter", "B or C": "unparsed",
        "Based on the audio, B": "named letter", "I think it is jazz.": "option text", "Jazz": "option text",
    }  # fmt: skip
    assert {reply: read_reply(reply, GENRES).rule for reply in rules} == rules


def test_strict_parsing_accepts_only_the_option_letter_or_the_complete_option() -> None:
    strict = ["B", " B\n", "Jazz", "B. Jazz"]
    other = ["b", "B.", "jazz", "B) Jazz", "The answer is B", "(B)", "Jazz."]
    readings = [read_reply(reply, GENRES) for reply in (*strict, *other)]
    assert {reading.letter for reading in readings} == {"B"}
    assert [reading.strict for reading in readings] == [True] * len(strict) + [False] * len(other)


def test_repetitive_long_replies_are_read_without_backtracking() -> None:
    """A regular expression with backtracking would take minutes. The test asserts only that reading ends."""
    for unit in ("answer B, ", "\n*", "answer is option ", "(", "<think>", "A. ", "real "):
        read_reply(unit * 20_000, TRUTH)


def test_thousands_of_consecutive_punctuation_characters_in_a_reply_are_shortened() -> None:
    """Patterns that start with line breaks or punctuation would take quadratic time in the run's length."""
    for unit in ("\n", "\n*", " - ", "…\n", "**\n", "_"):
        text = visible(f"Answer:{unit * 3_000}B")
        assert len(text) <= 110
        assert (text[:7], text[-1]) == ("Answer:", "B")


texts = st.text(st.characters(), max_size=200)  # lone surrogates included
fragments = st.sampled_from(
    ["A", "b", "**", " ", "\n", "answer", " is ", "option", "not", "jazz", "Rock", "<think>", "</think>", "or", *".)(,"]
)


@given(st.one_of(texts, st.lists(fragments, max_size=25).map("".join)), st.lists(texts, max_size=30))
def test_any_reply_gives_a_letter_of_the_options_or_none(reply: str, options: list[str]) -> None:
    read = read_reply(reply, options)
    assert read.letter is None or read.letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[: len(options)]
    assert (read.letter is None) == (read.rule == "unparsed")
    assert not (read.strict and read.letter is None)


PROSE = (
    "A I a i the dog barks correct Behind Car engine because cat Dishes definitely music is someone speaks and then "
    "in an It Each eerie hum, quietly. while: crowds answer I'd e.g. a.m. D-day"
)
prose_words = st.sampled_from(PROSE.split())


@given(st.lists(prose_words, min_size=2, max_size=14).map(" ".join), st.integers(2, 4))
def test_no_letter_is_read_from_prose_that_names_no_option(reply: str, count: int) -> None:
    """Sentences of articles, capitals and abbreviations that name no option."""
    last = reply.rstrip(".,: ").split()[-1]
    read = read_reply(reply, ["xylophone", "zither", "quartet", "viola"][:count])
    # "… answer is A", "A because", "is A and", "A is" and "A the music …" name an option, like "it's A".
    named = last in ("A", "I") or re.search(r"\bA (?:because|and|is|the)\b", reply)
    assert read.letter is None or named


@given(
    st.sampled_from("ABCD"),
    st.sampled_from(["", "(", "**", "[", '"', " "]),
    st.sampled_from(["", ")", "**", "]", '"', ".", " ", ".\n"]),
)
def test_a_letter_with_surrounding_punctuation_is_always_read(letter: str, before: str, after: str) -> None:
    assert read_reply(f"{before}{letter}{after}", GENRES).letter == letter


@given(
    st.permutations(PLACES), st.sampled_from(PLACES), st.sampled_from(["{}", "It is the {}.", "I hear: {}!", "{}\n"])
)
def test_an_option_named_by_its_text_is_read_at_any_position(order: list[str], said: str, phrase: str) -> None:
    read = read_reply(phrase.format(said.lower()), order)
    assert read.letter is not None
    assert order["ABCD".index(read.letter)] == said
