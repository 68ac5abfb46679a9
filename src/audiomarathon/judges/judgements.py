"""Judges' answers about a run's replies: `judgements-<judge>.jsonl`, append-only, one line per answered request.

A judgement belongs to its request: when the reply, the prompt or the protocol changes, the request changes, and the old
judgement no longer counts. This module does not parse a judge's text; protocols (`protocol.py`) do.
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from audiomarathon.errors import RecordError
from audiomarathon.files import MAX_RECORD_BYTES, read_plain, sealed, unsealed
from audiomarathon.judges.protocol import Messages, Protocol, shielded
from audiomarathon.records import Record
from audiomarathon.text import counted

_PREFIX = "judgements-"
#: Allowed names of a judge, since the name is part of a file's name.
NAME = re.compile(r"[\w.-]{1,80}")


_LARGEST = 1e15  # limit of any number: sums of larger numbers overflow
_REPLY = {"text": str, "finish": str, "error": str | None} | dict.fromkeys(("prompt_tokens", "new_tokens"), int | None)
_REPLY |= dict.fromkeys(("seconds", "cost"), int | float | None)  # types of the fields of an answer


@dataclass(frozen=True)
class Request:
    """One question to a judge: chat messages, and the token limit of the answer."""

    messages: Messages
    max_new_tokens: int

    @property
    def hash(self) -> str:
        """Hash of messages and token limit; requests that are equal in both have equal hashes."""
        what = json.dumps([self.messages, self.max_new_tokens], sort_keys=True)
        return hashlib.sha256(what.encode()).hexdigest()


@dataclass(frozen=True)
class Judgement:
    """One answer of a judge: a line of `judgements-<judge>.jsonl`.

    Attributes
    ----------
    judge, identity
        The judge's name, and its identity: back-end, model, fingerprint, sampling.
    protocol, version
        Name and version of the protocol that asked.
    sample
        Id of the judged record; for an anchor (a made-up reply), the id of the record whose reply it replaces.
    request_hash, messages
        The request's hash, and its raw messages.
    text, finish
        The raw answer, and why it ended (`stop`, `length`, …); meaningless after an error.
    error
        Why there is no answer; None after an answer.
    prompt_tokens, new_tokens, seconds, cost
        Counts of tokens, seconds and price of the answer; None if unknown.
    cached
        True if the answer came from the cache.
    """

    judge: str
    protocol: str
    version: str
    sample: str
    request_hash: str
    text: str = ""
    error: str | None = None
    finish: str = ""
    messages: Sequence[Mapping[str, str]] = ()
    identity: Mapping[str, Any] = field(default_factory=dict)
    prompt_tokens: int | None = None
    new_tokens: int | None = None
    seconds: float | None = None
    cost: float | None = None
    cached: bool = False

    def to_line(self) -> bytes:
        """Convert the judgement to a line of its file, with a checksum."""
        return sealed({"schema": 1, **asdict(self)})

    @classmethod
    def from_line(cls, line: bytes) -> Judgement | None:
        """Convert a line of the file to its judgement; None if the line is damaged."""
        content = unsealed(line, always=True) or {}
        known = {
            judgement_field.name: content[judgement_field.name]
            for judgement_field in fields(cls)
            if judgement_field.name in content
        }
        texts = ("judge", "protocol", "version", "sample", "request_hash", "text")
        sound = all(isinstance(content.get(name), str) for name in texts) and is_reply(known)
        return cls(**known) if sound and isinstance(content.get("identity", {}), dict) else None


@dataclass(frozen=True)
class Reading:
    """The values that a protocol read from a judge's answers about a reply, such as a rating.

    Attributes
    ----------
    values
        The values, as {name: value}; None if the judge has not answered, or its answer cannot be read.
    missing
        Why there are no values: `absent` (not judged, or judged before the reply or the prompt changed), `failed` (the
        request failed) or `unreadable`; "" if there are values.
    """

    values: Mapping[str, Any] | None
    missing: str = ""


def is_reply(content: Mapping[str, Any]) -> bool:
    """Tell whether the fields of a stored answer (:class:`Judgement`) have the right types. A field may be missing."""
    return all(
        isinstance(value := content[name], kind)
        and type(value) is not bool
        and (not isinstance(value, int | float) or 0 <= value < _LARGEST)
        for name, kind in _REPLY.items()
        if name in content
    )


def request_of(protocol: Protocol, record: Record) -> Request | None:
    """Make the request that a protocol sends to a judge about a record; None if it asks nothing about this record."""
    messages = protocol.messages(shielded(record, protocol.longest_reply))
    return Request(messages, protocol.max_new_tokens) if messages else None


def second_of(protocol: Protocol, text: str, record: Record) -> Request | None:
    """Make the second request that a judge's first answer (`text`) calls for; None if the first answer suffices."""
    messages = protocol.second(text, shielded(record, protocol.longest_reply))
    return Request(messages, protocol.max_new_tokens) if messages else None


