"""Penn Treebank tokens of captions, as in COCO's caption metrics.

These metrics run the PTBTokenizer of Stanford CoreNLP 3.4.1 with `-preserveLines -lowerCase`, then drop 17 punctuation
tokens: `'' ' (two backticks) (one backtick) -LRB- -RRB- -LCB- -RCB- . ? ! , : - -- ... ;`. Lower-casing comes first, so
`(` becomes `-lrb-` and stays: brackets count as words. The rules below reproduce that program's output on single texts.
In a file, that program also looks at the start of the next line ("in C." before "The"); these rules do not.
"""

from __future__ import annotations

import re
from functools import cache

from audiomarathon.text import remembered

_MARKS = (  # combining marks allowed in a word
    "\u0300-\u036f\u0483-\u0487\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0615-\u061a\u064b-\u065e\u0670"
    "\u06d6-\u06ed\u0711\u0730-\u074a\u07a6-\u07b0\u07eb-\u07f3\u0900-\u0903\u093c-\u094e\u0951-\u0955\u0962\u0963"
    "\u0981-\u0983\u09bc-\u09cd\u09d7\u09e2\u09e3\u0a01-\u0a03\u0a3c-\u0a4d\u0a81-\u0a83\u0abc-\u0acd\u0b82"
    "\u0bbe-\u0bcd\u0c01-\u0c03\u0c3e-\u0c56\u0d3e-\u0d48\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc"
    "\u0ec8-\u0ecd"
)
_NUMERALS = "\u00b2\u00b3\u00b9\u00bc-\u00be\u2070\u2074-\u2079\u2080-\u2089\u2150-\u218b\u2460-\u24ff\u2776-\u2793"
_KEPT = (  # symbols that are tokens; all others are dropped
    "#-%&*+/<=>\\\\^|~\u00a1-\u00a9\u00ac\u00ae-\u00b4\u00b6-\u00b9\u00bc-\u00bf\u00d7\u00f7\u0589\u05be\u060c\u061b"
    "\u061f\u066a\u06d4\u0964\u0965\u0e3f\u0e4f\u2016\u2017\u201a\u201e\u2020-\u2023\u2030-\u2038\u203b\u203e-\u2042\u2044"
    "\u207a-\u207e\u208a-\u208e"
    "\u20a0\u20a4\u20ac\u2100-\u214f\u2153-\u215e\u2190-\u2bff\u3001\u3002\u3012\u30fb\uff01-\uffe6()\\[\\]{}@"
)
_L = rf"(?:[^\W\d_{_NUMERALS}\U00010000-\U0010ffff]|[{_MARKS}])"
_W = rf"(?:[^\W_{_NUMERALS}\U00010000-\U0010ffff]|[{_MARKS}])"  # a letter or a digit
_END = rf"(?!_*{_W})"
_Q = "['\u2019]"
_CLITIC = rf"{_Q}(?:s|d|m|ll|re|ve){_END}"
_HYPHEN = "[-\u058a\u2010\u2011]"
_WHOLE = rf"{_END}(?!{_HYPHEN}{_W}|{_CLITIC})"
_JOINED = rf"[A-Za-z0-9]+(?:{_HYPHEN}[A-Za-z]+)*"

_ABBREVIATIONS = (
    "adj|adm|adv|ala?|alex|apr|ariz|assn|assoc|asst|atty|aug|ave|bhd|bldg|blvd|brig|bros|calif|capt|cf|cie|cmdr|col?|"
    "colo|comdr|conn|corp|cos|cpl|ct|dak|dec|dept|det|drs?|elec|ens|esq|est|etc|ext|feb|fla|fri|ft|ga|gen|govs?|hon|"
    "inc|ind|insp|intl|invt|jan|jos|jr|jul|jun|kans?|ky|lieut|lt|ltd|maj|mar|md|mfg|mich|minn|mlle|mme|mon?|mont|mr|"
    "mrs|ms|msgr|mt|mtg|natl|neb|nev|nov|oct|okla|penn|pfc|ph|plc|pp?ty|pp?te|ptes|ptys|pres|profs?|pvt|rd|reps?|rev|"
    "rt|sens?|sept?|seq|sfc|sgt|spc|sq|sr|ste?|supt|sys|tel|tenn|thu|thurs|treas|tues?|univ|va|vs|vt|wed|wisc?|wm|wyo"
)
_STATES = "Ark|Az|Del|Ill|La|Mass|Miss|Ore|Pa|Tex|Wash"  # abbreviations only as written here or in capitals; else words
_BEFORE_NUMBER = "art|ca|figs?|nos?|op|pp|prop"
_STARTS = (  # words that start a new sentence after "plan A."
    "an?|about|according|additionally|after|as|at|but|earlier|he|here?|however|if|in|it|last|many|more|mr\\.|ms\\.|now|"
    "once|one|other|our|she|since|so|some|such|that|the|their|then|there|these|they|this|we|what|when|while|yet|you"
)
_PERIOD = (
    rf"(?:(?i:{_ABBREVIATIONS})|{_STATES}|{_STATES.upper()}|(?i:{_BEFORE_NUMBER})(?=\. ?\d)|"
    rf"[A-Za-z](?!\.\s+(?=[A-Z])(?i:{_STARTS})(?:\s|\Z))|[A-Za-z](?:\.[A-Za-z])+|Ph\.D)\."
)
_ATTRIBUTE = r"""\s+[A-Za-z][\w:.-]*(?:\s*=\s*(?:"[^"]*"|'[^']*'))?"""
_IN_URL = r'[^\s<>"|(){}]'

