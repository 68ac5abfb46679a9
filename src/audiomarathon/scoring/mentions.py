"""Find the passages of a reply that name options: by a letter, by an option's text, or by both."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from audiomarathon.scoring.visible import BRACKETS, CJK
from audiomarathon.text import remembered

CONTEXT = 160  # characters around a mention that are examined

RANGE = re.compile(r"(?<=\d)\s*(?:[-–—~]|\bto\b|\band\b|\bthrough\b|到|至)\s*(?=\d)")
_WORD = re.compile(r"(?:(?<![^\s(])[-−<>≤≥])?\d+(?:[.,:/-]\d+)*(?![^\W_])[+%]?" + rf"|[{CJK}]|(?:(?![{CJK}])[^\W_])+")
#: Characters that name an option only if they stand alone: yes, no, there is, there is not, right, wrong.
_PARTICLES = frozenset("是否有无無对對错錯不没沒")
#: What follows a "no" that belongs to the next word, as in "no audio", not to the sentence, as in "No they are not".
_NO_OF = re.compile(
    r" (?!(?:it|that|this|these|those|they|the|a|an|there|he|she|I|we|you|because|since|as|is|was|not|and|or|but"
    r"|with|for|way|\w+ly|seems?|would|to|in|on)\b)[A-Za-z]",
    re.IGNORECASE,
)


@remembered(2_000)
def _words(text: str) -> tuple[tuple[str, int, int], ...]:
    """Return a text's words as (word in lower case, start, end); a decimal, a range or a CJK character is one word."""
    return tuple((word[0].casefold(), word.start(), word.end()) for word in _WORD.finditer(text))


@dataclass(frozen=True)
class Mention:
    """A passage of a reply that names one or more options.

    Attributes
    ----------
    options
        The letters of the options.
    by_letter
        Whether the passage holds an option's letter.
    number
        Whether it holds an option's text that begins with a number.
    with_text
        Whether it holds a letter and, next to it, the text of this letter's option.
    """

    start: int
    end: int
    options: frozenset[str]
    by_letter: bool
    number: bool = False
    with_text: bool = False


#: An option that is a note, a chord or a key.
MUSICAL = re.compile(r"[A-G](?:[ -](?:flat|sharp))?(?:$|\s*(?:major|minor|maj|min|dim|aug|sus|m\b|m?\d))")
#: "Answer" and "option", in the languages that replies come in.
_ANSWER = r"(?:answer|r[ée]ponse|antwort|lösung|respuesta|risposta|resposta|ответ|odpowied[zź]|cevap|答案|答え|정답)"
_OPTION = (
    r"(?:option|choice|letter|opci[oó]n|opç[aã]o|opzione|letra|lettera|lettre|вариант|选项|選項|選択肢|보기|선택지)"
)
NOUN = rf"(?:{_ANSWER}|{_OPTION})"
LETTER = re.compile(r"(?<![\w'.&\\])(?<!\w\w-)(?P<letter>[A-Za-z])(?![\w'\\#]|\+\+|-\w\w|\.,|:\\)")
_INITIALS = re.compile(
    r"(?<!\w)(?:(?:Mrs?|Ms|Dr|Prof)\.?\s+[A-Z]\.|(?:[A-Z]\.\s?){2,}(?=[A-Z][a-z])|(?:[A-Za-z]\.)+[A-Za-z]\b)"
)
NOTE = re.compile(r"\b(?:key|chord|note|scale|tune|tuning|grade|vitamin|blood)\b", re.IGNORECASE)
_GOES_ON = (
    r"(?:because|since|as|due to|based on|given (?:that|the)|which|rather than|instead of|over|but|although|though"
    r"|whereas|and not|not(?=\s+(?:option\s+)?\(?[A-Z]\b)|with (?:\w+ )?(?:confidence|certainty)|for sure"
    r"|I (?:think|believe|guess)|parce|weil|porque|it'?s|there(?:'s| is| are)|this is"
    r"|the (?:speaker|audio|voice|clip|recording|sound|music|song|tone|singer|rhythm|tempo))\b"
)
#: What may follow a mention that stands alone: punctuation, or words that continue the sentence.
CLOSES = (
    rf"\s*(?:$|[.,;!?()\n–—…。、|/&+]|:(?!\s*\d)|-\s|→|[{CJK}]|{_GOES_ON}"
    r"|(?:(?:most )?likely|probably|definitely|certainly|clearly|it is)\b)"
)
#: If one of these follows "A", the "A" is not an article.
_NO_ARTICLE = (
    rf"\s*(?:$|[.,;:=!?()\n–—…。、|/&+]|-\s|→|[{CJK}]|{_GOES_ON}"
    r"|(?:is|was|seems|sounds|looks|fits|matches|would|must|could|might|may|means|stands|refers|describes|and|or|nor)\b)"
)


