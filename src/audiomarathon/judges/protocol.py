"""The interface of protocols: which questions to ask a judge about a reply, and how to read its answers.

A protocol has no side effects: it turns a record into chat messages, and a judge's text into values such as a rating.
It uses no judge and no file.
"""

from __future__ import annotations

import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from audiomarathon.records import Record
from audiomarathon.text import JOINER
from audiomarathon.thinking import without_thinking

Messages = list[dict[str, str]]

LONGEST_REPLY = 8_000  # number of characters of a reply that a judge sees
# Control tokens of chat templates: `<|im_start|>`, `<start_of_turn>`, `[INST]`, `<<SYS>>`, `<s>`, `<think>`.
_CONTROL = re.compile(
    r"<(?=\|[^|<>\n]{1,40}\||/?(?:start|end)_of_\w{1,20}>|/?s>|<?/?SYS>>?|/?think>|unk>|[be]os>)|\[(?=/?INST\])",
    re.IGNORECASE,
)
_LEAD = r"^[ \t>*_#\-•]*+"  # start of a line: white space, quotation, emphasis, heading, bullet
_QUOTED = re.compile(r"[\"“”][^\"“”]*[\"“”]")  # short quotations too, so that quotation marks pair up


@dataclass(frozen=True)
class Anchor:
    """An artificial reply to a stored sample, which tests a judge because the right judgement is known.

    Attributes
    ----------
    kind
        Kind of anchor, such as `correct` or `injection`; the judge's certificate counts each kind.
    reply
        The text that replaces the model's reply in the record.
    expected
        The right judgement, as {name of a value, such as `rating`: the values that count as right}.
    """

    kind: str
    reply: str
    expected: Mapping[str, Collection[Any]] = field(default_factory=dict)

    def of(self, record: Record) -> Record:
        """Return a copy of the record with the anchor's reply in place of the model's."""
        return replace(record, reply=self.reply, transcript=None)

    def right(self, reading: Mapping[str, Any] | None) -> bool:
        """Tell whether a judge judged this anchor correctly, given the values read from its answer.

        An unreadable answer (None) counts as wrong.
        """
        return reading is not None and all(reading.get(name) in allowed for name, allowed in self.expected.items())


class Protocol(ABC):
    """Makes the questions to judges about replies, and reads the answers. Instances hold no state.

    Attributes
    ----------
    name
        Name of the protocol, written into each judgement: letters, digits, `-` and `_`.
    version
        A number, or a hash of the question's text and the code that reads answers. When it changes, stored judgements
        are read again.
    max_new_tokens
        Token limit of a judge's answer.
    scales
        The values for which agreement between judges is measured, as {name: "nominal" or "ordinal"}.
    longest_reply
        Number of characters of the reply that a judge sees; None shows all.
    """

    name: str
    version: str
    max_new_tokens: int = 1000
    scales: ClassVar[Mapping[str, Literal["nominal", "ordinal"]]] = {}
    longest_reply: int | None = LONGEST_REPLY

    @abstractmethod
    def messages(self, record: Record) -> Messages:
        """Return the question to a judge about a record, as chat messages; [] to ask nothing, as for an empty reply.

        Put the reply into a user's message. The record was already made harmless by :func:`shielded`.
        """

    @abstractmethod
    def read(self, text: str, record: Record) -> Mapping[str, Any] | None:
        """Return the values that a judge's answer states, such as a rating, for JSON; None if the answer is unreadable.

        Parameters
        ----------
        text
            The judge's raw answer; "" if :meth:`messages` asks nothing.
        """

    def second(self, text: str, record: Record) -> Messages | None:  # noqa: ARG002
        """Return a second question to the judge, such as a retry; None if its first answer `text` suffices."""
        return None

    def read_second(self, text: str, second: str, record: Record) -> Mapping[str, Any] | None:  # noqa: ARG002
        """Return the values that a judge's two answers state; by default only the second answer counts."""
        return self.read(second, record)

    def anchors(self, record: Record) -> Sequence[Anchor]:  # noqa: ARG002
        """Return anchors for a sample: artificial replies with a known right judgement, made from its reference."""
        return ()


