"""Normalise transcripts before they are compared: in English by Whisper's rules, in other languages by fewer rules.

The English normaliser (A. Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision", appendix C)
makes "He's one hundred!" and "he is 100" the same. Other languages keep every letter with its marks, and lose only
case, punctuation and bracketed text. Languages written without spaces are compared by characters.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

from audiomarathon.languages import BY_CHARACTERS
from audiomarathon.text import remembered, same_marks

if TYPE_CHECKING:
    from whisper_normalizer.english import EnglishTextNormalizer

# Signs that NFKD turns into full stops, which the English normaliser keeps as words, and letters used as double quotes.
_SIGNS = str.maketrans(dict.fromkeys("…‥︙︰ʺˮ", " ") | dict.fromkeys("․．﹒", "."))
_TURKIC = str.maketrans({"İ": "i", "I": "ı"})  # Python lower-cases these two as in English
_LOST = frozenset("œøæßđðþłŒØÆẞĐÐÞŁ")  # letters that the English normaliser replaces by others
_BRACKETED = re.compile(r"[<\[][^>\]]*[>\]]|\([^)]+\)")  # as in Whisper's normalisers

WHOLE_CHARACTERS = 20_000  # four minutes of speech are under 5,000
PIECE_CHARACTERS = 2_000


def units_of(text: str, language: str) -> str:
    """Return a text's normalised words, or its characters for a language written without spaces, parted by spaces.

    Languages without spaces are :data:`audiomarathon.languages.BY_CHARACTERS`. English uses :func:`normalise`. For any
    other language, remove text in brackets, punctuation and symbols, and convert the rest to lower case. This is
    Whisper's basic normaliser, except that marks (Unicode's category M) are kept: they are vowels in Thai and Hindi,
    and tell schon from schön. Characters are Unicode code points after composition (NFKC), without white space.

    Parameters
    ----------
    language
        One of :data:`audiomarathon.languages.LANGUAGES`.
    """
    if language == "en":
        return normalise(text)
    text = same_marks(text)
    text = _BRACKETED.sub("", (text.translate(_TURKIC) if language in ("tr", "az") else text).lower())
    text = unicodedata.normalize("NFKC", text).lower()
    kept = "".join(" " if unicodedata.category(character)[0] in "SP" else character for character in text)
    return " ".join("".join(kept.split()) if language in BY_CHARACTERS else kept.split())


def needs_language(text: str) -> bool:
    """Tell whether English rules would misread a text: it has letters with marks, or letters that are not Latin."""
    return not text.isascii() and any(
        character in _LOST or not unicodedata.name(character, "LATIN").startswith("LATIN")
        for character in unicodedata.normalize("NFD", same_marks(text))
        if unicodedata.category(character)[0] in "LM"
    )


def released(text: str) -> str:
    """Normalise a text as Whisper's unchanged English normaliser does; only the ASCII apostrophe is an apostrophe."""
    return _in_english(text)


def normalise(text: str) -> str:
    """Normalise an English text: unify apostrophes, remove invisible characters, then apply Whisper's normaliser."""
    return _in_english(same_marks(text).translate(_SIGNS))


@remembered(10_000)  # all settings share the references, and most replies to a sample are equal
def _in_english(text: str) -> str:
    """Return an English text as Whisper's normaliser writes it, computed in a way that is fast on long or odd texts.

    Whisper's patterns take quadratic time on runs of spaces or open brackets, and it fails on numbers of thousands of
    digits. So collapse white space first, which does not change the result. Normalise a text of over 20,000 characters,
    or one that fails, in pieces of at most 2,000, cut between words if possible. Only such a cut can split a spelt-out
    number or a bracket. The longest reply then takes seconds, not hours.
    """
    text = " ".join(text.split())
    normaliser = _normaliser()
    if len(text) <= WHOLE_CHARACTERS:
        try:
            return str(normaliser(text)).strip()
        except (AssertionError, ValueError):  # int() refuses more than 4,300 digits
            pass
    return " ".join(" ".join(str(normaliser(piece)) for piece in _pieces(text)).split())


@cache
def _normaliser() -> EnglishTextNormalizer:
    from whisper_normalizer.english import EnglishTextNormalizer

    return EnglishTextNormalizer()


def _pieces(text: str) -> Iterator[str]:
    piece = ""
    for long_word in text.split(" "):
        for start in range(0, len(long_word), PIECE_CHARACTERS):
            word = long_word[start : start + PIECE_CHARACTERS]
            if len(piece) + 1 + len(word) > PIECE_CHARACTERS:
                yield piece
                piece = word
            else:
                piece = f"{piece} {word}"
    yield piece
