"""Convert records of samples to and from lines of `samples.jsonl`, with a checksum, and check every field.

Which audio tokens a pruner kept is stored as one bit per audio token, in base64 (1.25 kB for 7,500 tokens).

All commands read records with this module, so that each skips the same damaged lines and none fails because of them.

Nearly all lines of a run are valid, so a line with a checksum is decoded at once to the types that :class:`Record`
declares, by a compiled decoder; only lines that it refuses are checked field by field. Equal references, labels and
cache lengths are held once for all records that a process reads, and times are packed: records take little more memory
than their lines.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import sys
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import numpy as np
import numpy.typing as npt

from audiomarathon.errors import RecordError
from audiomarathon.files import json_object, sealed, sound_text
from audiomarathon.records import LETTERS, STORED, Packed, Record

if TYPE_CHECKING:
    import torch

_SEALED = b'{"schema": '  # prefix of lines that end with a checksum
_LARGEST: Final = 1e15  # limit of any number: larger numbers overflow sums, and no measurement comes near
_KINDS: Final = {  # each field's type, the types inside it, such as ("Mapping", "float"), and whether it may be None
    field.name: (tuple(part.rpartition(", ")[2] for part in kind.rstrip("]").split("[")), bool(or_none))
    for field in fields(Record)
    for kind, _, or_none in [str(field.type).partition(" | ")]
}
_UNKNOWN: Final[tuple[tuple[str, ...], bool]] = (), False
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
_SHARED: Final = ("reference", "groups", "kv_lengths", "batch")  # fields with equal values in many records
_INTERNED: Final = ("id", "cluster", "clips", "finish", "session", "control")  # texts that many records hold
_COUNTS: Final = ("prompt_tokens", "audio_tokens", "kept_audio_tokens", "kv_bytes")  # equal under many settings
_MOST_SHARED: Final = 1 << 18
_SHORT: Final = 32  # longest reply, in characters, that many records may hold, such as the letter of an option
_NO_JUDGEMENTS: Final[Mapping[str, Mapping[str, str | None]]] = {}
_shared: Final[dict[tuple[str, bytes], Any]] = {}


def to_line(record: Record) -> bytes:
    """Convert a record to a line of `samples.jsonl`, with its checksum.

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
    """Convert a line of `samples.jsonl` to a record; None if the line is damaged.

    Lines written by versions up to commit 8983bac have no checksum; they are accepted if their fields are valid. Newer
    lines begin with `{"schema":`; if such a line has no checksum, its end was lost, so it is damaged.
    """
    with_checksum = line.startswith(_SEALED)
    text = sound_text(line, always=with_checksum)
    if text and with_checksum and (record := _decoded(text)):
        return record
    content = None if text is None else json_object(text, strict=True)
    return None if content is None or damage_of(content) else Record.from_json(content)


def _decoded(text: bytes) -> Record | None:
    """Decode the record of an answered sample fast; None if :func:`damage_of`, which is slower, must check the text."""
    decode, errors = _decoder()
    try:
        record = Record(*decode(text))
    except errors:
        return None
    return None if _at_odds(partial(getattr, record)) else record


