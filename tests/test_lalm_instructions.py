"""Every kind of MMAU-Pro's instructions, by the official and the corrected rule: right and wrong replies, and traps."""

from __future__ import annotations

import math
import sys
from typing import Any

import pytest
from conftest import ALL
from hypothesis import given, settings
from hypothesis import strategies as st

from audiomarathon.benchmarks.questions.instructions import KINDS, check, follows
from audiomarathon.errors import SettingsError

QUESTION = "Follow the instruction at the start of an audio."
REQUEST = "What do you hear?. First, repeat the request without change, then give your answer."
SPOKEN = {"question": QUESTION, "transcription": REQUEST}

# By kind: its fields, then replies with the official and the corrected verdict.
Row = tuple[dict[str, Any], list[tuple[str, bool, bool]]]
CASES: dict[str, Row] = {
    "Include Keywords": ({"keywords": "sound, voice"}, [
        ("A SOUND and a **voice**.", True, True),
        ("sounds, voices", True, True),
        ("A sound.", False, False),
        ("A soundscape with an invoice.", True, False),
    ]),
    "Forbidden Words": ({"forbidden_words": "sound, voice"}, [
        ("A hum.", True, True),
        ("A Sound!", False, False),
        ("Two _voices_.", False, False),
        ("A soundscape with an invoice.", False, True),
    ]),
    "Number Words (at least)": ({"N": 3.0}, [("one two three", True, True), ("one two", False, False)]),
    "Number Words (at most)": ({"N": 3.0}, [
        ("one two three", True, True), ("one two three four", False, False), ("...", True, False),
    ]),
    "Number Words (range)": ({"N1": 2.0, "N2": 3.0}, [
        ("one two", True, True), ("one two three", True, True), ("one", False, False), ("1 2 3 4", False, False),
    ]),
    "Number Sentences (at least)": ({"N": 2.0}, [
        ("Dr. Smith sings. He hums.", True, True), ("Dr. Smith sings at 5 p.m. on Monday.", False, False),
    ]),
    "Number Sentences (at most)": ({"N": 1.0}, [
        ("Dr. Smith sings at 5 p.m. on Monday.", True, True), ("He sings. She hums.", False, False),
    ]),
    "Number Sentences (range)": ({"N1": 2.0, "N2": 3.0}, [
        ("He sings. She hums!", True, True), ("He sings.", False, False),
        ("He sings. He hums. He nods. He leaves.", False, False),
    ]),
    "Number Paragraphs": ({"N": 2.0}, [
        ("a\n\n***\n\nb", True, True), ("***a***\n***b", True, True), ("a\n\nb", False, False),
        ("a *** b *** c", False, False),
    ]),
    "Number Bullets": ({"N": 2.0}, [
        ("* a\n* b", True, True), ("Two:\n\n  * a\n  * b", True, True), ("* a\n* b\n* c", False, False),
        ("- a\n- b", False, True), ("• a\n• b", False, True), ("**a**\n*b* c", False, False),
        ("* a\n* b\n---\n- c", True, False),
    ]),
    "Minimum Number Highlighted Section": ({"N": 3.0}, [
        ("*a* *b* *c d*", True, True), ("*a* and *b*", False, False), ("**a** and **b**", True, False),
        ("**a** ***b*** *c*", True, True), ("* a\n* b\n* c\n* d\n* e\n* f", True, False),
    ]),
    "Number Placeholder": ({"N": 2.0}, [
        ("[name] is at [place] or [other]", True, True), ("[name] [] (place)", False, False),
    ]),
    "Multiple Sections": ({"N": 2.0, "section_splitter": "Part"}, [
        ("Part 1\nx\n\nPart 2\ny", True, True), ("Part 1 x", False, False),
        ("Listen:\nPart 1\nx", True, False), ("Listen:\nPart 1\nx\nPart 2\ny", False, True),
        ("Part 1: Particular\nPart 2: SubPart", False, True),
    ]),
    "Title": ({}, [("<<A hum>>\nIt hums.", True, True), ("<A hum> << >", False, False), ("<<>>", False, False)]),
    "Quotation": ({}, [
        (' "It hums." ', True, True), ("“It hums.”", False, False), ('"It" hums', False, False), ('"', True, False),
    ]),
    "No Commas": ({}, [("It hums; softly.", True, True), ("It hums, softly.", False, False), ("!", True, False)]),
    "All Uppercase": ({}, [("IT HUMS 3 TIMES.", True, True), ("IT HUMs.", False, False), ("123", False, False)]),
    "All Lowercase": ({}, [("it hums 3 times.", True, True), ("it hums. I know.", False, False)]),
    "All-capital Words (at least)": ({"N": 2.0}, [("A **LOUD** hum", True, True), ("LOUDer hum OK", False, False)]),
    "All-capital Words (at most)": ({"N": 1.0}, [("a LOUD hum", True, True), ("a VERY LOUD hum", False, False)]),
    "All-capital Words (range)": ({"N1": 1.0, "N2": 2.0}, [
        ("a LOUD hum", True, True), ("a hum 12", False, False), ("A B C", False, False),
    ]),
    "Postscript": ({"postscript_marker": "Final note:"}, [
        ("A long and low hum is heard in a hall.\n\n**Final note:** ok", True, True),
        ("A hum.\nNote: ok", False, False),
        ("It is the finalnote of a song that fades", True, False), ("Final note: a hum", True, False),
        ("A hum is heard.\nFinal note: it goes on\nand on", True, True),
        ("A hum is heard.\nP.S.: Final note: it goes on", True, True),
        ("A hum is heard.\nI add a final note: on", True, False),
        ("A long and low hum is heard in a hall, final note: ok", True, False),
    ]),
    "Start Checker": ({"start_phrase": "To begin with:"}, [
        (" **To begin with:** a hum", True, True), ("to begin with a hum", True, True),
        ("A hum to begin with:", False, False),
    ]),
    "End Checker": ({"end_phrase": "That's my analysis."}, [
        ("A hum.\n\nThat's my analysis.", True, True), ("A hum. THATS MY ANALYSIS!", True, True),
        ("That's my analysis. Bye.", False, False),
    ]),
    "Two Responses": ({}, [
        ("A hum.\n******\nA drone.", True, True), ("A hum. ****** A hum.", False, False),
        ("A hum.", False, False), ("a ****** b ****** c", False, False), ("A hum.\n******\n", True, False),
    ]),
    "Repeat Prompt": (SPOKEN, [
        ("what do you hear?\n\nA hum.", False, True), ("A hum. What do you hear?", False, False),
        (f"{QUESTION} A hum.", True, False),
    ]),
}  # fmt: skip
EMPTY_PASSES = {kind for kind in KINDS if kind in ("Forbidden Words", "No Commas") or "at most" in kind}
ROWS = [
    pytest.param(kind, fields, *case, id=f"{kind}-{place}")
    for kind, (fields, cases) in CASES.items()
    for place, case in enumerate([*cases, ("", kind in EMPTY_PASSES, False)])
]


