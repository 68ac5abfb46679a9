"""A judge that follows rules, to try commands without a model: it counts words of the reference answer in the reply."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from audiomarathon.judges.judge import Judge, Reply
from audiomarathon.judges.judgements import Request

_PARTS = r"^\[?(?:Model|Reference) (?:Answer|Prediction|Response)\]?:?\s+(.+?)$"
_FORMAT = re.compile(r"formatt?e?d?\b[^\n]*as follows:|Format your response as:", re.IGNORECASE)
_LINE = re.compile(r"^(\w+): (.*)$", re.MULTILINE)


class ToyJudge(Judge):
    """A toy judge that counts the reference's words in the reply. It is no model, and anchors show that it is weak."""

    key, on_gpu = "toy", False

    def identity(self) -> Mapping[str, Any]:
        """Return everything that the judge's answers depend on: the back-end's name and the version of its rules."""
        return {"backend": "rules", "model": self.key, "version": 1}

    def ask(self, requests: Sequence[Request]) -> Iterator[tuple[Request, Reply]]:
        """Yield each request with an answer by rules: how many of the reference's words are in the reply."""
        for request in requests:
            yield request, Reply(answer(request.messages[-1]["content"]), "stop")


def answer(question: str) -> str:
    """Return the toy judge's answer to a question, in the form that the question asks for.

    The form is the lines after "format", each with a value. A line whose hint has names with slashes gets one of the
    names, the last for a reply without a word of the reference. Every other line that asks for a number gets the share
    of the reference's words in the reply, on the question's scale. A question in another form gets an answer that no
    protocol can read.
    """
    texts = re.findall(_PARTS, question, re.MULTILINE)
    form = _FORMAT.search(question)
    if len(texts) < 2 or not form:
        return "the toy judge cannot answer questions of this form"
    reference, reply = ({*re.findall(r"\w+", text.lower())} for text in (texts[0], texts[-1]))
    share = len(reference & reply) / max(1, len(reference))
    scale = re.search(r"(\d)-(\d)", question) if "from 1" in question else None
    low, high = map(int, scale.groups()) if scale else (0, 2)
    lines = []
    for label, hint in _LINE.findall(question[form.end() :]):
        names = hint.split("/")
        if len(names) > 2 and " " not in hint:
            lines.append(f"{label}: {names[-2] if share > 0.5 else names[0] if share else names[-1]}")
        elif "score" in hint or hint == "(int)":
            lines.append(f"{label}: {low + round(share * (high - low))}")
    return "\n".join(lines)
