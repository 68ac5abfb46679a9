"""The visible text of a reply: without thinking, special tokens, markup, and quotations of what was spoken."""

from __future__ import annotations

import json
import re
import unicodedata

from audiomarathon.text import same_marks
from audiomarathon.thinking import without_thinking

EDGE_CHARACTERS = 4000
#: Characters of Chinese, Japanese and Korean, for a class of a regular expression.
CJK = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"

_END = re.compile(
    r"<\|(?:im_end|end|eot_id|endoftext|end_of_text|return|user)\|>|</s>|<eos>|<end_of_turn>|<turn\|>|\[INST\]"
)
_NEXT = re.compile(
    r"\n[\W_]*(?:(?:next|new|another)\s+)?(?:question|q|example|exercise|problem|instruction|input|user|human|frage"
    r"|pregunta|下一题|下一个问题|问题|题目|質問|질문)\b[\s\d]*[:.)\n]",
    re.IGNORECASE,
)
_ASKED = re.compile(r"\A\W*Q(?:uestion)?\s*[:.].*?(?:\n|\?\s*)A(?:nswer)?\s*[:.]", re.DOTALL | re.IGNORECASE)
_MARKUP = re.compile(
    r"<\|[^|<>]{0,40}\|>|</?(?:[a-z]|[A-Za-z_-]{2,20})(?:\s[^<>]{0,80})?/?>"  # <|start|>, <answer>, </b>; not <B>
    r"|\\(?:boxed|fbox|text\w*|math\w*|bf|rm|quad)\b|\\[()\[\],;]|(?m:^\s*(?:[#•]+|[->*+](?=\s))\s*)|```(?:json)?"
    r"|~~[^~]*~~|[*`\"“”„«»‹›$「」『』【】《》〈〉]|(?<!\w)['_]+|['_]+(?!\w)"
)
_NO_WORDS = re.compile(r"[\W_]{101,}")
_CJK_EDGE = re.compile(rf"(?<=[{CJK}])(?=[A-Za-z0-9])|(?<=[A-Za-z0-9])(?=[{CJK}])")
_FLAT = re.compile(r"(?<![^\W_])([A-G])b(?![^\W_])")
_SHARP = re.compile(r"(?<![^\W_])([A-Ga-g])#(?!\w)")
_QUOTE = '"“”„«»「」『』'
#: A quotation of four words or more, or of ten characters without spaces.
QUOTED = re.compile(rf"[{_QUOTE}]((?:[^\s{_QUOTE}]+\s+){{3,}}[^{_QUOTE}]*|[^\s{_QUOTE}]{{10,}})[{_QUOTE}]")
#: Fields of a reply in JSON that state the answer.
_FIELDS = ("answer", "final_answer", "correct_answer", "choice", "option", "letter", "label", "prediction", "text")

BRACKETS = str.maketrans("[]{}", "()()")


def normal(text: str) -> str:
    """Return a text with look-alike characters replaced, and with accidentals as words: C♯ and C# become "C sharp"."""
    text = unicodedata.normalize("NFKC", same_marks(text)).replace("♭", " flat").replace("♯", " sharp")
    return _FLAT.sub(r"\1 flat", _SHARP.sub(r"\1 sharp", text))


def visible(reply: str) -> str:
    """Return a reply's text without the model's thinking, and with look-alike characters replaced.

    Of a very long reply, and of a long run of characters that are no letters or digits, only the start and the end are
    kept.
    """
    parts = _END.split(without_thinking(reply))
    text = normal(next((part for part in parts if part.strip()), "")).strip()
    # A long reply answers at its start or end; the cut bounds the time that a degenerate reply can cost.
    text = text if len(text) <= 2 * EDGE_CHARACTERS else f"{text[:EDGE_CHARACTERS]}\n{text[-EDGE_CHARACTERS:]}"
    # Thousands of line breaks say nothing, but every pattern that starts with some would be tried at each of them.
    return _NO_WORDS.sub(lambda run: run[0][:50] + run[0][-50:], text)


def before_next(text: str) -> str:
    """Cut a visible text at the next question, which some models write themselves, and remove a leading "Q: … A:"."""
    return _NEXT.split(_ASKED.sub("", text), maxsplit=1)[0]


def stated(text: str) -> str:
    """Return the answer in a reply that is JSON, as text; return any other reply unchanged."""
    match = re.search(r"\{.*\}", text, re.DOTALL)
    try:
        content = json.loads(match[0]) if match else None
    except (ValueError, RecursionError):
        return text
    fields = {str(name).casefold().replace(" ", "_"): value for name, value in content.items()} if content else {}
    values = [str(fields[name]) for name in _FIELDS if isinstance(fields.get(name), str | int | float)]
    return ". ".join(values) if values else text


def plain(text: str) -> str:
    """Remove markup and emoji from a reply, and turn all brackets into round ones."""
    text = "".join(" " if ord(char) > 0x2190 and unicodedata.category(char) == "So" else char for char in text)  # ✅
    text = re.sub(
        r"\b(?:none|nothing|anything|anyone) other than\b|\bno reason not to\b", "exactly", text, flags=re.IGNORECASE
    )
    text = re.sub(r"<([A-Z])>", r"(\1)", _MARKUP.sub(lambda match: " " if match[0][0] == "<" else "", text))
    return _CJK_EDGE.sub(" ", text).translate(BRACKETS)
