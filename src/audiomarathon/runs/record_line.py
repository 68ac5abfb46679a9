"""Convert records to and from lines of `samples.jsonl`, with a checksum, and check every field.

The audio tokens that a pruner kept are stored as one bit per audio token, in base64 (1.25 kB for 7,500 tokens).

All commands read records with this module, so that each skips the same damaged lines and none fails because of them.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from audiomarathon.errors import RecordError
from audiomarathon.files import sealed, unsealed
from audiomarathon.records import LETTERS, Record

if TYPE_CHECKING:
    import torch

_SEALED = b'{"schema": '  # prefix of lines that end with a checksum
_LARGEST: Final = 1e15  # limit of any number: larger numbers overflow sums, and no measurement comes near
_KINDS: Final = {  # of each field: its type and the types inside, such as ("Mapping", "float"), and whether None fits
    field.name: (tuple(part.rpartition(", ")[2] for part in kind.rstrip("]").split("[")), bool(or_none))
    for field in fields(Record)
    for kind, _, or_none in [str(field.type).partition(" | ")]
}
_UNKNOWN: Final[tuple[tuple[str, ...], bool]] = (), False
_NONE: Final = type(None)
_NUMBERS: Final[Mapping[str, Collection[type]]] = {"int": {int}, "float": {int, float}}
_NEEDED: Final = (
    "id", "error", "cluster", "reply", "reference", "finish", "clip_seconds", "prompt_tokens", "audio_tokens",
    "kept_audio_tokens", "new_tokens", "kv_lengths", "kv_bytes", "peak_memory_bytes", "time",
)  # fmt: skip
_TO_A_BYTE: Final = {"kept_audio_bits": 8, "kept_audio_shares": 1}  # audio tokens in a byte of a packed field
_INSIDE: Final = {  # required names inside fields that are objects
    "time": ("load", "preprocess", "encoder", "llm_prefill", "prefill", "decode"),
    "busy": ("encoder", "llm_prefill", "decode", "steps"),
    "batch": ("samples", "planned", "encoder", "llm_prefill", "decode", "padding", "devices"),
    "forced_decode": ("per_token",),
    "latency": ("first_token", "total"),
}


def to_line(record: Record) -> bytes:
    """Convert a record to a line with its checksum.

    Raises
    ------
    RecordError
        The record has an invalid field, so its line could not be read back.
    """
    content = record.to_json()
    if why := damage_of(content):
        raise RecordError(f"the record of sample {record.id!r} is not stored, since it could not be read back: {why}")
    try:
        return sealed({"schema": 2, **content})
    except ValueError as error:  # such as a NaN in its reference
        raise RecordError(f"the record of sample {record.id!r} cannot be written as JSON: {error}") from error


def from_line(line: bytes) -> Record | None:
    """Convert a line to its record; None if it is damaged.

    Lines written by versions up to commit 8983bac have no checksum; they are accepted if their fields are valid. Newer
    lines begin with `{"schema":`; if such a line has no checksum, its end was lost, so it is damaged.
    """
    content = unsealed(line, always=line.startswith(_SEALED))
    return None if content is None or damage_of(content) else Record.from_json(content)


def damage_of(record: Mapping[str, Any]) -> str:
    """Return what is wrong with the first invalid field of a record, as a text; "" if all fields are valid.

    Fields must have the types that :class:`Record` declares; in the record of a failed sample, any field may be None.
    """
    names = tuple(record)
    numbers, others = _left_open(names, tuple(map(type, record.values())))
    if not numbers or not all(0 <= record[name] < _LARGEST for name in numbers):
        others = names  # rare, or wrong
        needed = ("id", "error") if record.get("error") is not None else _NEEDED
        if lacking := [name for name in needed if name not in record]:
            return f"it has no field {lacking[0]!r}"
    for name in others:
        value, (kind, or_none) = record[name], _KINDS.get(name, _UNKNOWN)
        allowed = record["error"] is not None or (or_none and name != "reply")
        if name == "crc" or (kind and not (allowed if value is None else _fits(kind, name, value))):
            return f"its field {name!r} has a value of the wrong type or range"
    if record.get("time") and None in map(record.get, ("prompt_tokens", "audio_tokens", "new_tokens")):
        return "it has times, but not all of prompt_tokens, audio_tokens and new_tokens"
    try:
        for name, count in _TO_A_BYTE.items():
            if packed := record.get(name):
                _packed(name, packed, record.get("audio_tokens") or 0, count)
    except RecordError as error:
        return str(error)
    return ""


@lru_cache(256)
def _left_open(names: tuple[str, ...], types: tuple[type, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what may still be wrong in an answered sample's record whose fields have these types.

    These are numbers, which may be out of range, and other fields. The records of a run have few combinations of types,
    so this is found once for many. No numbers are returned if a field is missing.
    """
    of = dict(zip(names, types, strict=True))
    if of.get("error") is not _NONE or any(name not in of for name in _NEEDED):
        return (), ()
    numbers, others = [], []
    for name, found in of.items():
        kind, or_none = _KINDS.get(name, _UNKNOWN)
        if found in _NUMBERS.get("".join(kind[:1]), ()):
            numbers.append(name)
        elif not (found is _NONE and or_none and name != "reply") and not (
            found in (str, bool) and kind == (found.__name__,)
        ):
            others.append(name)
    return tuple(numbers), tuple(others)


