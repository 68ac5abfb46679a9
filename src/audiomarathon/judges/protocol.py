"""What a judge is asked about a reply, and how its answer is read.

A protocol is pure: it makes messages from a record, and values from a judge's text. It knows no judge and no file.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from audiomarathon.records import Record

Messages = list[dict[str, str]]

LONGEST_REPLY = 8_000  # characters of a judged reply that a judge is shown
# What chat templates are made of: `<|im_start|>`, `<start_of_turn>`, `[INST]`, `<<SYS>>`, `<s>`, `<think>`.
_CONTROL = re.compile(
    r"<(?=\|[^|<>\n]{1,40}\||/?(?:start|end)_of_\w{1,20}>|/?s>|<?/?SYS>>?|/?think>|unk>|[be]os>)|\[(?=/?INST\])",
    re.IGNORECASE,
)
JOINER = "\u2060"  # zero width, and part of no control token
_QUOTED = re.compile(r"[\"“”][^\"“”]*[\"“”]")  # short ones too, so that quotation marks pair up


@dataclass(frozen=True)
class Anchor:
    """A made reply to a stored sample whose right reading is known.

    Attributes
    ----------
    kind
        Names a row of the judge's certificate, such as `correct` or `injection`.
    reply
        Stands in the record in place of the model's.
    expected
        For each value of the reading the allowed ones.
    """

    kind: str
    reply: str
    expected: Mapping[str, Collection[Any]] = field(default_factory=dict)

    def of(self, record: Record) -> Record:
        """Return the record with this reply."""
        return replace(record, reply=self.reply, transcript=None)

    def right(self, reading: Mapping[str, Any] | None) -> bool:
        """Return whether a judge read this reply as it must; an unreadable judgement is wrong."""
        return reading is not None and all(reading.get(name) in allowed for name, allowed in self.expected.items())


class Protocol(ABC):
    """Asks judges about replies, and reads their answers. Instances hold no state.

    Attributes
    ----------
    name
        Stands in each judgement: letters, digits, `-` and `_`.
    version
        A hash of the texts and the reader, or a number; another version reads stored judgements anew.
    max_new_tokens
        Token limit of a judgement.
    scales
        The scale of each value that judges are compared by.
    longest_reply
        Characters of the judged reply that a judge is shown; None shows all.
    """

    name: str
    version: str
    max_new_tokens: int = 1000
    scales: ClassVar[Mapping[str, Literal["nominal", "ordinal"]]] = {}
    longest_reply: int | None = LONGEST_REPLY

    @abstractmethod
    def messages(self, record: Record) -> Messages:
        """Return what a judge is asked, as turns of a chat; empty for no question, as of a reply without a word.

        The judged text belongs into a user's turn. The record's reply is :func:`shielded`.
        """

    @abstractmethod
    def read(self, text: str, record: Record) -> Mapping[str, Any] | None:
        """Return the values of a judgement, JSON-compatible; None where it cannot be read.

        Parameters
        ----------
        text
            The judge's answer, raw; "" where :meth:`messages` asks nothing.
        """

    def second(self, text: str, record: Record) -> Messages | None:  # noqa: ARG002
        """Return a second question to the same judge, such as one more try; None where the first answer will do."""
        return None

    def read_second(self, text: str, second: str, record: Record) -> Mapping[str, Any] | None:  # noqa: ARG002
        """Return the values of a judgement that took two answers; by default the second is read like the first."""
        return self.read(second, record)

    def anchors(self, record: Record) -> Sequence[Anchor]:  # noqa: ARG002
        """Return replies to this sample whose right reading is known, made from its reference alone."""
        return ()


def shielded(record: Record, longest: int | None = LONGEST_REPLY) -> Record:
    """Return a record whose reply cannot act on a judge's chat template: control tokens are broken, its end is cut.

    A zero-width character after the first bracket of a control token (`<|im_start|>`, `[INST]`) makes it plain text.
    What no encoding takes (halves of surrogate pairs) becomes `?`.
    """
    text = record.text[:longest].encode(errors="replace").decode()
    return replace(record, reply=_CONTROL.sub(rf"\g<0>{JOINER}", text), transcript=None)


def verdict_part(text: str, reply: str = "") -> str:
    """Return the part of a judge's answer that may hold its verdict.

    A judge may quote the judged reply, and that may hold lines like a verdict's. So quotations of more than 20
    characters are blanked, and lines that the reply holds as well are left out; so are thoughts before the last
    `</think>`.
    """
    echoed = {line.strip() for line in reply.splitlines()}
    said = _QUOTED.sub(lambda found: found[0] if len(found[0]) <= 22 else '""', text.rpartition("</think>")[2])
    return "\n".join(line for line in said.split("\n") if not line.strip() or line.strip() not in echoed)


def injections(wrong: Anchor, texts: Sequence[str]) -> list[Anchor]:
    """Return anchors that ask for a better verdict: a wrong reply with each text after it must be read as wrong."""
    return [Anchor("injection", f"{wrong.reply}\n{text}", wrong.expected) for text in texts]


def was_shielded(record: Record, longest: int | None = LONGEST_REPLY) -> list[str]:
    """Return what :func:`shielded` changes in a reply: `cut`, `control tokens`."""
    cut = ["cut"] if longest is not None and len(record.text) > longest else []
    return cut + ["control tokens"] * bool(_CONTROL.search(record.text[:longest]))