@cache
def _decoder() -> tuple[Callable[[bytes], Iterable[Any]], tuple[type[Exception], ...]]:
    """Return (function that decodes a line's text to a record's field values, errors that this function raises)."""
    import msgspec

    limits = msgspec.Meta(ge=0, lt=int(_LARGEST))
    count, amount = Annotated[int, limits], Annotated[float, limits]
    numbers: dict[Any, Any] = {int: count, float: count | amount}

    def typed(hint: Any) -> Any:
        inside = tuple(map(typed, typing.get_args(hint)))
        outer: Any = {Sequence: list, Mapping: dict}.get(typing.get_origin(hint), typing.Union)
        return outer[inside] if inside else numbers.get(hint, hint)

    hints = {name: typed(hint) for name, hint in typing.get_type_hints(Record).items()}
    hints |= {"error": None, "reply": str, **dict.fromkeys(_SHARED, msgspec.Raw)}
    absent = msgspec.Raw(b"null")
    defaults = {field.name: absent if field.name in _SHARED else field.default for field in fields(Record)}
    needed = dict.fromkeys(_NEEDED, msgspec.NODEFAULT)
    columns = [(name, hints[name], (defaults | needed)[name]) for name in STORED]
    parse = msgspec.json.Decoder(msgspec.defstruct("Line", columns, kw_only=True)).decode
    shared, interned, counts = (tuple(map(STORED.index, names)) for names in (_SHARED, _INTERNED, _COUNTS))
    once, lengths = dict[int | None, int | None](), dict[float, float]()
    reply, seconds = STORED.index("reply"), STORED.index("clip_seconds")
    packed = [(STORED.index(name), {*parts}) for name, parts in _INSIDE.items() if name not in _SHARED]

    def decode(text: bytes) -> Iterable[Any]:
        values = list(msgspec.structs.astuple(parse(text)))
        for place, parts in packed:
            if (numbers := values[place]) is not None:
                if not parts <= numbers.keys():
                    raise ValueError(STORED[place])
                values[place] = Packed(numbers)
        for place in interned:
            values[place] = values[place] and sys.intern(values[place])
        if len(values[reply] or "") <= _SHORT:
            values[reply] = values[reply] and sys.intern(values[reply])
        if len(once) >= _MOST_SHARED:
            once.clear()
        if len(lengths) >= _MOST_SHARED:
            lengths.clear()
        if isinstance(values[seconds], float):
            values[seconds] = lengths.setdefault(values[seconds], values[seconds])
        for place in counts:
            values[place] = once.setdefault(values[place], values[place])
        for place in shared:
            values[place] = None if values[place] is absent else _share(STORED[place], values[place])
        return [*values, _NO_JUDGEMENTS]

    return decode, (msgspec.MsgspecError, RecursionError, ValueError)


def _share(name: str, text: bytes) -> Any:
    """Parse and check the text of one field of a record; return the field's value.

    Results are cached, so that records with equal text share one value.

    Raises
    ------
    ValueError
        The field has an invalid value.
    """
    key = name, hashlib.blake2b(text, digest_size=16).digest()
    if (known := _shared.get(key, MISSING)) is not MISSING:
        return known
    value, (kind, or_none) = json.loads(bytes(text)), _KINDS[name]
    if not (or_none if value is None else _fits(kind, name, value)):
        raise ValueError(name)
    if isinstance(value, list):  # the layers of a model have few different lengths
        once = {length: length for length in value}
        value = [once[length] for length in value]
    if len(_shared) >= _MOST_SHARED:
        _shared.clear()
    return _shared.setdefault(key, value)


def damage_of(record: Mapping[str, Any]) -> str:
    """Return the fault of the first invalid field of a record's JSON object, as text; "" if all fields are valid.

    Fields must have the types that :class:`Record` declares; in the record of a failed sample, any field may be None.
    """
    needed = ("id", "error") if record.get("error") is not None else _NEEDED
    if lacking := [name for name in needed if name not in record]:
        return f"it has no field {lacking[0]!r}"
    for name, value in record.items():
        kind, or_none = _KINDS.get(name, _UNKNOWN)
        allowed = record["error"] is not None or (or_none and name != "reply")
        if name == "crc" or (kind and not (allowed if value is None else _fits(kind, name, value))):
            return f"its field {name!r} has a value of the wrong type or range"
    return _at_odds(record.get)


def _at_odds(value_of: Callable[[str], Any]) -> str:
    """Return the first contradiction between a record's fields (each valid alone), as text; "" if there is none.

    `value_of` is a function that returns a field's value, given its name.
    """
    if value_of("time") and None in map(value_of, ("prompt_tokens", "audio_tokens", "new_tokens")):
        return "it has times, but not all of prompt_tokens, audio_tokens and new_tokens"
    try:
        for name, count in _TO_A_BYTE.items():
            if packed := value_of(name):
                _packed(name, packed, value_of("audio_tokens") or 0, count)
    except RecordError as error:
        return str(error)
    return ""


def _fits(kind: tuple[str, ...], name: str, value: Any) -> bool:
    """Tell whether a field's value, and each value inside a list or an object, has the declared type.

    `kind` names the type, and for a list or object also the type of its values, such as ("Mapping", "float").
    """
    outer, *inner = kind
    if inner == ["Any"]:
        return _is_reference(value) if name == "reference" else isinstance(value, dict)
    if inner:
        values = value.values() if isinstance(value, dict) else value
        types = dict if outer == "Mapping" else list
        whole = all(part in value for part in _INSIDE.get(name, ())) if isinstance(value, types) else False
        if whole and {*map(type, values)} <= {*_NUMBERS.get(inner[0], ())}:
            return all(0 <= number < _LARGEST for number in values)
        return whole and all(_fits(tuple(inner), "", number) for number in values)
    if outer in ("str", "bool"):
        return isinstance(value, str if outer == "str" else bool)
    number = int if outer == "int" else (int, float)
    return isinstance(value, number) and not isinstance(value, bool) and 0 <= value < _LARGEST


