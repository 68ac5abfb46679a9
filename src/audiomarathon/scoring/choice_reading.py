"""Read the option that a reply chooses. A wrong reading is worse than none: a doubtful reply is `unparsed`.

1. Only visible text is read: no thinking, special tokens, markup, LaTeX or JSON quotes. A reply that is one letter,
   wrapped or punctuated, or one option's text word for word, is that option.
2. Every other reply is read as *mentions*: letters that stand alone, and option texts by whole words, the longest
   first. "A" and "I" before a word are an article and a pronoun. Initials are not letters. A lower-case letter counts
   only with a cue or a bracket. Either half of "Senior (51-70)" names it if no other option has that half. Numbers are
   read whole: 2.7, 10-12 and "between 7 and 12" are not 7.
3. A mention is *denied* by a negation in its clause ("not B", "A is wrong"). It is *doubtful* in a question or after
   "if". It is *listed* if the reply goes through the options ("Let me consider each option: A. Blues has a slow").
4. A mention *commits* the reply *outright* ("the answer is B", "B is correct", "I think it's B"), or by *standing*
   alone between punctuation ("B. Jazz", "Based on the audio, D"). "A or B" and "A, B" are one mention of two options.
5. The reply is read if everything that commits it names the same existing option. If several options are standing or
   listed, they are a list, and only outright mentions count. If nothing commits the reply, it is read if exactly one
   option's text occurs in it.

A reply that retracts ("no, wait") or contradicts itself, in letters or in texts, is `unparsed`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from audiomarathon.records import LETTERS
from audiomarathon.text import same_marks
from audiomarathon.thinking import without_thinking

EDGE_CHARACTERS = 4000
_CONTEXT = 160  # characters around a mention that are examined
_MOST_MENTIONS = 200  # a reply with more mentions is unparsed


@dataclass(frozen=True)
class ReadReply:
    """The option that a reply chooses.

    Attributes
    ----------
    letter
        The option chosen, or None.
    rule
        The rule that decided: `letter`, `leading letter`, `named letter`, `option text`, or `unparsed`.
    strict
        Whether the reply, as given, is exactly the letter, the option's text, or both as in the prompt (`B. Jazz`).
    """

    letter: str | None
    rule: str
    strict: bool


def read_reply(reply: str, options: Sequence[str]) -> ReadReply:
    """Read which option a reply to a multiple-choice question chooses; never raise an error, whatever the reply.

    Parameters
    ----------
    reply
        The model's text, unchanged.
    options
        The options' texts in the order A, B, …; only the first 26 count.
    """
    letter, rule = _decide(visible(reply), dict(zip(LETTERS, map(_normal, options), strict=False)))
    exact: set[str] = set()
    if letter is not None:
        text = options[LETTERS.index(letter)].strip()
        exact = {letter, text, f"{letter}. {text}"}
    return ReadReply(letter, rule, reply.strip() in exact)


# --- Visible text: the reply without thinking, markup and special tokens.

_END = re.compile(r"<\|(?:im_end|end|eot_id|endoftext|end_of_text|return)\|>|</s>|<eos>|<end_of_turn>")
_MARKUP = re.compile(
    r"<\|[^|<>]{0,40}\|>|</?(?:[a-z]|[A-Za-z_-]{2,20})(?:\s[^<>]{0,80})?/?>"  # <|start|>, <answer>, </b>; not <B>
    r"|\\(?:boxed|fbox|text\w*|math\w*|bf|rm|quad)\b|\\[()\[\],;]|(?m:^\s*(?:[#•]+|[->*+](?=\s))\s*)|```(?:json)?"
    r"|[*`\"“”„«»$]|(?<!\w)['_]+|['_]+(?!\w)"
)
_CJK = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_CJK_EDGE = re.compile(rf"(?<=[{_CJK}])(?=[A-Za-z0-9])|(?<=[A-Za-z0-9])(?=[{_CJK}])")
_BRACKETS = str.maketrans("[]{}", "()()")


def _normal(text: str) -> str:
    return unicodedata.normalize("NFKC", same_marks(text))


def visible(reply: str) -> str:
    """Return a reply's text without the model's thinking, and with look-alike characters replaced.

    Of a very long reply, only the start and the end are kept.
    """
    parts = _END.split(without_thinking(reply))
    text = _normal(next((part for part in parts if part.strip()), "")).strip()
    # A long reply answers at its start or end; the cut bounds the time that a degenerate reply can cost.
    return text if len(text) <= 2 * EDGE_CHARACTERS else f"{text[:EDGE_CHARACTERS]}\n{text[-EDGE_CHARACTERS:]}"


def _plain(text: str) -> str:
    """Remove markup, and turn all brackets into round ones."""
    text = re.sub(r"<([A-Z])>", r"(\1)", _MARKUP.sub(lambda found: " " if found[0][0] == "<" else "", text))
    return _CJK_EDGE.sub(" ", text).translate(_BRACKETS)


_RANGE = re.compile(r"(?<=\d)\s*(?:[-–—~]|\bto\b|\band\b|\bthrough\b|到|至)\s*(?=\d)")
_WORD = re.compile(r"(?:(?<![^\s(])[-−<>≤≥])?\d+(?:[.,:/-]\d+)*(?![^\W_])[+%]?|[^\W_]+")


def _words(text: str) -> list[tuple[str, int, int]]:
    """Return a text's words in lower case with their positions; a decimal or a range is one word."""
    return [(word[0].casefold(), word.start(), word.end()) for word in _WORD.finditer(text)]


