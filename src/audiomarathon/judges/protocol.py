"""What a judge is asked about a reply, and how its answer is read.

A protocol is pure: it makes messages from a record, and values from a judge's text. It knows no judge and no file.
"""

from __future__ import annotations

import re
import unicodedata
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
_LEAD = r"^[ \t>*_#\-•]*+"  # of a line: white space, quotation, emphasis, heading, bullet
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


def last_verdict(label: str, values: str, text: str, reply: str, *, worst: Collection[str] = ()) -> str | None:
    """Return the last value that a judge's answer states in a line `LABEL: VALUE`, in lower case; None without one.

    It is None too where the reply states that value anywhere: the judge may have copied it after its own verdict. The
    value before does not count instead, since the last may be the judge's own. So no reply chooses its own verdict; nor
    does one that states low values be rid of them, since no reply gains by a judge that copies its `worst` ones.

    Parameters
    ----------
    label, values
        Regular expressions; a look-ahead in `values` says what may follow. Case does not matter.
    worst
        Values, in lower case, that count although the reply states them.
    """
    line = rf"{_LEAD}{label}[\s*_]*+[:=][\s*_(]*+({values})"
    found = re.findall(line, verdict_part(text), re.IGNORECASE | re.MULTILINE)
    # In any spelling that a judge might tidy up: other colons, emphasis, characters of no width.
    plain = "".join(one for one in unicodedata.normalize("NFKC", reply) if unicodedata.category(one) != "Cf")
    copied = re.findall(rf"(?<![^\W_]){label}[\W_]*+({values})", plain, re.IGNORECASE | re.MULTILINE)
    dubious = set(map(str.lower, copied)) - set(worst)
    return found[-1].lower() if found and found[-1].lower() not in dubious else None


def verdict_part(text: str) -> str:
    """Return a judge's answer without thoughts before the last `</think>`, and with long quotations blanked.

    A quotation of more than 20 characters may be of the judged reply, and hold lines like a verdict's.
    """
    return _QUOTED.sub(lambda found: found[0] if len(found[0]) <= 22 else '""', text.rpartition("</think>")[2])


def asked_again(protocol: Protocol, text: str, record: Record, request: str) -> Messages | None:
    """Return the first question, its answer and one more request; None where every value of the answer was read."""
    if None not in (protocol.read(text, record) or {"": None}).values():
        return None
    turns = [{"role": "assistant", "content": text}, {"role": "user", "content": request}]
    return [*protocol.messages(record), *turns]


def completed(first: Mapping[str, Any] | None, second: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the values of an answer, those that it lacks from a second one; None where neither was read."""
    if first is None or second is None:
        return dict(first or second or {}) or None
    return {name: value if value is not None else second[name] for name, value in first.items()}


def injections(wrong: Anchor, texts: Sequence[str]) -> list[Anchor]:
    """Return anchors that ask for a better verdict: a wrong reply with each text after it must be read as wrong."""
    return [Anchor("injection", f"{wrong.reply}\n{text}", wrong.expected) for text in texts]


def was_shielded(record: Record, longest: int | None = LONGEST_REPLY) -> list[str]:
    """Return what :func:`shielded` changes in a reply: `cut`, `control tokens`."""
    cut = ["cut"] if longest is not None and len(record.text) > longest else []
    return cut + ["control tokens"] * bool(_CONTROL.search(record.text[:longest]))