_FILLER = (
    r"(?:\s*(?:[:=\"(→-]|\b(?:that|the|an?|my|it|would|should|must|be|is|most|likely|only|therefore|thus|indeed|also|\w+ly"
    rf"|selon|l'|el|la|le|o|a|die|der|to|{NOUN})\b|选项|選項|選択肢|答案|是|为|為|は|番))*\s*+"
)
#: Words before a mention that the reply states as its answer.
ASKS = re.compile(
    r"(?:\b(?:(?<!there )is|was|be|been|fits?|like"
    r"|answer(?: with)?|cho(?:ose|oses|sen|se|osing)|pick(?:s|ed)?|select(?:s|ed|ion)?"
    r"|result:|verdict:|decision:|conclusion:|think|believe|guess|say|suppose|assume|conclude|prefer|prediction"
    r"|(?:go|going|went) (?:with|for)|opt for"
    r"|settle on|vot(?:e|es|ing)(?: (?:for|goes to))?|(?:points?|leads?|corresponds?) to|match(?:es)?|suggests?"
    rf"|indicates?|est|ist|es|sei|{_ANSWER})|'s|\b(?:its|è|é|это)\b|是|选择|選擇|选(?!项)|選(?![項択])|答案|(?<!因)[为為]|は|답은|정답|답"
    r"|아니라|而是)"
    rf"{_FILLER}$",
    re.IGNORECASE,
)
LABEL = re.compile(rf"(?:\b|(?<=[{CJK}])){NOUN}[\s:(]*$", re.IGNORECASE)


def _forms(options: dict[str, str]) -> list[tuple[list[str], list[str], frozenset[str]]]:
    """Return a list of (words, gaps, letters), longest first: each is a sequence of words that can name an option.

    The gaps are the option's text between neighbouring words, which may hold punctuation; a reply may have no other
    punctuation there. The letters are those of the options that the words name.
    """
    named: dict[tuple[str, ...], tuple[list[str], set[str]]] = {}
    halves: dict[tuple[str, ...], tuple[list[str], set[str]]] = {}
    for letter, text in options.items():
        flat = RANGE.sub("-", text.translate(BRACKETS))
        for index, part in enumerate((flat, *re.split(r"[()]|\s[-–—]\s", flat))):
            words = _named_words(part)
            key = tuple(word for word, _start, _end in words)
            joined = [part[a[2] : b[1]] for a, b in pairwise(words)]
            if not key or (len(key) == 1 and len(key[0]) == 1 and key[0].isascii() and key[0].isalpha()):
                continue  # an option such as "A" is not a word to search for in prose
            (halves if index else named).setdefault(key, (joined, set()))[1].add(letter)
    for key, (joined, letters) in halves.items():
        if len(letters) == 1 and key not in named:
            named[key] = (joined, letters)
    ordered = sorted(named.items(), key=lambda item: (-len(item[0]), -len("".join(item[0]))))
    return [(list(key), joined, frozenset(letters)) for key, (joined, letters) in ordered]


def mentions_of(text: str, options: dict[str, str]) -> Iterator[Mention]:
    """Yield the mentions of options in a reply: first all option texts, then the letters outside of these texts."""
    words, notes = _named_words(text), any(map(MUSICAL.match, options.values()))
    taken: list[str | None] = [word for word, _start, _end in words]
    covered: list[tuple[int, int]] = []
    for form, joined, letters in _forms(options):
        for place in range(len(words) - len(form) + 1):
            span = words[place : place + len(form)]
            if taken[place : place + len(form)] != form or not _is_name(text, span, joined, capital=notes):
                continue
            taken[place : place + len(form)] = [None] * len(form)
            start, end = span[0][1], span[-1][2]
            covered.append((start, end))
            yield Mention(start, end, letters, by_letter=False, number=form[0].isdecimal() and len(form) == 1)
    covered += [initials.span() for initials in _INITIALS.finditer(text)]
    for match in LETTER.finditer(text):
        if any(start <= match.start() < end for start, end in covered):
            continue
        letter, rest = match["letter"].upper(), text[match.end() : match.end() + CONTEXT]
        before = text[max(0, match.start() - CONTEXT) : match.start()]
        named = LABEL.search(before) or any(start == match.end() + 1 for start, _ in covered)
        if match["letter"].isupper() and letter not in options and re.match(r"\s[a-z]", rest) and not named:
            continue  # "O som" and "E il suono" are no answers
        if match["letter"].islower():
            with_text = not before.strip() and rest[:1] in (".", ":") and _begins_with(rest, options.get(letter, ""))
            asked = letter not in "AI" and (ASKS.search(before) or LABEL.search(before)) and re.match(CLOSES, rest)
            if letter not in options or not (rest.startswith(")") or with_text or asked):
                continue
        elif letter == "I":  # usually a pronoun
            if letter not in options or not re.match(r"\s*(?:$|[.):])", rest):
                continue
        elif letter == "A" and re.match(rf"(?!{_NO_ARTICLE})|\s*\n\s*[a-z]", rest):
            continue
        yield Mention(match.start(), match.end(), frozenset(letter), by_letter=True)