# --- Mentions.


@dataclass(frozen=True)
class _Mention:
    """A place in the reply that names one or more options: their letters are in `options` (`?` for an unclear name).

    `by_letter`: the place holds a letter. `number`: it holds an option's text that begins with a number. `own`: it
    holds a letter next to the text of its option.
    """

    start: int
    end: int
    options: frozenset[str]
    by_letter: bool
    number: bool = False
    own: bool = False


def _forms(options: dict[str, str]) -> list[tuple[list[str], list[bool], frozenset[str]]]:
    """Return the word sequences that can name an option, the longest first.

    Each comes with flags and with the letters of the options that it names. There is one flag per pair of neighbouring
    words: True if only white space separates them in the option. Then no punctuation may separate them in a reply.
    """
    named: dict[tuple[str, ...], tuple[list[bool], set[str]]] = {}
    halves: dict[tuple[str, ...], tuple[list[bool], set[str]]] = {}
    for letter, text in options.items():
        flat = _RANGE.sub("-", text.translate(_BRACKETS))
        for index, part in enumerate((flat, *re.split(r"[()]|\s[-–—]\s", flat))):
            words = _words(part)
            key = tuple(word for word, _start, _end in words)
            joined = [part[a[2] : b[1]].isspace() for a, b in pairwise(words)]
            if not key or (len(key) == 1 and len(key[0]) == 1 and key[0].isascii() and key[0].isalpha()):
                continue  # an option such as "A" is not a word to search for in prose
            (halves if index else named).setdefault(key, (joined, set()))[1].add(letter)
    for key, (joined, letters) in halves.items():
        if len(letters) == 1 and key not in named:
            named[key] = (joined, letters)
    ordered = sorted(named.items(), key=lambda item: (-len(item[0]), -len("".join(item[0]))))
    return [(list(key), joined, frozenset(letters)) for key, (joined, letters) in ordered]


_LETTER = re.compile(r"(?<![\w'.&\\])(?<!\w\w-)(?P<letter>[A-Za-z])(?![\w'\\#]|\+\+|-\w\w|\.,|:\\)")
_INITIALS = re.compile(r"(?<!\w)(?:(?:[A-Z]\.\s?){2,}(?=[A-Z][a-z])|(?:[A-Za-z]\.)+[A-Za-z]\b)")
_NOTE = re.compile(r"\b(?:key|chord|note|scale|tune|tuning|grade|vitamin|blood)\b", re.IGNORECASE)
_GOES_ON = (
    r"(?:because|since|as|due to|based on|given (?:that|the)|which|rather than|instead of|over|but|although|though"
    r"|whereas|and not|not(?=\s+(?:option\s+)?\(?[A-Z]\b)|with (?:\w+ )?(?:confidence|certainty)|for sure"
    r"|I (?:think|believe|guess)|parce|weil|porque)\b"
)
#: Allowed after a mention that stands alone: punctuation, or words that continue the sentence.
_CLOSES = (
    rf"\s*(?:$|[.,;!?()\n–—…。、|/&+]|:(?!\s*\d)|-\s|→|[{_CJK}]|{_GOES_ON}"
    r"|(?:(?:most )?likely|probably|definitely|certainly|clearly|it is)\b)"
)
#: "A" before one of these is not an article.
_NO_ARTICLE = (
    rf"\s*(?:$|[.,;:=!?()\n–—…。、|/&+]|-\s|→|[{_CJK}]|{_GOES_ON}"
    r"|(?:is|was|seems|sounds|looks|fits|matches|would|must|could|might|may|means|stands|refers|describes|and|or|nor)\b)"
)


