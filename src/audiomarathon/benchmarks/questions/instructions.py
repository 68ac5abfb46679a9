"""Check whether a reply follows one of MMAU-Pro's 26 kinds of instruction (arXiv 2508.13992).

Each kind has two checks: the official script's, bugs included, and a corrected one. By the official checks an empty
reply follows 21 of the 87 instructions, and no reply follows `Repeat Prompt`, whose check compares with the written
question instead of the spoken request.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from audiomarathon.benchmarks.questions.keywords import names_keyword
from audiomarathon.errors import SettingsError

Given = Mapping[str, Any]
Count = Callable[[str], int]
Check = Callable[[str, Given], bool]


@dataclass(frozen=True)
class _Kind:
    """One kind of instruction.

    Attributes
    ----------
    needs
        Names of the fields that the checks need.
    official, corrected
        The official script's check, and the check without its bugs; None if the official check has none.
    """

    needs: tuple[str, ...]
    official: Check
    corrected: Check | None = None


def check(kind: str, given: Given) -> None:
    """Raise an error if it cannot be checked whether a reply follows an instruction.

    Parameters
    ----------
    kind, given
        The instruction, as in :func:`follows`.

    Raises
    ------
    ValueError
        The kind is unknown, or a required number or text is missing.
    """
    if kind not in _KINDS:
        raise ValueError(f"unknown instruction kind {kind!r}; allowed: {', '.join(KINDS)}")
    for name in _KINDS[kind].needs:
        value = given.get(name)
        if name.startswith("N"):
            good, expected = isinstance(value, int | float) and math.isfinite(value), "a number"
        else:
            good, expected = isinstance(value, str) and _letters(value) != "", "a text with letters"
        if not good:
            raise ValueError(f"instruction kind {kind!r} needs {expected} as {name}, found {value!r}")


def follows(kind: str, given: Given, reply: str, *, corrected: bool) -> bool:
    """Tell whether a reply follows an instruction.

    Parameters
    ----------
    kind
        Kind of instruction: the row's `task_identifier`, one of `KINDS`.
    given
        The row's `kwargs`, and its `question` (as written) and `transcription` (as spoken).
    corrected
        Use the check without the official script's bugs; a reply without letters or digits then follows no instruction.

    Raises
    ------
    SettingsError
        Counting sentences needs punkt, which is not installed.
    """
    rule = _KINDS[kind]
    if not corrected:
        return rule.official(reply, given)
    return any(map(str.isalnum, reply)) and (rule.corrected or rule.official)(reply, given)


def _sentences(reply: str) -> int:
    try:
        from punkt import sent_tokenize
    except ImportError as error:
        raise SettingsError("counting sentences needs punkt: pip install 'audiomarathon[lalm]'") from error
    return len(sent_tokenize(reply))


def _matches(pattern: str) -> Count:
    return lambda reply: len(re.findall(pattern, reply))


def _filled(parts: Iterable[str]) -> int:
    return sum(bool(part.strip()) for part in parts)


def _letters(text: str, more: str = "") -> str:
    return re.sub(f"[^a-zA-Z{more}]", "", text).strip().casefold()


def _counted(official: Count, low: str = "N", high: str = "N", corrected: Count | None = None) -> _Kind:
    """Make a kind of instruction that limits a count, such as the number of words.

    Parameters
    ----------
    official, corrected
        Function that counts in a reply, as the official script does, and without its bugs.
    low, high
        Names of the fields that hold the limits; "" means no limit.
    """

    def within(count: Count) -> Check:
        return lambda reply, given: (given[low] if low else 0) <= count(reply) <= (given[high] if high else math.inf)

    return _Kind(tuple(filter(None, (low, high))), within(official), within(corrected or official))


def _listed(name: str, combine: Callable[[Iterable[bool]], bool]) -> _Kind:
    """Make a kind of instruction about the keywords in the field `name`, such as to include them all.

    `combine`, such as `all`, gets for each keyword whether the reply has it, and tells whether the reply follows the
    instruction.

    The official check also finds the keyword `sound` in `soundscape`.
    """

    def holding(holds: Callable[[str, str], bool]) -> Check:
        return lambda reply, given: combine(holds(reply, keyword) for keyword in given[name].split(", "))

    official = holding(lambda reply, keyword: keyword.casefold() in reply.casefold())
    return _Kind((name,), official, holding(names_keyword))


def _phrased(name: str, holds: Callable[[str, str], bool]) -> _Kind:
    """Make a kind of instruction about the phrase in the field `name`, such as to start with it.

    `holds(reply, phrase)` tells whether the reply follows the instruction. Only the letters and spaces of phrase and
    reply are compared.
    """
    return _Kind((name,), lambda reply, given: holds(_letters(reply, " "), _letters(given[name], " ")))


def _sections(reply: str, given: Given) -> bool:
    """Tell whether the reply has N sections, separated by the instruction's marker.

    The text before the first marker counts as a section, as in the official script.
    """
    return bool(given["N"] == _filled(re.split(rf"\s*{re.escape(given['section_splitter'])}\s*", reply)))


def _marked_sections(reply: str, given: Given) -> bool:
    return bool(given["N"] == len(re.findall(rf"\b{re.escape(given['section_splitter'])}\b", reply)))


def _postscript(reply: str, given: Given) -> bool:
    """Tell whether the reply has a postscript, which begins with the instruction's marker, such as `P.S.`.

    The marker must begin a line other than the first, alone or after "Postscript:" or "P.S.".
    """
    named = r"(?:postscript|p\.? ?s\.?)[\s*_:]*"
    return bool(re.search(rf"(?i)\n[\s*_#>]*(?:{named})?{re.escape(given['postscript_marker'])}", reply.strip()))


def _two(reply: str, _given: Given) -> bool:
    parts = [part.strip() for part in reply.split("******")]
    return len(parts) == 2 and parts[0] != parts[1]


def _repeats(reply: str, given: Given) -> bool:
    request = given["transcription"].partition(" First, repeat the request")[0]
    said, asked = ("".join(filter(str.isalnum, text)).casefold() for text in (reply, request))
    return said.startswith(asked)


_ENDS = {"at least": ("N", ""), "at most": ("", "N"), "range": ("N1", "N2")}
_COUNTS: dict[str, Count] = {
    "Number Words": lambda reply: len(reply.split()),
    "Number Sentences": _sentences,
    "All-capital Words": lambda reply: sum(word.isupper() for word in reply.split()),
}
_KINDS = {
    **{f"{name} ({how})": _counted(count, *ends) for name, count in _COUNTS.items() for how, ends in _ENDS.items()},
    "Include Keywords": _listed("keywords", all),
    "Forbidden Words": _listed("forbidden_words", lambda held: not any(held)),
    "Number Paragraphs": _counted(lambda reply: _filled(reply.split("***"))),
    "Number Bullets": _counted(_matches(r"(?:^|\n)\s*\*\s+"), corrected=_matches(r"(?m)^[ \t]*[*•-][ \t]+(?=\S)")),
    "Minimum Number Highlighted Section": _counted(
        _matches(r"\*([^*]+)\*"),  # `**x** and **y**` contains three
        high="",
        corrected=_matches(r"(?<!\*)(\*{1,3})(?=[^\s*])[^*]*(?<=\S)\1(?!\*)"),
    ),
    "Number Placeholder": _counted(_matches(r"\[[^\]]+\]"), high=""),
    "Multiple Sections": _Kind(("N", "section_splitter"), _sections, _marked_sections),
    "Title": _Kind((), lambda reply, _given: re.search("<<[^>]+>>", reply) is not None),
    "Quotation": _Kind((), lambda reply, _given: reply.strip().startswith('"') and reply.strip().endswith('"')),
    "No Commas": _Kind((), lambda reply, _given: "," not in reply),
    "All Uppercase": _Kind((), lambda reply, _given: reply.isupper()),
    "All Lowercase": _Kind((), lambda reply, _given: reply.islower()),
    "Postscript": _Kind(
        ("postscript_marker",),
        lambda reply, given: _letters(given["postscript_marker"]) in _letters(reply),
        _postscript,
    ),
    "Start Checker": _phrased("start_phrase", str.startswith),
    "End Checker": _phrased("end_phrase", str.endswith),
    "Two Responses": _Kind((), _two, lambda reply, given: _two(reply, given) and _filled(reply.split("******")) == 2),
    "Repeat Prompt": _Kind(
        ("question", "transcription"), lambda reply, given: reply.startswith(given["question"]), _repeats
    ),
}
KINDS = tuple(_KINDS)