def _named_words(text: str) -> list[tuple[str, int, int]]:
    """Return a text's words as (word, start, end), without articles, which replies add or omit.

    "A" stays, since it may be a letter.
    """
    words = _words(text)
    kept = [word for word, _next in pairwise(words) if word[0] not in ("a", "an", "the") or text[word[1]] == "A"]
    return kept + list(words[-1:])


def _is_name(text: str, span: Sequence[tuple[str, int, int]], joined: Sequence[str], *, capital: bool = False) -> bool:
    """Tell whether an option's words, found in a reply, name the option.

    "A metro. Station announcements" does not name the metro station: a punctuation mark that the option does not have
    stands between the words. A particle such as 是 names an option only if it stands alone, and "no" before a noun
    names none. Korean names begin a word. With `capital`, a first word of one or two letters must have a capital, as in
    the option.
    """
    gaps = [text[a[2] : b[1]] for a, b in pairwise(span)]
    if any(set(re.findall(r"[.,;:!?\n]", gap)) - set(joint) for joint, gap in zip(joined, gaps, strict=True)):
        return False
    word, start, _end = span[0]
    before, after = text[start - 1 : start], text[span[-1][2] : span[-1][2] + 1]
    if len(word) < 3 and text[start].islower() and len(span) < 3 and word.isascii() and word.isalpha() and capital:
        return False  # "a minor key" is not A minor, "I am" is not Am
    if len(span) == 1 and word == "no" and _NO_OF.match(text, span[0][2]):
        return False  # "no audio was given" is no answer
    if len(span) == 1 and word in _PARTICLES:
        return not re.search(rf"[{CJK}]", before + after)
    return not ("\uac00" <= word <= "\ud7af" and "\uac00" <= before <= "\ud7af")


def is_the_same(text: str, option: str) -> bool:
    """Tell whether a reply consists of an option's words only, without punctuation that the option does not have."""
    said, wanted = _words(text), _words(option)
    if not said or [word[0] for word in said] != [word[0] for word in wanted]:
        return False
    return _is_name(text, said, [option[a[2] : b[1]] for a, b in pairwise(wanted)])


def _begins_with(text: str, option: str) -> bool:
    wanted = [word for word, _start, _end in _words(option)]
    return bool(wanted) and [word for word, _start, _end in _words(text)][: len(wanted)] == wanted


BESIDE = re.compile(r"[\s.,:;()=>→–—-]*(?:(?:option|choice)\s*)?[\s(]*")
_JOINS = re.compile(
    r"[\s()]*(?:[,/&+<>~–—、-]|或|和|与|與|及|还是|還是|と|や|か"
    r"|,?\s*\b(?:or|and|nor|but also|also|as well as|plus|und|oder|et|ou|y|o|e|и|или|to|through|vs\.?|versus)\b"
    r"|[과와랑])"
    r"[\s()]*"
    r"(?:(?:or|and|nor|maybe|perhaps|possibly|even|both)\b\s*)*(?:(?:options?|choices?|the|an?)\b\s*)*\(?"
)


def grouped(text: str, mentions: Sequence[Mention]) -> list[Mention]:
    """Merge mentions that belong together: a letter beside its option's text, and options joined by "or" or a comma."""
    merged: list[Mention] = []
    for mention in sorted(mentions, key=lambda mention: mention.start):
        if merged and mention.options == merged[-1].options and mention.by_letter != merged[-1].by_letter:
            last = merged[-1]
            if BESIDE.fullmatch(text, last.end, mention.start):
                merged[-1] = replace(last, end=mention.end, by_letter=True, with_text=True)
                continue
        merged.append(mention)
    groups: list[Mention] = []
    for mention in merged:
        if groups and (gap := _JOINS.fullmatch(text, groups[-1].end, mention.start)):
            comma_only = set(gap[0]) <= set(" \n(),")
            alike = not mention.by_letter and not groups[-1].by_letter
            if not comma_only or alike or re.match(rf"{CLOSES}|\s*(?:or|and|nor)\b", text[mention.end :][:CONTEXT]):
                last = groups[-1]
                groups[-1] = replace(last, end=mention.end, options=last.options | mention.options)
                continue
        groups.append(mention)
    return groups