def reading_of(protocol: Protocol, record: Record, said: Mapping[str, str | None]) -> Reading:
    """Return what a judge's answers about one record state, such as a rating, or why it is missing (:class:`Reading`).

    Parameters
    ----------
    said
        The judge's answers, as {hash of the request: answer}; None stands for a failed request.
    """
    shown, request = shielded(record, protocol.longest_reply), request_of(protocol, record)
    if request is None:
        return _read(protocol.read("", shown))
    if (text := said.get(request.hash)) is None:
        return Reading(None, "failed" if request.hash in said else "absent")
    if (second := second_of(protocol, text, record)) is None:
        return _read(protocol.read(text, shown))
    if (answer := said.get(second.hash)) is None:
        return Reading(None, "failed" if second.hash in said else "absent")
    return _read(protocol.read_second(text, answer, shown))


def _read(values: Mapping[str, Any] | None) -> Reading:
    return Reading(values, "" if values is not None else "unreadable")


def judgements_file(folder: Path, judge: str) -> Path:
    """Return the path of the file with a judge's judgements in a run folder."""
    return folder / f"{_PREFIX}{judge}.jsonl"


def judge_of(file: Path) -> str:
    """Return the judge's name, given the file with its judgements."""
    return file.stem.removeprefix(_PREFIX)


def lines_in(file: Path) -> Iterator[Judgement]:
    """Yield the judgements in a file, in order.

    Skip damaged lines with a warning, and an incomplete last line silently.

    Raises
    ------
    RecordError
        The file cannot be read.
    """
    try:
        content = read_plain(file, MAX_RECORD_BYTES)
    except OSError as error:
        raise RecordError(f"{file}: cannot be read: {error.strerror or error}") from error
    odd = 0
    for line in content[: content.rfind(b"\n") + 1].splitlines():
        if (judgement := Judgement.from_line(line)) is None:
            odd += 1
        else:
            yield judgement
    if odd:
        again = "run `audiomarathon judge` again to get the missing answers"
        warnings.warn(f"{file}: {counted(odd, 'unreadable line')} left out; {again}", stacklevel=2)


def read_judgements(folder: Path) -> dict[str, dict[str, dict[str, Judgement]]]:
    """Return a run's judgements as {judge: {sample id: {request hash: judgement}}}.

    If a request has several lines, the last line with an answer counts. A failed request is returned only if it never
    got an answer.
    """
    judgements: dict[str, dict[str, dict[str, Judgement]]] = {}
    for file in sorted(folder.glob(f"{_PREFIX}*.jsonl")):
        if not NAME.fullmatch(judge_of(file)):  # not written by us; in a table such a name might control the terminal
            continue
        of_judge = judgements.setdefault(judge_of(file), {})
        for judgement in lines_in(file):
            of_sample = of_judge.setdefault(judgement.sample, {})
            if judgement.error is None or judgement.request_hash not in of_sample:
                of_sample[judgement.request_hash] = judgement
    return judgements
