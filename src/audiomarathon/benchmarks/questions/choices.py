"""Find the option that a reply to a question of MMAU-Pro chooses.

Letters are read as in :mod:`~audiomarathon.scoring.choice_reading`; numbers and bold type are read too. MMAU-Pro's
published prompt numbers the options, so replies use numbers: "The answer is **2) Blues**".
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from audiomarathon.benchmarks.rows import words_of
from audiomarathon.records import LETTERS
from audiomarathon.scoring.choice_reading import read_reply
from audiomarathon.scoring.visible import visible

_NUMBER = re.compile(r"(?<![\w.,:/-])(\d{1,2})([).:])(?=\s|\*|$)[\s*]*")
_ALONE = re.compile(r"[\s*_(\[]*(?:option|choice|answer)?[\s:*_(\[]*(\d{1,2})[\s).:\]*_]*", re.IGNORECASE)
_COUNTS = re.compile(r"\d|\b(?:zero|one|two|three|four|five|six|seven|eight|nine|ten)\b", re.IGNORECASE)
#: Bold text that names an option: it is no heading of a list, not denied, not in a question, and no alternative ("or").
_BOLD = re.compile(
    r"(?<!\bnot )(?<!n't )(?<!\bno )(?<!\bnot a )(?<!\bnot the )(?<!rule out )(?<!\bor )"
    r"\*\*([^*]+)\*\*(?!\s*[:?]|\s*,?\s+or\b)",
    re.IGNORECASE,
)
_LABEL = re.compile(r"\s*[A-Z][).:]\s")


def read_option(reply: str, options: Sequence[str]) -> tuple[str | None, str]:
    """Return the letter of the option that a reply chooses (or None), and the name of the rule that found it.

    The rules, in this order:

    - `verbatim`: the reply is exactly the option.
    - The rules of :func:`read_reply`; "2. text" counts as "B. text" if option B is this text.
    - `number`: the reply is a number, and no option contains a number.
    - `bold`: the bold texts name exactly one option. If some of them have a letter ("A. …"), only these count.
    - `unparsed`: no other rule fits.

    Parameters
    ----------
    options
        The options' texts, at most 26.
    """
    read = read_reply(reply, options)
    if read.letter and read.strict:
        return read.letter, "verbatim"
    text = _lettered(visible(reply), options)
    if (read := read_reply(text, options)).letter:
        return read.letter, read.rule
    if (
        (alone := _ALONE.fullmatch(text))
        and 0 < int(alone[1]) <= len(options)
        and not any(map(_COUNTS.search, options))
    ):
        return LETTERS[int(alone[1]) - 1], "number"
    bold = [phrase for phrase in _BOLD.findall(text) if not phrase.rstrip().endswith(":")]
    labelled = [phrase for phrase in bold if _LABEL.match(phrase)]
    named = {words_of(_LABEL.sub("", phrase, count=1)) for phrase in labelled or bold}
    letters = [letter for letter, option in zip(LETTERS, options, strict=False) if words_of(option) in named]
    return (letters[0], "bold") if len(letters) == 1 else (None, "unparsed")


def _lettered(reply: str, options: Sequence[str]) -> str:
    """Replace an option's number by its letter if the option's text follows: "2. text" becomes "B. text"."""

    def letter(match: re.Match[str]) -> str:
        place = int(match[1]) - 1
        if not 0 <= place < len(options):
            return match[0]
        wanted = words_of(options[place])
        after = words_of(reply[match.end() : match.end() + len(options[place]) + 40])
        return f"{LETTERS[place]}{match[2]} " if wanted and after[: len(wanted)] == wanted else match[0]

    return _NUMBER.sub(letter, reply)
