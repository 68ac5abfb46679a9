"""Which option a reply chooses. The rules in order; a letter is never read out of prose.

1. `letter`: the reply is one letter, possibly wrapped or punctuated: `B`, `(B)`, `B.`, `**B**`, and `b`, since a reply
   of one letter holds no prose to misread.
2. `leading letter`: it starts with a letter and its punctuation: `B. Jazz`, `B) Jazz`, `B: Jazz`, or a letter on a
   line of its own. "A dog" (no punctuation) and "A.I. speech" (an abbreviation) do not; neither does a reply that goes
   on to restate other options.
3. `named letter`: it names one: `the answer is B`, `Option B`, `B is correct`. What follows the letter must end the
   phrase, so "the answer is A dog" names none.
4. `option text`: exactly one option's text occurs, by whole words, the longest first, so that "metro station" is not
   metro too.

Two options named, or one named in a negation ("not B", "isn't real"), is `unparsed`. A reply that is one option's text
word for word is that option before rules 2 and 3 are asked, since options can look like anything. What a model writes
inside `<think>` is not its reply.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from audiomarathon.tasks.rows import words_of
from audiomarathon.tasks.task import LETTERS

EDGE_CHARACTERS = 4000


@dataclass(frozen=True)
class ReadReply:
    """What a reply says.

    Attributes
    ----------
    letter
        The option chosen, or None.
    rule
        The rule that decided: `letter`, `leading letter`, `named letter`, `option text`, or `unparsed`.
    strict
        The reply as given is exactly the letter, the option's text, or both as the prompt shows them (`B. Jazz`).
    """

    letter: str | None
    rule: str
    strict: bool


def read_reply(reply: str, options: Sequence[str]) -> ReadReply:
    """Read a reply to a multiple-choice question; never raises, whatever the text.

    Parameters
    ----------
    reply
        The model's text, raw.
    options
        The options' texts in the order A, B, …; at most 26 are looked at.
    """
    letter, rule = _decide(_visible(reply), options)
    exact: set[str] = set()
    if letter is not None:
        text = options[LETTERS.index(letter)].strip()
        exact = {letter, text, f"{letter}. {text}"}
    return ReadReply(letter, rule, reply.strip() in exact)


def _decide(text: str, options: Sequence[str]) -> tuple[str | None, str]:  # noqa: PLR0911 - one return a rule
    texts = {letter: words_of(_normal(option)) for letter, option in zip(LETTERS, options, strict=False)}
    if not texts:
        return None, "unparsed"
    forms = _forms(len(texts))
    if match := forms.bare.fullmatch(text):
        return match["letter"].upper(), "letter"
    if len(verbatim := [letter for letter, words in texts.items() if words and words == words_of(text)]) == 1:
        return verbatim[0], "option text"
    leading, several = _leading(text, texts, forms)
    named = _named(text, texts, forms)
    if leading and not several:
        return (leading, "leading letter") if named <= {leading} else (None, "unparsed")
    if len(named) == 1:
        return named.pop(), "named letter"
    if named or several:
        return None, "unparsed"
    by_text = _by_text(text, texts, forms)
    return (by_text, "option text") if by_text else (None, "unparsed")


def _visible(reply: str) -> str:
    """Return the reply without a model's thinking, finished or cut off, and with look-alike characters made plain."""
    text = re.split(r"</think>", reply, flags=re.IGNORECASE)[-1]
    text = _normal(re.split(r"<think>", text, maxsplit=1, flags=re.IGNORECASE)[0]).strip()
    # An essay answers at one of its ends; the cut bounds the time that a degenerate reply can cost.
    return text if len(text) <= 2 * EDGE_CHARACTERS else f"{text[:EDGE_CHARACTERS]}\n{text[-EDGE_CHARACTERS:]}"


def _normal(text: str) -> str:
    return unicodedata.normalize("NFKC", text).replace("’", "'")


@dataclass(frozen=True)
class _Forms:
    """The regular expressions for a number of options; letters beyond it are no answers."""

    bare: re.Pattern[str]
    leading: re.Pattern[str]
    listed: re.Pattern[str]
    marker: re.Pattern[str]
    cue: re.Pattern[str]
    verdict: re.Pattern[str]
    letter: re.Pattern[str]