def _mentions(text: str, options: dict[str, str]) -> Iterator[_Mention]:
    """Yield the mentions of options in a reply, unsorted: option texts, then letters outside of these texts."""
    words = _words(text)
    taken: list[str | None] = [word for word, _start, _end in words]
    covered: list[tuple[int, int]] = []
    for form, joined, letters in _forms(options):
        for place in range(len(words) - len(form) + 1):
            if taken[place : place + len(form)] != form:
                continue
            span = words[place : place + len(form)]
            taken[place : place + len(form)] = [None] * len(form)
            gaps = [text[a[2] : b[1]] for a, b in pairwise(span)]
            broken = any(joint and re.search(r"[.,;:!?\n]", gap) for joint, gap in zip(joined, gaps, strict=True))
            start, end = span[0][1], span[-1][2]
            covered.append((start, end))
            # "A metro. Station announcements" names neither the metro nor the metro station.
            yield _Mention(
                start, end, frozenset("?") if broken else letters, by_letter=False, number=form[0].isdecimal()
            )
    covered += [initials.span() for initials in _INITIALS.finditer(text)]
    for match in _LETTER.finditer(text):
        if any(start <= match.start() < end for start, end in covered):
            continue
        letter, rest = match["letter"].upper(), text[match.end() : match.end() + _CONTEXT]
        before = text[max(0, match.start() - _CONTEXT) : match.start()]
        if match["letter"].islower():
            own = not before.strip() and rest[:1] in (".", ":") and _begins_with(rest, options.get(letter, ""))
            asked = letter not in "AI" and (_ASKS.search(before) or _LABEL.search(before)) and re.match(_CLOSES, rest)
            if letter not in options or not (rest.startswith(")") or own or asked):
                continue
        elif letter == "I":  # usually a pronoun
            if letter not in options or not re.match(r"\s*(?:$|[.):])", rest):
                continue
        elif letter == "A" and re.match(rf"(?!{_NO_ARTICLE})|\s*\n\s*[a-z]", rest):
            continue
        yield _Mention(match.start(), match.end(), frozenset(letter), by_letter=True)


def _begins_with(text: str, option: str) -> bool:
    wanted = [word for word, _start, _end in _words(option)]
    return bool(wanted) and [word for word, _start, _end in _words(text)][: len(wanted)] == wanted


_BESIDE = re.compile(r"[\s.,:;()=>→–—-]*(?:(?:option|choice)\s*)?[\s(]*")
_JOINS = re.compile(
    r"[\s()]*(?:[,/&+<>~–—、-]|或|和|与|及|还是"
    r"|,?\s*\b(?:or|and|nor|but also|also|as well as|plus|und|oder|et|ou|y|o|to|through|vs\.?|versus)\b)[\s()]*"
    r"(?:(?:or|and|nor|maybe|perhaps|possibly|even|both)\b\s*)*(?:(?:options?|choices?|the|an?)\b\s*)*\(?"
)


def _grouped(text: str, mentions: Sequence[_Mention]) -> list[_Mention]:
    """Merge the mention of a letter with that of its option's text beside it, and joined mentions ("A or B")."""
    merged: list[_Mention] = []
    for mention in sorted(mentions, key=lambda one: one.start):
        if merged and mention.options == merged[-1].options and mention.by_letter != merged[-1].by_letter:
            last = merged[-1]
            if _BESIDE.fullmatch(text, last.end, mention.start):
                merged[-1] = replace(last, end=mention.end, by_letter=True, own=True)
                continue
        merged.append(mention)
    groups: list[_Mention] = []
    for mention in merged:
        if groups and (gap := _JOINS.fullmatch(text, groups[-1].end, mention.start)):
            comma_only = set(gap[0]) <= set(" \n(),")
            alike = not mention.by_letter and not groups[-1].by_letter
            if not comma_only or alike or re.match(rf"{_CLOSES}|\s*(?:or|and|nor)\b", text[mention.end :][:_CONTEXT]):
                last = groups[-1]
                groups[-1] = replace(last, end=mention.end, options=last.options | mention.options)
                continue
        groups.append(mention)
    return groups