def _fits(kind: tuple[str, ...], name: str, value: Any) -> bool:
    """Tell whether a value, and each value inside a list or an object, has the type that :class:`Record` declares.

    `kind` is a type, or the type of a list or an object and the `kind` of the values in it.
    """
    outer, *inner = kind
    if inner == ["Any"]:
        return _is_reference(value)
    if inner:
        values = value.values() if isinstance(value, dict) else value
        types = dict if outer == "Mapping" else list
        whole = all(part in value for part in _INSIDE.get(name, ())) if isinstance(value, types) else False
        if whole and {*map(type, values)} <= {*_NUMBERS.get(inner[0], ())}:
            return all(0 <= one < _LARGEST for one in values)
        return whole and all(_fits(tuple(inner), "", one) for one in values)
    if outer in ("str", "bool"):
        return isinstance(value, str if outer == "str" else bool)
    number = int if outer == "int" else (int, float)
    return isinstance(value, number) and not isinstance(value, bool) and 0 <= value < _LARGEST


def _is_reference(value: object) -> bool:
    """Tell whether a value can be a record's `reference`.

    It must be an object; its `options` and `labels`, if it has them, must be lists of texts. If it has both, the lists
    must be equally long, and `answer` must be the letter of an option.
    """
    if not isinstance(value, dict):
        return False
    lists: list[Any] = [value[name] for name in ("options", "labels") if name in value]
    if not all(isinstance(each, list) and all(isinstance(text, str) for text in each) for each in lists):
        return False
    return len(lists) < 2 or (len(lists[0]) == len(lists[1]) and value.get("answer") in [*LETTERS[: len(lists[0])]])


def pack(kept_positions: torch.Tensor, audio_mask: torch.Tensor) -> str:
    """Return which audio tokens of a sample were kept, as one bit per audio token in base64.

    Parameters
    ----------
    kept_positions
        Prompt positions that were kept, on the CPU.
    audio_mask
        Boolean, shape (S,): True at prompt positions that are audio tokens.
    """
    import torch

    audio = audio_mask.cpu().nonzero().flatten()
    kept = torch.isin(audio, kept_positions).numpy()
    return base64.b64encode(np.packbits(kept).tobytes()).decode()


def pack_shares(shares: torch.Tensor, audio_mask: torch.Tensor) -> str:
    """Return the share, 0–1, in which each audio token of a sample was kept, as one byte per audio token in base64.

    Both have the shape (S,).
    """
    kept = (shares.cpu()[audio_mask.cpu()] * 255).round().numpy().astype(np.uint8)
    return base64.b64encode(kept.tobytes()).decode()


def unpack(text: str, audio_tokens: int) -> npt.NDArray[np.bool_]:
    """Read the text that :func:`pack` returned: a boolean per audio token, True if it was kept.

    Raises
    ------
    RecordError
        The text does not hold one bit per audio token.
    """
    packed = _packed("kept_audio_bits", text, audio_tokens)
    return np.unpackbits(np.frombuffer(packed, np.uint8), count=audio_tokens).astype(bool)


def _packed(name: str, text: str, audio_tokens: int, to_a_byte: int = 8) -> bytes:
    """Return the bytes of a record's field; raise an error if they do not hold one item per audio token."""
    try:
        packed = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RecordError(f"{name} of a record cannot be read: {error}") from None
    if len(packed) != -(-audio_tokens // to_a_byte):
        raise RecordError(f"{name} of a record holds {to_a_byte * len(packed)} tokens, expected {audio_tokens}")
    return packed


def heard_tokens(record: Record) -> npt.NDArray[np.bool_] | npt.NDArray[np.float64] | None:
    """Return for each audio token of a sample, without window padding, whether the pruner kept it.

    For an external press, return in what share of layers and heads it kept the token, 0–1. None if the record does not
    say: no pruner, a press of the suite, or a pruner joined with one, whose record holds only the pruner's choice.
    """
    kept = kept_tokens(record)
    if kept is None or (record.kept_audio_bits and kept.sum() != record.kept_audio_tokens):
        return None
    return kept[: len(kept) - record.window_padding_tokens]


def kept_tokens(record: Record) -> npt.NDArray[np.bool_] | npt.NDArray[np.float64] | None:
    """Return what a record says of each audio token, window padding included; None if it says nothing.

    Of a pruner, whether it kept the token; of an external press, in what share of layers and heads.
    """
    tokens = record.audio_tokens or 0
    if record.kept_audio_bits:
        return unpack(record.kept_audio_bits, tokens)
    if record.kept_audio_shares:
        return np.frombuffer(_packed("kept_audio_shares", record.kept_audio_shares, tokens, 1), np.uint8) / 255
    return None


def tokens_within(tokens: int, seconds: float, spans: Iterable[Sequence[float]]) -> npt.NDArray[np.bool_]:
    """Return which of a clip's audio tokens begin within spans of (start, end) seconds; token i of n is at i / n."""
    times, found = np.arange(tokens) * seconds / max(1, tokens), np.zeros(tokens, bool)
    for start, end in spans:
        found |= (times >= start) & (times < end)
    return found