def test_exactly_26_kinds_of_instruction_are_supported() -> None:
    assert len(KINDS) == 26
    assert set(KINDS) == set(CASES)


@pytest.mark.parametrize(("kind", "fields", "reply", "official", "corrected"), ROWS)
def test_example_replies_are_judged_as_following_an_instruction_or_not_under_both_rule_sets(
    kind: str, fields: dict[str, Any], reply: str, official: bool, corrected: bool
) -> None:
    check(kind, fields)
    assert (follows(kind, fields, reply, corrected=False), follows(kind, fields, reply, corrected=True)) == (
        official, corrected,
    )  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=100 if ALL else 20)
@given(blank=st.text(alphabet=' \n\t\u00a0\u200b.*"', max_size=9), text=st.text(max_size=60))
def test_a_blank_reply_follows_no_instruction(kind: str, blank: str, text: str) -> None:
    fields = CASES[kind][0]
    assert not follows(kind, fields, blank, corrected=True)
    for corrected in (False, True):
        assert isinstance(follows(kind, fields, text, corrected=corrected), bool)


@pytest.mark.parametrize(
    ("kind", "fields", "told"),
    [
        ("Number Commas", {}, "unknown instruction kind 'Number Commas'; allowed: .*Repeat Prompt"),
        ("Number Bullets", {"N": None}, "'Number Bullets' needs a number as N, found None"),
        ("Number Words (range)", {"N1": 2.0, "N2": math.nan}, "needs a number as N2, found nan"),
        ("Number Words (at most)", {"N": "3"}, "needs a number as N, found '3'"),
        ("Multiple Sections", {"N": 2.0}, "needs a text with letters as section_splitter, found None"),
        ("Start Checker", {"start_phrase": " ... "}, "needs a text with letters as start_phrase"),
        ("Repeat Prompt", {"question": QUESTION}, "needs a text with letters as transcription"),
    ],
)
def test_instructions_that_cannot_be_checked_are_refused(kind: str, fields: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        check(kind, fields)


def test_sentence_counting_without_punkt_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "punkt", None)
    with pytest.raises(SettingsError, match=r"pip install 'audiomarathon\[lalm\]'"):
        follows("Number Sentences (at most)", {"N": 3.0}, "It hums.", corrected=True)