# Possessive (`*+`), so that long runs of such characters are not tried again and again.
_OPEN = r"(?:\\boxed|\\text|[\s*_`\"'“‘(\[{<$])*+"
_CLOSE = r"[\s*_`\"'”)\]}>$]*+"


@lru_cache(maxsize=32)
def _forms(count: int) -> _Forms:
    last = LETTERS[count - 1]
    upper = f"[A-{last}]"
    either = f"(?:{upper}|{upper.lower()})"
    # In running text a small "a" or "i" is a word; the other small letters count after a cue.
    small = "".join(letter for letter in LETTERS[:count].lower() if letter not in "ai")
    after_cue = rf"(?:(?-i:{upper}|[{small}])(?!\w|'\w))" if small else rf"(?:(?-i:{upper})(?!\w|'\w))"
    joined = rf"{_CLOSE}(?:,|/|&|\+|\bor\b|\band\b|\bnor\b)\s*(?:(?:or|and)\b\s*)?(?:(?:option|choice)s?\b\s*)?{_OPEN}"
    return _Forms(
        bare=re.compile(rf"[-–•#]?{_OPEN}(?P<letter>{either})[\s*_`\"'”)\]}}>$.,:;!?]*"),
        leading=re.compile(
            rf"{_OPEN}(?P<letter>{either})"
            r"(?P<mark>\s?\*\*[.:)]?|[*_`\"'”]*[.):\]}>]+[*_`\"'”)\]]*|[ \t]*\n)(?P<rest>.*)",
            re.DOTALL,
        ),
        listed=re.compile(rf"{_OPEN}{upper}{joined}{upper}(?!\w|')"),
        marker=re.compile(
            rf"(?:^|(?<=[\s(,;/*\[|]))(?P<letter>{upper})(?:\*\*)?(?:[.):\]](?=[\s*]|$)|[ \t]*$)", re.MULTILINE
        ),
        cue=re.compile(
            r"\b(?:answers?|options?|choices?|choose|chose|pick|select|go(?:ing)? with)\b[\s*_\"'`:=]*+"
            r"(?:(?:is|are|was|be|(?:would|should|must|will) be)\b[\s*_\"'`:]*+)?"
            r"(?:(?:clearly|definitely|probably|likely|most likely|therefore|thus|indeed)\b\s*)?"
            rf"(?:(?:the\s+)?(?:letter|option|choice)s?\b[\s*_\"'`:]*+)?{_OPEN}"
            rf"(?P<letters>{after_cue}(?:{joined}{after_cue})*)",
            re.IGNORECASE,
        ),
        verdict=re.compile(
            rf"(?:^|[.!?:,\n]|\bso\b|\btherefore\b){_OPEN}(?P<letters>{upper}(?!\w|'\w)){_CLOSE}"
            r"\bis\s+(?:the\s+)?(?:most\s+\w+\s+)?(?:correct|right|best|answer)\b"
        ),
        letter=re.compile(rf"(?<!\w)(?:{upper}|[{small or last}])(?!\w)"),
    )


def _leading(  # noqa: PLR0911 - one return a trap
    text: str, texts: dict[str, list[str]], forms: _Forms
) -> tuple[str | None, bool]:
    """Return the letter that the reply starts with, and whether it starts by listing several."""
    if forms.listed.match(text):
        return None, True
    match = forms.leading.match(text)
    if match is None:
        return None, False
    written, mark, rest = match["letter"], match["mark"], match["rest"]
    letter, following = written.upper(), words_of(rest)
    own = bool(texts[letter]) and following[: len(texts[letter])] == texts[letter]
    if rest[:1].strip() and not own and (rest[0].isalnum() or mark[-1] in ".:>"):
        return None, False  # "A.I. generated", "C:\\folder"; but "B.Jazz" and "(B), because"
    if re.match(r"\s*\w\.(?:\s|\w\.)", rest) and not own and not forms.marker.match(rest.lstrip()):
        return None, False  # initials: "J. S. Bach"
    if mark.isspace() and (written.islower() or (written in "AI" and rest.lstrip()[:1].islower())):
        return None, False  # a line that broke after the article
    if written.islower() and ")" not in mark and following != texts[letter]:
        return None, False
    unnamed = forms.cue.sub(" ", rest)  # "A. The answer is B" names two; it restates none
    others = forms.marker.finditer(unnamed.upper() if written.islower() else unnamed)
    if any(other["letter"] != letter for other in others):
        return None, True
    return letter, False


