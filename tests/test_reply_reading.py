"""Reading replies: the table of forms and traps, and properties that hold for any text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audiomarathon.tasks.reply import read_reply

GENRES = ["Blues", "Jazz", "Rock", "Hip-hop"]
PLACES = ["Metro", "Metro station", "Park", "Street, traffic"]
GENDER = ["Male", "Female"]
TRUTH = ["Real", "Fake"]
AGES = ["Young Adult (18-30)", "Early Career (31-40)", "Mid Career (41-50)", "Senior (51-70)", "Elderly (71+)"]
NINE = [f"place number {number}" for number in range(1, 10)]


@pytest.mark.parametrize(
    "reply",
    [
        "B",
        " B\n",
        "(B)",
        "B.",
        "B)",
        "**B**",
        "[B]",
        "`B`",
        '"B"',
        "*B*",
        "B!",
        "b",
        "(b)",
        "（Ｂ）",
        "$B$",
        "\\boxed{B}",
        "- B",
    ],
)
def test_bare_letter(reply: str) -> None:
    assert (read_reply(reply, GENRES).letter, read_reply(reply, GENRES).rule) == ("B", "letter")


@pytest.mark.parametrize(
    "reply",
    [
        "B. Jazz",
        "B) Jazz",
        "B: Jazz",
        "(B) Jazz",
        "**B** Jazz",
        "**B.** Jazz",
        "**B**: Jazz",
        "B.Jazz",
        "B\nJazz",
        "b) jazz",
        "b. jazz",
        "(B), because of the saxophone",
        "**B**, it swings",
        "B. Rock",  # the letter stands, as the order of the rules has it
        "B. It has a saxophone and a swing rhythm.",
        "B. Jazz. Option A is wrong.",
    ],
)
def test_leading_letter(reply: str) -> None:
    assert (read_reply(reply, GENRES).letter, read_reply(reply, GENRES).rule) == ("B", "leading letter")


@pytest.mark.parametrize(
    "reply",
    [
        "The answer is B",
        "The correct answer is B.",
        "The answer is (B).",
        "The answer is **B. Jazz**",
        "the answer is b",
        "Answer: B",
        "**Answer:** B",
        "Option B",
        "My choice is option B.",
        "I would go with B.",
        "The answer is B because of the saxophone",
        "The answer is B Jazz",
        "B is correct.",
        "B is the right answer",
        "A. Blues\nB. Jazz\nC. Rock\nD. Hip-hop\nAnswer: B",
    ],
)
def test_named_letter(reply: str) -> None:
    assert (read_reply(reply, GENRES).letter, read_reply(reply, GENRES).rule) == ("B", "named letter")


@pytest.mark.parametrize(
    ("reply", "options", "letter"),
    [
        ("Jazz", GENRES, "B"),
        ("I think it is jazz.", GENRES, "B"),
        ("B Jazz", GENRES, "B"),
        ("Jazz (B)", GENRES, "B"),
        ("hip hop", GENRES, "D"),
        ("I hear rock music, I think.", GENRES, "C"),
        ("metro_station", PLACES, "B"),
        ("The recording is from a metro station.", PLACES, "B"),
        ("The metro, I suppose", PLACES, "A"),
        ("street traffic", PLACES, "D"),
        ("female", GENDER, "B"),
        ("The speaker is male.", GENDER, "A"),
        ("young adult (18–30)", AGES, "A"),
        ("The speaker is in the group Elderly (71+).", AGES, "E"),
        ("A.I.-made speech, so it is fake.", TRUTH, "B"),
        ("Neither A nor B", ["A", "B", "Neither A nor B", "All of A and B"], "C"),
        ("Option B is right", ["It rained", "It snowed", "Option B is right", "None"], "C"),
        ("狗", ["猫", "狗"], "B"),
        ("CAFÉ", ["thé", "café"], "B"),
    ],
)
def test_option_text(reply: str, options: list[str], letter: str) -> None:
    read = read_reply(reply, options)
    assert (read.letter, read.rule) == (letter, "option text")


@pytest.mark.parametrize(
    ("reply", "options"),
    [
        ("", GENRES),
        ("The correct answer is unclear", GENRES),
        ("a dog", GENRES),
        ("A dog is barking", GENRES),
        ("A\ndog barks", GENRES),
        ("The answer is A dog barking", GENRES),
        ("the answer is a", GENRES),  # cut off before the noun
        ("The answer is A.I. generated music", GENRES),
        ("A.I. generated", TRUTH),
        ("Be careful", GENRES),
        ("C:\\music\\a.wav", GENRES),
        ("A., a monthly of the arts", GENRES),
        ("I think this could be anything", NINE),
        ("I'd say it is a place", NINE),
        ("J. S. Bach", [*NINE, "place number ten"]),
        ("E", GENRES),
        ("E. Techno", GENRES),
        ("The answer is E", GENRES),
        ("A, B", GENRES),
        ("A or B", GENRES),
        ("A or B, so perhaps jazz", GENRES),
        ("Option B or C", GENRES),
        ("Options B and C", GENRES),
        ("The answer is B, not C", GENRES),
        ("A. Blues B. Jazz", GENRES),
        ("A. Blues\nB. Jazz\nC. Rock\nD. Hip-hop", GENRES),
        ("a) blues b) jazz", GENRES),
        ("Options: A. Blues B. Jazz C. Rock D. Hip-hop", GENRES),
        ("A. The answer is B", GENRES),
        ("Jazz (C)", GENRES),
        ("jazz or rock", GENRES),
        ("not B", GENRES),
        ("It is not option B", GENRES),
        ("I don't think the answer is B", GENRES),
        ("The wrong answer is B", GENRES),
        ("Option B is incorrect", GENRES),
        ("Neither A nor B is correct", GENRES),
        ("Is it option B?", GENRES),
        ("It is not jazz", GENRES),
        ("The speech isn't real", TRUTH),
        ("It contains no fake parts", TRUTH),
        ("Fake parts are not present", TRUTH),
        ("males", GENDER),
        ("Young Adult", AGES),  # half an option is none
        ("jazzy", GENRES),
        ("a", ["one", "a"][:0]),
        ("<think>The answer is B", GENRES),
    ],
)
def test_unparsed(reply: str, options: list[str]) -> None:
    read = read_reply(reply, options)
    assert (read.letter, read.rule, read.strict) == (None, "unparsed", False)


def test_thinking_is_not_the_reply() -> None:
    assert read_reply("<think>A? The answer is C.</think>\n\nB", GENRES).letter == "B"
    assert read_reply("so it must be C</THINK> B. Jazz", GENRES).letter == "B"


def test_options_that_read_the_same_are_not_told_apart_by_text() -> None:
    assert read_reply("to rest", ["To rest.", "to rest", "To work."]).letter is None
    assert read_reply("B", ["To rest.", "to rest", "To work."]).letter == "B"


@pytest.mark.parametrize(
    ("reply", "strict"),
    [
        ("B", True),
        (" B\n", True),
        ("Jazz", True),
        ("B. Jazz", True),
        ("b", False),
        ("B.", False),
        ("jazz", False),
        ("B) Jazz", False),
        ("The answer is B", False),
        ("(B)", False),
        ("Jazz.", False),
    ],
)
def test_strict_wants_the_letter_or_the_complete_option(reply: str, strict: bool) -> None:
    read = read_reply(reply, GENRES)
    assert read.letter == "B"
    assert read.strict is strict


def test_degenerate_replies_take_no_time_to_speak_of() -> None:
    """A regular expression that backtracks would need minutes for these; no time is asserted, only that it ends."""
    for unit in ("answer B, ", "\n*", "answer is option ", "(", "<think>", "A. ", "real "):
        read_reply(unit * 20_000, TRUTH)


texts = st.text(st.characters(), max_size=200)  # lone surrogates included
fragments = st.sampled_from(
    [
        "A",
        "b",
        ".",
        ")",
        "(",
        "**",
        " ",
        "\n",
        "answer",
        " is ",
        "option",
        "not",
        "jazz",
        "Rock",
        "<think>",
        "</think>",
        "or",
        ",",
    ]
)


@given(st.one_of(texts, st.lists(fragments, max_size=25).map("".join)), st.lists(texts, max_size=30))
def test_never_raises_and_stays_among_the_options(reply: str, options: list[str]) -> None:
    read = read_reply(reply, options)
    assert read.letter is None or read.letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[: len(options)]
    assert (read.letter is None) == (read.rule == "unparsed")
    assert not (read.strict and read.letter is None)


PROSE = (
    "A I a i the dog barks correct Behind Car engine because cat Dishes definitely music is someone speaks and then "
    "in an It Each eerie hum, quietly. while: Crowd's answer I'd e.g. a.m. D-day"
)
prose_words = st.sampled_from(PROSE.split())


@given(st.lists(prose_words, min_size=2, max_size=14).map(" ".join), st.integers(2, 4))
def test_no_letter_is_read_out_of_prose(reply: str, count: int) -> None:
    """Sentences of articles, capitals and abbreviations that name no option."""
    last = reply.rstrip(".,: ").split()[-1]
    read = read_reply(reply, ["xylophone", "zither", "quartet", "viola"][:count])
    named = "answer" in reply and last in ("A", "I")  # "… answer is A" does name one
    assert read.letter is None or named


@given(
    st.sampled_from("ABCD"),
    st.sampled_from(["", "(", "**", "[", '"', " "]),
    st.sampled_from(["", ")", "**", "]", '"', ".", " ", ".\n"]),
)
def test_a_wrapped_letter_is_always_read(letter: str, before: str, after: str) -> None:
    assert read_reply(f"{before}{letter}{after}", GENRES).letter == letter


@given(
    st.permutations(PLACES), st.sampled_from(PLACES), st.sampled_from(["{}", "It is the {}.", "I hear: {}!", "{}\n"])
)
def test_an_option_named_by_its_text_is_read_wherever_it_stands(order: list[str], said: str, phrase: str) -> None:
    read = read_reply(phrase.format(said.lower()), order)
    assert read.letter is not None
    assert order["ABCD".index(read.letter)] == said