def _is_reference(value: object) -> bool:
    """Tell whether a value can be the `reference` of a record.

    A reference is an object; its `options` and `labels`, if it has them, must be lists of texts. If it has both, the
    lists must be equally long, and `answer` must be the letter of an option.
    """
    if not isinstance(value, dict):
        return False
    lists: list[Any] = [value[name] for name in ("options", "labels") if name in value]
    if not all(isinstance(each, list) and all(isinstance(text, str) for text in each) for each in lists):
        return False
    return len(lists) < 2 or (len(lists[0]) == len(lists[1]) and value.get("answer") in [*LETTERS[: len(lists[0])]])


def pack(kept_positions: torch.Tensor, audio_mask: torch.Tensor) -> str:
    """Encode which audio tokens of a sample were kept: one bit per audio token, in base64.

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
    """Encode the share (0–1) of heads and layers that kept each audio token: one byte per audio token, in base64.

    Both arguments have the shape (S,), S being the prompt's length.
    """
    kept = (shares.cpu()[audio_mask.cpu()] * 255).round().numpy().astype(np.uint8)
    return base64.b64encode(kept.tobytes()).decode()


def unpack(text: str, audio_tokens: int) -> npt.NDArray[np.bool_]:
    """Decode the text that :func:`pack` returned, to a boolean per audio token: True if the token was kept.

    Raises
    ------
    RecordError
        The text does not hold one bit per audio token.
    """
    packed = _packed("kept_audio_bits", text, audio_tokens)
    return np.unpackbits(np.frombuffer(packed, np.uint8), count=audio_tokens).astype(bool)


def _packed(name: str, text: str, audio_tokens: int, to_a_byte: int = 8) -> bytes:
    """Decode a base64 field of a record that holds one item per audio token.

    Raise RecordError if it does not hold that many.

    Parameters
    ----------
    name
        The field's name, for the error.
    to_a_byte
        Number of audio tokens that a byte stands for.
    """
    try:
        packed = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RecordError(f"{name} of a record cannot be read: {error}") from None
    if len(packed) != -(-audio_tokens // to_a_byte):
        raise RecordError(f"{name} of a record holds {to_a_byte * len(packed)} tokens, expected {audio_tokens}")
    return packed


def heard_tokens(record: Record) -> npt.NDArray[np.bool_] | npt.NDArray[np.float64] | None:
    """Return, for each audio token of a sample except window padding, whether the pruner kept it.

    For an external press, return the share (0–1) of layers and heads that kept each token. Return None if the record
    does not say: there was no pruner, or a press of this package, or a pruner joined with a press (the record then
    holds only the pruner's choice).
    """
    kept = kept_tokens(record)
    if kept is None or (record.kept_audio_bits and kept.sum() != record.kept_audio_tokens):
        return None
    return kept[: len(kept) - record.window_padding_tokens]


def kept_tokens(record: Record) -> npt.NDArray[np.bool_] | npt.NDArray[np.float64] | None:
    """Return, for each audio token of a sample (window padding included), whether the pruner kept it.

    For an external press, return the share (0–1) of layers and heads that kept each token. None if the record does not
    say.
    """
    tokens = record.audio_tokens or 0
    if record.kept_audio_bits:
        return unpack(record.kept_audio_bits, tokens)
    if record.kept_audio_shares:
        return np.frombuffer(_packed("kept_audio_shares", record.kept_audio_shares, tokens, 1), np.uint8) / 255
    return None


def tokens_within(tokens: int, seconds: float, spans: Iterable[Sequence[float]]) -> npt.NDArray[np.bool_]:
    """Return, for each of a clip's audio tokens, whether it begins within one of the spans of (start, end) seconds.

    Token i of n begins at i / n of the clip.
    """
    times, within = np.arange(tokens) * seconds / max(1, tokens), np.zeros(tokens, bool)
    for start, end in spans:
        within |= (times >= start) & (times < end)
    return within
