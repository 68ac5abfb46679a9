"""Tell whether a reply contains one of the given keywords."""

from __future__ import annotations

import re
from functools import lru_cache

from audiomarathon.benchmarks.rows import words_of


def names_keyword(reply: str, keywords: str) -> bool:
    """Tell whether a reply contains a keyword of a comma-separated list, as whole words, singular or plural."""
    wanted = _pattern(keywords)
    return wanted is not None and wanted.search(_spaced(reply)) is not None


@lru_cache(4096)  # survival compares each reply with every clip's keywords
def _spaced(text: str) -> str:
    return " ".join(words_of(text))


@lru_cache(4096)
def _pattern(keywords: str) -> re.Pattern[str] | None:
    wanted = [pattern for keyword in keywords.split(",") if (pattern := _spaced(keyword))]
    return re.compile(rf"\b(?:{'|'.join(wanted)})(?:e?s)?\b") if wanted else None
