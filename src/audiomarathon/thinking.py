"""Remove a model's thinking from its reply: what it writes between markers such as `<think>` before it answers."""

from __future__ import annotations

import re

from audiomarathon.text import remembered

_NAME = r"(?:(?:(?:seed|mm):|longcat_|ant)?think(?:ing)?|thoughts?|reasoning|reflection|analysis|scratchpad|cot)"
_LT, _GT = r"(?:<|&lt;)\s*", r"\s*(?:>|&gt;)"
#: Markers of Qwen, DeepSeek and others (`<think>`), Mistral (`[THINK]`), Kimi (`◁think▷`), Cohere, Gemma and gpt-oss.
#: The last become `analysis…assistantfinal…` if special tokens are left out.
_MARKER = re.compile(
    rf"(?P<empty>{_LT}{_NAME}\s*/{_GT})"
    rf"|(?P<open>{_LT}{_NAME}\b[^<>/\\&]{{0,80}}{_GT}|\[think(?:ing)?\]|◁think▷|<\|(?:start_)?think(?:ing)?\|>"
    r"|<\|begin_of_thought\|>|<\|inner_prefix\|>|(?:<\|start\|>\s*assistant\s*)?<\|channel\|>\s*(?:analysis|commentary)"
    r"|<\|channel>\s*thought|<unused94>(?:thought\b)?|\A\s*(?-i:analysis)(?=(?-i:[A-Z])))"
    rf"|(?P<close>{_LT}[/\\]\s*{_NAME}{_GT}|\[/think(?:ing)?\]|◁/think▷|<\|end_think(?:ing)?\|>(?:\s*<\|start_response\|>)?"
    r"|<\|/think(?:ing)?\|>|<\|end_of_thought\|>|<\|inner_suffix\|>"
    r"|(?:<\|start\|>\s*assistant\s*)?<\|channel\|>\s*final\b(?:[^<]{0,80}<\|message\|>)?|<channel\|>|<unused95>"
    r"|(?-i:assistantfinal))",
    re.IGNORECASE,
)
_END = re.compile(r"(?:<\|(?:return|end|end_response)\|>|<turn\|>)\s*\Z", re.IGNORECASE)


@remembered(2_000)
def without_thinking(reply: str) -> str:
    """Return a reply without the model's thinking; a reply without markers of thinking is returned unchanged.

    Text before a closing marker that was never opened is thinking too, since some chat templates write the opening
    marker into the prompt. If the last marker is never closed, all text after it is thinking.
    """
    spans = _spans(reply)
    if spans == [(0, len(reply))]:
        return reply
    return _END.sub("", "".join(reply[start:end] for start, end in spans)).strip()


def begin_of_text(reply: str) -> int | None:
    """Return the index of the first visible character of a reply that is not thinking; None if there is none."""
    for start, end in _spans(reply):
        if text := reply[start:end].lstrip():
            return end - len(text)
    return None


def _spans(reply: str) -> list[tuple[int, int]]:
    """Return the parts of a reply that are not thinking, as pairs of start and end (exclusive)."""
    kept: list[tuple[int, int]] = []
    start, inside = 0, False
    for marker in _MARKER.finditer(reply):
        if not inside:
            kept.append((start, marker.start()))
        if marker["close"] and not inside:
            kept.clear()
        inside, start = bool(marker["open"]), marker.end()
    return kept if inside else [*kept, (start, len(reply))]