# --- The status of a mention.

_FILLER = (
    r"(?:\s*(?:[:=\"(→-]|\b(?:that|the|an?|my|it|letter|option|choice|answer|would|should|must|be|is|most|likely|only"
    r"|therefore|thus|indeed|\w+ly|selon|la|le|die|der)\b|选项|是|为))*\s*+"
)
#: Words before a mention that the reply states as its answer.
_ASKS = re.compile(
    r"(?:\b(?:(?<!there )is|was|be|like|answer(?: with)?|cho(?:ose|oses|sen|se|osing)|pick(?:s|ed)?|select(?:s|ed|ion)?"
    r"|think|believe|guess|say|suppose|assume|conclude|prefer|prediction|(?:go|going|went) (?:with|for)|opt for"
    r"|settle on|vot(?:e|es|ing)(?: (?:for|goes to))?|(?:points|leads|corresponds) to|match(?:es)?|suggests?|indicates?"
    r"|est|ist|es|sei|réponse|antwort|respuesta|risposta|resposta|ответ)|'s|\bè|是|选|选择|答案|应为|は|답은|정답|답)"
    rf"{_FILLER}$",
    re.IGNORECASE,
)
_ASKS_TEXT = re.compile(
    r"\b(?:are|am|hear|heard|contains?|mentions?|includes?|has|have|count(?:ed)?|find|found|total of|like)"
    r"(?:\s+(?:an?|the|about|exactly|only|in total))*\s*$",
    re.IGNORECASE,
)
#: Text before a mention that stands alone.
_OPENS = re.compile(
    r"(?:^|[.,;:!?)(\n–—…。=→|]|\s-\s)\s*"
    r"(?:(?:so|hence|thus|then|maybe|perhaps|yes|yeah|sure|okay|ok|well|therefore|(?:most )?\w+ly)\b[\s,:]*)*"
    r"(?:(?:(?:the|my|final|correct|best)\s+)*(?:option|choice|letter|answer)\b[\s:]*|选项\s*)*\(?\s*$",
    re.IGNORECASE,
)
_LABEL = re.compile(r"\b(?:option|choice|letter|answer)[\s:(]*$", re.IGNORECASE)
#: An item of a list.
_ITEM = re.compile(
    r"\b(?:each|every|possible|given|first|second|third|next|last) (?:option|choice|answer)\W*(?:is\W*)?$",
    re.IGNORECASE,
)
_AND_SO = re.compile(r"\b(?:so|and|but|that|because|since|as)\s+(?:option\s+|choice\s+)?\(?$", re.IGNORECASE)
_VERDICT = re.compile(
    r"[\s)]*(?:\w+ly\s+)?(?:(?:is|was|seems?|sounds?|looks?|appears?|feels?|(?:would|must|should|might|may|could|to)"
    r" be)\b(?:\s+(?:to be|the|my|most|more|likely|\w+ly))*\s+(?:correct|right|best|answer|choice|option|true|likely"
    r"|probable|accurate|appropriate|suitable|plausible|fit|match)\b|(?:fits|matches|works)\b|是?正确|が正解)",
    re.IGNORECASE,
)
_EDGE = re.compile(r"[.,;:!?\n。]|(?<!anything )\bbut\b|\bhowever\b", re.IGNORECASE)
_DENIES = re.compile(
    r"\b(?:no(?! (?:doubt|question)\b)|non|not(?! only\b)|none|never|neither|nor|cannot|without(?! (?:a )?doubt\b)"
    r"|lack\w*|wrong|incorrect|except|unless|unlikely|unlike|hardly|barely|scarcely|far from|anything but|besides|than"
    r"|instead of|rul\w+ out|eliminat\w+|exclud\w+|discard\w*|reject\w*|pas|nicht|kein\w*|nie)\b|n't\b|不|非|没",
    re.IGNORECASE,
)
_DOUBTS = re.compile(
    r"\b(?:if(?! i(?:'d)? (?:had|have|must)\b)|whether|si)\b"
    r"|\b(?:more|less|fewer|older|younger) than\s*$"
    r"|\b(?:at least|at most|up to|over|under|above|below|almost|nearly|beyond)\s*$",
    re.IGNORECASE,
)
_DENIED_AFTER = re.compile(
    r"(?:,\s*\w+\s*,)?[^.,;!?\n]*?(?:\b(?:is|are|was|were|be|seems?|looks?|sounds?|does|do|did|can|could|would"
    r"|should)\s+(?:\w+\s+)?(?:not|never|wrong|incorrect|false|unlikely|absent|missing|out|excluded|eliminated|ruled)\b"
    r"|n't\b|\bcannot\b|\bmakes no\b|(?:是)?(?:不|错))",
    re.IGNORECASE,
)
_REASON = re.compile(
    r"\b(?:because|since|as|while|but|and|whereas|although|though|which|due|with|that)\b", re.IGNORECASE
)
_LISTS = re.compile(
    r"\b(?:options|choices|answers|candidates|possibilities|each|every|one by one|step by step|let's|let me|let us"
    r"|consider|considering (?:options?|all)|compar\w+|evaluat\w+|analy[sz]\w+|go(?:ing)? (?:through|over)"
    r"|first(?:ly)?)\b|选项(?=\s*:)",
    re.IGNORECASE,
)
_OR_BEFORE = re.compile(r"(?:\b(?:or|oder|ou)|或|还是)\s*(?:(?:maybe|perhaps|the|an?)\s+)*$", re.IGNORECASE)
_OR_AFTER = re.compile(r"\s*,?\s*(?:(?:or|oder|ou)\b|或|还是|and\s*$)", re.IGNORECASE)
_NUMBERED = re.compile(r"(?:^|\n)\s*\d{1,2}[.)]\s*$")
_DESCRIBED = re.compile(
    r"\s*(?:[:;(=→]|[–—-]\s|(?:is|are|has|have|features?|typically|usually|often|generally|tends?|refers?|means?)\b)",
    re.IGNORECASE,
)
_UNITS = re.compile(
    r"[\s-]*(?:seconds?|secs?|minutes?|mins?|hours?|days?|years?|percent|ms|s|k?Hz|dB)\b|\s*%", re.IGNORECASE
)
_RETRACTS = re.compile(
    r"(?:^|[.,;!?…\n-])\s*(?:no|nope|wait|hmm+|actually|sorry|correction)\b\s*(?:$|[.,;:!?…\n])"
    r"|\bon second thoughts?\b|\bscratch that\b|\bi change my\b",
    re.IGNORECASE,
)