def shielded(record: Record, longest: int | None = LONGEST_REPLY) -> Record:
    """Make a reply harmless to a judge's chat template: break control tokens, and keep `longest` characters.

    A zero-width character after the first bracket of a control token (`<|im_start|>`, `[INST]`) makes it plain text.
    Lone surrogates, which cannot be encoded, become `?`.
    """
    text = record.text[:longest].encode(errors="replace").decode()
    return replace(record, reply=_CONTROL.sub(rf"\g<0>{JOINER}", text), transcript=None)


def last_verdict(label: str, values: str, text: str, reply: str, *, worst: Collection[str] = ()) -> str | None:
    """Return VALUE from the last line `LABEL: VALUE` of a judge's answer, in lower case; None if there is no such line.

    Also return None if the judged reply itself states this value after LABEL, since the judge may have copied it. An
    earlier line of the judge is not used instead. So a reply cannot choose its own verdict. Values in `worst` always
    count, so a reply cannot avoid a low verdict by stating it.

    Parameters
    ----------
    label, values
        Regular expressions that match LABEL and VALUE, ignoring case; a look-ahead in `values` can limit the text
        after VALUE.
    text, reply
        The judge's answer, and the judged reply.
    worst
        Values, in lower case, that count even if the reply states them.
    """
    line = rf"{_LEAD}{label}[\s*_]*+[:=][\s*_(]*+({values})"
    verdicts = re.findall(line, verdict_part(text), re.IGNORECASE | re.MULTILINE)
    # Any spelling that a judge might tidy up: other colons, emphasis, zero-width characters.
    plain = "".join(
        character for character in unicodedata.normalize("NFKC", reply) if unicodedata.category(character) != "Cf"
    )
    copied = re.findall(rf"(?<![^\W_]){label}[\W_]*+({values})", plain, re.IGNORECASE | re.MULTILINE)
    dubious = set(map(str.lower, copied)) - set(worst)
    return verdicts[-1].lower() if verdicts and verdicts[-1].lower() not in dubious else None


def verdict_part(text: str) -> str:
    """Return the part of a judge's answer that may hold its verdict: without thinking or the text of long quotations.

    A quotation of more than 20 characters may come from the judged reply, and contain a line that looks like a verdict.
    """
    return _QUOTED.sub(lambda match: match[0] if len(match[0]) <= 22 else '""', without_thinking(text))


def asked_again(protocol: Protocol, text: str, record: Record, request: str) -> Messages | None:
    """Make the messages that ask a judge again: the first question, the judge's answer (`text`), and `request`.

    None if every value could be read from the first answer.
    """
    if None not in (protocol.read(text, record) or {"": None}).values():
        return None
    turns = [{"role": "assistant", "content": text}, {"role": "user", "content": request}]
    return [*protocol.messages(record), *turns]


def completed(first: Mapping[str, Any] | None, second: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Merge the values read from a judge's two answers: where a value of the first is None, the second's counts.

    None if neither answer could be read.
    """
    if first is None or second is None:
        return dict(first or second or {}) or None
    return {name: value if value is not None else second[name] for name, value in first.items()}


def injections(wrong: Anchor, texts: Sequence[str]) -> list[Anchor]:
    """Make one prompt-injection anchor per text: a wrong reply followed by the text must still be judged wrong."""
    return [Anchor("injection", f"{wrong.reply}\n{text}", wrong.expected) for text in texts]


def was_shielded(record: Record, longest: int | None = LONGEST_REPLY) -> list[str]:
    """Return what :func:`shielded` changes in a record's reply: a list of `cut` and `control tokens`, or []."""
    cut = ["cut"] if longest is not None and len(record.text) > longest else []
    return cut + ["control tokens"] * bool(_CONTROL.search(record.text[:longest]))
