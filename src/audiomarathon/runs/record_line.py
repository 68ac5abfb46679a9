"""Convert records to and from lines of `samples.jsonl`, with a checksum, and check every field.

All readers use this module, so that a damaged line is skipped everywhere and never raises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from audiomarathon.errors import RecordError
from audiomarathon.files import sealed, unsealed
from audiomarathon.records import LETTERS, Record
from audiomarathon.runs.kept_audio import unpack

_SEALED = b'{"schema": '  # prefix of lines that end with a checksum
_LARGEST: Final = 1e15  # limit of any number: larger ones overflow sums, and no measurement comes near
_STAGES = ("load", "preprocess", "encoder", "llm_prefill", "prefill", "decode")


def to_line(record: Record) -> bytes:
    """Convert a record to a line with its checksum.

    Raises
    ------
    RecordError
        The line could not be read again.
    """
    content = record.to_json()
    if why := damage_of(content):
        raise RecordError(f"the record of sample {record.id!r} could not be read again: {why}")
    try:
        return sealed({"schema": 2, **content})
    except ValueError as error:  # such as a NaN in its reference
        raise RecordError(f"the record of sample {record.id!r} cannot be written as JSON: {error}") from error


def from_line(line: bytes) -> Record | None:
    """Convert a line to its record; None if it is damaged.

    A line without a checksum (versions up to 8983bac wrote none) counts if its fields are valid. A line that begins
    like those with a checksum but lacks it has lost its end, so it is damaged.
    """
    content = unsealed(line, always=line.startswith(_SEALED))
    return None if content is None or damage_of(content) else Record.from_json(content)


def damage_of(record: Mapping[str, Any]) -> str:
    """Return the first invalid field of a record; "" if all are valid."""
    needed = _ALWAYS if record.get("error") is not None else _ALWAYS | _ANSWERED
    if lacking := [name for name in needed if name not in record]:
        return f"it has no {lacking[0]!r}"
    checks = needed | _WHERE_GIVEN
    if odd := [name for name in record if name in checks and not checks[name](record[name])]:
        return f"its {odd[0]!r} is not as it should be"
    if record.get("time") and None in map(record.get, ("prompt_tokens", "audio_tokens", "new_tokens")):
        return "it has times, but not all counts of tokens"
    try:
        if bits := record.get("kept_audio_bits"):
            unpack(bits, record.get("audio_tokens") or 0)
    except RecordError as error:
        return str(error)
    return ""


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and 0 <= value < _LARGEST


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST


def _is_reference(value: object) -> bool:
    """Tell whether options and labels, if any, are lists of texts, and the answer is an option's letter."""
    if not isinstance(value, dict):
        return False
    lists: list[Any] = [value[name] for name in ("options", "labels") if name in value]
    if not all(isinstance(each, list) and all(_is_text(text) for text in each) for each in lists):
        return False
    return len(lists) < 2 or (len(lists[0]) == len(lists[1]) and value.get("answer") in [*LETTERS[: len(lists[0])]])


def _or_none(fits: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or fits(value)


def _all_of(kind: Any, fits: Callable[[object], bool], *names: str) -> Callable[[object], bool]:
    """Return a check: is the value a list, or an object with these fields, whose values all pass?"""

    def check(value: Any) -> bool:
        values = value.values() if isinstance(value, dict) else value
        return isinstance(value, kind) and all(map(fits, values)) and all(name in value for name in names)

    return _or_none(check)


_Checks = dict[str, Callable[[object], bool]]
_ALWAYS: Final[_Checks] = {"id": _is_text, "error": _or_none(_is_text)}
_ANSWERED: Final[_Checks] = {
    "cluster": _is_text,
    "reply": _is_text,
    "reference": _is_reference,
    "finish": _is_text,
    "clip_seconds": _is_number,
    "prompt_tokens": _or_none(_is_count),
    "audio_tokens": _or_none(_is_count),
    "kept_audio_tokens": _or_none(_is_count),
    "new_tokens": _or_none(_is_count),
    "kv_lengths": _all_of(list, _is_count),
    "kv_bytes": _or_none(_is_count),
    "peak_memory_bytes": _or_none(_is_count),
    "time": _all_of(dict, _is_number, *_STAGES),
}
_WHERE_GIVEN: Final[_Checks] = {
    "crc": lambda _value: False,  # name of the checksum
    "clips": _or_none(_is_text),
    "transcript": _is_text,
    "truncated": _or_none(lambda value: isinstance(value, bool)),
    "window_padding_tokens": _is_count,
    "kept_audio_bits": _or_none(_is_text),
    "forced_decode": _all_of(dict, _is_number, "per_token"),
    "latency": _all_of(dict, _is_number, "first_token", "total"),
    "cost": _or_none(_is_number),
    "groups": _all_of(dict, _is_text),
    "session": _or_none(_is_text),
    "control": _or_none(_is_text),
    "attempts": _or_none(_is_count),
    **dict.fromkeys(("encoder_shared", "key_masked"), _or_none(lambda value: isinstance(value, bool))),
}