def _decide(text: str, options: dict[str, str]) -> tuple[str | None, str]:
    """Return the chosen option's letter, or None, and the rule that decided; see the module's docstring."""
    nothing = None, "unparsed"
    if not options:
        return nothing
    said = [word for word, _start, _end in _words(text)]
    same = [letter for letter, option in options.items() if said and [word[0] for word in _words(option)] == said]
    plain = _RANGE.sub("-", _plain(text))
    if bare := re.fullmatch(r"[\s().,:;!?…>=→–—-]*([A-Za-z])[\s().,:;!?…–—-]*", plain):
        letter = bare[1].upper()
        return (letter, "letter") if letter in options else nothing
    found = list(_mentions(plain, options)) if len(_LETTER.findall(plain)) <= _MOST_MENTIONS else []
    if len(found) > _MOST_MENTIONS:
        return nothing
    if len(same) == 1 and not any("?" in mention.options for mention in found):
        return same[0], "option text"
    return _weighed(plain, _grouped(plain, found), options)


def _weighed(text: str, mentions: list[_Mention], options: dict[str, str]) -> tuple[str | None, str]:
    """Return the chosen option's letter, or None, and the rule that decided.

    Choose the only option to which the reply commits itself ("the answer is B"). If it commits itself to none, choose
    the only option whose text it mentions.
    """
    kinds: dict[str, list[_Mention]] = {
        kind: [] for kind in ("outright", "standing", "listed", "passing", "denied", "doubtful")
    }
    listing = _LISTS.search(text)
    for index, mention in enumerate(mentions):
        following = mentions[index + 1].start if index + 1 < len(mentions) else len(text)
        kinds[_kind(text, mention, following, listing.start() if listing else len(text))].append(mention)
    alone = _options_of([*kinds["standing"], *kinds["listed"]])
    counting = [*kinds["outright"], *(kinds["standing"] if len(alone) == 1 else ())]
    passing = kinds["passing"]
    if counting:
        first = counting[0]
        by_text = not any(mention.by_letter for mention in counting)
        if by_text and any(one.by_letter and one.start < first.start for one in (*passing, *kinds["listed"])):
            return None, "unparsed"  # such as "Option A is blues"
    elif alone or kinds["doubtful"] or any(mention.by_letter or mention.number for mention in passing):
        return None, "unparsed"
    else:
        counting = passing
    chosen = _options_of(counting)
    numbers = _options_of(mention for mention in passing if mention.number)  # such as "7 persons and 3 places"
    if len(chosen) != 1 or not chosen <= options.keys() or chosen & _options_of(kinds["denied"]) or numbers - chosen:
        return None, "unparsed"
    if _RETRACTS.search(text, counting[0].end):
        return None, "unparsed"
    letters = [mention for mention in counting if mention.by_letter]
    rule = "named letter" if letters else "option text"
    if letters and letters[0] in kinds["standing"] and not re.search(r"\w", text[: letters[0].start]):
        rule = "leading letter"
    return chosen.pop(), rule


