"""Find the option that a reply chooses. A wrong reading is worse than none: a doubtful reply is `unparsed`.

1. Only visible text is read (`visible.py`): no thinking, special tokens, markup, pictures, or quotations of what is
   spoken; of JSON only the answer; nothing after a question that the model wrote itself. A reply that is one letter,
   wrapped or punctuated, or one option's text word for word, chooses that option. Answers to several numbered questions
   choose none.
2. In every other reply, search for *mentions* (`mentions.py`): letters that stand alone, and option texts by whole
   words, the longest first, without other marks between the words. "A" and "I" before a word are an article and a
   pronoun. Initials are not letters, nor are musical notes if the options are keys. A lower-case letter counts only
   with a cue or a bracket. Either half of "Senior (51-70)" names it if no other option has that half. Numbers are read
   whole: 2.7, 10-12 and "between 7 and 12" are not 7.
3. A mention is *denied* by a negation in its clause ("not B", "A is wrong"). It is *doubtful* in a question or under a
   condition. It is *listed* if the reply goes through the options ("Let me consider each option: A. Blues has a slow").
4. A mention *commits* the reply *outright* ("the answer is B", "B is correct", "I think it's B"), or by *standing*
   alone between punctuation ("B. Jazz", "Based on the audio, D"). "A or B" and "A, B" are one mention of two options.
5. A reply chooses an option if everything that commits it names the same existing option. If several options are
   standing or listed, they are a list, and only outright mentions count. A conclusion ("So the answer is D") outweighs
   letters before it. If nothing commits the reply, it chooses an option if exactly one option's text occurs in it, and
   the reply is short or about the audio.

A reply that retracts ("no, wait") or contradicts itself, in letters or in texts, is `unparsed`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from audiomarathon.records import LETTERS
from audiomarathon.scoring.mentions import (
    ASKS,
    BESIDE,
    CLOSES,
    CONTEXT,
    LABEL,
    LETTER,
    MUSICAL,
    NOTE,
    NOUN,
    RANGE,
    Mention,
    grouped,
    is_the_same,
    mentions_of,
)
from audiomarathon.scoring.visible import CJK, QUOTED, before_next, normal, plain, stated, visible
from audiomarathon.text import remembered

_MOST_MENTIONS = 200  # a reply with more mentions is unparsed
_SHORT = 12  # words
_NOTHING = None, "unparsed"


@dataclass(frozen=True)
class ReadReply:
    """The option that a reply chooses, and how it was found.

    Attributes
    ----------
    letter
        The letter of the chosen option, or None.
    rule
        The rule that decided: `letter`, `leading letter`, `named letter`, `option text`, or `unparsed`.
    strict
        Whether the reply, as given, is exactly the letter, the option's text, or both as in the prompt (`B. Jazz`).
    """

    letter: str | None
    rule: str
    strict: bool


def read_reply(reply: str, options: Sequence[str]) -> ReadReply:
    """Find the option that a reply to a multiple-choice question chooses; never raise an error, whatever the reply.

    Parameters
    ----------
    reply
        The model's text, unchanged.
    options
        The options' texts in the order A, B, …; only the first 26 count.
    """
    return _read(reply, tuple(options))


@remembered(2_000)  # most replies to a question with the same options are one of a few
def _read(reply: str, options: tuple[str, ...]) -> ReadReply:
    text, named = visible(reply), dict(zip(LETTERS, map(normal, options), strict=False))
    answer_text = before_next(text)
    letter, rule = _decide(answer_text, named)
    if letter is None and not any(mentions_of(plain(answer_text), named)):
        letter, rule = _decide(text, named)  # the reply repeats the question before it answers
    exact: set[str] = set()
    if letter is not None:
        wanted = options[LETTERS.index(letter)].strip()
        exact = {letter, wanted, f"{letter}. {wanted}"}
    return ReadReply(letter, rule, reply.strip() in exact)


# --- The whole reply.

_BARE = re.compile(r"[\s().,:;!?…>=→–—-]*(?:([A-Z])(?:[\s,.;]+\1)*|([a-z]))[\s().,:;!?…–—-]*")  # "B B B" is a loop
#: Letters that answer numbered questions, such as "1) B".
_ANSWERS = re.compile(
    r"(?:^|(?<=[\s,;(]))(?:q(?:uestion)?\s*)?(\d{1,2})\s*[).:、]\s*\(?(?P<answer>[A-Z])(?=\s*(?:$|[.,;、)\n]|\s\d))",
    re.IGNORECASE,
)
_COUNT = re.compile(r"\W*\d+\W*$")
#: A transcript, or a report of what is said.
_SPOKEN = re.compile(r"[\[(]\d{1,2}:\d\d|\b(?:says?|said)\s*[:,]|说\s*:", re.IGNORECASE)
#: Words about the audio. A long reply that commits itself to no option is read only if it has one of them.
_ABOUT = re.compile(
    r"\b(?:audio|sounds?|speak\w*|speech|voices?|tone|music\w*|recording|clip|scene|song|genre|instruments?|hear\w*"
    r"|listen\w*|emotion\w*|answer|options?|notes?|key|melody|rhythm|tempo|sing\w*|passage|conversation|background"
    rf"|ambien\w*)\b|[{CJK}]",
    re.IGNORECASE,
)
_CUT = re.compile(
    r"\b(?:the|an?|and|or|but|of|in|on|at|to|with|that|which|as|by|for|from|its|their|this|is|are|was|until)\s*$",
    re.IGNORECASE,
)
_RETRACTS = re.compile(
    r"(?:^|[.,;!?…\n–—-])\s*(?:no|nope|wait|hmm+|actually|sorry|correction|nein|non|нет)\b\s*(?:$|[.,;:!?…\n])"
    r"|\bI mean\b|\bon second thoughts?\b|\bscratch that\b|\bi change my\b|不对|不對",
    re.IGNORECASE,
)
#: Words that introduce a reply's last answer, such as "So the answer is".
_CONCLUDES = re.compile(
    r"(?:^|[\n.!?;,—–-])\W*(?:(?:so|therefore|thus|hence|consequently|in conclusion)\b[^.!?\n]{0,40}\banswer\b"
    r"[^.!?\n]{0,30}|(?:my |the )?final (?:answer|choice)\b[^.!?\n]{0,30})$",
    re.IGNORECASE,
)


def _decide(text: str, options: dict[str, str]) -> tuple[str | None, str]:
    """Return the letter of the option that a reply chooses (or None), and the name of the rule that decided.

    The rules are in the module's docstring.

    Parameters
    ----------
    options
        The options' texts, by letter.
    """
    if not options:
        return _NOTHING
    same = [letter for letter, option in options.items() if is_the_same(text, option)]
    bare = RANGE.sub("-", plain(_unquoted(stated(text), options)))
    if len({match[1] for match in _ANSWERS.finditer(bare)}) > 1:
        return _NOTHING  # answers to several questions, such as "1) A 2) B"
    if (numbered := _ANSWERS.match(bare)) and not any(map(_COUNT.match, options.values())):
        rest = bare[numbered.start("answer") :]
        bare = rest if numbered["answer"] != "A" or _BARE.fullmatch(rest) else bare
    if alone := _BARE.fullmatch(bare):
        letter = (alone[1] or alone[2]).upper()
        return (letter, "letter") if letter in options else _NOTHING
    mentions = list(mentions_of(bare, options)) if len(LETTER.findall(bare)) <= _MOST_MENTIONS else []
    if len(mentions) > _MOST_MENTIONS:
        return _NOTHING
    if len(same) == 1:
        return same[0], "option text"
    return _weighed(bare, grouped(bare, mentions), options)


def _unquoted(text: str, options: dict[str, str]) -> str:
    """Empty the long quotations in a reply, which repeat what is spoken, and return the reply.

    Quotations of an option or of a letter are kept. A reply that is one quotation gets "says:" in front.
    """

    def shortened(match: re.Match[str]) -> str:
        is_option = any(is_the_same(match[1], option) for option in options.values())
        return match[0] if is_option or re.match(r"\W*[A-Z]\W", match[1]) else '""'

    whole = QUOTED.fullmatch(text.strip())
    return f"says: {whole[1]}" if whole else QUOTED.sub(shortened, text)


def _weighed(text: str, mentions: list[Mention], options: dict[str, str]) -> tuple[str | None, str]:
    """Decide which option a reply chooses, from its mentions of options.

    The reply chooses the only option to which it commits itself ("the answer is B"), or without such an option, the
    only one whose text it mentions. Return its letter (or None), and the name of the rule that decided.
    """
    kinds = _by_kind(text, mentions, options)
    counting = _counting(text, kinds)
    chosen = _options_of(counting)
    numbers = _options_of(mention for mention in kinds["passing"] if mention.number)  # such as "7 persons and 3 places"
    if len(chosen) != 1 or not chosen <= options.keys() or chosen & _options_of(kinds["denied"]) or numbers - chosen:
        return _NOTHING
    if _RETRACTS.search(text, counting[0].end):
        return _NOTHING
    letters = [mention for mention in counting if mention.by_letter]
    rule = "named letter" if letters else "option text"
    if letters and letters[0] in kinds["standing"] and not re.search(r"\w", text[: letters[0].start]):
        rule = "leading letter"
    return chosen.pop(), rule


def _by_kind(text: str, mentions: list[Mention], options: dict[str, str]) -> Mapping[str, list[Mention]]:
    """Group the mentions of options in a reply by kind, as {"outright": mentions, "denied": mentions, …}.

    A conclusion ("So the answer is D") replaces the letters considered before it.
    """
    kinds: dict[str, list[Mention]] = defaultdict(list)
    listing, notes = _LISTS.search(text), any(map(MUSICAL.match, options.values()))
    for index, mention in enumerate(mentions):
        following = mentions[index + 1].start if index + 1 < len(mentions) else len(text)
        kind = _kind(text, mention, following, listing.start() if listing else len(text))
        if notes and mention.by_letter and not mention.with_text and kind in ("standing", "passing"):
            marked = re.match(r"\s*(?:[.):]|$)", text[mention.end :])
            kind = "standing" if kind == "standing" and marked else "conceded"  # a note such as "C, E and G"
        if kind == "aside" and index and BESIDE.fullmatch(text, mentions[index - 1].end, mention.start):
            kind = "standing"  # such as "rock (B)"
        if kind == "outright" and mention.by_letter and index == len(mentions) - 1 and _concludes(text, mention):
            kinds["outright"] = [mention for mention in kinds["outright"] if not mention.by_letter]
            kinds["standing"] = kinds["listed"] = []
        kinds[kind].append(mention)
    if not (kinds["outright"] or kinds["standing"]):
        kinds["standing"] = kinds["aside"]
    return kinds


def _counting(text: str, kinds: Mapping[str, list[Mention]]) -> list[Mention]:
    """Return the mentions that decide which option a reply chooses; [] if it commits itself to no readable option.

    Parameters
    ----------
    kinds
        The reply's mentions of options, by kind ("outright", "standing", …).
    """
    passing, alone = kinds["passing"], _options_of([*kinds["standing"], *kinds["listed"]])
    if counting := [*kinds["outright"], *(kinds["standing"] if len(alone) == 1 else ())]:
        by_text = not any(mention.by_letter for mention in counting)
        described = any(
            mention.by_letter and mention.start < counting[0].start for mention in (*passing, *kinds["listed"])
        )
        return [] if by_text and described else counting  # such as "Option A is blues"
    if alone or kinds["doubtful"] or any(mention.by_letter or mention.number for mention in passing):
        return []
    vague = (
        len(text.split()) > _SHORT
        and not _ABOUT.search(text)
        and not any(_is_said(text, mention) for mention in passing)
    )
    if vague or _SPOKEN.search(text):
        return []  # such as a transcript in which an option's word occurs
    if passing and _CUT.search(text) and not re.search(r"[,;.]", text[passing[-1].end :]):
        return []  # cut in the clause that names an option
    return passing


def _concludes(text: str, mention: Mention) -> bool:
    return bool(_CONCLUDES.search(text[: mention.start])) and not re.search(
        r"\w", text[mention.end :].partition("\n")[2]
    )


def _is_said(text: str, mention: Mention) -> bool:
    """Tell whether a reply says that a mentioned text is the answer, such as "This is a classical piece"."""
    if re.search(r"\b(?:I|we|you|my|our)\b", text[: mention.start]):
        return False
    return bool(ASKS.search(text[: mention.start]) or len(text[mention.start : mention.end].split()) > 2)


def _options_of(mentions: Iterable[Mention]) -> set[str]:
    return {option for mention in mentions for option in mention.options}


# --- The kind of a mention.

_ASKS_TEXT = re.compile(
    r"\b(?:are|am|hear|heard|contains?|mentions?|includes?|has|have|count(?:ed)?|find|found|total of|like|lasts?|takes?"
    r"|costs?|pays?|the (?:other|second)(?: (?:one|voice|speaker))?)"
    r"(?:\s+(?:an?|the|about|exactly|only|in total))*\s*$",
    re.IGNORECASE,
)
_ADVERBS = (
    r"(?:so|hence|thus|then|maybe|perhaps|yes|yeah|sure|okay|ok|well|therefore|(?:most )?\w+ly|sondern|also|daher"
    r"|vermutlich|wahrscheinlich|sino|probablemente|mais|donc|probablement|provavelmente|probabilmente|наверное|а"
    r"|prawdopodobnie)"
)
#: Text that may come before an option that stands alone.
_OPENS = re.compile(
    rf"(?:^|[.,;:!?)(\n–—…。、=→|]|\s-\s)\s*(?:{_ADVERBS}\b[\s,:]*)*"
    rf"(?:(?:(?:the|my|final|correct|best)\s+)*{NOUN}[\s:]*)*\(?\s*$",
    re.IGNORECASE,
)
#: Words that introduce an item of a list of options.
_ITEM = re.compile(
    r"\b(?:each|every|possible|given|first|second|third|next|last) (?:option|choice|answer)\W*(?:is\W*)?$",
    re.IGNORECASE,
)
_AND_SO = re.compile(
    r"\b(?:so|and|but|however|yet|that|because|since|as)\s+(?:option\s+|choice\s+)?\(?$", re.IGNORECASE
)
_VERDICT = re.compile(
    r"[\s)]*(?:\w+ly\s+)?(?:best (?:fits|matches|suits|describes|represents|reflects|captures)\b"
    r"|(?:is|was|seems?|sounds?|looks?|appears?|feels?|(?:would|must|should|might|may|could|to)"
    r" be)\b(?:\s+(?:to be|the|my|most|more|likely|\w+ly))*\s+(?:correct|right|best|answer|choice|option|true|likely"
    r"|probable|accurate|appropriate|suitable|plausible|closest|fit|match)\b|(?:fits|matches|works)\b|是?正确|が正解)",
    re.IGNORECASE,
)
_BUT = r"mais|sondern|aber|sino|pero|ma|mas|maar|ale|lecz|но"
_EDGE = re.compile(rf"[.,;:!?\n。、—]|\s[–-]\s|(?<!anything )\bbut\b|\b(?:however|{_BUT})\b|而是|而", re.IGNORECASE)
_DENIES = re.compile(
    r"\b(?:no(?! (?:doubt|question)\b)|non|not(?! only\b)|none|nothing|never|neither|nor|cannot"
    r"|without(?! (?:a )?doubt\b)|(?<!no )(?<!without )(?<!without a )(?<!any )doubt\w*"
    r"|too \w+(?: \w+)? (?:to be|for)"
    r"|lack\w*|wrong|incorrect|except|unless|unlikely|unlike|hardly|barely|scarcely|far from|anything but|besides|than"
    r"|instead of|less like|rul\w+ out|eliminat\w+|exclud\w+|discard\w*|reject\w*"
    r"|pas|nicht|kein\w*|nie|ni|não|niet|geen|inte|ikke|не|нет|ни)\b|n't\b|不|非|没|沒",
    re.IGNORECASE,
)
_DENIED_AFTER = re.compile(
    r"\s*[:–—-]\s*(?:wrong|incorrect)\b|(?:,\s*\w+\s*,)?[^.,;!?\n而]*?(?:\b(?:is|are|was|were|be|seems?|looks?|sounds?|does|do|did|can|could|would"
    r"|should)\s+(?:\w+\s+)?(?:not|never|wrong|incorrect|false|unlikely|absent|missing|out|excluded|eliminated|ruled)\b"
    r"|n't\b|\bcannot\b|\bmakes no\b|(?:是)?(?:不|错|錯)|\s*(?:では?(?:な|あり)|じゃな|[이가은는]?\s*아[니닌닙])"
    r"|\s+değil\b)",
    re.IGNORECASE,
)
_BUT_NOT = re.compile(r",?\s*but (?:it|that|this)(?:(?: is| was|'s) not|n't| isn't| wasn't| doesn't)\b", re.IGNORECASE)
_REASON = re.compile(
    r"\b(?:because|since|as|while|but|and|whereas|although|though|which|due|with|that)\b", re.IGNORECASE
)
_DOUBTS = re.compile(
    r"\b(?:otherwise|whether|si|would have (?:said|thought|guessed|chosen|picked)"
    r"|(?:might|may) (?:seem|sound|look|appear))\b|\b(?:more|less|fewer|older|younger) than\s*$"
    r"|\b(?:at least|at most|up to|over|under|above|below|almost|nearly|beyond)\s*$",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"[.!?\n。;—]|\bbut\b|\bhowever\b", re.IGNORECASE)
_CONDITION = re.compile(
    r"\b(?:if(?! (?:i(?:'d)? (?:had|have|must)|you ask|so)\b)|assuming|supposing|unless|wenn|falls|se|если|jeśli)\b"
    r"|如果|假如|要是|もし|만약",
    re.IGNORECASE,
)
_IF_AFTER = re.compile(r"[^.!?\n]{0,40}?\bif\b(?! (?:i\b|you ask))", re.IGNORECASE)
_CONCEDES = re.compile(r"\b(?:although|though|despite)\b", re.IGNORECASE)
#: The model speaks of itself, such as "I'd be happy to help".
_OF_ITSELF = re.compile(
    r"\b(?:I|we)(?:['’](?:m|re|d|ll)| am| are| would| will)(?: be)?(?: \w+ly| very| so| more than)?\s*$", re.IGNORECASE
)
_WHILE = re.compile(r"\s*(?:while|whereas)\b", re.IGNORECASE)
_CONTRASTED = re.compile(r"[^.!?\n]{0,60}?[,;.]?\s*\b(?:but|however|yet)\b(?! not\b)", re.IGNORECASE)
_FINISHED = re.compile(r"[.!?。]\W*$")
_LISTS = re.compile(
    r"\b(?:options|choices|answers|candidates|possibilities|each|every|one by one|step by step|let's|let me|let us"
    r"|consider|considering (?:options?|all)|compar\w+|evaluat\w+|analy[sz]\w+|go(?:ing)? (?:through|over)"
    r"|first(?:ly)?)\b|选项(?=\s*:)",
    re.IGNORECASE,
)
#: Announces that options or sounds will be gone through.
_ANNOUNCES = re.compile(
    rf"(?:{_LISTS.pattern}|\b(?:listen|examin|look|optionen|opcion|opç|opzion|analic|analis|écout|antwortmög|вариант"
    r"|рассмотр|opcj|seçenek)\w*|让我|选项|選項|逐一|分析|選択肢|一つずつ|順に|선택지|살펴|하나씩)[^.:!?\n。]*[.:!?\n。]",
    re.IGNORECASE,
)
_OR_BEFORE = re.compile(
    r"(?:\b(?:or|oder|ou|(?:could|might|may) also(?: be)?)|或|还是)\s*(?:(?:maybe|perhaps|the|an?)\s+)*$", re.IGNORECASE
)
_OR_AFTER = re.compile(r"\s*,?\s*(?:(?:or|oder|ou)\b|或|还是|and\s*$)", re.IGNORECASE)
_NUMBERED = re.compile(r"(?:^|\n)\s*\d{1,2}[.)]\s*$")
_DESCRIBED = re.compile(
    r"\s*(?:[:;(=→]|[–—-]\s|(?:is|are|has|have|features?|typically|usually|often|generally|tends?|refers?|means?)\b)",
    re.IGNORECASE,
)
#: Text after an option that says what was heard, not what the option means.
_EVIDENCE = re.compile(
    r"\s*[–—-]\W*$|\s*[–—:-]?\s*(?:because|since|as|there|i|we|you|it|they|he|she|this"
    r"|(?:the|a|an|his|her|their|its) (?:\w+ )?(?:audio|clip|recording|sound|speaker|voice|tone|music|singer|song"
    r"|rhythm|tempo|announcement|background)s?)\b(?! (?:typically|usually|often|generally|tends?)\b)",
    re.IGNORECASE,
)
_UNITS = re.compile(
    r"[\s-]*(?:seconds?|secs?|minutes?|mins?|hours?|days?|years?|percent|ms|s|k?Hz|dB)\b|\s*%", re.IGNORECASE
)


def _kind(text: str, mention: Mention, following: int, listing: int) -> str:
    """Return how a reply mentions an option, such as "outright" or "denied".

    The module's docstring explains most kinds. "aside" is a letter in brackets behind other words, and counts only if
    nothing else does. "conceded" never counts. Every other mention is "passing".

    Parameters
    ----------
    following
        Start of the next mention of an option.
    listing
        Start of the passage that discusses the options one by one; the reply's length if there is none.
    """
    before = text[max(0, mention.start - CONTEXT) : mention.start]
    after = text[mention.end : mention.end + CONTEXT]
    return (
        _dismissed(text, mention, before, after, following)
        or _committed(text, mention, before, after)
        or _placed(text, mention, before, after, listing)
    )


def _dismissed(text: str, mention: Mention, before: str, after: str, following: int) -> str:
    """Return why a mention of an option does not choose it, as a kind of mention; "" if nothing says so.

    "denied": "not B". "doubtful": in a question or under a condition. "listed": numbered, or beside "or". "conceded":
    set aside, such as after "while".
    """
    reason = _REASON.search(text[mention.end : min(following, mention.end + CONTEXT)])
    about = text[mention.end : mention.end + reason.start()] if reason else text[mention.end : following][:CONTEXT]
    if _DENIES.search(_EDGE.split(before.rstrip(" :("))[-1]) or _DENIED_AFTER.match(about) or _BUT_NOT.match(after):
        return "denied"
    end = re.search(r"[.!?\n。]", after)
    clause, sentence = _EDGE.split(before)[-1], _SENTENCE.split(before)[-1]
    hypothetical = _CONDITION.search(sentence) or (re.search(r"\bwould\b", clause) and _IF_AFTER.match(after))
    if (end is not None and end[0] == "?") or _DOUBTS.search(clause) or hypothetical:
        return "doubtful"
    if _NUMBERED.search(before) or _OR_BEFORE.search(before) or _OR_AFTER.match(after):
        return "listed"
    set_aside = _CONCEDES.search(clause) or _WHILE.match(sentence) or _OF_ITSELF.search(before)
    return "conceded" if not mention.by_letter and set_aside else ""


def _committed(text: str, mention: Mention, before: str, after: str) -> str:
    """Return "outright" if a reply states the mentioned option as its answer.

    Return "listed", "passing" or "doubtful" if the words around the mention show that kind, else "".
    """
    bare, asks = mention.by_letter and not mention.with_text, _asks(mention, before)
    if _VERDICT.match(after) and (_OPENS.search(before) or asks or _AND_SO.search(before)):
        return "outright"
    if not mention.by_letter and _CONTRASTED.match(after):
        return "passing" if _FINISHED.search(text) else "doubtful"
    ends = mention.options == {"A"} and not asks and not re.search(r"\w", after)
    if _ITEM.search(before) or (ends and _ANNOUNCES.search(text[: mention.start])):
        return "listed"
    if bare and NOTE.search(_EDGE.split(before.rstrip(" :("))[-1]):
        return "passing"
    joined = re.match(r"\s+(?:and|while|whereas)\b", after)  # such as "one is male and the other female"
    return "outright" if asks and (joined or _closes(mention, after)) else ""


def _placed(text: str, mention: Mention, before: str, after: str, listing: int) -> str:
    """Return the kind of a mention, judged by where it stands in the reply: "listed", "aside", "standing" or "passing".

    :func:`_kind` explains the kinds.
    """
    marked = mention.by_letter and bool(
        mention.with_text or re.match(r"\s*[.):]+\s*\w", text[mention.start + 1 :][:20])
    )
    described = _DESCRIBED.match(after) and not (mention.with_text and _EVIDENCE.match(after))
    first = mention.options == {"A"} and (
        (_begins(text, mention) and described) or (marked and before.rstrip()[-1:] == "?")
    )
    if first or (listing < mention.start and (marked or not mention.by_letter or before.rstrip()[-1:] == ":")):
        return "listed"
    bare = mention.by_letter and not mention.with_text
    if bare and re.search(r"\w\s*\($", before) and not LABEL.search(before) and not _asks(mention, before):
        return "aside"  # such as "a piano (B) joins later"
    if _OPENS.search(before) and _closes(mention, after):
        return "standing"
    return "listed" if marked else "passing"


def _asks(mention: Mention, before: str) -> bool:
    return bool(ASKS.search(before) or (not mention.by_letter and _ASKS_TEXT.search(before)))


def _closes(mention: Mention, after: str) -> bool:
    """Tell whether a mention can name an option, given the text behind it.

    A number with a unit does not name one ("7 minutes"). Directly before a Chinese, Japanese or Korean character, an
    option's text counts only if the character is a particle such as 的.
    """
    if mention.number:
        return not _UNITS.match(after)
    if not mention.by_letter and re.match(rf"[{CJK}]", after):
        return after[0] in "的でだ입이예"
    return mention.with_text or bool(re.match(CLOSES, after))


def _begins(text: str, mention: Mention) -> bool:
    return bool(re.fullmatch(r"\W*(?:(?:option|choice)\s+)?\W*", text[: mention.start], re.IGNORECASE))