#: Patterns of tokens, in the order in which they are tried. None matches the 17 dropped tokens.
_RULES = (
    r"[a-z]+(?= (?!\d))(?<!cannot)(?<!gonna)(?<!gotta)(?<!wanna)(?<!gimme)(?<!lemme)",  # a fast rule for most words
    rf"<[!?][A-Za-z-][^>]*>|</?[A-Za-z][\w:.@-]*(?:{_ATTRIBUTE})*\s*/?\s*>",
    rf"https?://{_IN_URL}*?[./]{_IN_URL}*(?<![.!?,-])",
    rf"[A-Za-z0-9]{_IN_URL}*@(?:[^\s<>\"|()@.!?]+\.)*{_IN_URL}*(?<=\w)|@[A-Za-z_]\w*|\#{_L}+",
    r"&(?i:lt|gt|amp|quot|nbsp);|&\#\d+;",
    # telephone numbers, which include "200 3000 440", and fractions
    r"(?:\(\d{2,3}\) ?|\+{0,2}(?:\d{2,4}[- ]){1,2})\d{3,4}[- ]?\d{3,5}" + _END,
    r"\+{0,2}(?:\d{2,4}\.){1,2}\d{3,4}\.\d{3,5}(?!\.?\d)",
    rf"(?:\d{{1,4}}[- ])?\d{{1,4}}[/\u2044]\d{{1,4}}(?!/?{_W}|{_HYPHEN}{_L})",
    # words with signs
    rf"[A-Z]+(?:&[A-Z]+)+|[Cc]\+\+|[CcFf]\#|[A-Z]+\$(?!{_L})",
    rf"(?i:cap{_Q}n|c{_Q}mon|[en]e{_Q}er|ev{_Q}ry|(?:hawai|kaua){_Q}i|ma{_Q}am|nat{_Q}l|nor{_Q}easter|o{_Q}er|ol{_Q}|"
    rf"ta{_Q}en|xi{_Q}an){_END}",
    rf"(?:[DdLlNnOo]|[A-Z](?={_Q}[A-Z])){_Q}(?!(?i:ll|re|ve){_END}){_L}{{2,}}",
    rf"[DdJjLlYy](?!(?i:{_CLITIC})){_Q}(?={_L})",
    # clitics
    rf"(?i:{_CLITIC}|n{_Q}t{_END}|{_L}+?(?=n{_Q}t{_END})|{_Q}t(?=(?:is|was){_END}))",
    rf"(?i:can(?=not{_WHOLE})|(?:gon|wan)(?=na{_WHOLE})|got(?=ta{_WHOLE})|(?:gim|lem)(?=me{_WHOLE}))",
    rf"(?i:{_Q}(?:em|till?|cause|n{_Q}|n{_END}|\d0s{_END}|\d\d{_END}))",
    # abbreviations, joined words, numbers
    rf"(?:{_PERIOD}|(?:{_W}+{_HYPHEN})+[A-Za-z](?:\.[A-Za-z])+\.)(?:{_HYPHEN}{_W}+)*{_END}",
    rf"{_JOINED}(?:/{_JOINED}){{1,2}}(?!{_W})",
    rf"{_L}{_W}*(?:\.{_L}{_W}*)+(?:{_HYPHEN}{_W}+)*",
    rf"\d+(?:[.,]\d+)+(?:{_HYPHEN}{_W}+)+|\d+(?:\.\d+)*\.x{_END}",
    r"[-+]?\d*(?:[.,:\u066b\u066c]\d+)+|[-+]\d+",
    rf"{_W}+(?:(?:_|{_HYPHEN}){_W}+)*|{_L}+[!?]{_L}+",
    # signs
    rf">?(?:[:;]|=(?![(\[]\w))[-o']?(?:[()\[\]|{{@]|[DdPp](?!{_W}))|\^_\^|-_-|>_<",
    r"_+|\*+|\#\#+|@@+|-{5,}|[!?]{2,}|<<|>>",
    rf"[\u207a\u207b]?[\u00b2\u00b3\u00b9\u2070\u2074-\u2079]+|[\u208a\u208b]?[\u2080-\u2089]+|[{_KEPT}]",
)
_WRITTEN = {
    "(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-", "\u00a2": "cents",
    "\u00a3": "#", "\u00a4": "$", "\u20a0": "$", "\u20ac": "$", "\u00bc": "1/4", "\u00bd": "1/2", "\u00be": "3/4",
    "\u2153": "1/3", "\u2154": "2/3", "&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": "", "&nbsp;": "",
}  # fmt: skip
SHORT = 2_000  # limit in characters of a text that is remembered
_CURLY = re.compile(r"(?:\u2019(?:s|d|m|ll|re|ve|t)|n\u2019t)\Z")


@cache
def _token() -> re.Pattern[str]:
    """Return the regular expression that finds the tokens of a caption.

    The first call compiles it, which takes 0.1 s.
    """
    return re.compile("|".join(_RULES))


@remembered(SHORT)
def tokens(text: str) -> tuple[str, ...]:
    """Split one caption into tokens, in lower case; line breaks count as spaces.

    A telephone number or a markup tag is one token; its spaces become no-break spaces.
    """
    kept_tokens = []
    for match in _token().finditer(text.replace("\n", " ").replace("\u00ad", "")):
        token = match.group().lower()
        if not token.isalnum() or not token.isascii():
            token = _special(token)
        if token:
            kept_tokens.append(token)
    return tuple(kept_tokens)


def _special(token: str) -> str:
    """Write a token's special characters as the PTB tokenizer writes them, such as `-lrb-` for `(`."""
    if token in _WRITTEN:
        return _WRITTEN[token]
    if _CURLY.match(token):
        return token.replace("\u2019", "'")
    return "".join(_WRITTEN.get(sign, sign) if sign in "()" else "\u00a0" if sign in " \t" else sign for sign in token)