def _options_of(mentions: Iterable[_Mention]) -> set[str]:
    return {option for mention in mentions for option in mention.options}


def _kind(text: str, mention: _Mention, following: int, listing: int) -> str:  # noqa: PLR0911 - one return a kind
    """Return how a reply mentions an option: "outright", "standing", "listed", "denied", "doubtful" or "passing".

    The module's docstring explains the first five; every other mention is "passing".

    Parameters
    ----------
    following
        Start of the next mention of an option.
    listing
        Start of the passage that discusses the options one by one; the reply's length if there is none.
    """
    before = text[max(0, mention.start - _CONTEXT) : mention.start]
    after = text[mention.end : mention.end + _CONTEXT]
    reason = _REASON.search(text[mention.end : min(following, mention.end + _CONTEXT)])
    about = text[mention.end : mention.end + reason.start()] if reason else text[mention.end : following][:_CONTEXT]
    if _DENIES.search(_EDGE.split(before.rstrip(" :("))[-1]) or _DENIED_AFTER.match(about):
        return "denied"
    end = re.search(r"[.!?\n。]", after)
    asked = end is not None and end[0] == "?"
    if asked or _DOUBTS.search(_EDGE.split(before)[-1]):
        return "doubtful"
    if _NUMBERED.search(before) or _OR_BEFORE.search(before) or _OR_AFTER.match(after):
        return "listed"
    closes = not _UNITS.match(after) if mention.number else mention.own or bool(re.match(_CLOSES, after))
    opens, asks = _OPENS.search(before), _ASKS.search(before)
    if not mention.by_letter:
        asks = asks or _ASKS_TEXT.search(before)
    if _VERDICT.match(after) and (opens or asks or _AND_SO.search(before)):
        return "outright"
    if _ITEM.search(before):
        return "listed"
    if mention.by_letter and not mention.own and _NOTE.search(_EDGE.split(before.rstrip(" :("))[-1]):
        return "passing"
    if asks and closes:
        return "outright"
    marked = mention.by_letter and bool(mention.own or re.match(r"\s*[.):]+\s*\w", text[mention.start + 1 :][:20]))
    first = mention.options == {"A"} and (
        (_begins(text, mention) and _DESCRIBED.match(after)) or (marked and before.rstrip()[-1:] == "?")
    )
    if first or (listing < mention.start and (marked or not mention.by_letter or before.rstrip()[-1:] == ":")):
        return "listed"
    if opens and closes:
        return "standing"
    return "listed" if marked else "passing"


def _begins(text: str, mention: _Mention) -> bool:
    return bool(re.fullmatch(r"\W*(?:(?:option|choice)\s+)?\W*", text[: mention.start], re.IGNORECASE))