#: What may follow a named letter: the end of the phrase, or words that go on from it.
_PHRASE_END = re.compile(
    r"[*_`\"'”)\]}>]*(?:\s*$|[.,:;!)](?!\w)|\s*\n|\s+[(–—-]"
    r"|\s+(?:because|since|as|due|based|given|which|is\s+(?:the\s+)?(?:correct|right|best))\b)"
)
_CLAUSE_EDGE = re.compile(r"[.,;:!?\n]|\bbut\b", re.IGNORECASE)
_NEGATION = re.compile(
    r"\b(?:no|non|not|none|never|neither|nor|cannot|without|lack\w*|wrong|incorrect|except|if|whether|unlikely"
    r"|instead of|rather than|rul\w+ out|eliminat\w+|exclud\w+)\b|n't\b",
    re.IGNORECASE,
)
_REFUTED = re.compile(
    r"(?:,\s*\w+\s*,)?[^.,;!?\n]*?"
    r"\b(?:(?:is|are|was|seems?|looks?|be)\s+(?:\w+\s+)?(?:not|wrong|incorrect|false|unlikely|absent|missing)\b"
    r"|(?:is|was|can|does|could)n't\b)",
    re.IGNORECASE,
)


def _named(text: str, texts: dict[str, list[str]], forms: _Forms) -> set[str]:
    """Return the letters that the reply names as its answer."""
    named: set[str] = set()
    for match in (*forms.cue.finditer(text), *forms.verdict.finditer(text)):
        letters = {letter.upper() for letter in forms.letter.findall(match["letters"])}
        start, tail = match.start("letters"), text[match.end("letters") :]
        if match.re is forms.cue:
            own = texts[next(iter(letters))] if len(letters) == 1 else []
            if not _PHRASE_END.match(tail) and not (own and words_of(tail)[: len(own)] == own):
                continue
        if _negated(text, start) or _REFUTED.match(tail):
            continue
        named |= letters
        # "Options: A. Jazz B. Rock" lists them; so does "the answer is B. C."
        line = tail.split("\n", maxsplit=1)[0] if match.re is forms.verdict else tail
        named |= {other["letter"] for other in forms.marker.finditer(line)}
    return named


def _negated(text: str, start: int) -> bool:
    """Tell whether the clause before a place in the text negates what stands there."""
    before = text[:start]
    edges = [edge.end() for edge in _CLAUSE_EDGE.finditer(before.rstrip(" :*_\"'`(["))]
    return _NEGATION.search(before[edges[-1] if edges else 0 :]) is not None


def _by_text(text: str, texts: dict[str, list[str]], forms: _Forms) -> str | None:
    """Return the only option whose words occur in the reply in a row, unless negated or contradicted by a letter."""
    spans = [match.span() for match in re.finditer(r"[^\W_]+", text)]
    tokens: list[str | None] = [text[start:end].casefold() for start, end in spans]
    found: set[str] = set()
    for letter, words in sorted(texts.items(), key=lambda item: (-len(item[1]), -len("".join(item[1])))):
        if not words or (len(words) == 1 and len(words[0]) == 1 and words[0].isascii() and words[0].isalpha()):
            continue  # an option such as "A" is no word to look for in prose
        same = {other for other, its in texts.items() if its == words}
        for place in range(len(tokens) - len(words) + 1):
            if tokens[place : place + len(words)] == words:
                start, end = spans[place][0], spans[place + len(words) - 1][1]
                if _negated(text, start) or _REFUTED.match(text, end):
                    return None
                found |= same | {letter}
                tokens[place : place + len(words)] = [None] * len(words)
    if len(found) != 1:
        return None
    letter = found.pop()
    return None if any(other["letter"] != letter for other in forms.marker.finditer(text)) else letter
